"""The contract of a storage, and what is of a bucket alone. `first` and `second` are two hosts of one run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from obstore.store import MemoryStore

from clawctl.extensions.bucket.kinds import Kind, kind_of
from clawctl.extensions.bucket.leases import Leases
from clawctl.extensions.bucket.objects import Objects
from clawctl.extensions.bucket.storage import BucketStorage
from clawctl.run.directory import RunDir, claimed, move, open_run, publish_bytes, publish_folder, quarantine, remove
from clawctl.run.lines import LineWriter, append_lines
from clawctl.run.storage import mount_at, unmount
from tests.run.test_storage import (  # noqa: F401
    Hosts,
    test_a_file_published_on_one_host_is_read_on_the_other,
    test_a_folder_that_was_moved_away_is_nowhere_and_its_name_is_free,
    test_a_move_of_live_that_expects_another_version_changes_nothing,
    test_a_published_name_is_taken_before_the_other_host_polls,
    test_a_quarantined_shard_is_in_quarantine_for_both,
    test_a_removed_file_is_gone_for_both_hosts,
    test_lines_of_two_hosts_are_all_kept,
    test_of_two_claims_one_is_granted_and_an_ended_one_is_free,
    test_ratings_reach_the_other_host_as_they_grow_and_its_reader_loses_no_place,
    test_the_first_of_two_folders_of_one_name_is_the_one_of_both,
    test_the_weights_of_a_version_are_fetched_to_the_other_host_on_demand,
    weights,
)


def bucket_at(root: Path, store: Any, clock: Callable[[], float | None] | None = None) -> BucketStorage:
    """A host's part of a run in `store`, without a polling thread: the test polls."""
    (root / ".bucket").mkdir(parents=True)
    (root / ".bucket" / "about.json").write_bytes(orjson.dumps({"url": "memory://", "host": root.name}))
    (root / ".bucket" / "shards").touch()
    objects = Objects(store)
    return BucketStorage(root, objects, Leases(objects, root.name, clock=clock), poll_s=3600.0)


@contextmanager
def two_hosts(store: Any, folder: Path) -> Iterator[Hosts]:
    """Two hosts of one new run in `store`."""
    runs, buckets = [], []
    for name in ("first", "second"):
        root = (folder / name).resolve()
        buckets.append(bucket_at(root, store))
        mount_at(root, buckets[-1])
        runs.append(open_run(root))
    yield Hosts(runs[0], runs[1], buckets)
    for run, bucket in zip(runs, buckets, strict=True):
        bucket.close()
        unmount(run.root)


