"""Tasks in Harbor's format: `instruction.md`, `task.toml`, `environment/`, `tests/test.sh` and sometimes `solution/solve.sh`.

Without containers, no image is built. A task can then be played if its Dockerfile only names an image, sets folders and variables,
copies files, and runs commands that work without network. Programs that the Dockerfile installs must be on this machine. With
containers, a task that needs more runs in its image.
"""

import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from clawctl.errors import ClawError
from clawctl.extensions.worlds.checking import NeedsImage
from clawctl.extensions.worlds.sandbox import Limits
from clawctl.extensions.worlds.sandbox.tars import folder_files
from clawctl.extensions.worlds.splits import read_each

_LINE = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_NOTHING_TO_DO = ("FROM", "USER", "CMD", "ENTRYPOINT", "LABEL", "ARG", "EXPOSE", "STOPSIGNAL", "MAINTAINER", "SHELL", "HEALTHCHECK")
_PLAIN_IMAGE = re.compile(r"(docker\.io/)?(library/)?(ubuntu|debian|python|alpine|bash)(:|$)")
_INSTALLS = re.compile(
    r"\b(?:(apt-get|apt)\b.*?\binstall\b(.*)|(?:apk|yum|dnf|pip3?|uv|npm|pnpm|yarn|gem|cargo|go|conda)\s.*?\b(?:install|add)\b"
    r"|git\s+clone\b|(?:curl|wget)\s.*?https?://)",
    re.DOTALL,
)
_MEBIBYTE = 1 << 20
SHARED = ("/", "/tmp", "/tests", "/usr", "/etc")  # folders that cannot be the working folder


@dataclass(frozen=True, slots=True)
class HarborTask:
    """One task in Harbor's format."""

    name: str
    instruction: str
    tests: Mapping[str, bytes]  # the files of tests/, with "test.sh"
    solution: Mapping[str, bytes] = field(default_factory=dict)  # with "solve.sh"; empty: the task has no solution
    seed: Mapping[str, bytes] = field(default_factory=dict)  # the initial files of the working folder
    setup: tuple[str, ...] = ()  # commands that run in the agent's sandbox before the agent
    variables: Mapping[str, str] = field(default_factory=dict)  # for the agent's commands and the tests
    test_variables: Mapping[str, str] = field(default_factory=dict)  # for the tests alone
    folder: str = "/app"
    agent_s: float = 300.0
    verdict_s: float = 120.0
    limits: Limits = field(default_factory=Limits)
    image: str | None = None  # the name of the image that the task needs
    build: Path | None = None  # or the folder of a Dockerfile that builds it

    @property
    def digest(self) -> str:
        """A hash of the task's name, instruction, commands, variables, image name and files."""
        digest = sha256(
            repr(
                (
                    self.name,
                    self.instruction,
                    self.setup,
                    sorted(self.variables.items()),
                    self.folder,
                    *sorted(self.test_variables.items()),
                    *((self.image,) if self.image else ()),
                )
            ).encode()
        )
        for files in (self.tests, self.solution, self.seed):
            for name, content in sorted(files.items()):
                digest.update(f"{name}:{len(content)}:".encode() + content)
        return digest.hexdigest()[:16]


def read_tasks(path: Path, images: bool = False, bad: list[tuple[Path, ClawError]] | None = None) -> list[HarborTask]:
    """The tasks of a folder. The folder is one task, or contains one folder for each task.

    `images`: a task may need an image. `bad`: see `read_each`. Raises ClawError (exit code 2) if there is no task.
    """
    folders = [path] if (path / "task.toml").exists() or (path / "instruction.md").exists() else sorted(_task_folders(path))
    if not folders:
        raise ClawError(
            f"there is no task in {path}", "name a folder with instruction.md and tests/test.sh, or a folder of such folders", 2
        )
    return read_each(folders, lambda folder: read_task(folder, images), bad)


def _task_folders(parent_folder: Path) -> list[Path]:
    return (
        sorted({path.parent for name in ("instruction.md", "task.toml") for path in parent_folder.glob(f"*/{name}")})
        if parent_folder.is_dir()
        else []
    )


