"""Verdicts in Harbor's format: `tests/test.sh` writes a number to `/logs/verifier/reward.txt`.

The script runs in one sandbox with the tests, and the graded code in another (`separation.py`). The script sees the agent's files
as data. Programs among them, and modules that Python imports, run in the other sandbox. Its shell cannot execute anything but the
system's programs. Nothing is installed: programs that the script needs must be on this machine.
"""

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from clawctl.extensions.worlds.sandbox import HOME, TOOLS, Limits, Sandbox, SandboxKind, SandboxOver, kind_of, open_sandbox
from clawctl.extensions.worlds.sandbox.tars import files_of
from clawctl.extensions.worlds.verdicts import UNVERIFIED, Graded, confirmed, inside, nothing, shortened
from clawctl.extensions.worlds.verdicts.crossing import OF_THE_TESTS
from clawctl.extensions.worlds.verdicts.numbers_in_shell import is_file_executed, variables_of
from clawctl.extensions.worlds.verdicts.separation import PYTEST, open_graded, open_linked, test_programs

_LOGS = "/logs/verifier"
_REWARDS = ("reward.txt", "reward.json")
_ENDS = "let test.sh end whatever the agent leaves, or raise timeout_sec of [verifier]"
_WRITES = f"let test.sh write a number from 0 to 1 to {_LOGS}/reward.txt, whatever the agent leaves"
_SHELL = f"{TOOLS}/shell"
_ENDINGS = {
    "node": (".js", ".cjs", ".mjs", ".ts", ".node"), "perl": (".pl", ".pm", ".ph"), "ruby": (".rb",), "php": (".php", ".inc"),
    "lua": (".lua",), "Rscript": (".R", ".r", ".Rmd"),
}  # fmt: skip


def programs(kind: SandboxKind, option: str = "") -> dict[str, bytes]:
    """Programs that come first on the path of a test script, by path. `option`: one of `run_tests.py`."""
    python = kind.python()
    tests = f'exec {python} {" ".join(kind.test_options())} {TOOLS}/run_tests.py {option} "$@"\n'
    runner, install = inside("uv.sh").decode(), inside("install.sh").decode()
    nothing_to_do = "#!/bin/bash\nexit 0\n"
    texts = {
        "pytest": f"#!/bin/bash\n{tests}", "py.test": f"#!/bin/bash\n{tests}", "uvx": runner, "uv": runner, "apt-get": install,
        "apt": install, "curl": nothing_to_do, "pip": nothing_to_do, "pip3": nothing_to_do,
    }  # fmt: skip
    texts = {name: text.replace("#!/bin/bash", "#!/bin/bash -p") for name, text in texts.items()}  # without BASH_ENV
    return {f"{TOOLS}/bin/{name}": text.encode() for name, text in texts.items()} | {
        f"{TOOLS}/confined_shell.py": inside("confined_shell.py")
    }


def languages(snapshot: bytes, seed: Mapping[str, bytes], tests: Mapping[str, bytes]) -> set[str]:
    """The interpreters whose programs or modules are among the agent's files, by ending or first line."""
    digests, named = {sha256(content).digest() for content in (*seed.values(), *tests.values())}, set[str]()
    for path, content in files_of(snapshot).items():
        if sha256(content).digest() not in digests:
            first = content[:100].split(b"\n")[0].decode(errors="replace")
            named |= {name for name, endings in _ENDINGS.items() if path.endswith(endings) or (first[:2] == "#!" and name in first)}
    return named


def data_of(snapshot: bytes, tests: Mapping[str, bytes]) -> bytes:
    """The agent's files as data: none is executable, changes how tests run, or has the name of a reward, except those that the
    tests have as well."""
    digests, out = {sha256(content).digest() for content in tests.values()}, io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(snapshot)) as given, tarfile.TarFile(fileobj=out, mode="w") as kept:
        for entry in given:
            content = given.extractfile(entry).read() if entry.isreg() else None  # type: ignore[union-attr]
            if (
                Path(entry.name).name in (*OF_THE_TESTS, *_REWARDS)
                and content is not None
                and sha256(content).digest() not in digests
            ):
                continue
            if content is not None:
                entry.mode &= ~0o111
            kept.addfile(entry, None if content is None else io.BytesIO(content))
    return out.getvalue()


async def run_script(
    tests: Mapping[str, bytes],
    snapshot: bytes,
    folder: str,
    limits: Limits,
    timeout: float,
    variables: Mapping[str, str] = MappingProxyType({}),
    seed: Mapping[str, bytes] = MappingProxyType({}),
) -> Graded:
    """Run `tests/test.sh` on a snapshot. `variables` are the task's variables, and `seed` its files. Raises SandboxFailed."""
    limits = replace(limits, seconds=timeout + 30, network=False)
    kept = {name: value for name, value in variables.items() if name not in ("BASH_ENV", "TEST_DIR", "HOME")}
    apart = await _run_apart(tests, snapshot, folder, limits, timeout, kept, seed)
    return await confirmed(apart, partial(_run_together, tests, snapshot, folder, limits, timeout, kept))


