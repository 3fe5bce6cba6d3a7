"""Containers of podman or docker, started by command line. Both take the same options, and need no library and no clawctl service.

Without an image, a container sees this machine's programs, read-only, like a bubblewrap sandbox. With an image, it sees the image,
which must have bash and Python 3.11 or newer. The root is read-only. Writable folders are in memory and limited in size.
"""

import asyncio
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from clawctl.config.environment import environment_of_program
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import bubblewrap
from clawctl.extensions.worlds.sandbox.bubblewrap import CAPABILITIES, ETC, ROOTS, new_user, package_place, python_folders
from clawctl.extensions.worlds.sandbox.plan import INSIDE, INSIDE_TEXT, TOOLS, SandboxFailed, SandboxPlan, Started, mode_of
from clawctl.extensions.worlds.sandbox.seccomp import profile

_END_S = 10.0
_BUILD_S = 3600.0
_START_PROBLEMS = ("Error", "docker:", "podman:", "time=", "Cannot connect", "permission denied", "unable to")
_OWN_IMAGE = "localhost/clawctl-empty:1"
_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF")
_UNIFIED = Path("/sys/fs/cgroup/unified")
# If both versions of control groups are mounted, crun refuses to run. Hiding version 2 avoids this.
_HIDE_UNIFIED = ("unshare", "-m", "sh", "-c", f'umount {_UNIFIED}; exec "$@"', "sh")


@dataclass(frozen=True, slots=True)
class Image:
    """The properties of an image."""

    id: str
    python: str
    path: str
    variables: Mapping[str, str]
    folder: str | None  # its working folder


