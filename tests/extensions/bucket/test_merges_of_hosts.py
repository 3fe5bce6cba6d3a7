"""Each host merges its own shards: no turn is lost or doubled, whatever is killed and whoever reads meanwhile."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from obstore.store import MemoryStore

from clawctl.collect.stems import is_of
from clawctl.collect.worker import collect
from clawctl.config import Recipe
from clawctl.extensions.bucket.leases import Leases
from clawctl.extensions.bucket.objects import Objects, StoredObject
from clawctl.extensions.bucket.storage import BucketStorage
from clawctl.judge.worker import judge
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, is_published, publish_bytes, published, remove
from clawctl.run.finished_shards import SUFFIX
from clawctl.run.retention import expire
from clawctl.run.rows import Verdict
from clawctl.run.shards import merged_from, read_columns, read_turn_ids, write_verdicts
from clawctl.run.storage import mount_at, storage_of
from tests.collect.made_exchanges import answer, append, asked, user
from tests.extensions.bucket.test_bucket import Hosts, two_hosts

_IDS = ("turn_id", "session_id")
AGO = 4000.0  # seconds: the session of such a talk has ended
_SETTINGS = {"shard_age_s": 0.0, "shard_turns": 1, "merge_shards": 2}
_RM = """class Judge:
    reward_range = (-1, 1)

    def score(self, prompt, response, next_state):
        return 1.0
