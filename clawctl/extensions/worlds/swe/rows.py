"""Rows in the format of SWE-bench: repository, base commit, problem statement, patches, and the tests that must pass.

In SWE-smith's rows, `patch` makes the fault, and the repository as it is solves the task. Rows of R2E-Gym are refused: their tests
are in an image alone.
"""

import ast
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from clawctl.config.environment import environment_of_program
from clawctl.errors import ClawError
from clawctl.extensions.worlds import splits
from clawctl.extensions.worlds.checking import NeedsImage
from clawctl.extensions.worlds.sandbox import Limits, open_sandbox
from clawctl.extensions.worlds.sandbox.tars import files_of, folder_files, tar_of
from clawctl.extensions.worlds.splits import read_each

_NEEDED = ("instance_id", "problem_statement", "FAIL_TO_PASS")
_CURE = "each row needs instance_id, repo, base_commit, problem_statement, test_patch and FAIL_TO_PASS, as in SWE-bench"


@dataclass(frozen=True, slots=True)
class SweTask:
    """One task on a repository."""

    name: str
    statement: str
    files: Mapping[str, bytes]  # the repository before the agent's changes
    tests: tuple[str, ...]  # the tests that must pass: "tests/test_prices.py::test_total"
    test_files: Mapping[str, bytes] = field(default_factory=dict)  # added for the verdict
    test_patch: str = ""  # or a patch that adds them
    patch: str = ""  # the solution
    calls: tuple[Mapping[str, Any], ...] = ()  # calls whose results are compared outside of the sandbox
    agent_s: float = 600.0
    verdict_s: float = 120.0
    limits: Limits = field(default_factory=lambda: Limits(disk=128 << 20))
    is_fault: bool = False  # `patch` makes the fault instead, and `files` are the solution
    solved: Mapping[str, bytes] = field(default_factory=dict)  # the files of the solution, in place of a patch

    @property
    def digest(self) -> str:
        patch = "fault: " * self.is_fault + self.patch
        hashed = (self.name, self.statement, self.tests, self.test_patch, patch, self.calls, sorted(self.files.items()))
        return sha256(repr((hashed, sorted(self.test_files.items()))).encode()).hexdigest()[:16]


def read_rows(path: Path, repositories: Path | None, bad: list[tuple[dict[str, Any], ClawError]] | None = None) -> list[SweTask]:
    """The tasks of a JSON, JSON-lines or Parquet file.

    The repositories are git repositories in the folder `repositories`, named `owner__name`, `owner/name` or `name`. A row may
    contain its files instead (`files`: a mapping). `bad`: see `read_each`. Raises ClawError (exit code 2).
    """
    return read_each(file_rows(path), lambda row: _task(row, path, repositories), bad)


def file_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON, JSON-lines or Parquet file. Raises ClawError (exit code 2)."""
    try:
        return list(map(_inner, splits.read_rows(path)))
    except (OSError, ValueError) as error:
        raise ClawError(f"{path} cannot be read as rows of tasks: {error}", splits.ROWS_ARE, 2) from error


def _inner(row: dict[str, Any]) -> dict[str, Any]:
    """The row of SWE-bench in a row of NeMo Gym, and one of SWE-bench Pro with the usual names."""
    given = row.get("responses_create_params")
    inner = given.get("metadata", {}).get("instance_dict") if isinstance(given, dict) else None
    row = json.loads(inner) if isinstance(inner, str) else row
    return {**row, **{name.upper(): row[name] for name in ("fail_to_pass", "pass_to_pass") if name in row}}


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether this is a task on a repository, in whichever of these formats."""
    return any(name in row for name in ("instance_id", "FAIL_TO_PASS", "docker_image", "base_commit"))


def _task(row: dict[str, Any], path: Path, repositories: Path | None) -> SweTask:
    if "FAIL_TO_PASS" not in row and row.get("docker_image") and row.get("expected_output_json"):
        image = row["docker_image"]
        cure = "play it with R2E-Gym, or name rows that have FAIL_TO_PASS and a repository"
        raise NeedsImage(f"the repository and the tests of this row of R2E-Gym are in the image {image} alone", cure, 2)
    missing = [name for name in _NEEDED if row.get(name) in (None, "", "[]", [])]
    if missing:
        what = "has no verdict" if "FAIL_TO_PASS" in missing else f"lacks {', '.join(missing)}"
        raise ClawError(f"a row of {path} ({row.get('instance_id', 'without a name')}) {what}", _CURE, 2)
    inline = row.get("files")
    files = _checked_out(row, path, repositories) if inline is None else {name: text.encode() for name, text in inline.items()}
    tests = tuple(dict.fromkeys([*_names(row["FAIL_TO_PASS"]), *_names(row.get("PASS_TO_PASS") or [])]))
    return SweTask(
        str(row["instance_id"]), str(row["problem_statement"]), files, tests,
        {name: text.encode() for name, text in (row.get("test_files") or {}).items()},
        str(row.get("test_patch") or ""), str(row.get("patch") or ""), tuple(row.get("calls") or ()),
        is_fault=str(row.get("repo")).startswith("swesmith/"),
    )  # fmt: skip


def _names(names: Any) -> list[str]:
    """The names in a list, or in a list as JSON or Python writes it."""
    try:
        return [str(name) for name in (_list(names) if isinstance(names, str) else names)]
    except (ValueError, TypeError, SyntaxError) as error:
        raise ClawError(f"a row names its tests by {names!r:.80}, which is no list: {error}", _CURE, 2) from error


def _list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _checked_out(row: dict[str, Any], path: Path, repositories: Path | None) -> dict[str, bytes]:
    name = str(row.get("repo", ""))
    candidates = (
        []
        if repositories is None
        else [repositories / name.replace("/", "__"), repositories / name, repositories / name.split("/")[-1]]
    )
    repo = next((repo for repo in candidates if name and repo.is_dir()), None)
    if repo is None:
        cure = "clone it into a folder, and pass that folder as the option repositories"
        raise ClawError(f"the repository {name or '(none)'} of {path} is not on this machine", cure, 2)
    if not (repo / ".git").exists() and not (repo / "HEAD").exists():
        return folder_files(repo)
    command = ["git", "-C", str(repo), "archive", "--format=tar", str(row.get("base_commit", "HEAD"))]
    done = subprocess.run(command, capture_output=True, check=False, env=environment_of_program())
    if done.returncode != 0:
        raise ClawError(f"{repo} has no commit {row.get('base_commit')}: {done.stderr.decode()[-200:]}", "fetch that commit", 2)
    return files_of(done.stdout)


async def patched(files: Mapping[str, bytes], patch: str, limits: Limits) -> dict[str, bytes]:
    """The files after a patch, which is applied in a sandbox. Raises ClawError if the patch does not apply."""
    if not patch.strip():
        return dict(files)
    async with open_sandbox(limits=limits) as sandbox:
        await sandbox.put(tar_of(files))
        ran = await sandbox.run(["git", "apply", "--whitespace=nowarn", "-"], given=patch.encode())
        if ran.code != 0:
            raise ClawError(
                f"a patch of the task does not apply to its files: {ran.output[-300:]}", "check base_commit and the patch"
            )
        return files_of(await sandbox.snapshot())


async def with_fault(task: SweTask) -> SweTask:
    """The task as the agent finds it, if its patch makes the fault. Raises ClawError if the patch does not apply."""
    if not task.is_fault:
        return task
    faulty = await patched(task.files, task.patch, task.limits)
    return replace(task, files=faulty, solved=task.files, patch="", is_fault=False)
