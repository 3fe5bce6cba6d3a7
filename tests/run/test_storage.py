"""The contract of a storage, for a filesystem. `first` and `second` are two hosts of one run.

The tests of another storage import these tests and have a fixture `hosts` of their own.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir, claimed, is_published, move, open_run, publish_bytes, publish_folder, quarantine, remove
from clawctl.run.lines import LineWriter, append_lines, read_lines
from clawctl.run.policies import LiveMoved, check_policy, ensure_base_policy, live_version, move_live, publish_policy, read_moves
from clawctl.run.rows import Policy
from clawctl.run.storage import storage_of


@dataclass
class Hosts:
    """Two hosts of one run, and a function that makes the second one poll the changes of the first."""

    first: RunDir
    second: RunDir
    buckets: list[Any] = field(default_factory=list)  # the storages of the hosts, if the two share no disk

    def poll(self) -> None:
        for bucket in self.buckets:
            bucket.follower.upload()
            bucket.follower.announce()
        for bucket in self.buckets:
            bucket.follower.poll_once()


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    run = open_run(tmp_path / "run")
    return Hosts(run, run)


def policy(version: int) -> Policy:
    return Policy(version, version - 1, version, "combine", "adapter", "crafts", ["t1"], None, {}, 1.0)


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
    with claimed(hosts.first, "judge-s1") as first, claimed(hosts.second, "judge-s1") as second:
        assert (first, second) == (True, False)
    with claimed(hosts.second, "judge-s1") as second:
        assert second


def test_lines_of_two_hosts_are_all_kept(hosts: Hosts) -> None:
    def append(run: RunDir, name: str) -> None:
        for number in range(10):
            append_lines(run.moves, [sealed(orjson.dumps({"n": f"{name}{number}"}))])

    threads = [threading.Thread(target=append, args=arguments) for arguments in ((hosts.first, "a"), (hosts.second, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hosts.poll()
    assert sorted(row["n"] for row in read_lines(hosts.first.moves)) == [f"{name}{n}" for name in "ab" for n in range(10)]
    assert hosts.first.moves.read_bytes() == hosts.second.moves.read_bytes()


def test_a_move_of_live_that_expects_another_version_changes_nothing(hosts: Hosts) -> None:
    ensure_base_policy(hosts.first, "crafts")
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
