import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import orjson
import pytest

from clawctl.errors import ClawError
from clawctl.run.directory import changes, claimed, open_run, publish, publish_bytes, published, quarantine, sole_worker


def test_a_run_of_another_schema_version_is_refused_with_both_versions_named(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    (run.root / "run.json").write_bytes(orjson.dumps({"schema_version": 99}))
    with pytest.raises(ClawError, match="schema version 99, but this clawctl reads version 1") as caught:
        open_run(run.root)
    assert caught.value.exit_code == 2


def test_a_folder_with_other_files_is_never_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ClawError, match="contains files that do not belong to a run"):
        open_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_whose_first_process_was_killed_while_it_began_can_be_begun_again(tmp_path: Path) -> None:
    (tmp_path / "captures").mkdir()
    (tmp_path / ".run.json.123-abc.tmp").write_bytes(b'{"sche')
    assert open_run(tmp_path).captures == tmp_path / "captures"
    assert (tmp_path / "run.json").exists()


def test_drafts_of_a_killed_process_are_deleted_after_a_day(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    old = [run.root / ".collect.json.1-a.tmp", run.verdicts / ".s.parquet.1-a.tmp", run.train / "ledger" / ".7.json.1-a.tmp"]
    new, kept = run.verdicts / ".t.parquet.1-a.tmp", run.verdicts / "s.parquet"
    (run.train / "ledger").mkdir()
    for file in (*old, new, kept):
        file.write_bytes(b"half")
    (run.policies / ".7.1-a.tmp").mkdir()
    (run.policies / ".7.1-a.tmp" / "policy.json").write_bytes(b"half")
    for path in (*old, kept, run.policies / ".7.1-a.tmp"):
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    open_run(run.root, create=False)  # a reader touches nothing
    assert all(path.exists() for path in old)
    open_run(run.root)
    assert not any(path.exists() for path in (*old, run.policies / ".7.1-a.tmp"))
    assert new.exists()
    assert kept.exists()


def test_a_missing_run_is_not_made_by_a_reader(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="is not a run directory"):
        open_run(tmp_path / "nowhere", create=False)
    assert not (tmp_path / "nowhere").exists()


def test_only_the_owner_may_look_into_a_run(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    publish_bytes(run.root / "file", b"x")
    assert run.captures.stat().st_mode & 0o777 == 0o700
    assert (run.root / "file").stat().st_mode & 0o777 == 0o600


def test_a_publication_that_fails_leaves_the_old_file_and_no_debris(tmp_path: Path) -> None:
    target = tmp_path / "a.parquet"
    publish_bytes(target, b"old")

    def fails_half_way(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish(target, fails_half_way)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_temporary_files_are_not_published(tmp_path: Path) -> None:
    (tmp_path / ".b.parquet.123-abc.tmp").write_bytes(b"")
    (tmp_path / ".c.parquet").write_bytes(b"")
    publish_bytes(tmp_path / "a.parquet", b"")
    assert [path.name for path in published(tmp_path, ".parquet")] == ["a.parquet"]


def test_a_quarantined_file_keeps_its_bytes_and_its_reason(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    bad = run.trajectories / "7.parquet"
    bad.write_bytes(b"broken")
    kept = quarantine(run, bad, "not Parquet")
    assert not bad.exists()
    assert kept.read_bytes() == b"broken"
    assert kept.with_name(kept.name + ".reason.txt").read_text() == "not Parquet\n"


def hold_for_ever(root: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with sole_worker(open_run(root), "train"):
        ready.set()
        time.sleep(60)


def test_a_second_worker_is_refused_with_the_owner_and_a_dead_workers_lock_is_free(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold_for_ever, args=(run.root, ready))
    process.start()
    assert ready.wait(30)
    with pytest.raises(ClawError, match=f"process {process.pid} on .* is already the train worker"), sole_worker(run, "train"):
        pass
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with sole_worker(run, "train"), claimed(run, "train") as again:
        assert not again


def test_changes_are_seen_at_once_and_polled_for_anyway(tmp_path: Path) -> None:
    stop = threading.Event()
    seen = changes([tmp_path], stop, poll_s=0.2)
    next(seen)
    start = time.monotonic()
    next(seen)  # nothing happened: the poll
    assert time.monotonic() - start < 5
    threading.Timer(0.05, lambda: publish_bytes(tmp_path / "new", b"")).start()
    next(seen)
    stop.set()
    assert list(seen) == []
