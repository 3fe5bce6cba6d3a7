"""Each benchmark that the docs name can start by the rules of today."""

import subprocess
import sys

from tests.extension import ALL, needs


@needs(*ALL)
def test_a_change_of_a_rule_breaks_a_benchmark_in_the_commit_that_makes_it() -> None:
    command = [sys.executable, "-m", "scripts.benchmarks.all", "--rehearse"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
