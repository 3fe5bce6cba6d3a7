"""Each benchmark that the docs name can start by the rules of today."""

import subprocess
import sys

import pytest

from tests.extension import ALL, needs


@needs(*ALL)
def test_a_change_of_a_rule_breaks_a_benchmark_in_the_commit_that_makes_it() -> None:
    command = [sys.executable, "-m", "scripts.benchmarks.all", "--rehearse"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs(*ALL)
@pytest.mark.parametrize(("name", "option"), [("real", "--parts"), ("once", "--case"), ("people", "--case"), ("gpu", "--only")])
def test_a_name_that_a_benchmark_does_not_know_is_refused_before_it_runs(name: str, option: str) -> None:
    command = [sys.executable, "-m", f"scripts.benchmarks.{name}", option, "one-note"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no one-note; choose from" in done.stderr
