"""Announcements: what one host changed reaches the others without a listing, and nothing is lost where one is missing."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from obstore.store import MemoryStore

from clawctl.extensions.bucket.announcements import OBJECT, Announcements, Place
from clawctl.extensions.bucket.leases import Leases
from clawctl.extensions.bucket.objects import Objects, StoredObject
from clawctl.extensions.bucket.storage import BucketStorage
from clawctl.run.directory import publish_bytes, publish_folder, remove
from clawctl.run.names import draft_of
from clawctl.run.storage import mount_at
from tests.extensions.bucket.test_bucket import two_hosts, weights
from tests.run.test_storage import Hosts


class CountingObjects(Objects):
    listed = 0

    def list(self, prefix: str) -> Iterator[StoredObject]:
        type(self).listed += 1
        return super().list(prefix)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts that have listed the bucket."""
    with two_hosts(MemoryStore(), tmp_path) as hosts:
        hosts.poll()
        hosts.poll()
        for bucket in hosts.buckets:
            bucket._objects.__class__ = CountingObjects
        CountingObjects.listed = 0
        yield hosts


def announced(objects: Objects) -> list[str]:
    content = objects.read(OBJECT)
    assert content is not None
    return [name for name, _ in orjson.loads(content[0])["last"]]


def test_changes_and_removals_reach_the_other_host_without_a_listing(hosts: Hosts) -> None:
    first, second = hosts.first, hosts.second
    publish_bytes(first.turn_shard("s1"), b"rows")
    publish_bytes(first.recipe, b"a: 1")
    publish_folder(first.checkpoint(1), weights(b"old"))
    hosts.poll()
    assert second.turn_shard("s1").read_bytes() == b"rows"
    assert second.recipe.read_bytes() == b"a: 1"
    assert second.checkpoint(1).exists()
    publish_bytes(second.recipe, b"a: 2")
    remove(second.turn_shard("s1"))
    remove(second.checkpoint(1))
    hosts.poll()
    assert first.recipe.read_bytes() == b"a: 2"
    assert not first.turn_shard("s1").exists()
    assert not first.checkpoint(1).exists()
    assert CountingObjects.listed == 0