@dataclass(frozen=True, slots=True)
class Container:
    """`image` is the name of an image, which is pulled if it is missing. `build` is a folder with a Dockerfile.

    If both are None, the container sees this machine's programs.
    """

    name: Literal["podman", "docker"]
    image: str | None = None
    build: Path | None = None
    has_own_files: bool = True
    is_confined: bool = True

    def prepare(self) -> None:
        if shutil.which(self.name) is None:
            raise ClawError(f"{self.name} is not installed", f"install {self.name}, or use another kind of sandbox", 2)
        self.inspect()

    def of_task(self, image: str | None, build: Path | None) -> "Container":
        """The same kind with a task's own image. An image that the user named has precedence."""
        return self if self.image is not None else replace(self, image=image, build=build)

    def inspect(self) -> Image | None:
        """The image, which is first pulled or built if necessary. None: this container uses no image."""
        name = self.image if self.build is None else _built(self.name, self.build)
        return None if name is None else _inspected(self.name, name)

    def python(self) -> str:
        image = self.inspect()
        return bubblewrap.python() if image is None else image.python

    def test_options(self) -> tuple[str, ...]:
        return ("-I", "-S") if self.inspect() is None else ("-I",)

    def search_path(self) -> str:
        image = self.inspect()
        return bubblewrap.search_path() if image is None else f"{TOOLS}/bin:{image.path}"

    def variables(self) -> Mapping[str, str]:
        image = self.inspect()
        return {} if image is None else image.variables

    def files(self, folder: str) -> bytes:
        """The contents of a folder of the image, as a tar. Empty if the folder does not exist."""
        image = self.inspect()
        return b"" if image is None else _files(self.name, image.id, folder)

    @asynccontextmanager
    async def start(self, plan: SandboxPlan) -> AsyncIterator[Started]:
        image = self.inspect()
        name = f"clawctl-{os.getpid()}-{uuid4().hex[:12]}"
        with tempfile.TemporaryDirectory(prefix="clawctl-") as folder:
            command = [*_program(self.name), "run", "--rm", "-i", "--name", name, *self._arguments(plan, Path(folder), image)]
            # podman leaves a file `oom` in its working folder if the container runs out of memory.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=-1, stdout=-1, stderr=-1, start_new_session=True, cwd=folder,
                env=environment_of_program(named=_VARIABLES),
            )  # fmt: skip
            try:
                yield Started(process)
            finally:
                await asyncio.shield(self._end(name, process))

    def _arguments(self, plan: SandboxPlan, folder: Path, image: Image | None) -> list[str]:
        limits, user = plan.limits, new_user()
        arguments = ["--log-driver", "none", "--hostname", "sandbox", "--read-only", "--workdir", "/", "--user", "0:0"]
        arguments += ["--read-only-tmpfs=false", "--http-proxy=false"] if self.name == "podman" else []
        arguments += ["--network", "bridge" if limits.network else "none", "--ipc", "private", "--cap-drop", "ALL"]
        arguments += [f"--cap-add={name}" for name in CAPABILITIES]
        refused = folder / "seccomp.json"
        refused.write_text(json.dumps(profile()))
        for option in ("no-new-privileges", "label=disable", f"seccomp={refused}"):
            arguments += ["--security-opt", option]
        arguments += [f"--memory={limits.memory}", f"--memory-swap={limits.memory}", f"--pids-limit={limits.processes + 2}"]
        arguments += [f"--ulimit={name}={value}:{value}" for name, value in plan.rlimits().items()]
        for folder_inside, size in plan.writable.items():
            if folder_inside == "/dev/shm":
                arguments.append(f"--shm-size={size}")
            else:
                mode = "1777" if folder_inside == "/tmp" else "0777"
                arguments += ["--tmpfs", f"{folder_inside}:rw,exec,nosuid,nodev,size={size},mode={mode}"]
        # Hides podman's world-writable folder and the readable control groups
        arguments += ["--tmpfs", "/sys/fs/cgroup:ro,size=4k"]
        for source, target in self._seen(plan, folder, image, user).items():
            arguments += ["--volume", f"{source}:{target}:ro"]
        if plan.socket is not None:
            arguments += ["--volume", f"{plan.socket}:/run/model.sock"]
        return [
            *arguments, "--entrypoint", self.python(), _own_image(self.name) if image is None else image.id,
            "-I", "-S", INSIDE, plan.settings(user),
        ]  # fmt: skip

    def _seen(self, plan: SandboxPlan, folder: Path, image: Image | None, user: int) -> dict[Path, str]:
        """The host files and folders that the container sees, with their paths in the container."""
        seen = {Path(path): path for path in plan.see}
        seen |= {(package := package_place(name)): f"{TOOLS}/site/{package.name}" for name in plan.packages}
        fixed = {**plan.fixed, INSIDE: INSIDE_TEXT}
        if image is None:
            folders = (
                Path("/usr"),
                *(root for root in ROOTS if root.is_dir() and not root.is_symlink()),
                *map(Path, python_folders()),
            )
            seen |= {path: str(path) for path in (*folders, *(Path("/etc", name) for name in ETC)) if path.exists()}
            fixed |= {"/etc/passwd": f"root:x:0:0::/:/bin/sh\nagent:x:{user}:{user}::/home/agent:/bin/bash\n".encode()}
        folder.chmod(0o711)
        for number, (path, content) in enumerate(fixed.items()):
            file = folder / str(number)
            file.write_bytes(content)
            file.chmod(mode_of(content))
            seen[file] = path
        return seen

    async def _end(self, name: str, process: asyncio.subprocess.Process) -> None:
        """Close the stdin of process 1, which ends the container. Remove the container if it does not end in time."""
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            await asyncio.to_thread(_call, self.name, "rm", "--force", "--time", "0", name)
            with suppress(ProcessLookupError):
                process.kill()
        await bubblewrap.wait_and_close(process)

    def raise_if_refused(self, error: str) -> None:
        if error.startswith(_START_PROBLEMS):
            cure = f"try `{self.name} run --rm --network none --memory 512m` with an image yourself, or use another kind of sandbox"
            raise ClawError(f"{self.name} cannot make a sandbox here: {error}", cure)


