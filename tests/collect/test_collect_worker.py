"""The collect stage as a process: files in, files out, killed and restarted."""

import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from made_exchanges import answer, append, asked, line, user

from clawctl.collect.clocks import Clocks
from clawctl.collect.worker import Collector, collect
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, published, quarantine, sole_worker
from clawctl.run.rows import Exchange, Turn
from clawctl.run.shards import read_turns
from clawctl.run.storage import Disk, StorageUnreachable, mount_at, unmount
from tests.waiting import exit_code_of, until


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


def recipe(**settings: object) -> Recipe:
    return Recipe.model_validate({"collect": {"shard_age_s": 0.1, "merge_shards": 32, **settings}, "eval": {"holdout": 0}})


def rows_of(run: RunDir) -> list[Turn]:
    return [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]


def talk(length: int, name: str, at: float | None = None) -> list[Exchange]:
    """A conversation of so many turns about `name`, beginning now. Each request names itself a main turn, so its words count."""
    messages: list[dict] = []
    exchanges = []
    for number in range(length):
        messages = [*messages, user(f"{name} {number}")]
        reply = answer(f"yes {number}")
        exchanges.append(
            asked(
                messages,
                reply,
                at=(at or time.time()) + number / 1000,
                finished_at=(at or time.time()) + number / 1000,
                turn_type="main",
            )
        )
        messages = [*messages, reply]
    return exchanges


@dataclass
class Dial:
    """A clock that stays at its set time."""

    now: float

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now, lambda: self.now)


@pytest.fixture
def start(run, start_worker) -> Callable:
    """Starts `clawctl collect` as its own process."""
    return lambda: start_worker("collect", run, "collect: {shard_age_s: 0.05, shard_turns: 7}\neval: {holdout: 0}\n")


def test_once_publishes_complete_turns_and_leaves_the_rest_for_the_next_run(run) -> None:
    exchanges = talk(5, "tea")
    append(run.captures / "a-0.jsonl", *exchanges[:3])
    collect(run, recipe(), once=True)
    assert [turn.turn_id for turn in rows_of(run)] == [e.exchange_id for e in exchanges[:2]]
    append(run.captures / "b-0.jsonl", *exchanges[3:])
    collect(run, recipe(), once=True)
    collect(run, recipe(), once=True)
    assert [turn.turn_id for turn in rows_of(run)] == [e.exchange_id for e in exchanges[:4]]
    assert len({turn.session_id for turn in rows_of(run)}) == 1
    assert [turn.turn_index for turn in rows_of(run)] == [0, 1, 2, 3]


def test_once_closes_sessions_that_timed_out(run) -> None:
    append(run.captures / "a-0.jsonl", *talk(2, "old", at=1000.0))
    collect(run, recipe(), once=True)
    assert [turn.untrainable_reason for turn in rows_of(run)] == [None, "no next state"]


def test_sessions_that_end_now_close_with_the_known_next_states(run) -> None:
    exchanges = [replace(exchange, hints={}) for exchange in talk(2, "tea")]
    append(run.captures / "a-0.jsonl", *exchanges)
    collect(run, recipe(), once=True)
    assert rows_of(run) == []  # the client itself may have asked for the second
    for _ in range(2):
        collect(run, recipe(), once=True, end_sessions=True)
        assert [(turn.next_state, turn.untrainable_reason) for turn in rows_of(run)] == [
            ([user("tea 1")], None),
            (None, "no next state"),
        ]


def test_shards_hold_at_most_shard_turns(run) -> None:
    append(run.captures / "a-0.jsonl", *talk(10, "tea"))
    collect(run, recipe(shard_turns=4), once=True)
    assert [len(read_turns(path)) for path in published(run.trajectories, ".parquet")] == [4, 4, 1]


def test_a_turn_after_a_pause_is_published_at_once_and_later_ones_wait_until_the_shard_is_old_enough(run) -> None:
    for age_s, published_turns in ((0.01, 2), (3600.0, 0)):
        collector = Collector(run, recipe(shard_age_s=age_s), threading.Event())
        time.sleep(0.02)  # since the start, which counts as a shard
        append(run.captures / f"{age_s}-0.jsonl", *talk(3, f"tea {age_s}"))
        before = len(rows_of(run))
        collector.poll()
        assert len(rows_of(run)) - before == published_turns
        collector.close()
        assert len(rows_of(run)) - before == 2


def test_a_child_in_an_earlier_file_than_its_parent_finds_it_even_if_clocks_disagree(run) -> None:
    parent, child = talk(2, "tea")
    child = asked(child.messages, child.response, at=parent.created_at - 60, turn_type="main")
    append(run.captures / "a-0.jsonl", child)
    append(run.captures / "b-0.jsonl", parent)
    collect(run, recipe(), once=True)
    assert [(turn.turn_id, turn.next_state) for turn in rows_of(run)] == [(parent.exchange_id, [user("tea 1")])]


