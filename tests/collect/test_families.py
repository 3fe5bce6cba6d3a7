"""Conversations of many families of clients are read correctly without rules for these clients. Look-alikes stay separate."""

import pytest

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Message
from scripts.benchmarks import clients_look_alikes
from scripts.benchmarks.clients_families import FAMILIES, Asked, written


def read(requests: list[Asked]) -> list[tuple]:
    """The result for each request: kind, parent and next state; for a request that is no turn, the kind alone."""
    sessions = Sessions(3600.0, rules=())
    for request in requests:
        sessions.add(request.exchange)
    sessions.tick(1e12)
    rows = {row.turn_id: row for row in sessions.pop_rows()}
    pairs = [(entry, rows[entry.exchange.exchange_id]) for entry in requests]
    return [(row.kind, row.parent_turn_id, words(row.next_state)) if entry.kind == "main" else row.kind for entry, row in pairs]


def words(messages: list[Message] | None) -> list[str] | None:
    return messages and [f"{message['role']}: {message['content']}" for message in messages]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_clients_is_read_correctly_without_a_rule_for_it(family: str) -> None:
    requests = written(family)
    readings = read(requests)
    true = [
        ("main", request.parent, words(request.next_state))
        if request.kind == "main"
        else "side"
        if request.kind == "side"
        else kind
        for request, kind in zip(requests, readings, strict=True)
    ]
    assert readings == true


def test_families_on_one_key_at_the_same_time_take_no_next_state_of_one_another() -> None:
    lanes = [written(family, number) for number, family in enumerate(FAMILIES)]
    at, mixed = [0] * len(lanes), []
    while any(index < len(lane) for index, lane in zip(at, lanes, strict=True)):
        for number, lane in enumerate(lanes):
            if at[number] < len(lane):
                mixed.append(lane[at[number]])
                at[number] += 1
    for number, request in enumerate(mixed):
        object.__setattr__(request.exchange, "created_at", float(number))
        object.__setattr__(request.exchange, "finished_at", number + 0.5)
    wrong = [
        (entry.exchange.exchange_id, row[2], words(entry.next_state))
        for entry, row in zip(mixed, read(mixed), strict=True)
        if entry.kind == "main" and row[2] is not None and row[2] != words(entry.next_state)
    ]
    assert wrong == []


def test_conversations_drawn_at_random_from_a_few_words_are_never_merged() -> None:
    report = clients_look_alikes.measure_all(range(30))
    assert (report.merged, report.false_next_states) == (0, 0)
    assert report.linked > 0.9 * (report.linked + report.missed)  # apart, but not by linking nothing


def test_a_merge_that_is_planted_is_counted() -> None:
    looks = clients_look_alikes.drawn(7)
    assert clients_look_alikes.measure(looks).merged == 0
    first, other = (
        next(look for look in looks if look.person.name == name and len(look.whole) == 1) for name in ("person 3", "person 5")
    )
    assert not clients_look_alikes.continues(other, first)
