"""A turn of an episode that has a hint is trainable without a reward and without a next state."""

from typing import Any

import pytest

from clawctl.collect.rows import ClosedTurn
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.rows import NO_NEXT_STATE, Turn
from tests.collect.made_exchanges import answer, asked, user


def published(**outcome: Any) -> Turn:
    """The row of the one request of an episode."""
    exchange = asked([user("Why?")], answer("Because."), at=1.0)
    ended = SessionOutcome("o1", 2.0, "default", "s1", "done", outcome.pop("reward", None), {}, {}, **outcome)
    return ClosedTurn(exchange, "s1", None, 0, "main", None, repeated=False).row(ended)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({"hint": "Be brief.", "hint_place": "line"}, None),
        ({"hint": "Be brief."}, None),
        ({"hint": ""}, None),
        ({"reward": 1.0}, None),
        ({"reward": 0.0}, None),
        ({}, NO_NEXT_STATE),
    ],
)
def test_a_hint_or_a_reward_makes_the_turn_of_an_episode_trainable(outcome: dict[str, Any], reason: str | None) -> None:
    turn = published(**outcome)
    assert (turn.trainable, turn.untrainable_reason, turn.next_state) == (reason is None, reason, None)


def test_the_row_keeps_the_hint_and_its_place() -> None:
    fields = SessionOutcome("o1", 2.0, "default", "s1", "done", None, {}, {}, hint="Be brief.", hint_place="line").in_row((0, 0))
    assert (fields["hint"], fields["hint_place"], fields["reward"]) == ("Be brief.", "line", None)
