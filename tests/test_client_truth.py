"""The truth of a driven client comes from the typed messages; a wrong parent, kind or next state is counted."""

from dataclasses import replace

import pytest

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Exchange, Turn
from scripts.benchmarks.clients import missed_bars, rows_of
from scripts.benchmarks.clients_families import Script, Talk, calling, result_of, said, user
from scripts.benchmarks.clients_truth import Counts, Unclear, count, facts_of

TALKS = {"rose": (2, 1), "lily": (1, 1)}
ASIDES = ("What may the person type next?",)


def driven() -> list[Exchange]:
    """Two conversations as a driver types them, with a call of the client's own behind each answer."""
    script = Script()
    rose, lily = Talk(script, "rose", tools=("run",)), Talk(script, "lily", tools=("run",))
    call = calling(script.call_id(), "run")
    rose.turn([user("#rose-1 Run it.")], call)
    rose.turn([result_of(call, "hi-rose-1")], said("It says hi."))
    rose.aside([user(ASIDES[0])], said("Thanks"))
    lily.says("#lily-1 Hello", "Hello.")
    rose.says("#rose-2 Thanks", "Welcome.")
    rose.aside([user(ASIDES[0])], said("Thanks"))
    lily.says("#lily-2 Bye", "Bye.")
    return [request.exchange for request in script.requests]


def collected(exchanges: list[Exchange]) -> dict[str, Turn]:
    sessions = Sessions(3600.0)
    for exchange in exchanges:
        sessions.add(exchange)
    sessions.tick(1e12)
    return {row.turn_id: row for row in sessions.pop_rows()}


def test_conversations_that_are_read_correctly_have_no_wrong_count() -> None:
    exchanges = driven()
    counts = count(facts_of(exchanges, TALKS, ASIDES), collected(exchanges), ASIDES)
    assert counts == Counts(7, 0, 0, 0, 0, with_next_state=3, trainable=3)
    assert missed_bars(rows_of("talk", counts)) == []


def test_each_wrong_field_of_a_row_is_counted_under_its_kind() -> None:
    exchanges = driven()
    facts, rows = facts_of(exchanges, TALKS, ASIDES), collected(exchanges)
    call, answered, aside, hello, thanks, *_ = (exchange.exchange_id for exchange in exchanges)

    def counted(turn_id: str, **changes: object) -> Counts:
        return count(facts, {**rows, turn_id: replace(rows[turn_id], **changes)}, ASIDES)  # type: ignore[arg-type]

    assert counted(thanks, parent_turn_id=hello).parents_wrong == 1
    assert counted(thanks, session_id=rows[hello].session_id).sessions_wrong == 1
    assert counted(answered, next_state=[user(ASIDES[0])]).next_states_wrong == 1
    assert counted(answered, next_state=None).next_states_wrong == 1
    assert counted(call, next_state=[user("#rose-2 Thanks")]).next_states_wrong == 1
    assert counted(aside, kind="main").kinds_wrong == 1
    assert counted(aside, trainable=True, untrainable_reason=None).next_states_wrong == 1
    assert counted(call, trainable=False, untrainable_reason="greedy").trainable == 2
    without = count(facts, {turn_id: row for turn_id, row in rows.items() if turn_id != thanks}, ASIDES)
    assert (without.parents_wrong, without.next_states_wrong, without.kinds_wrong) == (1, 1, 1)
    merged = {turn_id: replace(row, session_id="one") for turn_id, row in rows.items()}
    assert count(facts, merged, ASIDES).sessions_wrong == 5
    assert missed_bars(rows_of("talk", counted(thanks, parent_turn_id=hello))) == ["talk parents_wrong = 1"]


def test_where_the_truth_is_not_known_the_run_fails() -> None:
    exchanges = driven()
    with pytest.raises(Unclear, match="no message takes these steps"):
        facts_of(exchanges, TALKS, [])  # the client's own call has no label
    with pytest.raises(Unclear, match=r"asked 2 times for rose-1\.0"):
        facts_of([*exchanges, replace(exchanges[0], exchange_id="again")], TALKS, ASIDES)
    with pytest.raises(Unclear, match=r"asked 0 times for lily-2\.0"):
        facts_of(exchanges[:-1], TALKS, ASIDES)
    with pytest.raises(Unclear, match="no message takes these steps"):
        facts_of(exchanges, {"rose": (2, 1), "lily": (1,)}, ASIDES)
