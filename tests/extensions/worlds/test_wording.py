"""The words and prompts of drawn tasks: held-out ones are by other authors, fit their tasks, and never reach training."""

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from string import Formatter

import pytest

from clawctl.extensions.worlds.gui.environment import Gui
from clawctl.extensions.worlds.gui.sites import FAMILIES as SITES
from clawctl.extensions.worlds.gui.sites import draw_site
from clawctl.extensions.worlds.swe import environment as swe
from clawctl.extensions.worlds.swe.environment import Swe
from clawctl.extensions.worlds.swe.families import FUNCTIONS, draw_task
from clawctl.extensions.worlds.terminal import environment as terminal
from clawctl.extensions.worlds.terminal.environment import Terminal
from clawctl.extensions.worlds.terminal.families import FAMILIES, draw_tasks
from clawctl.extensions.worlds.toolcall.environment import ToolCall
from clawctl.extensions.worlds.toolcall.questions import draw_question
from clawctl.extensions.worlds.wording import HeldOut, read_wording
from scripts.craft_model import wording as corpus

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")
NEW: tuple[HeldOut, ...] = ("new_words", "paraphrased")
USUAL = read_wording()
SHELL_WORD = re.compile(r"[A-Za-z][A-Za-z_.]*")


def fields(prompt: str) -> list[str]:
    return sorted(field for _, field, _, _ in Formatter().parse(prompt) if field is not None)


@pytest.mark.parametrize("prompts", [read_wording("paraphrased").prompts, corpus._read("prompts")], ids=["held out", "corpus"])
def test_each_prompt_says_all_that_its_task_needs(prompts: Mapping[str, Sequence[str]]) -> None:
    assert prompts.keys() == USUAL.prompts.keys()
    for family, some in prompts.items():
        wanted = fields(USUAL.prompts[family][0])
        assert [prompt for prompt in some if fields(prompt) != wanted] == [], family
        assert len(set(some)) == len(some) >= 19


def test_held_out_prompts_are_neither_those_of_training_nor_of_the_corpus() -> None:
    held_out = {prompt for some in read_wording("paraphrased").prompts.values() for prompt in some}
    others = {prompt for prompts in (USUAL.prompts, corpus._read("prompts")) for some in prompts.values() for prompt in some}
    assert not held_out & others


def test_held_out_words_occur_neither_in_training_nor_in_the_corpus() -> None:
    def words(lists: Mapping[str, Sequence[str]]) -> set[str]:
        return {word for some in lists.values() for word in some}

    held_out = words(read_wording("new_words").words)
    assert not held_out & (words(USUAL.words) | words(corpus._read("words")))
    assert not held_out & {name for function in FUNCTIONS for name in (function.name, function.module, *function.parameters)}


def test_new_words_can_stand_in_a_shell_and_in_python() -> None:
    words = read_wording("new_words").words
    for kind in (
        "nouns",
        "places",
        "folders",
        "targets",
        "logs",
        "answers",
        "tables",
        "settings",
        "columns",
        "items",
        "extensions",
        "keys",
    ):
        assert [word for word in words[kind] if not SHELL_WORD.fullmatch(word)] == [], kind
        assert len(words[kind]) >= len(USUAL.words.get(kind, ()))
    for kind in ("functions", "modules", "parameters"):
        assert all(word.isidentifier() for word in words[kind])


@pytest.mark.parametrize("held_out", NEW)
def test_tasks_of_training_have_no_held_out_words_or_prompts(held_out: HeldOut) -> None:
    for kind in (Terminal, Swe, ToolCall, Gui):
        assert kind(held_out=held_out).tasks("train", 24, 5) == kind().tasks("train", 24, 5)
        assert kind(held_out=held_out).tasks("eval", 24, 5) != kind().tasks("eval", 24, 5)


def test_a_paraphrase_asks_for_the_same_work() -> None:
    for usual, paraphrased in zip(draw_tasks("eval", 24, 5), draw_tasks("eval", 24, 5, "paraphrased"), strict=True):
        assert (usual.seed, usual.tests, usual.solution) == (paraphrased.seed, paraphrased.tests, paraphrased.solution)
        assert usual.instruction != paraphrased.instruction
    for number in range(1, 41, 2):
        usual, paraphrased = draw_task(number), draw_task(number, read_wording("paraphrased"))
        assert (usual.files, usual.patch) == (paraphrased.files, paraphrased.patch)


@needs_sandbox
@pytest.mark.parametrize("held_out", NEW)
@pytest.mark.parametrize("index", range(len(FAMILIES)))
def test_a_held_out_shell_task_is_worth_one_with_its_solution_and_nothing_without(held_out: HeldOut, index: int) -> None:
    task = draw_tasks("eval", len(FAMILIES), 3, held_out)[index]
    assert asyncio.run(terminal.solve(task)).value == 1
    assert asyncio.run(terminal.solve(task, "")).value == 0


@needs_sandbox
def test_a_repository_with_new_names_is_mended_by_its_patch_alone() -> None:
    task = draw_task(7, read_wording("new_words"))
    assert asyncio.run(swe.solve(task)).value == 1
    assert asyncio.run(swe.solve(task, "")).value == 0


def test_new_names_keep_what_a_function_does() -> None:
    for number in range(1, 401, 2):
        task = draw_task(number, read_wording("new_words"))
        for file, text in task.files.items():
            compile(text, file, "exec")
        assert not {function.name for function in FUNCTIONS} & set(re.findall(r"def (\w+)", "".join(map(str, task.files.values()))))


def test_new_sums_are_longer_and_larger_than_those_of_training() -> None:
    usual = [draw_question(number) for number in range(1, 400, 2)]
    new = [draw_question(number, read_wording("new_words")) for number in range(1, 400, 2)]
    assert max(len(re.findall(r"\d+", question.text)) for question in usual) == 4
    assert {len(re.findall(r"\d+", question.text)) for question in new} == {4, 5}
    assert max(int(number) for question in new for number in re.findall(r"\d+", question.text)) > 900


@pytest.mark.parametrize("held_out", NEW)
@pytest.mark.parametrize("family", SITES)
def test_a_held_out_page_can_be_drawn(family: str, held_out: HeldOut) -> None:
    for number in range(1, 81, 2):
        task = draw_site(family, number, read_wording(held_out))
        assert task.solution
        assert "{" not in task.instruction
