"""Conversations of many families of clients are read correctly without rules for these clients. Look-alikes stay separate."""

import pytest

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Message
from scripts.benchmarks import clients_look_alikes
from scripts.benchmarks.clients_families import FAMILIES, Asked, written


def read(asked: list[Asked]) -> list[tuple]:
    """The result for each request: kind, parent and next state; for a request that is no turn, the kind alone."""
    sessions = Sessions(3600.0, rules=())
    for each in asked:
        sessions.add(each.exchange)
    sessions.tick(1e12)
    rows = {row.turn_id: row for row in sessions.pop_rows()}
    found = [(each, rows[each.exchange.exchange_id]) for each in asked]
    return [(row.kind, row.parent_turn_id, words(row.next_state)) if each.kind == "main" else row.kind for each, row in found]


def words(messages: list[Message] | None) -> list[str] | None:
    return messages and [f"{message['role']}: {message['content']}" for message in messages]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_clients_is_read_correctly_without_a_rule_for_it(family: str) -> None:
    asked = written(family)
    found = read(asked)
    true = [
        ("main", each.parent, words(each.next_state)) if each.kind == "main" else "side" if each.kind == "side" else kind
        for each, kind in zip(asked, found, strict=True)
    ]
    assert found == true


def test_families_on_one_key_at_the_same_time_take_no_next_state_of_one_another() -> None:
    lanes = [written(family, number) for number, family in enumerate(FAMILIES)]
    at, mixed = [0] * len(lanes), []
    while any(place < len(lane) for place, lane in zip(at, lanes, strict=True)):
        for number, lane in enumerate(lanes):
            if at[number] < len(lane):
                mixed.append(lane[at[number]])
                at[number] += 1
    for number, each in enumerate(mixed):
        object.__setattr__(each.exchange, "created_at", float(number))
        object.__setattr__(each.exchange, "finished_at", number + 0.5)
    wrong = [
        (each.exchange.exchange_id, row[2], words(each.next_state))
        for each, row in zip(mixed, read(mixed), strict=True)
        if each.kind == "main" and row[2] is not None and row[2] != words(each.next_state)
    ]
    assert wrong == []


def test_conversations_drawn_at_random_from_a_few_words_are_never_merged() -> None:
    found = clients_look_alikes.measure_all(range(30))
    assert (found.merged, found.false_next_states) == (0, 0)
    assert found.linked > 0.9 * (found.linked + found.missed)  # apart, but not by linking nothing


def test_a_merge_that_is_planted_is_counted() -> None:
    looks = clients_look_alikes.drawn(7)
    assert clients_look_alikes.measure(looks).merged == 0
    one, other = (
        next(look for look in looks if look.person.name == name and len(look.whole) == 1) for name in ("person 3", "person 5")
    )
    assert not clients_look_alikes.continues(other, one)
