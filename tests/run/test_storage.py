"""The contract of a storage, for a filesystem and for an object store. `first` and `second` are two hosts of one run."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from obstore.store import MemoryStore

from clawctl.errors import ClawError
from clawctl.run.bucket import BucketStorage
from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir, claimed, is_published, move, open_run, publish_bytes, publish_folder, quarantine, remove
from clawctl.run.kinds import Kind, kind_of
from clawctl.run.leases import Leases
from clawctl.run.lines import LineWriter, append_lines, read_lines
from clawctl.run.mounts import run_folder
from clawctl.run.objects import Objects
from clawctl.run.policies import LiveMoved, check_policy, ensure_base_policy, live_version, move_live, publish_policy, read_moves
from clawctl.run.rows import Policy
from clawctl.run.storage import mount_at, storage_of, unmount


@dataclass
class Hosts:
    """Two hosts of one run, and a function that makes the second one poll the changes of the first."""

    first: RunDir
    second: RunDir
    buckets: list[BucketStorage] = field(default_factory=list)

    def poll(self) -> None:
        for bucket in self.buckets:
            bucket._upload()
            bucket.refresh()


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


@pytest.fixture(params=["disk", "bucket"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Hosts:
    if request.param == "bucket":
        found: Hosts = request.getfixturevalue("in_bucket")
        return found
    run = open_run(tmp_path / "run")
    return Hosts(run, run)


def policy(version: int) -> Policy:
    return Policy(version, version - 1, version, "combine", "adapter", "demo", ["t1"], None, {}, 1.0)


def weights(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "adapter_model.safetensors").write_bytes(content) and None  # type: ignore[func-returns-value]


def test_a_file_published_on_one_host_is_read_on_the_other(hosts: Hosts) -> None:
    publish_bytes(hosts.first.turn_shard("s1"), b"rows")
    publish_bytes(hosts.first.eval_record(1), b"{}")
    hosts.poll()
    assert hosts.second.turn_shard("s1").read_bytes() == b"rows"
    assert hosts.second.eval_record(1).read_bytes() == b"{}"


def test_a_published_name_is_taken_before_the_other_host_polls(hosts: Hosts) -> None:
    publish_bytes(hosts.first.verdict_shard("s1"), b"rows")
    assert is_published(hosts.second.verdict_shard("s1"))
    assert not is_published(hosts.second.verdict_shard("s2"))


def test_a_removed_file_is_gone_for_both_hosts(hosts: Hosts) -> None:
    publish_bytes(hosts.first.shared, b"{}")
    hosts.poll()
    remove(hosts.second.shared)
    hosts.poll()
    assert not hosts.first.shared.exists()
    remove(hosts.first.shared)  # and again: nothing happens


def test_the_weights_of_a_version_are_fetched_to_the_other_host_on_demand(hosts: Hosts) -> None:
    publish_policy(hosts.first, policy(1), weights(b"w" * 100_000))
    hosts.poll()
    check_policy(hosts.second, 1)
    assert (hosts.second.version_folder(1) / "adapter_model.safetensors").read_bytes() == b"w" * 100_000


def test_the_first_of_two_folders_of_one_name_is_the_one_of_both(hosts: Hosts) -> None:
    assert publish_folder(hosts.first.checkpoint(1), weights(b"first"))
    assert not publish_folder(hosts.second.checkpoint(1), weights(b"second"))
    hosts.poll()
    for run in (hosts.first, hosts.second):
        storage_of(run.checkpoint(1)).complete(run.checkpoint(1))
        assert (run.checkpoint(1) / "adapter_model.safetensors").read_bytes() == b"first"


def test_a_folder_that_was_moved_away_is_nowhere_and_its_name_is_free(hosts: Hosts) -> None:
    publish_folder(hosts.first.checkpoint(1), weights(b"old"))
    hosts.poll()
    move(hosts.first.checkpoint(1), hosts.first.beside_checkpoints(1, "doomed"))
    hosts.poll()
    assert not hosts.second.checkpoint(1).exists()
    assert publish_folder(hosts.second.checkpoint(1), weights(b"new"))
    hosts.poll()
    storage_of(hosts.first.root).complete(hosts.first.checkpoint(1))
    assert (hosts.first.checkpoint(1) / "adapter_model.safetensors").read_bytes() == b"new"


def test_of_two_claims_one_is_granted_and_an_ended_one_is_free(hosts: Hosts) -> None:
    with claimed(hosts.first, "judge-s1") as one, claimed(hosts.second, "judge-s1") as two:
        assert (one, two) == (True, False)
    with claimed(hosts.second, "judge-s1") as two:
        assert two


def test_lines_of_two_hosts_are_all_kept(hosts: Hosts) -> None:
    def append(run: RunDir, name: str) -> None:
        for number in range(10):
            append_lines(run.moves, [sealed(orjson.dumps({"n": f"{name}{number}"}))])

    threads = [threading.Thread(target=append, args=each) for each in ((hosts.first, "a"), (hosts.second, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hosts.poll()
    assert sorted(row["n"] for row in read_lines(hosts.first.moves)) == [f"{name}{n}" for name in "ab" for n in range(10)]
    assert hosts.first.moves.read_bytes() == hosts.second.moves.read_bytes()


def test_a_move_of_live_that_expects_another_version_changes_nothing(hosts: Hosts) -> None:
    ensure_base_policy(hosts.first, "demo")
    for version in (1, 2):
        publish_policy(hosts.first, policy(version), weights(b"w"))
    hosts.poll()
    move_live(hosts.first, 1, by="train", only_from=0)
    with pytest.raises(LiveMoved, match="LIVE names 1, not 0"):  # the second host has not even looked
        move_live(hosts.second, 2, by="eval", only_from=0)
    assert move_live(hosts.second, 2, by="eval", only_from=1) == 1
    hosts.poll()
    assert live_version(hosts.first) == 2
    assert [(move["from"], move["to"]) for move in read_moves(hosts.first)] == [(None, 0), (0, 1), (1, 2)]


def test_ratings_reach_the_other_host_as_they_grow_and_its_reader_loses_no_place(hosts: Hosts) -> None:
    writer = LineWriter(hosts.first.feedback, 1 << 20)
    writer.append(b'{"a":1}')
    hosts.poll()
    path = next(hosts.second.feedback.glob("*.jsonl"))
    inode = path.stat().st_ino
    writer.append(b'{"a":2}')
    hosts.poll()
    hosts.poll()
    assert path.read_bytes() == b'{"a":1}\n{"a":2}\n'
    assert path.stat().st_ino == inode, "a reader would begin again"


def test_a_quarantined_shard_is_in_quarantine_for_both(hosts: Hosts) -> None:
    publish_bytes(hosts.first.turn_shard("s1"), b"damaged")
    hosts.poll()
    quarantine(hosts.second, hosts.second.turn_shard("s1"), "not a shard")
    hosts.poll()
    assert not hosts.first.turn_shard("s1").exists()
    assert hosts.first.quarantined("trajectories-s1.parquet").read_bytes() == b"damaged"


def test_files_that_another_host_removed_are_moved_without_an_error(in_bucket: Hosts) -> None:
    publish_folder(in_bucket.first.checkpoint(1), weights(b"old"))
    in_bucket.poll()
    remove(in_bucket.second.checkpoint(1))
    in_bucket.poll()
    move(in_bucket.first.checkpoint(1), in_bucket.first.beside_checkpoints(1, "doomed"))
    assert not in_bucket.first.checkpoint(1).exists()


# ---- of a bucket alone ---------------------------------------------------------------------------------------------------


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
    own = [run.api_key, run.api_keys, run.episode_key, run.position, run.trained_marks]
    for path in own:
        publish_bytes(path, b"secret")
    in_bucket.poll()
    names = [stored.name for stored in in_bucket.buckets[0]._objects.list("")]
    assert [name for name in names if any(path.name in name for path in own)] == []
    assert not any((in_bucket.second.root / path.relative_to(run.root)).exists() for path in own)


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


def test_a_url_with_a_secret_in_it_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ClawError) as caught:
        run_folder("s3://AKIAKEY:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value) + caught.value.fix
