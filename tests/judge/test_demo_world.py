"""The demo model judges homework only, and warns once about other topics."""

import logging

import pytest
from made_turns import turn

from clawctl.config import Recipe
from clawctl.environments.homework.people import Person
from clawctl.environments.homework.problems import make_tasks
from clawctl.judge.demo_world import DemoWorld, is_judged_by_demo
from clawctl.run.rows import Turn

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


def test_only_where_the_demo_model_is_the_judge() -> None:
    assert is_judged_by_demo(Recipe())
    for other in ({"model": {"path": "other"}}, {"judge": {"endpoint": "http://a/v1"}}, {"judge": {"prm": "p"}}):
        assert not is_judged_by_demo(Recipe.model_validate(other))
