"""Rows and folders of data sets for the case `foreign`, as their authors publish them.

Their author had not read the code. At the first run, 31 of 40 tasks were right: names of fields and categories, a clone with
another name and a folder above the pages were not read, and the refusals named other reasons.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.environments_harness import write_task

Rows = Sequence[Mapping[str, Any]]

QUESTIONS: dict[str, tuple[Mapping[str, Any], str]] = {  # a row of each data set, and the task's name
    "math500": ({"problem": "What is $2^{10}$?", "solution": "It is \\boxed{1024}.", "answer": "1024", "level": 1}, "math500-0"),
    "deepmath": ({"question": "Evaluate it.", "final_answer": "\\frac{1}{2}", "r1_solution_1": "…"}, "deepmath-0"),
    "nemo": (
        {"expected_answer": "42", "responses_create_params": {"input": [{"role": "user", "content": "What is 6 times 7?"}]}},
        "nemo-0",
    ),
    "gym": (
        {"question": "State the final answer to: 4 + 3 =", "answer": "7", "metadata": {"source_dataset": "chain_sum"}},
        "gym-0",
    ),
}


def repositories(folder: Path) -> dict[str, Rows]:
    """Rows of tasks on one repository, by the data set whose form they have. All are playable but the last."""
    folder.mkdir(parents=True)
    row = json.loads(write_task(folder, "total() is wrong.").read_text())
    tests, solution = row.pop("FAIL_TO_PASS"), "-    return price+count\n+    return price*count\n"
    row["patch"] = f"--- a/prices.py\n+++ b/prices.py\n@@ -1,2 +1,2 @@\n def total(price, count):\n{solution}"
    whole = {**row, "FAIL_TO_PASS": tests, "PASS_TO_PASS": []}
    inner = {"metadata": {"instance_dict": json.dumps({**whole, "FAIL_TO_PASS": json.dumps(tests)})}, "input": []}
    install = {"python": "3.9", "install": "pip install -e .", "test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"}
    pro = {"fail_to_pass": repr(tests), "pass_to_pass": "[]", "repo_language": "python", "dockerhub_tag": "me.prices-1"}
    other = {"org": "mui", "number": 11451, "base": {"sha": "a" * 40}, "fix_patch": "", "instance_id": "mui__material-ui-11451"}
    return {
        "swe-gym": [whole],
        "swe-rebench": [{**whole, "install_config": install, "docker_image": "swerebench/sweb.eval.x86_64.me_prices"}],
        "swe-bench-pro": [{**row, **pro, "before_repo_set_cmd": "git reset --hard", "selected_test_files_to_run": "[]"}],
        "nemo-swe": [{"responses_create_params": inner, "agent_ref": {"name": "swe_agents"}}],
        "multi-swe": [other],
    }


def bfcl3() -> dict[str, str]:
    """A category under its name before v4."""
    parameters = {"type": "dict", "properties": {"base": {"type": "integer"}}, "required": ["base"]}
    row = {
        "id": "simple_0", "question": [[{"role": "user", "content": "A square of base 10?"}]],
        "function": [{"name": "area", "description": "", "parameters": parameters}],
    }  # fmt: skip
    truth = {"id": "simple_0", "ground_truth": [{"area": {"base": [10]}}]}
    return {"BFCL_v3_simple.json": json.dumps(row), "possible_answer/BFCL_v3_simple.json": json.dumps(truth)}


HARBOR_TOML = """version = "1.0"

[metadata]
author_name = "Ada"
difficulty = "medium"
tags = ["csv"]

[verifier]
timeout_sec = 120.0

[agent]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
docker_image = "example/hello:20251031"
cpus = 1
memory = "2G"
storage = "10G"
"""
HARBOR_TEST = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
