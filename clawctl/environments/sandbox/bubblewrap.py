"""The command line of bubblewrap: what a sandbox sees, and as whom it runs."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from clawctl.environments.sandbox.seccomp import refused_calls
from clawctl.errors import ClawError

HOME = "/home/agent"
TOOLS = "/opt/clawctl"  # what the graded code cannot change: our programs, and packages that tests need
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "localtime")
_NAMES = ("127.0.0.1 localhost sandbox\n::1 localhost\n", "passwd: files\ngroup: files\nhosts: files dns\n")
_CAN_MOUNT, _USERS, _FIRST_USER = 21, 4336, 61184  # CAP_SYS_ADMIN; systemd's range of users without an account
_number = count(os.getpid() * 16)


@dataclass(slots=True)
class Room:
    """The arguments of bubblewrap, the descriptors they name, and who the commands run as."""

    arguments: list[str]
    user: int | None  # of the commands, where process 1 is root; None: one user for all
    folders: list[str]  # the writable ones
    descriptors: list[int] = field(default_factory=list)
    made: set[Path] = field(default_factory=lambda: {Path("/")})

    def add(self, option: str, *words: str, mode: str | None = None, size: int | None = None) -> None:
        """One more thing at the path `words[-1]`. Without its parents named first, bubblewrap makes them for root alone."""
        for parent in reversed(Path(words[-1]).parents):
            if parent not in self.made and not str(parent).startswith(("/usr", "/dev", "/proc")):
                self.made.add(parent)
                self.arguments += ["--perms", "0755", "--dir", str(parent)]
        self.arguments += [*(("--perms", mode) if mode else ()), *(("--size", str(size)) if size else ()), option, *words]

    def data(self, content: bytes) -> str:
        """A descriptor of an unnamed file with this content."""
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
    """Raises ClawError (exit code 2) where it is missing."""
    found = shutil.which("bwrap")
    if found is None:
        cure = "install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"
        raise ClawError("bubblewrap is not installed, and without it no command of an agent is run", cure, 2)
    return found


def make_room(
    folder: str,
    disk: int,
    network: bool,
    fixed: Mapping[str, bytes],
    packages: tuple[str, ...],
    socket: Path | None = None,
    folders: tuple[str, ...] = (),
    see: tuple[str, ...] = (),
) -> Room:
    """A room whose `folder` can be written, with `disk` bytes for everything written, and `fixed` files that nobody can change.

    `packages` are Python packages of this interpreter that the sandbox can import. Raises ClawError (exit code 2).
    """
    user = _FIRST_USER + next(_number) % _USERS if _is_real_root() else None
    room = Room([find_bubblewrap()], user, [folder, "/tmp", HOME, "/dev/shm", "/logs/verifier", *folders])
    add = room.arguments.extend
    add(["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"])
    add(["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv"])
    if user is None:
        add(["--unshare-user", "--uid", "1000", "--gid", "1000"])
    else:  # process 1 stays root, out of reach of the commands' user; it may change users, and read and end what is theirs
        add(["--cap-drop", "ALL"])
        for name in ("SETUID", "SETGID", "KILL", "CHOWN", "FOWNER", "DAC_OVERRIDE"):
            add(["--cap-add", f"CAP_{name}"])
    if not network:
        add(["--unshare-net"])
    _add_system(room, network)
    for name in packages:
        package = _package(name)
        room.add("--ro-bind", str(package), f"{TOOLS}/site/{package.name}")
    for place, part in zip(room.folders, (2, 4, 8, 16, 32, *(32 for _ in folders)), strict=True):
        room.add("--tmpfs", place, mode="1777" if place in ("/tmp", "/dev/shm") else "0777", size=max(disk // part, 4096))
        room.made.add(Path(place))
    for path in dict.fromkeys((*_python_folders(), *see)):  # after /tmp, where they may be
        room.add("--ro-bind", path, path)
    for path, content in fixed.items():
        mode = "0111" if content.startswith(b"\x7fELF") else "0555" if content.startswith(b"#!") else "0444"
        room.add("--ro-bind-data", room.data(content), path, mode=mode)
    if socket is not None:
        room.add("--bind", str(socket), "/run/model.sock")
    add(["--remount-ro", "/dev", "--remount-ro", "/"])
    refused = refused_calls()
    if refused is None:
        raise ClawError(f"the sandbox is not written for {os.uname().machine}", "play this environment on x86_64 or aarch64", 2)
    add(["--seccomp", room.data(refused)])
    return room


def _add_system(room: Room, network: bool) -> None:
    room.arguments.extend(["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"])
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        place = Path("/") / name
        if place.is_symlink():
            room.add("--symlink", os.readlink(place), str(place))
        elif place.is_dir():
            room.add("--ro-bind", str(place), str(place))
    for name in (*_ETC, *(("resolv.conf",) if network else ())):
        room.add("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    number = 1000 if room.user is None else room.user
    accounts = f"root:x:0:0::/:/bin/sh\nagent:x:{number}:{number}::{HOME}:/bin/bash\n"
    texts = {"passwd": accounts, "group": f"root:x:0:\nagent:x:{number}:\n", "hosts": _NAMES[0], "nsswitch.conf": _NAMES[1]}
    for name, text in texts.items():
        room.add("--ro-bind-data", room.data(text.encode()), f"/etc/{name}", mode="0444")


def _is_real_root() -> bool:
    """Whether this process may mount without a user namespace. Root inside a container often may not."""
    if os.geteuid() != 0:
        return False
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAN_MOUNT & 1)


def python() -> str:
    """The interpreter inside: the one that this virtual environment was made from."""
    return os.path.realpath(sys.executable)


def _python_folders() -> list[str]:
    return [path for path in {sys.base_prefix, sys.base_exec_prefix} if path != "/usr" and not path.startswith("/usr/")]


def search_path() -> str:
    return ":".join([f"{TOOLS}/bin", str(Path(python()).parent), "/usr/local/bin", "/usr/bin", "/bin"])


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        raise ClawError(f"the verdict of this environment needs the Python package {name}", f"run `pip install {name}`", 2)
    origin = Path(found.origin)
    return origin.parent if origin.name == "__init__.py" else origin
