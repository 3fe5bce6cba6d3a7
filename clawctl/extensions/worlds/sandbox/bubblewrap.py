"""Sandboxes made by bubblewrap. Its arguments set the visible files and the user. As root, each sandbox runs as a separate user."""

import asyncio
import json
import os
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.cgroups import ControlGroup, make_group
from clawctl.extensions.worlds.sandbox.plan import HOME, INSIDE, INSIDE_TEXT, TOOLS, SandboxFailed, SandboxPlan, Started, mode_of
from clawctl.extensions.worlds.sandbox.seccomp import refused_calls

_START_S = 30.0
ROOTS = tuple(Path("/") / name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"))  # system folders besides /usr
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "localtime")
_NAMES = ("127.0.0.1 localhost sandbox\n::1 localhost\n", "passwd: files\ngroup: files\nhosts: files dns\n")
_CAN_MOUNT, _USERS, _FIRST_USER = 21, 4336, 61184  # the bit of CAP_SYS_ADMIN; systemd's range of users without an account
_number = count(os.getpid() * 16)
CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "FOWNER", "DAC_OVERRIDE")  # capabilities of process 1 if it runs as root


@dataclass(slots=True)
class BubblewrapArguments:
    """The arguments of bubblewrap, the file descriptors that they name, and the user of the commands."""

    arguments: list[str]
    user: int | None  # the user of the commands if process 1 runs as root; None: they share the user of process 1
    descriptors: list[int] = field(default_factory=list)
    made: set[Path] = field(default_factory=lambda: {Path("/")})

    def add(self, option: str, *paths: str, mode: str | None = None, size: int | None = None) -> None:
        """Add one option for the path `words[-1]`. Create its parents first, because bubblewrap makes missing ones root-only."""
        for parent in reversed(Path(paths[-1]).parents):
            if parent not in self.made and not str(parent).startswith(("/usr", "/dev", "/proc")):
                self.made.add(parent)
                self.arguments += ["--perms", "0755", "--dir", str(parent)]
        self.arguments += [*(("--perms", mode) if mode else ()), *(("--size", str(size)) if size else ()), option, *paths]

    def data(self, content: bytes) -> str:
        """Create an unnamed file with this content. Returns its descriptor."""
        descriptor = os.memfd_create("clawctl")
        self.descriptors.append(descriptor)
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def find_bubblewrap() -> str:
    """The path of `bwrap`. Raises ClawError (exit code 2) if it is not installed."""
    path = shutil.which("bwrap")
    if path is None:
        cure = "install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"
        raise ClawError("bubblewrap is not installed, and clawctl runs agents' commands only in a sandbox", cure, 2)
    return path


def make_arguments(plan: SandboxPlan) -> BubblewrapArguments:
    """Make bubblewrap's arguments for a plan. Raises ClawError (exit code 2)."""
    user = new_user() if _is_real_root() else None
    room = BubblewrapArguments([find_bubblewrap()], user)
    network = plan.limits.network
    add = room.arguments.extend
    add(["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"])
    add(["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv"])
    if user is None:
        add(["--unshare-user", "--uid", "1000", "--gid", "1000"])
    else:  # process 1 stays root, out of the commands' reach; it may change users, and read their files and end their processes
        add(["--cap-drop", "ALL"])
        for name in CAPABILITIES:
            add(["--cap-add", f"CAP_{name}"])
    if not network:
        add(["--unshare-net"])
    _add_system(room, network)
    for name in plan.packages:
        package = package_place(name)
        room.add("--ro-bind", str(package), f"{TOOLS}/site/{package.name}")
    for folder, size in plan.writable.items():
        room.add("--tmpfs", folder, mode="1777" if folder in ("/tmp", "/dev/shm") else "0777", size=size)
        room.made.add(Path(folder))
    for path in dict.fromkeys((*python_folders(), *plan.see)):  # after /tmp, because these folders may be inside it
        room.add("--ro-bind", path, path)
    for path, content in {**plan.fixed, INSIDE: INSIDE_TEXT}.items():
        room.add("--ro-bind-data", room.data(content), path, mode=f"{mode_of(content):04o}")
    if plan.socket is not None:
        room.add("--bind", str(plan.socket), "/run/model.sock")
    add(["--remount-ro", "/dev", "--remount-ro", "/"])
    refused = refused_calls()
    if refused is None:
        raise ClawError(f"the sandbox does not support {os.uname().machine}", "play this environment on x86_64 or aarch64", 2)
    add(["--seccomp", room.data(refused)])
    return room


def new_user() -> int:
    """A user id without an account. It differs from the ids of the process's other recent sandboxes."""
    return _FIRST_USER + next(_number) % _USERS