@pytest.mark.parametrize("published", [True, False])
def test_a_process_that_is_killed_before_its_announcement_leaves_it_to_the_next_one_of_its_host(
    hosts: Hosts, published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the object was written, or before."""
    bucket, path = hosts.buckets[0], hosts.first.turn_shard("s1")
    bucket._announcements.note("run/trajectories/s1.parquet")
    if published:
        bucket._objects.create("run/trajectories/s1.parquet", b"rows")
    again = BucketStorage(hosts.first.root, bucket._objects, Leases(bucket._objects, "first"), poll_s=3600.0)
    bucket.follower.poll_lock.release()
    mount_at(hosts.first.root, again)
    hosts.buckets[0] = again
    again.refresh()
    hosts.poll()
    assert path.exists() == hosts.second.turn_shard("s1").exists() == published
    assert not again._announcements.are_due()


def test_of_two_changes_of_a_name_the_order_of_their_announcements_decides_nothing(tmp_path: Path) -> None:
    objects = Objects(MemoryStore())
    early, late = Announcements(objects, tmp_path / "early"), Announcements(objects, tmp_path / "late")
    for changes, tag in ((late, "newer"), (early, "older")):
        changes.note("run/steps.jsonl", "run/" + tag)
        changes.announce(lambda _, tag=tag: tag)  # type: ignore[misc]
    names, position = early.since(Place(journal=orjson.loads(objects.read(OBJECT)[0])["journal"]))  # type: ignore[index]
    assert names == {"run/steps.jsonl": None, "run/newer": "newer", "run/older": "older"}
    assert position.count == 4


def test_names_that_two_hosts_announce_at_once_are_all_read(tmp_path: Path) -> None:
    objects = Objects(MemoryStore())
    hosts = [Announcements(objects, tmp_path / f"due-{number}") for number in range(4)]
    hosts[0].note("run/first")
    hosts[0].announce(lambda _: None)
    _, position = hosts[0].since(Place())

    def announce(number: int) -> None:
        for step in range(20):
            hosts[number].note(f"run/{number}-{step}")
            hosts[number].announce(lambda _: None)

    threads = [threading.Thread(target=announce, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names, position = hosts[0].since(position)
    assert names == {f"run/{number}-{step}": None for number in range(4) for step in range(20)}
    assert hosts[0].since(position) == ({}, position)


def missed_too_much(objects: Objects, due: Path) -> None:
    changes = Announcements(objects, due)
    changes.note(*(f"run/eval/{number}.json" for number in range(2000)))
    changes.announce(lambda _: None)


def names_that_are_none(objects: Objects, _: Path) -> None:
    stored = objects.read(OBJECT)
    journal = orjson.loads(stored[0]) if stored else {"journal": "j", "count": 0, "last": []}
    journal["last"] += [["run/../../x", None], [5, None], ["run/eval//x", 7]]
    objects.put(OBJECT, orjson.dumps(journal | {"count": journal["count"] + 3}))


@pytest.mark.parametrize(
    "harm",
    [
        missed_too_much,
        names_that_are_none,
        lambda objects, _: objects.put(OBJECT, b"\x00 sixteen bytes of an earlier clawctl"),
        lambda objects, _: objects.put(OBJECT, orjson.dumps({"journal": "another", "count": 1, "last": [["run/x", None]]})),
        lambda objects, _: objects.put(OBJECT, b"[]"),
    ],
)
def test_a_host_that_cannot_follow_the_announcements_lists_the_bucket(hosts: Hosts, harm: Callable[[Objects, Path], None]) -> None:
    objects = hosts.buckets[0]._objects
    objects.create("run/trajectories/s1.parquet", b"rows")  # nothing announces it
    harm(objects, hosts.first.root / "another-due")
    hosts.poll()
    assert hosts.second.turn_shard("s1").read_bytes() == b"rows"
    publish_bytes(hosts.first.turn_shard("s2"), b"more")
    hosts.poll()
    listed = CountingObjects.listed
    publish_bytes(hosts.first.turn_shard("s3"), b"most")
    hosts.poll()
    assert hosts.second.turn_shard("s3").read_bytes() == b"most"
    assert CountingObjects.listed == listed


def test_an_object_that_a_lost_host_did_not_announce_is_found_by_the_next_listing(hosts: Hosts) -> None:
    hosts.buckets[0]._objects.create("run/trajectories/s1.parquet", b"rows")
    hosts.poll()
    assert not hosts.second.turn_shard("s1").exists()
    hosts.buckets[1].follower._listed_at = time.monotonic() - hosts.buckets[1].follower.list_s
    hosts.poll()
    assert hosts.second.turn_shard("s1").read_bytes() == b"rows"


def test_a_request_to_forget_and_the_lines_that_it_removes_are_announced(hosts: Hosts) -> None:
    publish_bytes(hosts.first.root / "feedback" / "w-1.jsonl", b"one\ntwo\n")
    hosts.poll()
    hosts.poll()
    assert (hosts.second.feedback / "w-1.jsonl").read_bytes() == b"one\ntwo\n"
    CountingObjects.listed = 0
    hosts.buckets[0].request_removal("r1", b"{}")
    hosts.buckets[0].complete_removal("r1")
    hosts.buckets[0].rewrite_copies(lambda content: content.replace(b"one\n", b""))
    hosts.buckets[0].follower.announce()
    listed = CountingObjects.listed
    hosts.buckets[1].follower.poll_once()
    assert hosts.buckets[1]._local.pending_removals() == {"r1": b"{}"}
    assert (hosts.second.feedback / "w-1.jsonl").read_bytes() == b"two\n"
    assert CountingObjects.listed == listed
    assert announced(hosts.buckets[0]._objects)[-1] == "run/feedback/w-1.jsonl"


def test_a_name_that_is_published_again_while_its_removal_is_read_keeps_its_file(hosts: Hosts) -> None:
    """The removal and the publication of one name are announced in either order."""
    path = hosts.first.turn_shard("s1")
    publish_bytes(path, b"rows")
    hosts.poll()
    remove(hosts.second.turn_shard("s1"))
    draft = draft_of(path)
    draft.write_bytes(b"rows again")
    hosts.buckets[0].publish(draft, path)
    hosts.buckets[0]._announcements.note("run/trajectories/s1.parquet")
    hosts.poll()
    hosts.poll()
    assert path.read_bytes() == hosts.second.turn_shard("s1").read_bytes() == b"rows again"
