"""Simulated people: their satisfaction follows from the reply, their wording from a grammar with held-out phrases."""

from random import Random

import pytest

from clawctl.extensions.demos.grammar import PhraseGrammar
from clawctl.extensions.demos.homework.people import WORDS, Person, content_words
from clawctl.extensions.demos.homework.phrasings import PEOPLE
from clawctl.extensions.demos.homework.problems import Problem, make_tasks

AI = "**Step 1:** 3 + 4 = 7\n\n**Final answer:** 7"
HELD_OUT = [o.strip()[1:].strip() for text in PEOPLE.values() for o in text.split("|") if o.strip().startswith("~")]


def plain(task: Problem) -> str:
    a, op, b, c = task.steps[-1]
    return f"ok so you do it like this, {a} {op} {b} = {c}, so {c} {task.thing}."


def task(seed: int = 0) -> Problem:
    return next(t for t in make_tasks("student", 50, seed) if len(t.steps) == 1)


def test_the_same_seed_gives_the_same_text():
    one, two = Person("student", 5), Person("student", 5)
    assert one.name == two.name
    assert one.open(task()) == two.open(task())
    assert one.react(task(), AI, 0) == two.react(task(), AI, 0)


def test_ai_style_causes_a_complaint_and_the_session_continues():
    for seed in range(50):
        reaction = Person("student", seed).react(task(), AI, 0)
        assert reaction.text
        assert not reaction.done
        assert not reaction.satisfied


def test_a_plain_right_answer_ends_the_session_with_a_last_word():
    for seed in range(50):
        reaction = Person("student", seed).react(task(), plain(task()), 0)
        assert reaction.text
        assert reaction.done
        assert reaction.satisfied


def test_a_wrong_number_is_noticed_about_half_of_the_time():
    wrong = plain(task()).replace(f"= {task().answer}, so {task().answer}", f"= {task().answer + 1}, so {task().answer + 1}")
    noticed = sum(not Person("student", seed).react(task(), wrong, 0).satisfied for seed in range(200))
    assert 70 < noticed < 130


def test_after_three_complaints_a_person_gives_up():
    reactions = [Person("teacher", seed).react(make_tasks("teacher", 1, 0)[0], AI, 3) for seed in range(50)]
    assert all(r.done and not r.satisfied for r in reactions)
    assert {r.text is None for r in reactions} == {True, False}


def test_people_have_many_words():
    for role in ("student", "teacher"):
        subject = make_tasks(role, 1, 0)[0]
        assert len({Person(role, seed).react(subject, AI, 0).text for seed in range(400)}) > 250
    assert len({content_words(task(), Random(seed), "all") for seed in range(400)}) > 100


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_trained_phrasings_never_use_held_out_words(role):
    own = [o for o in HELD_OUT if "{" not in o and len(o.split()) > 3]
    said = " ".join(
        str(Person(role, seed, "trained").react(make_tasks(role, 1, seed)[0], AI, seed % 4).text) for seed in range(500)
    ).lower()
    assert len(own) > 15
    assert not [o for o in own if o.lower() in said]


def test_held_out_phrasings_always_use_held_out_words():
    for seed in range(100):
        text = str(Person("student", seed, "held_out").react(task(), AI, 0).text).lower()
        assert any(o.lower() in text for o in HELD_OUT if "{" not in o), text


def test_every_slot_of_the_grammar_is_a_rule_or_a_value():
    values = dict.fromkeys(("prompt", "next_problem", "problem", "pupil", "said", "right"), "v")
    for rule in PEOPLE:
        for seed in range(30):
            assert "{" not in WORDS.draw(rule, Random(seed), "all", **values)


def test_a_rule_without_held_out_words_falls_back_to_the_trained_ones():
    grammar = PhraseGrammar({"a": "x | y", "b": "p | ~q"})
    assert {grammar.draw("a", Random(s), "held_out") for s in range(20)} == {"x", "y"}
    assert {grammar.draw("b", Random(s), "held_out") for s in range(20)} == {"q"}
    assert {grammar.draw("b", Random(s), "trained") for s in range(20)} == {"p"}
