"""Tasks in Harbor's format: `instruction.md`, `task.toml`, `environment/`, `tests/test.sh` and sometimes `solution/solve.sh`.

Without containers, no image is built. A task can then be played if its Dockerfile only names a plain image, sets folders and
variables, copies files, and runs commands that work without network. Programs that it installs must be on this machine. With
containers, a task that needs more runs in its image.
"""

import re
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
from clawctl.extensions.worlds.terminal.dockerfile import Initial, is_plain, needs_image, read_dockerfile
from clawctl.extensions.worlds.terminal.terminal_bench import is_older, read_older

_MARKS = ("instruction.md", "task.toml", "task.yaml")  # a folder with one of these is a task
_MEBIBYTE = 1 << 20


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
        texts = [self.name, self.instruction, self.setup, sorted(self.variables.items()), self.folder]
        texts += [*sorted(self.test_variables.items()), *((self.image,) if self.image else ())]
        digest = sha256(repr(tuple(texts)).encode())
        for files in (self.tests, self.solution, self.seed):
            for name, content in sorted(files.items()):
                digest.update(f"{name}:{len(content)}:".encode() + content)
        return digest.hexdigest()[:16]


def read_tasks(path: Path, images: bool = False, bad: list[tuple[Path, ClawError]] | None = None) -> list[HarborTask]:
    """The tasks of a folder. The folder is one task, or contains one folder for each task.

    `images`: a task may need an image. `bad`: see `read_each`. Raises ClawError (exit code 2) if there is no task.
    """
    folders = [path] if any((path / name).exists() for name in _MARKS) else _task_folders(path)
    if not folders:
        raise ClawError(
            f"there is no task in {path}", "name a folder with instruction.md and tests/test.sh, or a folder of such folders", 2
        )
    return read_each(folders, lambda folder: read_task(folder, images), bad)


def _task_folders(parent_folder: Path) -> list[Path]:
    return sorted({path.parent for name in _MARKS for path in parent_folder.glob(f"*/{name}")}) if parent_folder.is_dir() else []


def read_task(folder: Path, images: bool = False) -> HarborTask:
    """Read one task. Raises ClawError (exit code 2), which names the folder and the problem."""
    settings, instruction, tests, solution = read_older(folder) if is_older(folder) else _read(folder)
    environment = _table(settings, "environment", folder)
    _check_machine(folder, environment)
    image, build, context = None, None, folder if is_older(folder) else folder / "environment"
    try:
        _check_image(folder, environment)
        initial = read_dockerfile(folder, context)
    except NeedsImage:
        if not images:
            raise
        image = str(environment.get("docker_image") or "") or None
        build, initial = context if image is None else None, Initial("")
    except (OSError, ValueError) as error:
        raise ClawError(f"{context / 'Dockerfile'} cannot be read: {error}", "correct it, and save it as UTF-8 text", 2) from error
    limits = Limits(
        memory=_mebibytes(environment, "memory", 512, folder) * _MEBIBYTE,
        disk=_mebibytes(environment, "storage", 64, folder, maximum=256) * _MEBIBYTE,
    )
    at = str(environment.get("workdir") or initial.folder)
    if at and not at.startswith("/"):
        raise ClawError(f"workdir in {folder}/task.toml is {environment['workdir']!r}", "write the path of a folder: /app", 2)
    agent_s, verdict_s = _seconds(settings, "agent", 300.0, folder), _seconds(settings, "verifier", 120.0, folder)
    variables, of_verdict = (_variables(table, folder) for table in (environment, _table(settings, "verifier", folder)))
    return HarborTask(
        folder.name, instruction, tests, solution, initial.seed, tuple(initial.setup), initial.variables | variables, of_verdict,
        at, agent_s, verdict_s, limits, image, build,
    )  # fmt: skip


def _read(folder: Path) -> tuple[dict[str, Any], str, dict[str, bytes], dict[str, bytes]]:
    """The settings, the instruction, the files of `tests/` and those of `solution/`."""
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
    return settings, instruction, tests, folder_files(folder / "solution")


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


def _variables(table: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The literal variables. References to variables of the host are dropped, because they have no value in a sandbox."""
    return {name: str(value) for name, value in _table(table, "env", folder).items() if "$" not in str(value)}


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
    if image and not is_plain(image) and not (folder / "environment" / "Dockerfile").exists():
        raise needs_image(folder, f"docker_image = {image}")


def _mebibytes(environment: Mapping[str, Any], name: str, default: int, folder: Path, maximum: int = 4096) -> int:
    """A size in MiB, read from `memory_mb = 2048` or `memory = "2G"` and limited to 64 to `maximum`."""
    megabytes = environment.get(f"{name}_mb", default)
    if f"{name}_mb" not in environment and (
        match := re.fullmatch(r"(\d+)\s*([MG])i?B?", str(environment.get(name, "")), re.IGNORECASE)
    ):
        megabytes = int(match[1]) * (1024 if match[2].upper() == "G" else 1)
    if not isinstance(megabytes, int | float) or not 0 <= megabytes < 10**9:
        raise ClawError(f"{name}_mb in {folder}/task.toml is {megabytes!r}", "set a number of mebibytes", 2)
    return min(maximum, max(64, int(megabytes) or default))
