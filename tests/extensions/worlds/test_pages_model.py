"""The model `pages`: its demonstrations are exact, their faults are as frequent as they should be, and it fits its budget."""

import statistics
from collections import defaultdict
from random import Random

import pytest

from clawctl.extensions.worlds.gui.actions import SYSTEM, action_in
from clawctl.extensions.worlds.gui.sites import FAMILIES, draw_site
from scripts.benchmarks.circle import ROOT
from scripts.craft_model import pages


def answers(doc: pages.Document) -> list[str]:
    return [str(doc.messages[index]["content"]) for index in sorted(doc.learn)]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_episode_without_faults_is_the_solution_of_its_task(family: str) -> None:
    for number in range(0, 40, 2):
        task = draw_site(family, number)
        doc, browser = pages.episode(task, Random(number), {"right": 1.0})
        assert browser.score == 1
        assert [action_in(answer).name for answer in answers(doc)] == [step.split()[0] for step in task.solution]


def test_about_a_third_of_the_demonstrations_solve_their_task() -> None:
    solved = defaultdict[str, list[bool]](list)
    for number in range(0, 3200, 2):
        family = [*FAMILIES][number // 2 % len(FAMILIES)]
        solved[family].append(pages.episode(draw_site(family, number), Random(number))[1].score == 1)
    shares = {family: statistics.fmean(some) for family, some in solved.items()}
    assert 0.25 < statistics.fmean(shares.values()) < 0.45
    assert min(shares.values()) > 0.03


def test_what_a_demonstration_types_is_a_word_of_its_task() -> None:
    typed = 0
    for doc in pages.documents(3, 400):
        task = str(doc.messages[1]["content"])
        for answer in answers(doc):
            action = action_in(answer)
            if action is not None and action.name == "type":
                assert f" {action.text}" in task
                typed += 1
    assert typed > 50


def test_demonstrations_begin_as_the_agent_of_the_environment_does() -> None:
    docs = [doc for doc in pages.documents(0, 60) if doc.messages[0]["role"] == "system"]
    assert {doc.messages[0]["content"] for doc in docs} == {SYSTEM}
    assert len(docs) > 30


def test_the_model_fits_its_budget_and_has_a_card() -> None:
    folder = ROOT / "scripts" / "benchmarks" / "models" / "pages"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 16 * 2**20
    assert "pass@8" in (folder / "README.md").read_text()
