"""Sessions that are never trained, so that versions can be measured on them."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from made_exchanges import answer, append, asked, user

from clawctl.collect.worker import Collector, collect
from clawctl.config import Recipe
from clawctl.errors import Damaged
from clawctl.inspect.health import read_health
from clawctl.inspect.why import show_why
from clawctl.judge.protocol import read_evidence
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, open_run, publish_bytes, published
from clawctl.run.holdout import HELD_OUT, Holdout, keep_holdout, read_holdout
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.retention import expire
from clawctl.run.rows import Exchange, Turn, lacks_reaction
from clawctl.run.shards import read_turns


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def recipe(share: float) -> Recipe:
    return Recipe.model_validate({"collect": {"shard_age_s": 0.1, "session_timeout_s": 1e9}, "eval": {"holdout": share}})


def talk(session: str, at: float, key: str = "default", **hints: object) -> list[Exchange]:
    """Two answers, of which the first has a reaction."""
    first = asked([user(f"Tea, {session}?")], answer("Green."), at, key, session_id=session, **hints)
    messages = [user(f"Tea, {session}?"), answer("Green."), user("Thanks!")]
    return [first, asked(messages, answer("You are welcome."), at + 1, key, session_id=session, turn_type="main", **hints)]


def rows_of(run: RunDir) -> list[Turn]:
    return [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]


def held_out(run: RunDir) -> set[str]:
    return {turn.session_id for turn in rows_of(run) if turn.untrainable_reason == HELD_OUT}


def test_a_share_of_each_key_is_held_out_and_the_session_id_alone_decides() -> None:
    holdout = Holdout(((0.0, 0.1),))
    for key in ("anna", "ben"):
        sessions = [f"{key}/{number}" for number in range(4000)]
        chosen = [session for session in sessions if holdout.has(key, session, 5.0)]
        assert 340 <= len(chosen) <= 460
        assert chosen == [session for session in sessions if holdout.has(key, session, 99.0)]
    assert not any(Holdout(((0.0, 0.0),)).has("anna", str(number), 5.0) for number in range(100))


def test_a_higher_share_keeps_the_sessions_that_a_lower_one_held_out() -> None:
    lower, higher = Holdout(((0.0, 0.1),)), Holdout(((0.0, 0.3),))
    assert {n for n in range(500) if lower.has("k", str(n), 1.0)} < {n for n in range(500) if higher.has("k", str(n), 1.0)}


def test_exactly_the_turns_of_a_held_out_session_are_marked(run: RunDir) -> None:
    append(run.captures / "a-0.jsonl", *(line for number in range(30) for line in talk(f"s{number}", 100.0 * number)))
    collect(run, recipe(0.3), once=True, end_sessions=True)
    chosen = Holdout(((0.0, 0.3),))
    expected = {f"s{number}" for number in range(30) if chosen.has("default", f"s{number}", 0.0)}
    assert 3 < len(expected) < 20
    assert held_out(run) == expected
    assert all((turn.untrainable_reason == HELD_OUT) == (turn.session_id in expected) for turn in rows_of(run))
    last = [turn for turn in rows_of(run) if turn.next_state is None and turn.session_id in expected]
    assert last
    assert not any(lacks_reaction(turn.source, turn.untrainable_reason) for turn in last)  # a late rating trains none of them
    late = SessionOutcome("f", 1e9, "default", last[0].session_id, "done", 1.0, {}, {})
    assert "trainable" not in late.changes(HELD_OUT)


def test_an_open_session_keeps_its_side_when_the_share_changes_and_collect_starts_again(run: RunDir) -> None:
    talks = [talk(f"s{number}", 100.0 + number) for number in range(20)]
    append(run.captures / "a-0.jsonl", *(first for first, _ in talks))
    collect(run, recipe(0.0), once=True)
    append(run.captures / "a-0.jsonl", *(second for _, second in talks))
    collect(run, recipe(0.9), once=True, end_sessions=True)  # they began under the first share
    assert (len(rows_of(run)), held_out(run)) == (40, set())
    now = read_holdout(run, 0.9).shares[-1][0]
    append(run.captures / "b-0.jsonl", *(line for number in range(20) for line in talk(f"t{number}", now + 10 * number)))
    collect(run, recipe(0.9), once=True, end_sessions=True)
    before = held_out(run)
    assert len(before) > 12
    collect(run, recipe(0.0), once=True, end_sessions=True)  # what was published is never edited
    assert held_out(run) == before


def test_a_lost_shard_is_published_again_with_the_same_sessions_held_out(run: RunDir) -> None:
    append(run.captures / "a-0.jsonl", *(line for number in range(20) for line in talk(f"s{number}", 100.0 * number)))
    collect(run, recipe(0.5), once=True, end_sessions=True)
    before = held_out(run)
    for path in published(run.trajectories, ".parquet"):
        path.unlink()
    run.position.unlink()
    collect(run, recipe(0.1), once=True, end_sessions=True)
    assert held_out(run) == before


def test_an_episode_is_not_held_out_because_its_environment_has_tasks_for_that(run: RunDir) -> None:
    append(run.captures / "a-0.jsonl", *(line for n in range(20) for line in talk(f"s{n}", 100.0 * n, task_id="sum-1")))
    collect(run, recipe(0.9), once=True, end_sessions=True)
    assert (len(rows_of(run)), held_out(run)) == (40, set())


def test_the_judge_is_asked_about_held_out_answers_that_something_followed(run: RunDir) -> None:
    append(run.captures / "a-0.jsonl", *(line for number in range(10) for line in talk(f"s{number}", 100.0 * number)))
    collect(run, recipe(0.99), once=True, end_sessions=True)
    turns = [turn for path in published(run.trajectories, ".parquet") for turn in read_evidence(path)]
    assert {turn.untrainable_reason for turn in turns} == {HELD_OUT}
    assert all(turn.judged == (turn.next_state is not None) for turn in turns)
    assert replace(next(turn for turn in turns if not turn.judged), feedback=-1.0).judged


def test_health_and_why_show_held_out_sessions(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    append(run.captures / "a-0.jsonl", *(line for number in range(10) for line in talk(f"s{number}", 100.0 * number)))
    collect(run, recipe(0.5), once=True, end_sessions=True)
    health, turns = read_health(run), [turn for turn in rows_of(run) if turn.untrainable_reason == HELD_OUT]
    assert health["held_out"] == {"turns": len(turns), "sessions": len(turns) // 2, "of_sessions": 10}
    assert health["not_trained"][HELD_OUT] == len(turns)
    show_why(run, turns[0].turn_id, tokens=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["turn"]["why_not_trained"] == HELD_OUT
    show_why(run, turns[0].turn_id, tokens=False, as_json=False)
    assert "eval.holdout" in capsys.readouterr().out


def test_retention_deletes_held_out_turns_and_their_texts_in_eval_records(run: RunDir) -> None:
    append(run.captures / "a-0.jsonl", *(line for number in range(3) for line in talk(f"s{number}", 100.0 * number)))
    collect(run, recipe(0.999), once=True, end_sessions=True)
    turn = rows_of(run)[0]
    detail = {"turn_id": turn.turn_id, "request": "Tea?"}
    comparison = {"metric": "preferred", "task_id": turn.turn_id, "candidate": 1.0, "reference": 0.0, "detail": detail}
    record = {"version": 1, "comparisons": {"own": {"0": [comparison]}}, "examples": [detail]}
    publish_bytes(run.eval_record(1), sealed(orjson.dumps(record)))
    limited = Recipe.model_validate({"privacy": {"max_age_days": 1}})
    assert expire(run, limited, dry_run=True, now=time.time() + 3e6).files
    assert "Tea?" in run.eval_record(1).read_text()
    expire(run, limited, now=time.time() + 3e6)
    assert rows_of(run) == []
    remaining = read_sealed(run.eval_record(1).read_bytes())
    assert remaining["comparisons"]["own"]["0"] == [{**comparison, "detail": {}}]
    assert remaining["examples"] == []


def test_a_damaged_record_of_shares_is_quarantined_and_collect_continues(run: RunDir) -> None:
    keep_holdout(run, 0.5)
    run.holdout.write_bytes(run.holdout.read_bytes().replace(b"0.5", b"0.6"))
    with pytest.raises(Damaged):
        read_holdout(run, 0.5)
    Collector(run, recipe(0.5), threading.Event())
    assert orjson.loads(run.holdout.read_bytes())["shares"] == [[0.0, 0.5]]
    assert any("holdout" in path.name for path in run.quarantine.iterdir())
