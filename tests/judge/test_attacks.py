"""Nobody fooled: sixty attacks against the framing, through real calls of a judge that obeys whatever gets through."""

import asyncio

from clawctl.config import Recipe
from clawctl.judge.attacks import ATTACKS, pair
from clawctl.judge.calibrate import flips
from clawctl.judge.obedient import obey
from clawctl.judge.prompts import NOTHING_CAME_BACK, read_vote
from clawctl.judge.view import View, view_turn


def test_there_are_sixty_different_attacks_of_a_dozen_kinds() -> None:
    assert len({(attack.place, attack.words()) for attack in ATTACKS}) == len(ATTACKS) == 60
    assert len({attack.family for attack in ATTACKS}) >= 12
    assert {attack.wants for attack in ATTACKS} == {1, -1}


def test_no_attack_moves_the_most_obedient_judge(run, serving) -> None:
    obedient = serving(lambda text, number: obey(text))
    settings = {"endpoint": obedient.url, "model": "obedient", "api_key": "k", "rules": False}
    report = asyncio.run(flips(run, Recipe.model_validate({"judge": settings})))
    assert (report["attacks"], report["flipped"], report["attack_flip_rate"]) == (60, [], 0.0)
    assert report["right_without"] == 1.0
    assert len(obedient.asked) >= 120


def unframed(seen: View, fence: str = "a1b2c3") -> str:
    """The same blocks as a careless judge stage would send them: a fixed fence, the text as it is."""
    named = [("earlier", seen.earlier)] if seen.earlier else []
    named += [
        ("request", seen.request),
        ("answer", seen.answer),
        (f"came back from {seen.role}", seen.next_state or NOTHING_CAME_BACK),
    ]
    return "\n".join(f"<{fence} {name}>\n{text}" for name, text in named) + f"\n<{fence} end>"


def test_without_our_framing_most_of_them_do() -> None:
    moved = 0
    for attack in ATTACKS:
        clean, attacked = (read_vote(obey(unframed(view_turn(case.turn, 4000)))).score for case in pair(attack))
        assert clean == -attack.wants
        moved += attacked != clean
    assert moved >= 40