def _program(name: str) -> list[str]:
    hides = name == "podman" and _UNIFIED.is_dir() and os.geteuid() == 0
    return [*(_HIDE_UNIFIED if hides else ()), name]


def _call(program: str, *arguments: str, given: bytes | None = None, seconds: float = 120.0) -> subprocess.CompletedProcess[bytes]:
    try:
        variables = environment_of_program(named=_VARIABLES)
        return subprocess.run(
            [*_program(program), *arguments], input=given, capture_output=True, timeout=seconds, check=False, env=variables
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxFailed(f"`{program} {arguments[0]}` did not end within {seconds:.0f} s") from error


def run_or_raise(program: str, *arguments: str, given: bytes | None = None, seconds: float = 120.0) -> bytes:
    """The output of a command. Raises ClawError (exit code 2) with the end of its stderr."""
    done = _call(program, *arguments, given=given, seconds=seconds)
    if done.returncode != 0:
        error = done.stderr.decode(errors="replace").strip()[-600:]
        raise ClawError(
            f"`{program} {' '.join(arguments)[:120]}` failed: {error}", "run the command yourself, and fix what it reports", 2
        )
    return done.stdout


@lru_cache
def _own_image(program: str) -> str:
    """An empty image, onto which this machine's folders are mounted."""
    if _call(program, "image", "inspect", _OWN_IMAGE).returncode != 0:
        out = io.BytesIO()
        with tarfile.TarFile(fileobj=out, mode="w") as tar:
            for name in ("usr", "etc", "proc", "dev", "sys", "run", "tmp"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            for root in (root for root in ROOTS if root.is_symlink()):
                entry = tarfile.TarInfo(root.name)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(root)
                tar.addfile(entry)
        run_or_raise(program, "import", "-", _OWN_IMAGE, given=out.getvalue())
    return _OWN_IMAGE


@lru_cache
def _built(program: str, folder: Path) -> str:
    """The image built from a folder's Dockerfile. A hash of the folder's content names it, so each content is built once."""
    digest = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}:{path.stat().st_mode}:".encode() + path.read_bytes())
    name = f"localhost/clawctl-task:{digest.hexdigest()[:16]}"
    if _call(program, "image", "inspect", name).returncode != 0:
        limits = ("--ulimit", "nofile=1024:4096") if program == "podman" else ()
        run_or_raise(program, "build", "--tag", name, *limits, str(folder), seconds=_BUILD_S)
    return name


@lru_cache
def _inspected(program: str, name: str) -> Image:
    if _call(program, "image", "inspect", name).returncode != 0:
        run_or_raise(program, "pull", name, seconds=_BUILD_S)
    image: dict[str, Any] = json.loads(run_or_raise(program, "image", "inspect", name))[0]
    config = image.get("Config") or {}
    variables = dict(line.partition("=")[::2] for line in config.get("Env") or [])
    path = variables.pop("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    looks = ["--network=none", "--read-only", "--cap-drop=ALL", "--ulimit=nofile=512:512", "--ulimit=nproc=64:64"]
    search = (
        "command -v bash >/dev/null && command -v python3 && exec python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'"
    )
    done = _call(program, "run", "--rm", *looks, "--entrypoint", "/bin/sh", image["Id"], "-c", search)
    if done.returncode != 0:
        error = done.stderr.decode(errors="replace").strip()[-300:]
        raise ClawError(
            f"the image {name} has no bash, or no Python 3.11: {error}".rstrip(": "), "install both in its Dockerfile", 2
        )
    return Image(image["Id"], done.stdout.decode().split()[0], path, variables, config.get("WorkingDir") or None)


@lru_cache
def _files(program: str, image: str, folder: str) -> bytes:
    made = run_or_raise(program, "create", "--ulimit=nofile=512:512", "--ulimit=nproc=64:64", image, "true").decode().split()[-1]
    try:
        done = _call(program, "cp", f"{made}:{folder.rstrip('/')}/.", "-")
    finally:
        _call(program, "rm", "--force", made)
    return done.stdout if done.returncode == 0 else b""