async def _run_together(
    tests: Mapping[str, bytes], snapshot: bytes, folder: str, limits: Limits, timeout: float, variables: Mapping[str, str]
) -> Graded:
    kind = kind_of(limits)
    fixed = {**programs(kind, "--together"), **{f"{TOOLS}/{name}": inside(name) for name in ("run_tests.py", "crossing.py")}}
    fixed |= {f"/tests/{name}": content for name, content in tests.items()}
    try:
        async with open_sandbox(folder, limits, fixed, PYTEST) as sandbox:
            await sandbox.put(snapshot)
            sandbox.define(variables)
            return await _rewarded(sandbox, ["/bin/bash", "/tests/test.sh"], timeout, {"TEST_DIR": "/tests"})
    except ValueError as error:
        return nothing(f"the snapshot does not fit: {error}")
    except SandboxOver as error:
        return nothing(f"the tests ended the sandbox: {error}")


async def _rewarded(sandbox: Sandbox, command: list[str], timeout: float, environment: Mapping[str, str]) -> Graded:
    """Run the script and read the reward that it leaves: the lower one if it leaves two. Raises SandboxOver."""
    ran = await sandbox.run(command, timeout=timeout, environment=environment)
    if ran.timed_out:
        return nothing(f"the tests did not end within {timeout:.0f} s\n{shortened(ran.output)}", _ENDS)
    if ran.code < 0:
        return nothing(f"something ended the tests with signal {-ran.code}\n{shortened(ran.output)}", _WRITES)
    await sandbox.end_processes()
    texts = [await sandbox.run(["/bin/cat", f"{_LOGS}/{name}"], timeout=5, output=65536, joined=False) for name in _REWARDS]
    written = [text.output for text in texts if text.code == 0]
    scores = [score for score in map(_number, written) if score is not None]
    if not scores or len(scores) < len(written):
        what = f"wrote {written[0].strip()[:40]!r} as the reward" if written else "wrote no reward"
        return nothing(
            f"the tests ended with code {ran.code} and {what}, not a number from 0 to 1\n{shortened(ran.output)}", _WRITES
        )
    return Graded(min(scores), shortened(ran.output))


async def _run_apart(
    tests: Mapping[str, bytes],
    snapshot: bytes,
    folder: str,
    limits: Limits,
    timeout: float,
    variables: Mapping[str, str],
    seed: Mapping[str, bytes],
) -> Graded:
    folders, kind = [folder, "/tmp", HOME], kind_of(limits)
    fixed = {**test_programs(kind, [], folders, languages(snapshot, seed, tests)), **programs(kind)}
    fixed |= {f"/tests/{name}": content for name, content in tests.items()}
    code = data_of(snapshot, tests)
    defined = {**variables, "CLAWCTL_FOLDERS": ":".join(folders)}
    try:
        async with (
            open_graded(snapshot, folder, limits, defined) as graded,
            open_linked(graded.socket, folder, limits, fixed, PYTEST) as sandbox,
        ):
            await sandbox.put(code)
            sandbox.define(defined)
            environment = {"BASH_ENV": f"{TOOLS}/functions.sh", "TEST_DIR": "/tests", "PYTHONNOUSERSITE": "1"}
            environment["PYTHONPATH"] = f"{TOOLS}/python"  # for a Python that is started by its path
            confined = [sandbox.kind.python(), "-I", "-S", f"{TOOLS}/confined_shell.py", _SHELL, "/tests/test.sh"]
            score = await _rewarded(sandbox, confined, timeout, environment)
    except ValueError as error:
        return nothing(f"the snapshot does not fit: {error}")
    except SandboxOver as error:
        return nothing(f"the tests ended the sandbox: {error}")
    shell = variables_of(text.decode(errors="replace") for name, text in tests.items() if name.endswith(".sh"))
    if any(is_file_executed(path, content, shell) for path, content in files_of(code).items()):
        graded.marks.append("a file has a text that a shell would execute where it expects a number")
    if score.value and graded.marks:
        return Graded(score.value, f"not verified: {graded.marks[0]}\n{score.log}", UNVERIFIED)
    return score


def _number(text: str) -> float | None:
    """The reward in a text: "1", {"reward": 1}, or {"a": 1, "b": 0} (the mean). None if it is not a number from 0 to 1."""
    try:
        reward = json.loads(text)
        if isinstance(reward, dict):
            reward = reward["reward"] if "reward" in reward else sum(reward.values()) / len(reward)
        value = float(reward)
    except (ValueError, TypeError, KeyError, ZeroDivisionError):
        return None
    return value if 0 <= value <= 1 else None