def test_rows_do_not_depend_on_how_captures_are_cut_into_files_or_when_they_are_read(tmp_path) -> None:
    exchanges = []
    for name in range(6):  # a talk, a branch off its third turn, and a retry of that branch
        trunk = talk(5, f"talk {name}", at=time.time() + name / 100)
        for _ in range(2):
            messages = [*trunk[2].messages, trunk[2].response, user("or not?")]
            exchanges.append(asked(messages, answer("or so"), at=(at := trunk[4].created_at + 0.001), finished_at=at))
        exchanges += trunk
    exchanges.sort(key=lambda e: e.finished_at)
    readings = []
    for number in range(6):
        dice = random.Random(number)
        run = open_run(tmp_path / f"run-{number}")
        dial = Dial(exchanges[0].finished_at)
        collector = Collector(run, recipe(), threading.Event(), clocks=dial.clocks)
        for exchange in exchanges:
            dial.now = exchange.finished_at
            append(run.captures / f"w{dice.randrange(4)}-0.jsonl", exchange)
            if dice.random() < 0.3:
                collector.poll()
        collector.poll()
        collector.close()
        rows = rows_of(run)
        readings.append({row.turn_id: (row.session_id, row.parent_turn_id, row.turn_index, row.next_state) for row in rows})
    assert len(readings[0]) == 6 * 4
    assert all(rows == readings[0] for rows in readings)


def test_a_history_gives_the_same_rows_read_at_once_or_line_by_line(tmp_path) -> None:
    """A session that ends and another that continues with the same text; an edited turn and an unfinished request between them."""

    def asks(at: float, over: float, messages: list[dict], text: str, **hints: object) -> Exchange:
        return asked(messages, answer(text), at=at, finished_at=over, **hints)

    opening = [user("hi"), answer("hello")]
    exchanges = [
        asks(1.0, 2.0, opening[:1], "hello", session_id="s1"),
        asks(1.5, 3.0, opening[:1], "hello"),
        asks(2.5, 8.0, [*opening, user("slowly")], "well"),  # asked before the end of the session, answered after it
        asks(4.0, 5.0, [user("summary"), answer("hello"), user("edited")], "so", session_id="s1"),
        asks(5.5, 6.0, [*opening, user("bye")], "bye", session_id="s1", session_done=True),
        asks(9.0, 10.0, [*opening, user("slowly"), answer("well"), user("thanks")], "welcome"),
    ]
    exchanges.sort(key=lambda exchange: exchange.finished_at)
    readings = []
    for number, looks in enumerate((range(6), (5,), (2, 5), (3, 5))):
        for writers in ("aaaaaa", "ababab", "abcabc"):
            run = open_run(tmp_path / f"{number}{writers}")
            dial = Dial(0.0)
            collector = Collector(run, recipe(), threading.Event(), clocks=dial.clocks)
            for at, exchange in enumerate(exchanges):
                dial.now = exchange.finished_at
                append(run.captures / f"{writers[at]}-0.jsonl", exchange)
                if at in looks:
                    collector.poll()
            dial.now = 1e6
            collector.poll()
            collector.close()
            readings.append({row.turn_id: (row.parent_turn_id, row.session_id, row.next_state) for row in rows_of(run)})
    assert len(readings[0]) == 6
    assert readings == [readings[0]] * len(readings)


def test_a_second_worker_on_a_run_is_refused(run) -> None:
    with sole_worker(run, "collect"), pytest.raises(ClawError, match="already the collect worker"):
        collect(run, recipe(), once=True)


def test_an_unreadable_shard_is_put_aside_and_its_turns_are_published_again(run) -> None:
    exchanges = talk(4, "tea")
    append(run.captures / "a-0.jsonl", *exchanges)
    collect(run, recipe(shard_turns=2), once=True)
    first, _ = published(run.trajectories, ".parquet")
    first.write_bytes(first.read_bytes()[:100])
    collect(run, recipe(), once=True)
    assert sorted(turn.turn_id for turn in rows_of(run)) == sorted(e.exchange_id for e in exchanges[:3])
    assert (run.quarantine / f"trajectories-{first.name}.reason.txt").exists()


def test_a_complete_turn_is_published_soon_and_a_signal_publishes_the_rest(run, start) -> None:
    process = start()
    exchanges = talk(3, "tea")
    path = run.captures / "a-0.jsonl"
    append(path, exchanges[0])
    until(lambda: (run.locks / "collect.owner").exists())
    time.sleep(0.5)
    begun = time.monotonic()
    append(path, exchanges[1])
    until(lambda: len(rows_of(run)) == 1)
    assert time.monotonic() - begun < 100  # 0.05 s and a little, not `session_timeout_s`; a loaded machine is no failure
    append(path, exchanges[2])
    process.send_signal(signal.SIGTERM)
    assert exit_code_of(process) == 0


