"""A full disk and damaged files: stages wait, refuse or quarantine with the reason, and continue by themselves."""

import argparse
import errno
import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from clawctl.collect.worker import Collector
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.judge.journal import Journal
from clawctl.run.directory import RunDir, changes, open_run, published, quarantine
from clawctl.run.disk import is_full, retry_while_full
from clawctl.run.feedback import FeedbackFile, Ratings
from clawctl.run.rows import Feedback, Verdict
from clawctl.run.shards import read_turn_ids
from tests.collect.made_exchanges import answer, append, asked, user


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[RunDir]:
    """A run on a tmpfs of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no tmpfs may be mounted here, so no disk can be filled")
    try:
        yield open_run(disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def full(run: RunDir) -> Iterator[None]:
    ballast = run.root / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield
    ballast.unlink()


def test_work_that_meets_a_full_disk_is_done_when_there_is_room_and_only_then(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[str] = []

    def work() -> str:
        tries.append("try")
        if len(tries) == 1:
            raise RuntimeError("I/O error: No space left on device (os error 28)")  # as libraries in Rust report it
        return "done"

    with caplog.at_level(logging.WARNING):
        assert retry_while_full(work, "checkpoint 1") == "done"
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "cannot write checkpoint 1, retrying every second", "the disk has space again",
    ]  # fmt: skip


def test_other_errors_are_raised_and_a_stop_ends_the_waiting() -> None:
    def refused() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    def is_full_up() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(PermissionError):
        retry_while_full(refused, "a file")
    stop = threading.Event()
    stop.set()
    with pytest.raises(ClawError, match="stopped because the disk is full: a file is not written"):
        retry_while_full(is_full_up, "a file", stop)
    assert not is_full(ValueError("No space left between the words"))


def test_collect_waits_for_room_and_then_publishes_each_turn_once(small_disk: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    run = small_disk
    exchanges = [asked([user(topic)], answer(f"yes, {topic}"), at=1000.0) for topic in ("tea", "rain", "snow")]
    path = run.captures / "a-0.jsonl"
    for exchange in exchanges:
        append(path, exchange)
    with path.open("ab") as file:
        file.write(b'{"exchange_id": "torn"\n')
    collector = Collector(
        run, Recipe.model_validate({"collect": {"session_timeout_s": 0.01}, "eval": {"holdout": 0}}), threading.Event()
    )
    with full(run), caplog.at_level(logging.ERROR):
        for _ in range(2):
            collector.poll()
            with pytest.raises(ClawError, match="complete turns could not be written"):
                collector.close()
        assert published(run.trajectories, ".parquet") == []
        assert sum("cannot write trajectories" in record.getMessage() for record in caplog.records) == 1
    collector.poll()
    collector.close()
    turn_ids = [turn_id for shard in published(run.trajectories, ".parquet") for turn_id in read_turn_ids(shard)]
    assert sorted(turn_ids) == sorted(exchange.exchange_id for exchange in exchanges)
    (aside,) = run.quarantine.glob("*.jsonl")
    assert "not JSON" in aside.with_name(aside.name + ".reason.txt").read_text()


def test_a_journal_on_a_full_disk_tears_no_verdict_that_comes_after(small_disk: RunDir) -> None:
    run = small_disk
    verdicts = [Verdict(f"t{number}", 1.0, [1], None, [], "crafts@0", "x" * 3000, None) for number in range(4)]
    journal = Journal(run, "a", [])
    journal.add(verdicts[0])
    with full(run):
        journal.add(verdicts[1])  # what fits of it
        journal.add(verdicts[2])
    journal.add(verdicts[3])
    journalled = Journal(run, "a", ["t0", "t1", "t2", "t3"]).verdicts
    assert {"t0", "t3"} <= journalled.keys()
    assert all(journalled[verdict.turn_id] == verdict for verdict in verdicts if verdict.turn_id in journalled)


def test_a_file_quarantined_twice_is_kept_twice_without_extra_space(small_disk: RunDir) -> None:
    run = small_disk
    for text in ("first", "second"):
        (run.eval / "1.json").write_text(text)
        with full(run):
            quarantine(run, run.eval / "1.json", "not JSON")
    assert [(run.quarantine / name).read_text() for name in ("eval-1.json", "eval-1~2.json")] == ["first", "second"]


def test_no_damage_to_any_kind_of_file_is_read_as_something_else(tmp_path: Path) -> None:
    from scripts.benchmarks.chaos_damage import rows

    measured = {row.metric: row.value for row in rows(argparse.Namespace(quick=True, rounds=2, seed=7), tmp_path)}
    assert [measured[metric] for metric in ("lost_turns", "trained_twice", "half_files_read", "tracebacks")] == [0, 0, 0, 0]
    assert measured["kinds_of_file"] == 26


def test_of_two_ratings_by_one_writer_the_later_counts_whatever_its_clock_did(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    file = FeedbackFile(run.feedback)
    first = Feedback("f1", 10_000.0, "default", "t1", 1.0, None)
    file.append(first)
    file.append(replace(first, feedback_id="f2", created_at=10_000.0 - 3600, rating=-1.0))  # the clock was set back
    ratings = Ratings(run)
    ratings.poll()
    rating = ratings.of("default", "t1")
    assert rating is not None
    assert rating.rating == -1.0


def test_where_no_events_can_be_had_folders_are_looked_at_all_the_same(tmp_path: Path) -> None:
    stop, looks = threading.Event(), 0
    for _ in changes([tmp_path / "nothing here"], stop, poll_s=0.05):  # as where all inotify watches are taken
        looks += 1
        if looks == 4:
            stop.set()
    assert looks == 4