def read_task(folder: Path, images: bool = False) -> HarborTask:
    """Read one task. Raises ClawError (exit code 2), which names the folder and the problem."""
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8")) if (folder / "task.toml").exists() else {}
        if settings.get("steps"):
            raise ClawError(
                f"the task in {folder} has several steps", "play it with Harbor itself: clawctl plays tasks of one step", 2
            )
        instruction = (folder / "instruction.md").read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ClawError(f"the task in {folder} cannot be read: {error}", "correct instruction.md and task.toml", 2) from error
    version = str(settings.get("schema_version", settings.get("version", "1.0")))
    if version.split(".")[0] != "1":
        raise ClawError(f"the task in {folder} has format version {version}", "convert it to version 1, which clawctl reads", 2)
    tests = folder_files(folder / "tests")
    if "test.sh" not in tests:
        raise ClawError(
            f"the task in {folder} has no verdict", "add tests/test.sh, which writes 0 or 1 to /logs/verifier/reward.txt", 2
        )
    environment = _table(settings, "environment", folder)
    _check_machine(folder, environment)
    image, build = None, None
    try:
        _check_image(folder, environment)
        workdir, seed, setup, variables = _read_image(folder)
    except NeedsImage:
        if not images:
            raise
        image = str(environment.get("docker_image") or "") or None
        build = folder / "environment" if image is None else None
        workdir, seed, setup, variables = "", {}, (), {}
    workdir = str(environment.get("workdir") or workdir)
    limits = Limits(
        memory=_mebibytes(environment, "memory", 512) * _MEBIBYTE,
        disk=_mebibytes(environment, "storage", 64, maximum=256) * _MEBIBYTE,
    )
    agent_s, verdict_s = _seconds(settings, "agent", 300.0, folder), _seconds(settings, "verifier", 120.0, folder)
    variables |= _variables(environment)
    return HarborTask(
        folder.name, instruction, tests, folder_files(folder / "solution"), seed, setup, variables,
        _variables(_table(settings, "verifier", folder)), workdir, agent_s, verdict_s, limits, image, build,
    )  # fmt: skip