def _add_system(room: BubblewrapArguments, network: bool) -> None:
    room.arguments.extend(["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"])
    for path in ROOTS:
        if path.is_symlink():
            room.add("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            room.add("--ro-bind", str(path), str(path))
    for name in (*ETC, *(("resolv.conf",) if network else ())):
        room.add("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    number = 1000 if room.user is None else room.user
    accounts = f"root:x:0:0::/:/bin/sh\nagent:x:{number}:{number}::{HOME}:/bin/bash\n"
    texts = {"passwd": accounts, "group": f"root:x:0:\nagent:x:{number}:\n", "hosts": _NAMES[0], "nsswitch.conf": _NAMES[1]}
    for name, text in texts.items():
        room.add("--ro-bind-data", room.data(text.encode()), f"/etc/{name}", mode="0444")


def _is_real_root() -> bool:
    """Whether this process may mount without a user namespace. Root in a container often may not."""
    if os.geteuid() != 0:
        return False
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAN_MOUNT & 1)


def python() -> str:
    """The interpreter inside the sandbox: the one that this virtual environment is based on."""
    return os.path.realpath(sys.executable)


def python_folders() -> list[str]:
    return [path for path in {sys.base_prefix, sys.base_exec_prefix} if path != "/usr" and not path.startswith("/usr/")]


def search_path() -> str:
    return ":".join([f"{TOOLS}/bin", str(Path(python()).parent), "/usr/local/bin", "/usr/bin", "/bin"])


def package_place(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ClawError(f"the verdict of this environment needs the Python package {name}", f"run `pip install {name}`", 2)
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


class Bubblewrap:
    """A sandbox with the system's programs, read-only, and writable folders in memory."""

    name = "bubblewrap"
    has_own_files = True
    is_confined = True

    def prepare(self) -> None:
        find_bubblewrap()

    def python(self) -> str:
        return python()

    def test_options(self) -> tuple[str, ...]:
        return ("-I", "-S")

    def search_path(self) -> str:
        return search_path()

    def variables(self) -> Mapping[str, str]:
        return {}

    @asynccontextmanager
    async def start(self, plan: SandboxPlan) -> AsyncIterator[Started]:
        room, limits = make_arguments(plan), plan.limits
        group = make_group(limits.memory, limits.processes + 2)
        try:
            process = await _start(room, plan, group)
            try:
                yield Started(process)
            finally:
                await asyncio.shield(end(process))
        finally:
            room.close()
            if group is not None:
                group.remove()

    def raise_if_refused(self, error: str) -> None:
        if error.startswith("bwrap:"):
            cure = (
                "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0); "
                "run a container with --security-opt seccomp=unconfined --cap-add SYS_ADMIN; or use another kind of sandbox"
            )
            raise ClawError(f"bubblewrap cannot make a sandbox here: {error}", cure)


async def _start(room: BubblewrapArguments, plan: SandboxPlan, group: ControlGroup | None) -> asyncio.subprocess.Process:
    """Start process 1 under its limits. Process 1 runs only after the limits are set."""
    read_end, write_end = os.pipe()
    waits, goes = os.pipe()
    arguments = [*room.arguments, "--info-fd", str(write_end), "--block-fd", str(waits), "--"]
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, python(), "-I", "-S", INSIDE, plan.settings(room.user),
            stdin=-1, stdout=-1, stderr=-1, pass_fds=(write_end, waits, *room.descriptors), start_new_session=True, env={},
        )  # fmt: skip
        os.close(write_end)
        write_end = -1
        try:
            async with asyncio.timeout(_START_S):
                pid = await asyncio.to_thread(_child, read_end)
            if pid is not None:
                _limit(pid, plan, group)
            with suppress(BrokenPipeError):
                os.write(goes, b"1")
        except BaseException:
            await asyncio.shield(end(process))
            raise
        return process
    finally:
        for descriptor in (read_end, write_end, waits, goes):
            if descriptor >= 0:
                os.close(descriptor)


def _child(read_end: int) -> int | None:
    """The process id of process 1 on the host. None: bubblewrap ended first."""
    text = b""
    while part := os.read(read_end, 4096):
        text += part
        if b"}" in text:
            return int(json.loads(text)["child-pid"])
    return None


def _limit(pid: int, plan: SandboxPlan, group: ControlGroup | None) -> None:
    limits = plan.rlimits()
    if group is None:  # fallback: a limit for each process instead of one for all of them
        limits["data" if plan.limits.reserves_memory else "as"] = plan.limits.memory
    try:
        for what, value in limits.items():
            resource.prlimit(pid, getattr(resource, f"RLIMIT_{what.upper()}"), (value, value))
        if group is not None:
            group.add_process(pid)
    except (OSError, ValueError) as error:
        raise SandboxFailed(f"the limits of the sandbox cannot be set: {error}") from error


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill bubblewrap, which ends process 1 and everything else in the sandbox."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await wait_and_close(process)


async def wait_and_close(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process, and close its pipes."""
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