def test_killed_at_any_moment_no_turn_is_lost_and_none_is_published_twice(run, start) -> None:
    dice = random.Random(5)
    exchanges = sorted((e for name in range(12) for e in talk(9, f"talk {name}")), key=lambda e: e.created_at)
    writers = [run.captures / f"w{i}-0.jsonl" for i in range(3)]
    owner = run.locks / "collect.owner"
    for number in range(8):
        process = start()
        until(lambda pid=process.pid: owner.exists() and str(pid) in owner.read_text())
        for exchange in exchanges[number * 13 : (number + 1) * 13]:
            append(dice.choice(writers), exchange)
            time.sleep(dice.uniform(0, 0.01))
        if number == 4:  # on a slow machine none of the others may come so far
            until(lambda: rows_of(run))
        time.sleep(dice.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
    published = len(rows_of(run))
    append(writers[0], *exchanges[8 * 13 :])
    collect(run, recipe(), once=True)
    ids = [turn.turn_id for turn in rows_of(run)]
    assert 0 < published < len(ids) == len(set(ids))
    assert set(ids) == {e.exchange_id for e in exchanges if len(e.messages) < 17}
    assert all(turn.trainable for turn in rows_of(run))
    assert list(run.trajectories.glob(".*")) == []


def test_a_half_written_shard_of_a_killed_worker_is_swept_away(run) -> None:
    left = run.trajectories / f".{1:020d}-abcdef.parquet.77-12345678.tmp"
    left.write_bytes(b"half")
    append(run.captures / "a-0.jsonl", *talk(2, "tea"))
    collect(run, recipe(), once=True)
    assert not left.exists()
    assert len(rows_of(run)) == 1


def test_a_disk_that_refuses_is_a_problem_with_a_cure_and_nothing_is_lost(run) -> None:
    append(run.captures / "a-0.jsonl", *talk(2, "tea"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))  # every larger file ends with an error, as on a full disk
    try:
        with pytest.raises(ClawError, match="could not be written"):
            collect(run, recipe(), once=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(run.trajectories.iterdir()) == []
    collect(run, recipe(), once=True)
    assert len(rows_of(run)) == 1


def test_a_torn_line_does_not_stop_the_rest(run) -> None:
    exchanges = talk(3, "tea")
    path = run.captures / "a-0.jsonl"
    path.write_bytes(line(exchanges[0]) + line(exchanges[1])[:50] + b"\n" + line(exchanges[1]) + line(exchanges[2])[:-9])
    collect(run, recipe(), once=True)
    assert [turn.turn_id for turn in rows_of(run)] == [exchanges[0].exchange_id]


def test_a_request_without_tools_that_is_classified_after_a_restart_is_the_next_state(run) -> None:
    """The turn before it lost its shard meanwhile, and it was published already."""
    first, bare, last = (replace(exchange, hints={}) for exchange in talk(3, "tea", at=time.time() - 30))
    first = replace(first, tools=[{"type": "function"}])
    append(run.captures / "a-0.jsonl", first, bare)
    collect(run, recipe(), once=True)
    assert rows_of(run) == []  # whether it is a turn is not known yet
    append(run.captures / "a-0.jsonl", last)
    collect(run, recipe(shard_turns=1), once=True)
    collect(run, recipe(session_timeout_s=20), once=True)  # another agent's words count when the session ends
    kinds = {row.turn_id: (row.kind, row.next_state) for row in rows_of(run)}
    assert kinds == {
        first.exchange_id: ("main", [user("tea 1")]),
        bare.exchange_id: ("main", [user("tea 2")]),
        last.exchange_id: ("main", None),
    }
    shard = next(p for p in published(run.trajectories, ".parquet") if read_turns(p)[0].turn_id == first.exchange_id)
    quarantine(run, shard, "a bit flipped")
    collect(run, recipe(session_timeout_s=20), once=True)
    assert {row.turn_id: (row.kind, row.next_state) for row in rows_of(run)} == kinds


class _LosesAnswers(Disk):
    """A storage whose first answer to each name is lost after it has published."""

    def __init__(self) -> None:
        self._answered: set[str] = set()

    def publish(self, draft: Path, path: Path) -> None:
        super().publish(draft, path)
        if path.name not in self._answered:
            self._answered.add(path.name)
            raise StorageUnreachable("the connection ended")


def test_a_shard_that_was_published_although_the_answer_was_lost_is_not_published_twice(run: RunDir) -> None:
    append(run.captures / "w-1-ab-0.jsonl", *talk(3, "first"))
    collector = Collector(run, recipe(), threading.Event())
    mount_at(run.root, _LosesAnswers())
    try:
        collector.poll()
        collector.end_sessions()
        append(run.captures / "w-1-ab-0.jsonl", *talk(2, "second"))  # more rows wait at the second try
        for _ in range(8):
            collector.poll()
            collector.end_sessions()
            time.sleep(0.15)
    finally:
        unmount(run.root)
    collector.close()
    turn_ids = [turn.turn_id for turn in rows_of(run)]
    assert len(turn_ids) == len(set(turn_ids)) == 5