def _table(settings: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise ClawError(f"{name} in {folder}/task.toml is not a table", f"write [{name}]", 2)
    return table


def _seconds(settings: Mapping[str, Any], name: str, default: float, folder: Path) -> float:
    seconds = _table(settings, name, folder).get("timeout_sec", default)
    if not isinstance(seconds, int | float) or not 0 < seconds < 86_400:
        raise ClawError(f"timeout_sec of [{name}] in {folder}/task.toml is {seconds!r}", "set seconds, at most 86400", 2)
    return float(seconds)


def _variables(table: Mapping[str, Any]) -> dict[str, str]:
    """The literal variables. References to variables of the host are dropped, because they have no value in a sandbox."""
    return {name: str(value) for name, value in (table.get("env") or {}).items() if "$" not in str(value)}


def _check_machine(folder: Path, environment: Mapping[str, Any]) -> None:
    """Raises ClawError (exit code 2) if the task needs a machine that no sandbox can provide."""
    for what, is_wanted in (
        ("several containers", any((folder / "environment").glob("docker-compose.y*ml"))),
        (f"os = {environment.get('os')}", environment.get("os", "linux") != "linux"),
        ("MCP servers", bool(environment.get("mcp_servers"))),
        ("a GPU", bool(environment.get("gpus"))),
    ):
        if is_wanted:
            raise ClawError(f"the task in {folder} needs {what}", "play it with Harbor itself", 2)


def _check_image(folder: Path, environment: Mapping[str, Any]) -> None:
    image = str(environment.get("docker_image") or "")
    if image and not _PLAIN_IMAGE.match(image) and not (folder / "environment" / "Dockerfile").exists():
        raise _needs_image(folder, f"docker_image = {image}")


def _mebibytes(environment: Mapping[str, Any], name: str, default: int, maximum: int = 4096) -> int:
    """A size in MiB, read from `memory_mb = 2048` or `memory = "2G"` and limited to 64 to `maximum`."""
    megabytes = environment.get(f"{name}_mb")
    if megabytes is None and (match := re.fullmatch(r"(\d+)\s*([MG])i?B?", str(environment.get(name, "")), re.IGNORECASE)):
        megabytes = int(match[1]) * (1024 if match[2].upper() == "G" else 1)
    return min(maximum, max(64, int(megabytes or default)))


def _read_image(folder: Path) -> tuple[str, dict[str, bytes], tuple[str, ...], dict[str, str]]:
    """The effects of the Dockerfile: working folder, files, commands and variables. Raises ClawError if they need an image."""
    file = folder / "environment" / "Dockerfile"
    workdir, seed, setup, variables = "/app", dict[str, bytes](), list[str](), dict[str, str]()
    if not file.exists():
        return workdir, seed, (), variables
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", file.read_text(encoding="utf-8"))).splitlines()
    parsed = [(match[1].upper(), match[2].strip()) for line in lines if (match := _LINE.match(line))]
    workdir = next((arguments for word, arguments in reversed(parsed) if word == "WORKDIR"), workdir).rstrip("/") or "/app"
    for word, arguments in parsed:
        if word == "ENV":
            parts = (part.partition("=") for part in shlex.split(arguments))
            variables |= {name: value for name, equals, value in parts if equals and "$" not in value}
        elif word in ("COPY", "ADD"):
            seed.update(_copied(folder, workdir, arguments))
        elif word == "RUN":
            if missing := _not_here(arguments):
                raise _needs_image(folder, f"RUN installs {missing}")
            setup.append(arguments)
        elif word != "WORKDIR" and word not in _NOTHING_TO_DO:
            raise _needs_image(folder, f"{word} {arguments}")
    if workdir in SHARED or not workdir.startswith("/"):
        raise _needs_image(folder, f"WORKDIR {workdir}")
    return workdir, seed, tuple(setup), variables


def _not_here(commands: str) -> str | None:
    """What a command installs that is not on this machine. Without a network, it could not."""
    for command in re.split(r"&&|\|\||[;|\n]", commands):
        match = _INSTALLS.search(command)
        if match is None:
            continue
        if match[1] is None:
            return command.strip()[:80]
        for name in (name.partition("=")[0] for name in match[2].split() if not name.startswith("-")):
            if not Path("/usr/share/doc", name).exists() and shutil.which(name) is None:
                return name
    return None


def _copied(folder: Path, workdir: str, arguments: str) -> dict[str, bytes]:
    *sources, target = (word for word in shlex.split(arguments) if not word.startswith("--"))
    inner = target.removeprefix(workdir).strip("/") if target.startswith(workdir) else target.removeprefix("./").strip("/")
    if target.startswith("/") and not target.startswith(workdir):
        raise _needs_image(folder, f"COPY to {target}, outside of {workdir}")
    files: dict[str, bytes] = {}
    for source in sources:
        path = folder / "environment" / source
        if not path.resolve().is_relative_to(folder.resolve()) or not path.exists():
            raise ClawError(f"the task in {folder} copies {source}, which is not in environment/", "repair its Dockerfile", 2)
        if path.is_dir():
            files |= {
                f"{inner}/{name}".strip("/").removeprefix("./"): text
                for name, text in folder_files(path).items()
                if name != "Dockerfile"
            }
        else:
            named = inner and not target.endswith("/") and inner != "."
            files[inner if named else f"{inner.strip('.')}/{path.name}".strip("/")] = path.read_bytes()
    return files


def _needs_image(folder: Path, what: str) -> NeedsImage:
    name = next((name for name in ("podman", "docker") if shutil.which(name)), None)
    cure = f"play it in a container (--option sandbox={name or 'podman'}{'' if name else ', once it is installed'})"
    return NeedsImage(f"the task in {folder} needs an image of its own ({what})", cure, 2)
