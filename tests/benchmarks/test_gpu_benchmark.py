"""`scripts/bench gpu` with tiny shapes on the CPU, and its sessions."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from clawctl.trainers.local.trees import build_trie, make_branch
from scripts.benchmarks import gpu, gpu_carry
from scripts.benchmarks.gpu_training import MEMORY, SPEED, session_of

CASES = [case for case in gpu.CASES if case.name not in ("shared", "one-copy")]  # they start processes that train for ever
THERE = {  # on a machine with PyTorch and what goes with it
    "accelerate", "aiohttp", "certifi", "filelock", "jinja2", "matplotlib", "numpy", "peft", "prometheus-client", "pyarrow",
    "pyyaml", "rich", "safetensors", "torch", "typer", "uvloop", "yarl",
}  # fmt: skip


def test_a_machine_with_pytorch_has_or_is_brought_every_dependency() -> None:
    project = tomllib.loads((gpu.ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split("[^a-z0-9-]", line, maxsplit=1)[0] for line in project["dependencies"]} <= THERE | set(gpu_carry.NAMES)


def test_the_sessions_fill_their_tries() -> None:
    for shape in (*MEMORY, *SPEED):
        session = session_of(shape.tokens, 1000)
        laid = len(build_trie([make_branch(prompt, completion, 1.0) for prompt, completion in session]).ids_T)
        assert 0.85 * shape.tokens < laid < 1.15 * shape.tokens


def test_a_rehearsal_measures_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the rehearsal changes them; the next test finds them as they were
    results = gpu.Results(tmp_path / "gpu.json")
    gpu.rehearse(CASES, results, tmp_path)
    values = {(row.case, row.metric): row.value for row in results.rows}
    assert results.states == {case.name: "done" for case in CASES}
    assert values["gradients", "within_tolerance"] == 1
    assert values["oom", "steps_lost"] == values["oom", "turns_lost"] == 0
    assert values["oom", "long_turn_refused_with_reason"] == 1
    assert values["canary", "crafts bfloat16 passes"] == 1
    assert values["engine", "swap failed"] == 0
    assert values["circle", "requests_refused"] == 0


def test_without_a_card_the_command_says_how_to_rehearse(tmp_path: Path) -> None:
    if gpu.has_card():
        pytest.skip("there is a card")
    command = [sys.executable, "-m", "scripts.benchmarks.gpu", "--json", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("PyTorch sees no GPU here; scripts/bench gpu --rehearse")
    assert not list(tmp_path.iterdir())


def test_a_case_that_fails_stops_no_other_and_rows_are_written_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    results = gpu.Results(file)
    never = gpu.Case("gradients", 0.0, "has no time", "gpu_training.gradients")
    works = next(case for case in gpu.CASES if case.name == "engine")
    gpu.run_cases([never, works], results, tmp_path, time.monotonic() + 240, tiny=True)
    saved = json.loads(file.read_text())
    assert saved["states"]["gradients"].startswith("stopped after 0 s")
    assert saved["states"]["engine"] == "done"
    assert (tmp_path / "gpu-gradients.log").exists()
    assert {"case": "engine", "metric": "swap failed", "value": 0.0, "unit": "requests"} in saved["rows"]
