"""`inspect health` on changed and conflicting wishes."""

from random import Random

from clawctl.inspect.health_lines import wanted_lines
from clawctl.inspect.wanted import conflicts

HELLO, SUM, SMILE, END = 11, 12, 13, 14


def pulls(rng: Random, wanted: dict[int, float], turns: int = 12) -> list[dict[int, float]]:
    """The pulls of a key's hints on a few tokens, and on tokens of a single turn."""
    noise = [{rng.randrange(100, 10_000): rng.gauss(0, 0.3) for _ in range(8)} for _ in range(turns)]
    return [{**other, **{token: value * rng.uniform(0.5, 1.5) for token, value in wanted.items()}} for other in noise]


def test_keys_that_want_opposite_things_are_named_and_others_are_not() -> None:
    rng = Random(1)
    keys = {
        "anna": pulls(rng, {HELLO: 0.8, SUM: -0.8}),
        "bert": pulls(rng, {HELLO: -0.7, SUM: 0.7}),
        "carl": pulls(rng, {SMILE: 0.9, END: -0.9}),
        "dora": pulls(rng, {HELLO: -0.7, SUM: 0.7}, turns=3),  # too few turns to decide
    }
    (conflict,) = conflicts(keys)
    assert conflict.keys == ("anna", "bert")
    assert conflict.agreement < -0.5


def test_chance_makes_no_conflict() -> None:
    alarms = sum(len(conflicts({key: pulls(Random(f"{seed} {key}"), {}) for key in "abcd"})) for seed in range(30))
    assert alarms == 0


def test_health_shows_the_date_of_a_change_and_the_keys() -> None:
    rise = {"key": "anna", "since": 0.0, "before": 0.05, "after": 0.9, "over": False}
    wanted = {"changed": [rise], "conflicts": [{"keys": ("anna", "bert"), "agreement": -0.63}]}
    (_, changed), (_, conflict) = wanted_lines(wanted)
    assert changed.plain.startswith("what people want has changed since 19")
    assert changed.plain.endswith("(key anna): complaints about 90% of first answers, 5% before")
    assert conflict.plain == (
        "keys anna and bert want opposite things: their hints pull the policy apart (-0.63); "
        "`clawctl policies split anna bert` gives each a policy of its own"
    )