@pytest.fixture
def in_bucket(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(MemoryStore(), tmp_path) as hosts:
        yield hosts


@pytest.fixture
def hosts(in_bucket: Hosts) -> Hosts:
    return in_bucket


def test_files_that_another_host_removed_are_moved_without_an_error(in_bucket: Hosts) -> None:
    publish_folder(in_bucket.first.checkpoint(1), weights(b"old"))
    in_bucket.poll()
    remove(in_bucket.second.checkpoint(1))
    in_bucket.poll()
    move(in_bucket.first.checkpoint(1), in_bucket.first.beside_checkpoints(1, "doomed"))
    assert not in_bucket.first.checkpoint(1).exists()


def test_a_worker_whose_lease_was_taken_over_cannot_publish_a_second_time(tmp_path: Path, in_bucket: Hosts) -> None:
    slow, quick = in_bucket.first, in_bucket.second
    later = Leases(Objects(in_bucket.buckets[1]._objects._store), "second", clock=lambda: time.time() + 1000.0)
    with claimed(slow, "judge-s1") as mine:
        assert mine
        assert later.acquire("judge-s1"), "the store's clock says that the lease is old"
        publish_bytes(quick.verdict_shard("s1"), b"by the worker that took over")
        publish_bytes(slow.verdict_shard("s1"), b"by the worker that was asleep")
    in_bucket.poll()
    assert slow.verdict_shard("s1").read_bytes() == quick.verdict_shard("s1").read_bytes() == b"by the worker that took over"
    later.close()


def test_a_fresh_lease_holds_however_wrong_a_hosts_clock_is(in_bucket: Hosts) -> None:
    """Its age is taken from the store. Here the store's own time is asked, and no time of a host."""
    objects = in_bucket.buckets[1]._objects
    other = Leases(objects, "a host whose clock does not matter")
    with claimed(in_bucket.first, "train") as mine:
        assert mine
        assert not other.acquire("train")
    other.close()


def test_a_killed_process_of_the_same_host_holds_nothing_up(tmp_path: Path) -> None:
    objects = Objects(MemoryStore())
    dead, new = Leases(objects, "host"), Leases(objects, "host")
    assert dead.acquire("train")
    assert new.acquire("train"), "the host's own lock was free, so the holder is dead"
    dead.close()  # had it only been asleep
    assert not Leases(objects, "another").acquire("train"), "nobody gives back the lease of another"
    new.close()


def test_captures_go_up_once_they_are_rotated_and_stay_here(in_bucket: Hosts) -> None:
    writer = LineWriter(in_bucket.first.captures, rotate_bytes=1)
    writer.append(b"one")
    writer.append(b"two")
    in_bucket.poll()
    objects = in_bucket.buckets[0]._objects
    assert [objects.read(stored.name) is not None for stored in objects.list("captures/")] == [True]
    assert len(list(in_bucket.first.captures.glob("*.jsonl"))) == 2
    assert not list(in_bucket.second.captures.glob("*.jsonl"))


def test_a_damaged_local_copy_is_fetched_again_and_the_bucket_keeps_its_shard(in_bucket: Hosts) -> None:
    publish_bytes(in_bucket.first.turn_shard("s1"), b"whole")
    in_bucket.poll()
    in_bucket.second.turn_shard("s1").write_bytes(b"whXle")
    quarantine(in_bucket.second, in_bucket.second.turn_shard("s1"), "a flipped bit")
    in_bucket.poll()
    assert in_bucket.first.turn_shard("s1").read_bytes() == in_bucket.second.turn_shard("s1").read_bytes() == b"whole"


def test_secrets_and_a_hosts_own_files_stay_on_the_host(in_bucket: Hosts) -> None:
    run = in_bucket.first
    private = [run.api_key, run.api_keys, run.episode_key, run.position, run.trained_marks]
    for path in private:
        publish_bytes(path, b"secret")
    in_bucket.poll()
    names = [stored.name for stored in in_bucket.buckets[0]._objects.list("")]
    assert [name for name in names if any(path.name in name for path in private)] == []
    assert not any((in_bucket.second.root / path.relative_to(run.root)).exists() for path in private)


def test_every_path_of_a_run_has_its_documented_kind() -> None:
    run = RunDir(Path("/r"))
    kinds = {
        Kind.LOCAL: [run.captures / "w-1.jsonl", run.api_key, run.position, run.log("serve"), run.journal("s"), run.lock("train")],
        Kind.ONCE: [run.turn_shard("s"), run.verdict_shard("s"), run.ledger_entry(3), run.record(3), run.quarantined("x")],
        Kind.CHANGING: [run.live, run.shared, run.moves, run.recipe, run.server, run.steps, run.eval_record(3), run.holdout],
        Kind.GROWING: [run.feedback / "w-1.jsonl"],
        Kind.FOLDER: [run.version_folder(3), run.checkpoint(3), run.of("anna").version_folder(3), run.of("anna").checkpoint(3)],
    }
    wrong = {
        str(path): kind_of(path.relative_to(run.root).as_posix())
        for kind, paths in kinds.items()
        for path in paths
        if kind_of(path.relative_to(run.root).as_posix()) is not kind
    }
    assert wrong == {}


def test_a_row_whose_append_is_tried_again_stands_once(in_bucket: Hosts) -> None:
    """The answer of the first try was lost, and another host appended meanwhile."""
    for run, line in ((in_bucket.first, b'{"id": 1}'), (in_bucket.second, b'{"id": 2}'), (in_bucket.first, b'{"id": 1}')):
        append_lines(run.steps, [line])
    assert in_bucket.first.steps.read_bytes() == b'{"id": 1}\n{"id": 2}\n'
