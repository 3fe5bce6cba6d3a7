"""The product finds the environments, the suites and the checks of this extension by their names."""

import asyncio
import json
import shutil
import threading
from pathlib import Path

import pytest

from clawctl.config import EvalConfig, Recipe
from clawctl.environments import ENVIRONMENTS
from clawctl.eval.measuring import measure
from clawctl.eval.suites.loading import load_suites
from clawctl.run.endpoint import Endpoint
from tests import forked
from tests.eval.test_suites import Full
from tests.serve.served import Server, build_model
from tests.stub_http import StubServer, running

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")

# A command that asks the model as a careless agent does, tries to give itself an outcome, and mends the function.
HARNESS = """python3 - <<'EOF'
import json, os, urllib.error, urllib.request
def post(path, body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode())
    try:
        return urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        return error
asked = {"messages": [{"role": "user", "content": os.environ["INSTRUCTION"]}], "model": "tiny", "temperature": 0}
with post("/chat/completions", asked) as answer:
    print(answer.headers["x-clawctl-sampling"], json.load(answer)["usage"]["completion_tokens"] <= 6)
print(post("/outcome", {"session_id": "mine", "reward": 1}).status)
EOF
sed -i 's/pass/return a + b/' calc.py
"""


def test_each_environment_declares_its_version() -> None:
    assert all(getattr(ENVIRONMENTS.load(name, "env"), "version", None) for name in ("toolcall", "terminal", "swe"))


@needs_sandbox
def test_doctor_reports_the_sandbox_and_the_browser_after_the_judge(tmp_path: Path) -> None:
    lines = forked.run("doctor", "--run", tmp_path / "none").stdout.splitlines()
    sandbox = next(line for line in lines if line.startswith("sandbox "))
    assert sandbox.startswith("sandbox bubblewrap: holds against files, ")
    assert lines[-1].startswith("browser: ")


def test_an_episode_that_fills_the_context_is_measured_as_the_worst_and_is_no_trouble_of_the_suite() -> None:
    (suite,) = load_suites(EvalConfig.model_validate({"suites": ["toolcall"], "problems": 2}))
    with running(StubServer(Full)) as server:
        result = asyncio.run(suite.measure(Endpoint(f"{server.url}/v1", "key", "crafts@1")))
    assert suite.metrics is not None
    assert {metric: (value.mean, value.n) for metric, value in result.metrics.items()} == dict.fromkeys(suite.metrics, (0.0, 2))


@needs_sandbox
def test_eval_measures_a_version_with_an_agent_in_the_sandbox_and_captures_nothing(tmp_path: Path) -> None:
    test = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    row = {
        "problem_statement": "add() does nothing.", "files": {"calc.py": "def add(a, b):\n    pass\n"},
        "test_files": {"test_calc.py": test}, "FAIL_TO_PASS": ["test_calc.py::test_add"],
    }  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({**row, "instance_id": f"add-{number}"}) + "\n" for number in range(20)))
    suite = {"name": "swe", "problems": 1, "temperature": 0.5, "max_tokens": 6, "options": {"path": str(rows), "harness": HARNESS}}
    data = {"model": {"path": "model", "name": "tiny"}, "serve": {"api_key": "key"}, "eval": {"suites": [suite]}}
    recipe = Recipe.model_validate(data)
    with Server(tmp_path / "run", build_model(tmp_path / "model")) as server:
        result = measure(server.run, recipe, load_suites(recipe.eval, server.run, recipe), 0, threading.Event())
    assert result["suites"]["swe"]["reward"]["mean"] == 1
    assert result["examples"][0]["reply"] == "temperature 0.5 instead of 0 True\n403"
    assert server.captured() == []
