"""Detecting that people's wishes have changed."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from clawctl.run.complaints import MAX_TURNS, JudgedAnswer, Rise, change_point, last_rises, rises


def stream(rates: Sequence[tuple[int, float]], seed: int, key: str = "anna") -> list[JudgedAnswer]:
    """One reaction a second: (how many, share of complaints), one after the other."""
    rng, answers = Random(seed), list[JudgedAnswer]()
    for count, rate in rates:
        for _ in range(count):
            answers.append(JudgedAnswer(f"{key}-{len(answers)}", None, key, float(len(answers)), rng.random() < rate))
    return answers


def test_a_rise_after_rare_complaints_is_noticed_within_fourteen_answers() -> None:
    for seed in range(20):
        (rise,) = rises(stream([(80, 0.05), (14, 0.95)], seed))
        assert 74 <= rise.since <= 84
        assert rise.before < 0.2 < 0.5 < rise.after
        assert not rise.over


def test_a_steady_rate_is_no_change_whatever_it_is() -> None:
    alarms = sum(len(rises(stream([(200, rate)], seed))) for rate in (0.02, 0.1, 0.3, 0.5, 0.9) for seed in range(20))
    assert alarms <= 2  # of a hundred streams; one is expected at most


def test_learning_is_no_rise_and_a_rise_that_was_learned_is_over() -> None:
    for seed in range(10):
        assert rises(stream([(40, 0.95), (60, 0.1)], seed)) == []
        (rise,) = rises(stream([(40, 0.95), (80, 0.05), (30, 0.95), (80, 0.05)], seed))
        assert rise.over
        assert 112 <= rise.since <= 128


def test_the_same_complaints_of_one_conversation_count_once() -> None:
    calm = stream([(60, 0.0)], 1)
    angry = [JudgedAnswer(f"a{n}", f"a{n - 1}" if n else calm[-1].turn_id, "anna", 60.0 + n, True) for n in range(10)]
    assert rises([*calm, *angry]) == []


def test_a_few_complaints_in_a_row_are_noticed_only_where_complaints_were_rare() -> None:
    rare = [0.0] * 57 + [1.0] * 3
    Random(1).shuffle(rare)
    assert change_point(np.array([*rare, *[1.0] * 6])) is not None
    assert change_point(np.array([1.0, 0.0] * 10 + [1.0] * 6)) is None


def test_keys_are_kept_separate() -> None:
    risen = rises([*stream([(60, 0.05), (15, 1.0)], 1, "anna"), *stream([(75, 0.05)], 2, "bert")])
    assert [rise.key for rise in risen] == ["anna"]


@pytest.mark.parametrize("seed", range(6))
def test_ruling_turns_out_together_finds_what_a_test_of_each_turn_finds(seed: int) -> None:
    rng = Random(seed)
    rates = [(rng.randint(1, 700), rng.choice([0.0, 0.02, 0.1, 0.3, 0.5, 0.95, 1.0])) for _ in range(4)]
    flags = np.array([reaction.complained for reaction in stream(rates, seed)], np.float64)
    expected, begin = None, 0
    for end in range(1, len(flags) + 1):
        begin = max(begin, end - MAX_TURNS)
        if (split := change_point(flags[begin:end])) is not None:
            before, after = flags[begin : begin + split].mean(), flags[begin + split : end].mean()
            begin += split
            if after > before:
                expected = Rise("anna", float(begin), before, after, over=False)
            elif expected is not None:
                expected = replace(expected, over=True)
    assert last_rises({"anna": (np.arange(float(len(flags))), flags)}) == ([] if expected is None else [expected])
