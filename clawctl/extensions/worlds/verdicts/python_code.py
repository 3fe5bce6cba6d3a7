"""Verdicts on a Python repository: its tests, run by pytest, and calls whose results are compared outside of the sandbox."""

import json
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from clawctl.extensions.worlds.sandbox import TOOLS, Limits, Ran, Sandbox, SandboxOver, kind_of, open_sandbox
from clawctl.extensions.worlds.sandbox.tars import files_of, tar_of, without
from clawctl.extensions.worlds.verdicts import UNVERIFIED, Graded, confirmed, inside, nothing, shortened
from clawctl.extensions.worlds.verdicts.crossing import OF_THE_TESTS
from clawctl.extensions.worlds.verdicts.separation import PYTEST, open_graded, open_linked, test_programs

_CURE = "let its tests end within their time, whatever the agent leaves"
_COMPILED = (".pyc", ".pyo", ".so", ".pth", ".egg-link")
_TEST_FOLDERS = {"test", "tests", "testing"}
_SHADOWS = set(sys.stdlib_module_names) | set(PYTEST)


def clean(snapshot: bytes, before: Mapping[str, bytes], tests: Mapping[str, bytes]) -> tuple[bytes, set[str]]:
    """The code to grade, as a tar: the agent's files without those that could change the tests, plus `tests`.

    Test folders are restored to their original state, because they may contain files that the tests import. The second value has
    the paths of all files that are not the agent's.
    """
    files, folders = files_of(snapshot), {folder for path in tests if (folder := _test_folder(path)) is not None}
    left_out = {path for path in files if _is_of_the_tests(path, before) or path.startswith(tuple(folders))} | set(tests)
    put_back = {
        path: text for path, text in before.items() if os.path.basename(path) in OF_THE_TESTS or path.startswith(tuple(folders))
    } | dict(tests)
    kept = files_of(without(snapshot, left_out | set(put_back)))
    return tar_of({path: text for path, text in kept.items() if not _is_below(path, put_back)} | put_back), set(put_back)


def _is_of_the_tests(path: str, before: Mapping[str, bytes]) -> bool:
    name, folder = os.path.basename(path), path.split("/")[0]
    inner = path.split("/")[1] if folder == "src" and "/" in path else folder
    shadows = inner.removesuffix(".py") in _SHADOWS and not any(old == path or old.startswith(f"{folder}/") for old in before)
    return name in OF_THE_TESTS or "__pycache__" in path or (path not in before and (name.endswith(_COMPILED) or shadows))


def _test_folder(path: str) -> str | None:
    """The folder of a test: "pkg/tests/" for "pkg/tests/unit/test_a.py". None if the test is next to the code that it tests."""
    parts = path.split("/")
    index = next((index for index, part in enumerate(parts[:-1]) if part in _TEST_FOLDERS), None)
    return None if index is None else "/".join(parts[: index + 1]) + "/"


def _is_below(path: str, files: Mapping[str, bytes]) -> bool:
    """Whether the path is a folder in another path of `files`, or is below a path that is a file there."""
    return any(other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in files)


async def run_pytest(
    code: bytes, tests: Collection[str], wanted: Sequence[str], folder: str, limits: Limits, timeout: float
) -> Graded:
    """1 if each of the `wanted` tests (`tests/test_a.py::test_b`) passes in `code`, a tar made by `clean`; otherwise 0.

    `tests` are the paths of test files in it. The verdict is unverified if a test believes what the code says of its own objects,
    or passes only beside the code. Raises SandboxFailed.
    """
    limits = replace(limits, seconds=timeout + 30, network=False)

    async def together() -> Graded:
        fixed = {f"{TOOLS}/{name}": inside(name) for name in ("run_tests.py", "crossing.py")}
        async with open_sandbox(folder, limits, fixed, PYTEST) as sandbox:
            return _graded(await _run(sandbox, _arguments(wanted, "--together"), code, b"", timeout), wanted, [])

    return await confirmed(await _run_apart(code, tests, wanted, folder, limits, timeout), together)


def _arguments(wanted: Sequence[str], *options: str) -> list[str]:
    return [f"{TOOLS}/run_tests.py", *options, "--json", *sorted({name.split("::")[0] for name in wanted})]