"""


class Killed(BaseException):
    """The process ends here."""


class InterruptedObjects(Objects):
    """Objects of a process in which something happens once, before or after a write: the one with the number `left`, or the first
    of the kind `moment`.
    """

    left, after, moment, happens = 0, False, "", staticmethod(lambda: None)
    is_killed = False

    def _written(self, kind: str, write: Callable[[], object]) -> object:
        if self.is_killed:
            raise Killed
        self.left -= 1
        is_now = self.left == 0 or (self.moment != "" and kind.startswith(self.moment))
        if is_now:
            self.moment = ""
        if is_now and not self.after:
            self.happens()
        result = write()
        if is_now and self.after:
            self.happens()
        return result

    def create(self, name: str, data: bytes | Path) -> str | None:
        return self._written(f"creates {name.removeprefix('run/')}", lambda: Objects.create(self, name, data))  # type: ignore[return-value]

    def put(self, name: str, data: bytes | Path) -> str:
        return self._written(f"puts {name}", lambda: Objects.put(self, name, data))  # type: ignore[return-value]

    def delete(self, name: str) -> None:
        self._written(f"deletes {name.removeprefix('run/')}", lambda: Objects.delete(self, name))

    def kill(self) -> None:
        self.is_killed = True
        raise Killed


class TwoPages(Objects):
    """Objects whose listings have two pages, of which the first ends with the first part of a merge. Between them, `happens` is
    called once. The merged shard, whose name precedes that of its first part, is then in neither page, nor are the other parts."""

    happens: Callable[[], None] | None = None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        every = list(super().list(prefix))
        parts = [stored.name for stored in every if stored.name.startswith("run/trajectories/")]
        first = [stored for stored in every if not parts or stored.name <= parts[0]]
        yield from first
        if prefix == "run/" and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        yield from (stored for stored in list(super().list(prefix)) if not first or stored.name > first[-1].name)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(MemoryStore(), tmp_path) as pair:
        pair.poll()
        yield pair


def recipe(**privacy: object) -> Recipe:
    return Recipe.model_validate({"collect": _SETTINGS, "eval": {"holdout": 0}, "privacy": privacy})


def work(run: RunDir) -> None:
    collect(run, recipe(), once=True)


def say(run: RunDir, name: str) -> set[str]:
    """A conversation of two turns about `name` on this host. Returns the ids of its turns."""
    at, messages, exchanges = time.time() - AGO, [], []
    for number in range(2):
        messages = [*messages, user(f"{name} {number}")]
        moment = at + number / 1000
        exchanges.append(asked(messages, answer(f"yes {number}"), at=moment, finished_at=moment, turn_type="main"))
        messages = [*messages, answer(f"yes {number}")]
    append(run.captures / f"{name}-0.jsonl", *exchanges)
    return {exchange.exchange_id for exchange in exchanges}


def finish(hosts: Hosts) -> None:
    """Judge and train every shard, on the second host."""
    hosts.poll()
    run = hosts.second
    for path in published(run.trajectories, ".parquet"):
        if not (run.verdicts / path.name).exists():
            write_verdicts(
                run.verdicts / path.name, [Verdict(turn_id, 1.0, [1], None, [], "j", None, 0.1) for turn_id in read_turn_ids(path)]
            )
    turns = {path.stem: read_turn_ids(path) for path in published(run.trajectories, ".parquet") if not path.stem.endswith(SUFFIX)}
    step = len(published(run.ledger, ".json")) + 1
    publish_bytes(run.ledger_entry(step), orjson.dumps({"step": step, "outcome": "skipped", "reason": None, "turns": turns}))
    hosts.poll()


def restarted(hosts: Hosts, objects: Objects) -> None:
    """Replace the process of the first host by one that uses `objects`."""
    old = hosts.buckets[0]
    old.follower.poll_lock.release()
    old._leases._stop.set()
    new = BucketStorage(hosts.first.root, objects, Leases(objects, "first"), poll_s=3600.0)
    mount_at(hosts.first.root, new)
    new.refresh()
    hosts.buckets[0] = new


def ids(run: RunDir, folder: str) -> Counter[str]:
    return Counter(turn_id for path in published(run.root / folder, ".parquet") for turn_id in read_turn_ids(path))


def stems(run: RunDir, folder: str = "trajectories") -> set[str]:
    return {path.stem for path in published(run.root / folder, ".parquet")}


def check_once(hosts: Hosts, wanted: set[str]) -> None:
    """Each turn has one row and one verdict, on both hosts and in the store."""
    hosts.poll()
    hosts.poll()
    names = {stored.name.removeprefix("run/") for stored in hosts.buckets[1]._objects.list("run/")}
    for folder in ("trajectories", "verdicts"):
        assert ids(hosts.first, folder) == ids(hosts.second, folder) == Counter(wanted)
        assert stems(hosts.first, folder) == {Path(name).stem for name in names if name.startswith(f"{folder}/")}


@pytest.mark.parametrize("after", [False, True])
def test_a_collect_worker_killed_before_or_after_any_write_loses_and_doubles_no_turn(hosts: Hosts, after: bool) -> None:
    store, wanted, killed = hosts.buckets[0]._objects._store, set[str](), 0
    while True:
        wanted |= say(hosts.first, f"talk{killed}")
        work(hosts.first)
        finish(hosts)
        dying = InterruptedObjects(store)
        dying.left, dying.after, dying.happens = killed + 1, after, dying.kill  # type: ignore[assignment]
        restarted(hosts, dying)
        try:
            work(hosts.first)
        except Killed:
            killed += 1
        else:
            break
        hosts.buckets[1].follower.poll_once()
        assert ids(hosts.second, "trajectories").keys() == wanted, "a reader sees each turn at any moment"
        for stem in stems(hosts.second) - stems(hosts.second, "verdicts"):
            shard, verdicts = hosts.second.turn_shard(stem), hosts.second.verdict_shard(stem)
            assert is_published(verdicts) or not is_published(shard), "a judge would judge it again"
        restarted(hosts, Objects(store))
        work(hosts.first)
        check_once(hosts, wanted)
        assert all(stem.endswith(SUFFIX) for stem in stems(hosts.first))
    assert killed >= 6, "a merge of two shards publishes two files and removes four"
    check_once(hosts, wanted)


def test_each_host_merges_its_own_shards_and_publishes_none_again_from_any_position(hosts: Hosts) -> None:
    wanted = say(hosts.first, "first")
    work(hosts.first)
    hosts.poll()
    wanted |= say(hosts.second, "second")
    work(hosts.second)
    finish(hosts)
    for run in (hosts.first, hosts.second):
        work(run)
        hosts.poll()
        check_once(hosts, wanted)
    merged = {bucket.host: [stem for stem in stems(hosts.first) if is_of(bucket.host, stem)] for bucket in hosts.buckets}
    assert [len(merged_stems) for merged_stems in merged.values()] == [1, 1]
    for run in (hosts.first, hosts.second):
        parts = merged_from(run.turn_shard(merged[storage_of(run.root).host][0]))
        assert len(parts) == 2
        assert all(is_of(storage_of(run.root).host, stem) for stem in parts)
        run.position.unlink()
        wanted |= say(run, f"late {run.root.name}")
        work(run)
        finish(hosts)
        check_once(hosts, wanted)


def test_a_listing_that_a_merge_interrupts_hides_no_turn(hosts: Hosts) -> None:
    wanted = say(hosts.first, "talk")
    work(hosts.first)
    finish(hosts)
    paged = TwoPages(hosts.buckets[1]._objects._store)
    paged.happens = lambda: work(hosts.first)
    hosts.buckets[1].follower._objects = paged
    hosts.buckets[1].refresh()
    assert ids(hosts.second, "trajectories").keys() == wanted
    assert len(stems(hosts.first)) == 1
    check_once(hosts, wanted)


def test_a_shard_that_was_merged_away_is_not_judged_again(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "rm.py").write_text(_RM)
    say(hosts.first, "talk")
    work(hosts.first)
    hosts.poll()
    for stem in stems(hosts.second):
        remove(hosts.first.turn_shard(stem))
    judge(hosts.second, Recipe.model_validate({"judge": {"custom_rm": f"{tmp_path / 'rm.py'}:Judge"}}), once=True)
    assert stems(hosts.second, "verdicts") == set()


@pytest.mark.parametrize("moment", ["creates verdicts", "creates trajectories", "deletes trajectories", "deletes verdicts"])
def test_forget_during_a_merge_by_a_worker_that_was_asleep_leaves_nothing_of_the_session(hosts: Hosts, moment: str) -> None:
    """The worker sleeps at one of its writes for longer than its lease, so `forget` does not wait for it."""
    store, happened = hosts.buckets[0]._objects._store, list[int]()
    hosts.buckets[1]._leases._clock = lambda: time.time() + 1000.0
    kept, gone = say(hosts.first, "stays"), say(hosts.first, "goes")
    work(hosts.first)
    finish(hosts)
    rows = [row for path in published(hosts.second.trajectories, ".parquet") for row in read_columns(path, "turns", _IDS)]
    session = next(row["session_id"] for row in rows if row["turn_id"] in gone)
    objects = InterruptedObjects(store)
    objects.moment = moment
    objects.happens = lambda: happened.append(forget(hosts.second, Selection(session=session), False, False).turns)  # type: ignore[assignment]
    restarted(hosts, objects)
    work(hosts.first)
    assert happened == [2]
    if moment.startswith("creates"):  # the request came before the last look for one
        hosts.poll()
        assert not gone & ids(hosts.second, "trajectories").keys()
    restarted(hosts, Objects(store))
    work(hosts.first)
    check_once(hosts, kept)


def test_a_merged_shard_expires_with_its_youngest_part_and_a_day_of_grace(hosts: Hosts) -> None:
    day = 86400.0
    wanted = say(hosts.first, "talk")
    work(hosts.first)
    finish(hosts)
    work(hosts.first)
    hosts.poll()
    for path in published(hosts.first.captures, ".jsonl"):
        remove(path)
    assert expire(hosts.second, recipe(max_age_days=1), time.time() + 1.9 * day).files == []
    check_once(hosts, wanted)
    expire(hosts.second, recipe(max_age_days=1), time.time() + 2.1 * day)
    check_once(hosts, set())
