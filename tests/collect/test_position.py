"""Which captures collect reads again after a stop, a kill, or a change of its files."""

import os
import random
import threading
import time

import orjson
import pytest
from made_exchanges import answer, append, asked, line, user
from test_collect_worker import recipe, rows_of, talk

from clawctl.collect.worker import Collector, collect
from clawctl.run.directory import RunDir, open_run, published, quarantine

AGO = 10_000.0  # seconds: sessions of then have ended


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


def kept(run: RunDir) -> dict:
    return orjson.loads((run.root / "collect.json").read_bytes())


def published_ids(run: RunDir) -> list[str]:
    return sorted(row.turn_id for row in rows_of(run))


def spoil(path, size: int) -> None:
    """Overwrite the beginning in place, so that reading it again gives invalid data."""
    with path.open("r+b") as file:
        file.write(b"x" * size)


def test_a_restart_does_not_read_finished_captures_again(run) -> None:
    path = run.captures / "a-0.jsonl"
    old = talk(3, "tea", at=time.time() - AGO)
    append(path, *old)
    size = path.stat().st_size
    collect(run, recipe(), once=True)
    assert kept(run)["offsets"] == {"a-0.jsonl": size}
    assert kept(run)["shards_after"] == published(run.trajectories, ".parquet")[-1].stem
    spoil(path, size - 1)
    new = talk(2, "milk", at=time.time() - AGO / 2)
    append(path, *new)
    collect(run, recipe(), once=True)
    assert published_ids(run) == sorted(e.exchange_id for e in (*old, *new))
    assert list(run.quarantine.iterdir()) == []


def test_an_open_session_is_read_again_from_its_first_turn(run) -> None:
    path = run.captures / "a-0.jsonl"
    done, going_on = talk(2, "tea", at=time.time() - AGO), talk(3, "milk")
    append(path, *done)
    begins = path.stat().st_size
    append(path, *going_on[:2])
    collect(run, recipe(), once=True)
    assert kept(run)["offsets"] == {"a-0.jsonl": begins}
    append(path, going_on[2])
    collect(run, recipe(), once=True)
    rows = {row.turn_id: row for row in rows_of(run)}
    assert len(rows) == len(rows_of(run)) == 4
    assert rows[going_on[1].exchange_id].parent_turn_id == going_on[0].exchange_id
    assert rows[going_on[1].exchange_id].next_state == [going_on[2].messages[-1]]


@pytest.mark.parametrize("state", [None, b"{", b"[]", b'{"schema_version": 1}', b'{"schema_version": 99}'])
def test_without_a_usable_position_everything_is_read_and_nothing_doubled(run, state) -> None:
    exchanges = talk(4, "tea", at=time.time() - AGO)
    append(run.captures / "a-0.jsonl", *exchanges[:2])
    collect(run, recipe(), once=True)
    (run.root / "collect.json").unlink() if state is None else (run.root / "collect.json").write_bytes(state)
    collect(run, recipe(), once=True)
    assert published_ids(run) == sorted(e.exchange_id for e in exchanges[:2])


def test_a_capture_file_that_was_rewritten_is_read_again(run) -> None:
    path = run.captures / "a-0.jsonl"
    old, other = talk(2, "tea", at=time.time() - AGO), talk(2, "milk", at=time.time() - AGO)
    append(path, *old, *other)
    collector = Collector(run, recipe(), threading.Event())
    collector.poll()
    collector.close()
    append(run.captures / ".new", *other)
    os.replace(run.captures / ".new", path)  # as `forget` would
    more = talk(2, "salt", at=time.time() - AGO)
    append(path, *more)
    collector.poll()
    collector.close()
    everything = sorted(e.exchange_id for e in (*old, *other, *more))
    assert published_ids(run) == everything
    os.replace(path, run.captures / ".old")
    append(path, *more)
    collect(run, recipe(), once=True)  # the same while it was not running
    assert published_ids(run) == everything


def test_a_shard_that_another_stage_puts_aside_comes_back_while_collect_runs(run) -> None:
    exchanges = talk(4, "tea", at=time.time() - AGO)
    append(run.captures / "a-0.jsonl", *exchanges[:2])
    collector = Collector(run, recipe(shard_turns=2), threading.Event())
    collector.poll()
    append(run.captures / "a-0.jsonl", *exchanges[2:])
    collector.poll()
    collector.close()
    first, second = published(run.trajectories, ".parquet")
    quarantine(run, first, "a bit flipped")
    collector.poll()
    collector.close()
    assert published_ids(run) == sorted(e.exchange_id for e in exchanges)
    kept, *again = (path.stem for path in published(run.trajectories, ".parquet"))
    assert kept == second.stem  # what others have read stays where it is
    assert again
    assert all(stem > kept for stem in again)
    quarantine(run, published(run.trajectories, ".parquet")[-1], "and again while collect was not running")
    collect(run, recipe(), once=True)
    assert published_ids(run) == sorted(e.exchange_id for e in exchanges)


def test_killed_at_any_step_with_sessions_that_end_each_turn_is_in_one_row(run) -> None:
    """Three writers, sessions that end and sessions that go on; each worker is dropped at a random step without a word."""
    for seed in range(6):
        dice = random.Random(seed)
        begun = time.time() - AGO
        talks = [talk(6, f"talk {seed} {name}", at=begun + 900 * name) for name in range(10)]  # the timeout is an hour
        waiting = sorted((e for exchanges in talks for e in exchanges), key=lambda e: e.created_at)
        before = set(published_ids(run))
        settings = recipe(shard_turns=5, shard_age_s=0)
        while waiting:
            collector = Collector(run, settings, threading.Event())
            for _ in range(dice.randrange(4)):
                count = dice.randrange(8)
                for exchange in waiting[:count]:
                    append(run.captures / f"w{dice.randrange(3)}-{seed}.jsonl", exchange)
                waiting = waiting[count:]
                collector.poll()
        collect(run, recipe(session_timeout_s=1.0), once=True)  # now all sessions have ended
        ids = published_ids(run)
        assert len(ids) == len(set(ids)), seed
        assert set(ids) - before == {e.exchange_id for exchanges in talks for e in exchanges}, seed
    assert sum(kept(run)["offsets"].values()) == sum(path.stat().st_size for path in published(run.captures, ".jsonl"))


def test_a_duplicate_exchange_gives_one_row_and_does_not_block_the_position(run) -> None:
    exchange = asked([user("hi")], answer("hello"), at=time.time() - AGO)
    (run.captures / "a-0.jsonl").write_bytes(2 * line(exchange))
    collect(run, recipe(), once=True)
    assert published_ids(run) == [exchange.exchange_id]
    assert kept(run)["offsets"] == {"a-0.jsonl": 2 * len(line(exchange))}


def test_stems_grow_even_if_the_clock_was_set_back(run) -> None:
    exchanges = talk(4, "tea", at=time.time() - AGO)
    append(run.captures / "a-0.jsonl", *exchanges[:2])
    collect(run, recipe(), once=True)
    (early,) = published(run.trajectories, ".parquet")
    late = early.with_name(f"{time.time_ns() + 10**15:020d}-abcdef.parquet")  # eleven days ahead
    os.rename(early, late)
    append(run.captures / "a-0.jsonl", *exchanges[2:])
    collect(run, recipe(), once=True)
    assert len(published(run.trajectories, ".parquet")) == 2
    assert published(run.trajectories, ".parquet")[0] == late
    assert published_ids(run) == sorted(e.exchange_id for e in exchanges)
