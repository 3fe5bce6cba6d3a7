"""A set of very many turn ids."""

import secrets

from clawctl.train.turn_ids import TurnIds


def test_the_set_contains_exactly_the_added_ids() -> None:
    added, others = ({secrets.token_hex(12) for _ in range(20_000)} for _ in range(2))
    turn_ids = TurnIds(list(added)[:3])
    assert len(turn_ids) == 3
    turn_ids.update(added)
    turn_ids.update(added)  # again
    assert len(turn_ids) == len(added) == 20_000
    assert all(turn_id in turn_ids for turn_id in added)
    assert not any(turn_id in turn_ids for turn_id in others)


def test_an_empty_one_has_nothing() -> None:
    assert "a" not in TurnIds()
    assert len(TurnIds()) == 0