async def _run_apart(
    code: bytes, tests: Collection[str], wanted: Sequence[str], folder: str, limits: Limits, timeout: float
) -> Graded:
    local = [f"{folder}/{path}" for path in sorted({*tests, *_folders_of(tests)})]
    try:
        async with (
            open_graded(without(code, set(tests)), folder, limits) as graded,
            open_linked(graded.socket, folder, limits, test_programs(kind_of(limits), local, ["/tmp"], ()), PYTEST) as sandbox,
        ):
            return _graded(await _run(sandbox, _arguments(wanted), code, b"", timeout), wanted, graded.marks)
    except ValueError as error:
        return nothing(f"the snapshot does not fit: {error}")


def _graded(ran: Ran | str, wanted: Sequence[str], marks: list[str]) -> Graded:
    if isinstance(ran, str):
        return nothing(ran, _CURE)
    try:
        report = json.loads(ran.output)
        log = shortened(str(report["log"]))
    except (ValueError, KeyError, TypeError):
        return nothing(
            f"the tests reported nothing readable and ended with code {ran.code}\n{shortened(ran.output + ran.errors)}", _CURE
        )
    missing = [name for name in wanted if not _among(name, report["passed"]) or _among(name, report["failed"])]
    if missing or "collection" in report["failed"]:
        return nothing(f"not passed: {', '.join(missing[:5])}\n{log}")
    believed = marks + [name for name in wanted if _among(name, report["unverified"])]
    if believed:
        return Graded(1.0, f"these rest on what the code says of its own objects: {', '.join(believed[:5])}\n{log}", UNVERIFIED)
    return Graded(1.0, log)


def _folders_of(tests: Collection[str]) -> set[str]:
    """Test folders, and the folders in them. Python may import each of them as a package."""
    tops = {path: top.rstrip("/") for path in tests if (top := _test_folder(path)) is not None}
    return {
        str(parent) for path, top in tops.items() for parent in PurePath(path).parents if PurePath(top) in (parent, *parent.parents)
    }


def _among(name: str, others: Sequence[str]) -> bool:
    return any(other == name or other.startswith((f"{name}[", f"{name}::")) for other in others)


async def run_calls(code: bytes, calls: Sequence[Mapping[str, Any]], folder: str, limits: Limits, timeout: float) -> Graded:
    """1 if each call returns the expected value: {"call": "prices.total", "args": [[1, 2]], "want": 3}. Raises SandboxFailed.

    The values are compared as JSON: a tuple is a list there, and the keys of a dict are texts.
    """
    request = json.dumps([{"call": call["call"], "args": call["args"]} for call in calls]).encode()
    fixed = {f"{TOOLS}/run_calls.py": inside("run_calls.py")}
    async with open_sandbox(folder, replace(limits, seconds=timeout + 30, network=False), fixed) as sandbox:
        ran = await _run(sandbox, [f"{TOOLS}/run_calls.py", folder], code, request, timeout)
    if isinstance(ran, str):
        return nothing(ran)
    try:
        returned = json.loads(ran.output)
        wrong = [
            f"{call['call']}{tuple(call['args'])} gave {got}, not {call['want']}"
            for call, got in zip(calls, returned, strict=True)
            if "value" not in got or not is_same(got["value"], call["want"])
        ]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # also by long numbers and deep lists
        return nothing(f"the calls reported nothing readable and ended with code {ran.code}")
    return Graded(1.0, f"{len(calls)} calls returned the expected values") if not wrong else nothing("; ".join(wrong[:3]))


def is_same(got: Any, want: Any) -> bool:
    """Whether two JSON values are the same. True differs from 1. Numbers may differ by a relative 1e-9 or an absolute 1e-12."""
    if isinstance(want, bool) or isinstance(got, bool) or want is None:
        return got is want
    if isinstance(want, int | float):
        return isinstance(got, int | float) and math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(is_same, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(is_same(got[key], want[key]) for key in want)
    return bool(got == want)


async def _run(sandbox: Sandbox, arguments: list[str], code: bytes, given: bytes, timeout: float) -> Ran | str:
    """Run one of clawctl's programs on the code. A returned text explains why there is no result."""
    try:
        await sandbox.put(code)
        ran = await sandbox.run(
            [sandbox.kind.python(), *sandbox.kind.test_options(), *arguments], timeout, given, joined=False, output=1 << 21
        )
    except ValueError as error:
        return f"the snapshot does not fit: {error}"
    except SandboxOver as error:
        return f"the tests ended the sandbox: {error}"
    return f"the tests did not end within {timeout:.0f} s" if ran.timed_out else ran
