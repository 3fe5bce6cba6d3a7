"""Case `foreign`: a folder of other people's tasks in the formats that their authors publish. `clawctl play --check` reads each.

A task counts if it is playable and its environment accepts it, or if it is refused for a reason that is true. `TRUE` has what makes
each reason true: the case really tries it, such as the command of a Dockerfile in the sandbox, an import, or another program.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from clawctl.environments.checking import CheckedTask, check
from clawctl.extensions.worlds.sandbox import open_sandbox
from scripts.benchmarks.environments_foreign_rows import HARBOR_TEST, HARBOR_TOML, QUESTIONS, bfcl3, repositories
from scripts.benchmarks.environments_harness import write_task
from scripts.benchmarks.table import Row

_TEST_SH = """#!/bin/bash
cd /app
if [ -f done.sh ] && [ "$(bash done.sh)" = 4 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
_BELIEVING = "#!/bin/bash\ncd /app\nsource ./done.sh > out\ngrep -c 4 out > /logs/verifier/reward.txt\n"
_SOLVE = "#!/bin/bash\necho 'echo 4' > done.sh\n"
_PYTEST_OLD = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.7.13/install.sh | sh
source $HOME/.local/bin/env
uv init
uv add pytest==8.4.1
uv run pytest $TEST_DIR/test_outputs.py -rA
"""
_OLD_TEST = (
    "from pathlib import Path\n\n\ndef test_hello():\n    assert Path('/app/hello.txt').read_text().strip() == 'Hello, world!'\n"
)
_COMPOSE = 'services:\n  client:\n    build:\n      dockerfile: Dockerfile\n    command: ["sh", "-c", "sleep infinity"]\n'


@dataclass(frozen=True, slots=True)
class Foreign:
    """One published format: the folder to check, the options, and the expected finding for each task."""

    place: str  # below the folder
    findings: Mapping[str, str]  # by task: "playable", or what is true
    options: Mapping[str, str] = field(default_factory=dict)


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


# ---- Harbor, and terminal-bench before it --------------------------------------------------------------------------------

HARBOR = {  # name: Dockerfile, and changes
    "plain": ("FROM ubuntu:24.04\nWORKDIR /app\nCOPY start.txt ./\n", {}),
    "arguments": (
        'ARG HOME_OF=/app\nFROM debian:12\nENV GREETING hello world\nWORKDIR $HOME_OF\nCOPY ["start.txt", "./"]\n', {},
    ),
    "document": ("FROM python:3.12-slim\nWORKDIR /app\nCOPY <<EOF words.txt\none\ntwo\nEOF\nRUN wc -l words.txt\n", {}),
    "pattern": ("FROM ubuntu\nWORKDIR /app\nCOPY *.txt data/\nRUN test -f data/start.txt\n", {}),
    "installs": ("FROM ubuntu\nRUN apt-get update && apt-get install -y no-such-package-at-all\nWORKDIR /app\n", {}),
    "pip": ("FROM python:3.12\nRUN pip install --no-cache-dir no-such-module-at-all==1.0\nWORKDIR /app\n", {}),
    "downloads": ("FROM ubuntu\nWORKDIR /app\nRUN curl -fsSL https://example.org/data.csv -o data.csv\n", {}),
    "database": ("FROM elasticsearch:8\nWORKDIR /app\n", {}),
    "stages": ("FROM ubuntu AS build\nRUN echo 1 > /made\nFROM ubuntu\nWORKDIR /app\nCOPY --from=build /made /app/made\n", {}),
    "system": ("FROM ubuntu\nWORKDIR /app\nRUN useradd worker\n", {}),
    "services": ("FROM ubuntu\nWORKDIR /app\n", {"environment/docker-compose.yaml": _COMPOSE}),
    "no-tests": ("FROM ubuntu\nWORKDIR /app\n", {"tests/test.sh": ""}),
    "believing": ("FROM ubuntu\nWORKDIR /app\n", {"tests/test.sh": _BELIEVING}),
    "generous": ("FROM ubuntu\nWORKDIR /app\n", {"tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"}),
    "unsolved": ("FROM ubuntu\nWORKDIR /app\n", {"solution/solve.sh": "#!/bin/bash\necho 'echo 5' > done.sh\n"}),
}  # fmt: skip
HARBOR_FOUND = {
    **dict.fromkeys(("plain", "arguments", "document", "pattern"), "playable"),
    **dict.fromkeys(("installs", "pip", "downloads", "database", "stages", "system"), "needs an image"),
    "services": "not playable", "no-tests": "not playable", "believing": "verdict cannot be trusted", "generous": "no-op passes",
    "unsolved": "oracle fails",
}  # fmt: skip


def write_harbor(folder: Path) -> Foreign:
    for name, (dockerfile, changes) in HARBOR.items():
        files = {
            "instruction.md": "Write done.sh, which prints 4.\n", "task.toml": 'version = "1.0"\n',
            "environment/Dockerfile": dockerfile,
            "environment/start.txt": "start\n", "tests/test.sh": _TEST_SH, "solution/solve.sh": _SOLVE,
        }  # fmt: skip
        write(folder / "harbor" / name, {**files, **changes})
        if not (folder / "harbor" / name / "tests/test.sh").read_text():
            (folder / "harbor" / name / "tests/test.sh").unlink()
    return Foreign("harbor", HARBOR_FOUND)


def write_terminal_bench(folder: Path) -> Foreign:
    base = {
        "task.yaml": "instruction: |-\n  Create hello.txt with the text Hello, world!\nparser_name: pytest\n"
        "max_agent_timeout_sec: 360.0\nmax_test_timeout_sec: 60.0\ndifficulty: easy\n",
        "Dockerfile": "FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624\n\nWORKDIR /app\n",
        "docker-compose.yaml": _COMPOSE, "run-tests.sh": _PYTEST_OLD, "tests/test_outputs.py": _OLD_TEST,
        "solution.sh": "#!/bin/bash\necho 'Hello, world!' > hello.txt\n",
    }  # fmt: skip
    steps = "- command: echo 'Hello, world!' > hello.txt\n  min_timeout_sec: 1.0\n  block: true\n  append_enter: true\n"
    several = {"docker-compose.yaml": _COMPOSE + "  database:\n    image: postgres:16\n"}
    installs = {"Dockerfile": "FROM ubuntu\nRUN apt-get install -y no-such-package-at-all\nWORKDIR /app\n"}
    for name, changes in {"hello": {}, "steps": {"solution.yaml": steps}, "several": several, "installs": installs}.items():
        write(folder / "terminal-bench" / name, {**base, **changes})
    (folder / "terminal-bench/steps/solution.sh").unlink()
    findings = {"hello": "playable", "steps": "playable", "several": "not playable", "installs": "needs an image"}
    return Foreign("terminal-bench", findings)


# ---- rows ----------------------------------------------------------------------------------------------------------------


def write_swe_bench(folder: Path) -> Foreign:
    inner = folder / "swe-bench"
    inner.mkdir()
    row = json.loads(write_task(inner, "total() adds instead of multiplying.").read_text())
    code = "\n".join(
        ["--- a/prices.py", "+++ b/prices.py", "@@ -1,2 +1,2 @@", " def total(price, count):", "-    return price+count"]
    )
    row |= {"patch": f"{code}\n+    return price * count\n", "PASS_TO_PASS": "[]", "hints_text": "", "version": "1.0"}
    listed = json.dumps(row["FAIL_TO_PASS"])
    needs = row["test_patch"].replace("from prices", "import numpy_of_nobody\n+from prices").replace("+1,5", "+1,6")
    rows = [
        {**row, "FAIL_TO_PASS": listed},
        {**row, "instance_id": "absent-1", "repo": "nobody/absent"},
        {**row, "instance_id": "commit-1", "base_commit": "0123456789abcdef0123456789abcdef01234567"},
        {**row, "instance_id": "no-tests-1", "FAIL_TO_PASS": "[]"},
        {**row, "instance_id": "list-1", "FAIL_TO_PASS": '["tests/test_pri'},
        {**row, "instance_id": "module-1", "test_patch": needs},
        {**row, "instance_id": "solved-1", "FAIL_TO_PASS": ["prices.py::absent"]},
    ]
    write(inner, {"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)})
    findings = {"prices-1": "playable", "module-1": "needs an image", "solved-1": "oracle fails"}
    findings |= dict.fromkeys(("absent-1", "commit-1", "no-tests-1", "list-1"), "not playable")
    return Foreign("swe-bench/rows.jsonl", findings, {"repositories": str(inner)})


def write_swe_smith(folder: Path) -> Foreign:
    """The patch of a row makes the fault; the tests are in the repository."""
    clone = folder / "swe-smith" / "me__prices.01234567"
    test = "from prices import total\n\n\ndef test_total():\n    assert total(3, 4) == 12\n"
    write(clone, {"prices.py": "def total(price, count):\n    return price * count\n", "tests/test_prices.py": test})
    fault = "--- a/prices.py\n+++ b/prices.py\n@@ -1,2 +1,2 @@\n def total(price, count):\n-    return price * count\n"
    row = {
        "instance_id": "me__prices.01234567.func_basic__abc", "repo": "swesmith/me__prices.01234567",
        "patch": f"{fault}+    return price + count\n",
        "FAIL_TO_PASS": ["tests/test_prices.py::test_total"], "PASS_TO_PASS": [],
        "image_name": "swebench/swesmith.x86_64.me_prices",
        "problem_statement": "total() is wrong.",
    }  # fmt: skip
    rows = [row, {**row, "instance_id": "me__prices.01234567.stale__abc", "patch": fault.replace("* count", "** count")}]
    write(folder / "swe-smith", {"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)})
    findings = {"me__prices.01234567.func_basic__abc": "playable", "me__prices.01234567.stale__abc": "not playable"}
    return Foreign("swe-smith/rows.jsonl", findings, {"repositories": str(folder / "swe-smith")})


def write_r2e(folder: Path) -> Foreign:
    image = "namanjain12/aiohttp_final:0123"
    row = {
        "repo_name": "aiohttp", "docker_image": image, "commit_hash": "0123",
        "parsed_commit_content": "{}",
        "execution_result_content": "{}", "modified_files": [], "problem_statement": "It fails.",
        "expected_output_json": '{"test_a": "PASSED"}',
    }  # fmt: skip
    write(folder / "r2e", {"rows.json": json.dumps([row])})
    return Foreign("r2e/rows.json", {image: "needs an image"})


def write_questions(folder: Path) -> Foreign:
    prompt = [{"content": "Solve the problem. What is 17 + 17?", "role": "user"}]
    dapo = {"data_source": "math_dapo", "prompt": prompt, "ability": "MATH", "extra_info": {"index": "a"}}
    rows = [{**dapo, "reward_model": {"ground_truth": "34", "style": "rule"}}, {**dapo, "reward_model": {"style": "rule"}}]
    write(folder / "dapo", {"dapo.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)})
    return Foreign("dapo/dapo.jsonl", {"dapo-0": "playable", "dapo-1": "not playable"})


def write_aime(folder: Path) -> Foreign:
    rows = [
        {"ID": "2024-I-1", "Problem": "How long is the walk?", "Solution": "… \\boxed{204}.", "Answer": 204},
        {"ID": "2024-I-2", "Problem": "What is 5 squared?", "Solution": "…", "Answer": 25},
    ]
    write(folder / "aime", {"aime_2024.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)})
    return Foreign("aime/aime_2024.jsonl", {"2024-I-1": "playable", "2024-I-2": "playable"})


def write_bfcl(folder: Path) -> Foreign:
    properties = {"base": {"type": "integer"}, "height": {"type": "integer"}, "unit": {"type": "string"}}
    function = {
        "name": "geo.area",
        "description": "",
        "parameters": {"type": "dict", "properties": properties, "required": ["base", "height"]},
    }
    question = {
        "question": [[{"role": "user", "content": "The area of a triangle of base 10 and height 5?"}]],
        "function": [function],
    }
    truth = {"geo.area": {"base": [10], "height": [5], "unit": ["units", ""]}}
    rows = [{"id": f"simple_python_{number}", **question} for number in range(3)]
    wrong = {"geo.area": {"base": [10], "width": [5]}}
    answers = [{"id": "simple_python_0", "ground_truth": [truth]}, {"id": "simple_python_1", "ground_truth": [wrong]}]
    several = {"id": "multi_turn_base_0", "question": question["question"], "path": [], "involved_classes": ["TwitterAPI"]}
    files: dict[str, list[dict[str, Any]]] = {
        "BFCL_v4_simple_python.json": rows,
        "possible_answer/BFCL_v4_simple_python.json": answers,
    }
    files |= {"BFCL_v4_irrelevance.json": [{"id": "irrelevance_0", **question}], "BFCL_v4_multi_turn_base.json": [several]}
    write(folder / "bfcl", {name: "".join(f"{json.dumps(row)}\n" for row in lines) for name, lines in files.items()})
    findings = {"simple_python_0": "playable", "simple_python_1": "oracle fails", "BFCL_v4_simple_python-2": "not playable"}
    return Foreign("bfcl", findings | {"irrelevance_0": "playable", "BFCL_v4_multi_turn_base": "not playable"})


def write_rows(folder: Path, name: str) -> Foreign:
    rows, task = QUESTIONS[name] if name in QUESTIONS else (repositories(folder / f"{name}-repositories")[name][0], "prices-1")
    findings = {task: "playable"} if name != "multi-swe" else {"mui__material-ui-11451": "not playable"}
    write(folder / name, {f"{name}.jsonl": f"{json.dumps(rows)}\n"})
    return Foreign(
        f"{name}/{name}.jsonl", findings, {} if name in QUESTIONS else {"repositories": str(folder / f"{name}-repositories")}
    )


def write_bfcl3(folder: Path) -> Foreign:
    write(folder / "bfcl3", bfcl3())
    return Foreign("bfcl3", {"simple_0": "playable"})


def write_harbor2(folder: Path) -> Foreign:
    files = {
        "instruction.md": "Create hello.txt.\n", "task.toml": HARBOR_TOML, "tests/test.sh": HARBOR_TEST,
        "environment/Dockerfile": "FROM python:3.13-slim-bookworm\n\nWORKDIR /app\n", "tests/test_outputs.py": _OLD_TEST,
        "solution/solve.sh": "#!/bin/bash\nset -euo pipefail\necho 'Hello, world!' > hello.txt\n",
    }  # fmt: skip
    write(folder / "terminal-bench-2/hello", files)
    return Foreign("terminal-bench-2", {"hello": "playable"})


def write_clone(folder: Path) -> Foreign:
    code = "import verifiers as vf\n\n\ndef load_environment(**options):\n    return vf.SingleTurnEnv(dataset=None, rubric=None)\n"
    write(folder / "my-clone", {"vf_math.py": code, "pyproject.toml": '[project]\nname = "vf-math"\nversion = "0.1.0"\n'})
    return Foreign("my-clone", {"my-clone": "not playable"})


def write_gym(folder: Path) -> Foreign:
    findings = {"chain_sum": "playable", "countdown": "playable", "no_such_family": "not playable"}
    return Foreign("toolcall", findings, {"gym": ",".join(findings)})


# ---- environments --------------------------------------------------------------------------------------------------------


def write_verifiers(folder: Path, name: str) -> Foreign:
    """An environment of verifiers before 0.4, as `vf-init` made it, or in a package."""
    code = "import verifiers as vf\n\n\nclass Guess(vf.MultiTurnEnv):\n    async def env_response(self, messages, state):\n"
    code += "        return [], state\n\n\n"
    code += "def load_environment(**options):\n    return Guess(dataset=None, rubric=vf.Rubric(funcs=[]))\n"
    inner = {
        "guess": {"guess.py": code},
        "parcel": {"parcel/__init__.py": "from .env import load_environment\n", "parcel/env.py": code},
    }
    write(folder / name, {**inner[name], "pyproject.toml": f'[project]\nname = "{name}"\nversion = "0.1.0"\n'})
    return Foreign(name, {name: "not playable"})


_OPENENV = """
import json

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute

ACTION = {"title": "EchoAction", "type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}


async def schema(request):
    return JSONResponse({"action": ACTION, "observation": {}, "state": {}})


async def health(request):
    return JSONResponse({"status": "healthy"})


async def talk(socket):
    await socket.accept()
    while True:
        message = json.loads(await socket.receive_text())
        if message["type"] == "close":
            return
        data = {} if message["type"] == "state" else ANSWER
        await socket.send_text(json.dumps({"type": "observation", "data": data}))


ANSWER = {"observation": {"echo": "Ready."}, "reward": None, "done": False}
app = Starlette(routes=[Route("/schema", schema), Route("/health", health), WebSocketRoute("/ws", talk)])
"""


def write_openenv(folder: Path, name: str) -> Foreign:
    settings = f"spec_version: 1\nname: {name}\ntype: space\nruntime: fastapi\napp: server.app:app\nport: 8000\n"
    changed = {
        "echo_env": _OPENENV, "lacks_env": f"import module_of_nobody\n{_OPENENV}",
        "exits_env": "raise RuntimeError('no key')\n",
        "broken_env": _OPENENV.replace('ANSWER = {"observation"', 'ANSWER = {"nothing"'),
    }  # fmt: skip
    write(folder / name, {"openenv.yaml": settings, "server/__init__.py": "", "server/app.py": changed[name]})
    return Foreign(name, {name: "playable" if name == "echo_env" else "not playable"})


def write_miniwob(folder: Path) -> Foreign:
    core = "var core = {}; var WOB_DONE_GLOBAL = false; var WOB_RAW_REWARD_GLOBAL = 0;\nMath.seedrandom = function (seed) {};\n"
    core += "core.startEpisodeReal = function () { window.genProblem(); };\n"
    done = "WOB_RAW_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true;"
    page = "<html><body><div id=query></div><button id=ok>ok</button><script src=../core/core.js></script><script>\n"
    page += "function genProblem() {{ document.getElementById('query').textContent = 'Click ok.';\n"
    page += "{0} document.getElementById('ok').onclick = function () {{ {1} }}; }}\n</script></body></html>\n"
    write(folder / "pages", {"core/core.js": core, "miniwob/click-ok.html": page.format("", done)})
    write(
        folder / "pages",
        {"miniwob/given-away.html": page.format(done, ""), "miniwob/broken.html": "<html><body>no script</body></html>\n"},
    )
    return Foreign("pages", {"click-ok": "playable", "given-away": "no-op passes", "broken": "not playable"})


WRITERS: tuple[Callable[[Path], Foreign], ...] = (
    write_harbor, write_terminal_bench, write_swe_bench, write_swe_smith, write_r2e, write_questions, write_aime, write_bfcl,
    *(partial(write_rows, name=name) for name in (*QUESTIONS, "swe-gym", "swe-rebench", "swe-bench-pro", "nemo-swe", "multi-swe")),
    write_bfcl3, write_harbor2, write_clone,
    write_gym, *(partial(write_verifiers, name=name) for name in ("guess", "parcel")),
    *(partial(write_openenv, name=name) for name in ("echo_env", "lacks_env", "exits_env", "broken_env")),
    write_miniwob,
)  # fmt: skip

# ---- what is true --------------------------------------------------------------------------------------------------------


def fails_in_sandbox(command: str) -> bool:
    async def run() -> bool:
        async with open_sandbox("/app") as sandbox:
            return (await sandbox.run(command, timeout=60)).code != 0

    return asyncio.run(run())


def cannot_import(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode != 0


def _git_lacks(folder: Path) -> bool:
    command = ["git", "-C", str(folder / "swe-bench/me__prices"), "cat-file", "-e", "0123456789abcdef0123456789abcdef01234567"]
    return subprocess.run(command, capture_output=True).returncode != 0


def _has(file: str, text: str) -> Callable[[Path], bool]:
    return lambda folder: text in (folder / file).read_text()


def _lacks(file: str, text: str) -> Callable[[Path], bool]:
    return lambda folder: text not in (folder / file).read_text()


# By place and task: words of the reason, and what proves it. Tasks of Harbor whose reason is a verdict were graded by the check.
TRUE: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "harbor installs": ("no-such-package-at-all", lambda _: fails_in_sandbox("apt-get install -y no-such-package-at-all")),
    "harbor pip": ("pip install", lambda _: fails_in_sandbox("pip install no-such-module-at-all==1.0")),
    "harbor downloads": ("curl", lambda _: fails_in_sandbox("curl -fsSL https://example.org/data.csv -o data.csv")),
    "harbor database": ("FROM elasticsearch:8", lambda _: fails_in_sandbox("elasticsearch --version")),
    "harbor stages": ("--from=build", lambda _: fails_in_sandbox("test -f /made")),
    "harbor system": ("useradd worker", lambda _: fails_in_sandbox("useradd worker")),
    "harbor services": ("several containers", lambda folder: (folder / "harbor/services/environment/docker-compose.yaml").exists()),
    "harbor no-tests": ("no verdict", lambda folder: not (folder / "harbor/no-tests/tests/test.sh").exists()),
    "harbor believing": ("runs text of the graded code", _has("harbor/believing/tests/test.sh", "source ./done.sh")),
    "harbor generous": ("the reward is 1 although nothing was done", _lacks("harbor/generous/tests/test.sh", "done.sh")),
    "harbor unsolved": ("the reward is 0", _has("harbor/unsolved/solution/solve.sh", "echo 5")),
    "terminal-bench several": ("several containers (client, database)", lambda _: True),
    "terminal-bench installs": ("no-such-package-at-all", lambda _: fails_in_sandbox("apt-get install -y no-such-package-at-all")),
    "swe-bench/rows.jsonl absent-1": ("nobody/absent", lambda folder: not list((folder / "swe-bench").glob("*absent*"))),
    "swe-bench/rows.jsonl commit-1": ("has no commit 0123456789", _git_lacks),
    "swe-bench/rows.jsonl no-tests-1": ("has no verdict", lambda _: True),
    "swe-bench/rows.jsonl module-1": ("the module numpy_of_nobody", lambda _: cannot_import("numpy_of_nobody")),
    "swe-bench/rows.jsonl solved-1": ("not passed: prices.py::absent", lambda _: True),
    "swe-smith/rows.jsonl me__prices.01234567.stale__abc": ("does not apply", lambda folder: _patch_fails(folder)),
    "r2e/rows.json namanjain12/aiohttp_final:0123": ("are in the image namanjain12/aiohttp_final:0123 alone", lambda _: True),
    "dapo/dapo.jsonl dapo-1": ("row 2", _has("dapo/dapo.jsonl", '"reward_model": {"style": "rule"}')),
    "bfcl simple_python_1": ("do not fit", lambda _: True),
    "bfcl BFCL_v4_simple_python-2": (
        "simple_python_2", _lacks("bfcl/possible_answer/BFCL_v4_simple_python.json", "simple_python_2"),
    ),
    "bfcl BFCL_v4_multi_turn_base": ("category multi_turn_base", _has("bfcl/BFCL_v4_multi_turn_base.json", "TwitterAPI")),
    "toolcall no_such_family": ("reasoning-gym has no family", lambda _: cannot_import("reasoning_gym.no_such_family")),
    "swe-bench/rows.jsonl list-1": ("is no list", _has("swe-bench/rows.jsonl", 'test_pri"')),
    "parcel parcel": ("verifiers before 0.4", _lacks("parcel/parcel/env.py", "load_taskset")),
    "exits_env exits_env": ("did not start: RuntimeError: no key", lambda _: True),
    "my-clone my-clone": ("verifiers before 0.4", _lacks("my-clone/vf_math.py", "load_taskset")),
    "multi-swe/multi-swe.jsonl mui__material-ui-11451": ("has no verdict", _lacks("multi-swe/multi-swe.jsonl", "FAIL_TO_PASS")),
    "guess guess": ("verifiers before 0.4", _lacks("guess/guess.py", "load_taskset")),
    "lacks_env lacks_env": ("No module named 'module_of_nobody'", lambda _: cannot_import("module_of_nobody")),
    "broken_env broken_env": ("no episode begins", lambda _: True),
    "pages given-away": ("the reward is 1 although nothing was done", lambda _: True),
    "pages broken": ("", _lacks("pages/miniwob/broken.html", "core.js")),
}  # fmt: skip


def _patch_fails(folder: Path) -> bool:
    row = json.loads((folder / "swe-smith/rows.jsonl").read_text().splitlines()[1])
    command = ["git", "apply", "--check", "-"]
    done = subprocess.run(command, cwd=folder / "swe-smith/me__prices.01234567", input=row["patch"].encode(), capture_output=True)
    return done.returncode != 0


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    right, total, played = 0, 0, 0
    for writer in WRITERS:
        if writer is write_miniwob and shutil.which("chromium") is None and shutil.which("chromium-headless-shell") is None:
            print("left out: MiniWoB, because Chromium is not installed")
            continue
        foreign = writer(folder)
        results = checked(folder, foreign)
        for task, expected in foreign.findings.items():
            problem = wrong(folder, f"{foreign.place} {task}", expected, results.get(task))
            total, right, played = total + 1, right + (problem is None), played + (expected == "playable")
            if problem is not None:
                print(f"{foreign.place} {task}: {problem}", file=sys.stderr)
    return [
        Row("foreign", "playable_or_refused_with_true_reason", right / total, "share"),
        Row("foreign", "tasks", float(total), f"of {len(WRITERS)} folders and files"),
        Row("foreign", "playable", float(played), "number"),
    ]


def checked(folder: Path, foreign: Foreign) -> dict[str, CheckedTask]:
    """What `clawctl play --check` finds, by task."""
    path = foreign.place if foreign.place == "toolcall" else str(folder / foreign.place)
    return {task.task: task for task in check(path, foreign.options)}


def wrong(folder: Path, name: str, expected: str, checked_task: CheckedTask | None) -> str | None:
    """What is wrong about a finding. None if it is right, and its reason true."""
    if checked_task is None:
        return "it is missing"
    if checked_task.found != expected:
        return f"found {checked_task.found!r}, not {expected!r}: {checked_task.reason}"
    if expected == "playable":
        return None
    reason, proof = TRUE[name]
    if reason not in checked_task.reason:
        return f"the reason does not say {reason!r}: {checked_task.reason}"
    return None if proof(folder) else f"the reason is not true: {checked_task.reason}"
