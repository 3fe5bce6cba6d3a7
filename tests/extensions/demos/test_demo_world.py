"""The demo model judges homework only, and warns once about other topics."""

import logging
from pathlib import Path

import pytest

from clawctl.config import ModelConfig, Recipe
from clawctl.extensions.demos.demo_world import DemoWorld
from clawctl.extensions.demos.homework.people import Person
from clawctl.extensions.demos.homework.problems import make_tasks
from clawctl.extensions.demos.models import demo
from clawctl.judge.client import JudgeClient
from clawctl.judge.panel import is_own_server
from clawctl.run.directory import open_run
from clawctl.run.rows import Turn
from tests.judge.made_turns import turn

OUTSIDE = [
    ("What is the capital of France?", "Paris.", "perfect, thanks!"),
    ("hi there", "Hello! How can I help?", "perfect, thanks!"),
    ("Can you rename foo to bar in lines 3 to 9 of main.py?", "Done.", "that broke the parser"),
    ("Wie viele Äpfel sind 3 und 4?", "7", "danke!"),
]


def said(asked: str, answer: str, came_back: str) -> Turn:
    return turn([{"role": "user", "content": asked}], answer, [{"role": "user", "content": came_back}])


def test_messages_of_students_and_teachers_are_covered_by_the_demo_model() -> None:
    world = DemoWorld()
    for role in ("student", "teacher"):
        for number, task in enumerate(make_tasks(role, 100, 5, "eval")):
            person = Person(role, number)
            came_back = person.react(task, "**Answer:** 7", 0).text or ""
            assert world.covers(said(person.open(task), "**Answer:** 7", came_back)), (task.prompt, came_back)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", OUTSIDE)
def test_other_conversations_cause_one_warning(words: tuple[str, str, str], caplog: pytest.LogCaptureFixture) -> None:
    world = DemoWorld()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            world.check(said(*words))  # type: ignore[arg-type]
    assert caplog.text.count("the judge is the demo model") == 1
    assert "judge.endpoint" in caplog.text


def test_only_where_the_demo_model_is_the_judge(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    for path in ("demo", str(demo())):
        assert isinstance(JudgeClient(run, Recipe(model=ModelConfig(path=path)), None).small_judge, DemoWorld)
    for other in ({"model": {"path": "other"}}, {"judge": {"model": "other"}}):
        assert JudgeClient(run, Recipe.model_validate(other), None).small_judge is None
    assert is_own_server(Recipe())
    for elsewhere in ({"judge": {"endpoint": "http://a/v1"}}, {"judge": {"prm": "p"}}):
        assert not is_own_server(Recipe.model_validate(elsewhere))
