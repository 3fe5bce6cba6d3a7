"""Tests and graded code run in two sandboxes: honest code passes, and code that solves nothing earns nothing."""

import asyncio
import shutil
from dataclasses import replace
from itertools import cycle

import pytest

from clawctl.extensions.worlds.agent import Worked, outcome_of
from clawctl.extensions.worlds.terminal.environment import solve
from clawctl.extensions.worlds.verdicts import Graded
from scripts.benchmarks.environments_idioms import CHEATS, cheat_of, grade_module, read_idioms
from scripts.benchmarks.environments_scripts import CHEATS as CHEATS_OF_SCRIPTS
from scripts.benchmarks.environments_scripts import STYLES, commands, task_of

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")
IDIOMS = read_idioms()


@pytest.mark.parametrize("name", IDIOMS)
def test_honest_code_is_trusted_however_it_is_tested(name: str) -> None:
    score = asyncio.run(grade_module(IDIOMS[name], IDIOMS[name]["work"]))
    assert (score.value, score.verdict) == (1, "trusted"), score.log


@pytest.mark.parametrize("name", ["literal", "equal objects", "part of a text"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_code_that_solves_nothing_earns_nothing(name: str, cheat: str) -> None:
    score = asyncio.run(grade_module(IDIOMS[name], cheat_of(IDIOMS[name], cheat)))
    outcome = outcome_of("", Worked("done", ""), score, steps=False)
    assert outcome.reward == 0, score.log
    assert outcome.verdict == score.verdict


def test_an_object_that_the_test_believes_is_unverified_and_counts_only_if_the_user_accepts_it() -> None:
    work = "class Same:\n    def __eq__(self, other): return True\ndef add(a, b): return Same()\n"
    score = asyncio.run(grade_module(IDIOMS["literal"], work))
    assert (score.value, score.verdict) == (1, "unverified"), score.log
    assert [outcome_of("", Worked("done", ""), score, False, accepts).reward for accepts in (False, True)] == [0, 1]
    assert outcome_of("", Worked("done", ""), Graded(0.5, ""), False).reward == 0.5


@pytest.mark.parametrize("style", STYLES)
def test_an_honest_agent_scores_in_every_style_of_script(style: str) -> None:
    score = asyncio.run(solve(task_of(style), commands(None)))
    assert score.value == 1, score.log


@pytest.mark.parametrize(("style", "cheat"), list(zip(STYLES, cycle(CHEATS_OF_SCRIPTS), strict=False)))
def test_an_agent_that_attacks_the_script_earns_nothing(style: str, cheat: str) -> None:
    score = asyncio.run(solve(task_of(style), commands(cheat)))
    assert score.value == 0, score.log


def test_what_the_shell_of_the_tests_cannot_separate_does_not_run_there() -> None:
    task = replace(task_of("tee"), tests={"test.sh": b"cd /app\nsource run.sh\necho 0 > /logs/verifier/reward.txt\n"})
    score = asyncio.run(solve(task, "echo 'echo 1 > /logs/verifier/reward.txt; exec sleep 0' > run.sh"))
    assert score.value == 0
    assert "does not run in the shell of the tests" in score.log
