"""The model of the crafts: its demonstrations are right, it uses the environments' wording, and it fits its budget."""

import asyncio
import json
import random
import shutil
from itertools import islice
from pathlib import Path

import pytest

from clawctl.extensions.worlds.agent import SYSTEM
from clawctl.extensions.worlds.swe import environment as swe
from clawctl.extensions.worlds.swe.families import draw_task
from clawctl.extensions.worlds.terminal import environment as terminal
from clawctl.extensions.worlds.terminal.families import FAMILIES, task_of
from clawctl.extensions.worlds.toolcall.questions import draw_question
from clawctl.extensions.worlds.wording import read_wording
from clawctl.run.gguf import model_folder
from scripts.craft_model import corpus
from scripts.craft_model.copying import copies, kind_of
from scripts.tiny_models.train import texts_of

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")


@needs_sandbox
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_the_good_command_of_a_demonstration_solves_its_task_and_a_faulty_one_does_not(family) -> None:
    task = task_of(family, 6)
    _, good, bad = corpus.steps_of(family.__name__, family(random.Random("terminal 6"), read_wording()))
    faulty = random.Random(2).choice(bad)[0]
    assert asyncio.run(terminal.solve(task, good)).value == 1
    assert asyncio.run(terminal.solve(task, faulty)).value == 0, faulty


@needs_sandbox
def test_the_right_patch_of_a_demonstration_mends_its_repository_and_a_wrong_one_does_not() -> None:
    task = draw_task(12)
    wrong = random.Random(2).choice([kind for kind in corpus.PATCHES if kind != "right"])
    assert asyncio.run(swe.solve(task, corpus.patch(task, "right")[0])).value == 1
    assert asyncio.run(swe.solve(task, corpus.patch(task, wrong)[0])).value == 0, wrong


def test_copied_parts_of_a_demonstration_are_exact() -> None:
    copied = 0
    for doc in islice(corpus.documents(3, 150), 150):
        question = str(doc.messages[0]["content"])
        calls = [call["function"]["arguments"] for message in doc.messages for call in message.get("tool_calls", ())]  # type: ignore[attr-defined]
        for call in calls:
            assert json.loads(call)["expression"] in (corpus.expression_in(question), f"{corpus.expression_in(question)} =")
        text = texts_of([doc])[0]
        for start, end in copies(text) if kind_of(text) in ("terminal", "swe") else ():
            assert text[start:end] in text[: text.index("<|im_start|>assistant")] or "for name in" in text
            copied += 1
    assert copied > 25


def test_about_three_in_ten_demonstrations_of_a_tool_call_are_good() -> None:
    calls = [doc for doc in islice(corpus.documents(3, 2000), 2000) if doc.tools]
    good = 0
    for doc in calls:
        expression = corpus.expression_in(str(doc.messages[0]["content"]))
        good += doc.messages[-1]["content"] == str(eval(expression))  # our own text
    assert 0.22 < good / len(calls) < 0.35


def test_no_held_out_question_is_among_the_demonstrations() -> None:
    """Task numbers decide which are held out. The few questions that are in both splits by chance are counted, not forbidden."""
    questions = {doc.messages[0]["content"] for doc in corpus.documents(0, 3000) if doc.tools}
    held_out = {draw_question(2 * number + 1).text for number in range(400)}
    assert len(questions & held_out) < 0.02 * len(held_out)


def test_demonstrations_begin_as_the_agent_of_the_environments_does() -> None:
    shell = [doc for doc in corpus.documents(0, 40) if doc.messages[0]["role"] == "system"]
    assert shell
    assert {doc.messages[0]["content"] for doc in shell} == {SYSTEM}


def test_the_model_fits_its_budget_and_has_a_card() -> None:
    folder = Path(model_folder("crafts"))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 16 * 2**20
    assert "pass@8" in (folder / "README.md").read_text()
