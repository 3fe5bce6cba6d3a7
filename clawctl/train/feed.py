"""Reads judged turns, shard by shard, into the queue of a trainer (`turn_queue.py`).

A shard is read when it has turns and verdicts, and no further than until enough turns wait.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import Recipe, TrainConfig
from clawctl.run.complaints import MAX_TURNS
from clawctl.run.directory import RunDir, publish_bytes, published, quarantine
from clawctl.run.lineage import read_lineage
from clawctl.run.model_files import origin_of
from clawctl.run.rows import DEFAULT_POLICY, is_judged, lacks_reaction
from clawctl.run.shards import Origin, UnreadableShard, merged_from, read_origin, read_turn_ids, read_values
from clawctl.train.admission import UNTRAINABLE, worth_of
from clawctl.train.fair import Demand, demand_of
from clawctl.train.judged import JudgedPiece, UnreadableHalf, judged_pieces
from clawctl.train.ledger import given_back, read_ledger
from clawctl.train.sample import Batch
from clawctl.train.turn_ids import TurnIds
from clawctl.train.turn_queue import OTHER_POLICY, TurnQueue
from clawctl.train.waiting import READ_AHEAD, in_order, ready_turns
from clawctl.trainers import Model

log = logging.getLogger("clawctl.train")

Counts = dict[str, Any]  # of the turns that a trainer read, by result
_MERGED_WITHIN_S = 60  # collect removes the two files of a shard that it merged one after the other


def open_feed(run: RunDir, recipe: Recipe, model: Model) -> "Feed":
    """Open the feed of a trainer that continues from the tip of the lineage."""
    lineage, trained_model = read_lineage(run), origin_of(recipe.model.path, recipe.model_path)
    used, again = read_ledger(run, lineage), given_back(run, lineage)
    queue = TurnQueue(run, recipe.train, model, used, trained_model, again)
    queue.learns_from_people = recipe.policies.is_stacked and run.policy == DEFAULT_POLICY
    return Feed(queue)


class Feed:
    """The judged turns of a run that no step has used: those in the queue, and those that are still unread."""

    def __init__(self, queue: TurnQueue, read_ahead: int = READ_AHEAD) -> None:
        """Reading pauses while `read_ahead` turns, or READ_AHEAD_TOKENS tokens of turns, wait and fill two batches."""
        self.queue, self.run, self.config = queue, queue.run, queue.config
        self._read_ahead = max(read_ahead, 2 * self.config.batch_turns)
        self.origins: dict[str, Origin] = {}  # by shard
        self.unreadable = 0  # unreadable shards
        self._clock_offset = time.time() - time.monotonic()
        self._seen = TurnIds()  # turns that were examined
        self._shard_of: dict[str, str] = {}  # the shard of each examined turn that a step may still use
        self._read_stems: set[str] = set()  # shards that were read
        self._partly_read: set[str] = set()  # shards with unread pieces, or with a damaged half
        self._expired: set[str] = set()  # shards that no longer exist
        self._halved_since: dict[str, float] = {}  # shards of which only one file exists; infinity: it was logged
        self._merged: set[str] = set()  # shards that contain the rows of others
        self._unread_keys: dict[str, set[str]] = {}  # the keys whose turns were left unread, by shard
        self._history_loaded = False  # whether turns used by earlier steps were recalled
        self._file = CountsFile(self.run)

    def next_batch(self, version: int, now: float | None = None, updates: Mapping[int, int] | None = None) -> Batch | None:
        """Return the next batch for a policy at `version`, or None while there are too few turns.

        Turns stay in the queue until `mark_done` reports their result. `updates` is the number of updates between each published
        version and `version`; None means that there are no branches, so version numbers are subtracted.
        """
        # Monotonic, so that a clock change neither hastens nor delays a batch
        now = self._clock_offset + time.monotonic() if now is None else now
        self.queue.move_to(version, updates)
        ready, has_more = 0, True
        while has_more and not ready:  # more turns must be read from disk if all turns in memory are too stale
            has_more = self._read_new(now)
            self.queue.refuse_stale()
            ready = ready_turns(self.queue.waiting, self.config, now)
        self.write_counts()
        if not ready:
            return None
        batch = self.queue.batch(min(ready, self.config.batch_turns))
        return self.next_batch(version, now, updates) if batch is None else batch

    def mark_done(self, turn_ids: list[str], outcome: str) -> None:
        """Record that these turns are now in the ledger, as "trained" or "skipped"."""
        self.queue.mark_done(turn_ids, outcome)
        for turn_id in turn_ids:
            self._shard_of.pop(turn_id, None)
        self.write_counts()

    def drop_hints(self, reasons: dict[str, str], kept: list[str]) -> None:
        """Remove hints for which the teacher gave no answer, and turns that have nothing left to train (`TurnQueue.drop_hints`)."""
        self.queue.drop_hints(reasons, kept)
        self.write_counts()

    def write_counts(self) -> None:
        """Save the counts of the turns by result, for `inspect`."""
        self._file.write(self._counts())

    def summary(self) -> str:
        """Return the counts of the turns by result as one line."""
        return summary_line(self._counts(), self.config)

    def _counts(self) -> Counts:
        waiting = self.queue.waiting + self.queue.forming.waiting
        return {
            "used": self.queue.outcomes["trained"],
            "skipped": self.queue.outcomes["skipped"],
            "waiting": len(waiting),
            "forming": len(waiting) - len(self.queue.waiting),
            "newest_shard": max(self._read_stems, default=None),
            "oldest_since": min((turn.since for turn in waiting), default=None),
            "refused": {reason: count for reason, count in sorted(self.queue.refused.items()) if count},
            "lost_hints": dict(sorted(self.queue.admission.lost_hints.items())),
            "unreadable_shards": self.unreadable,
        }

    def _read_new(self, now: float) -> bool:
        """Read new shards that have turns and verdicts, in stem order, then new ratings.

        Returns True if shards are left because enough turns wait.
        """
        self.queue.waiting_marks = None
        rated = {turn_id for turn_id in self.queue.ratings.poll() if turn_id in self._shard_of}
        turns = {path.stem: path for path in published(self.run.trajectories, ".parquet")}
        verdicts = {path.stem: path for path in published(self.run.verdicts, ".parquet")}
        if not self._history_loaded:
            self._history_loaded = True
            self._load_history(turns.keys() & verdicts.keys())
        read = self._read_stems - self._partly_read
        new = [stem for stem in sorted(turns.keys() & verdicts.keys()) if stem not in read]
        has_more = False
        for stem in new:
            demand = self._demand()
            if demand.full and not self.config.fair_keys:
                has_more = True
                break
            if stem in self._unread_keys and not any(demand.wants(key) for key in self._unread_keys[stem]):
                has_more = True
                continue
            self._read_stems.add(stem)
            if self._is_of_others(turns[stem]):
                continue
            if not self._is_merged(stem, turns[stem]) and not self._add_shard(stem, now):
                has_more = True
        self._forget_expired(turns.keys())
        vanished = set() if has_more else turns.keys() & verdicts.keys() - self._read_stems
        self._name_halved((verdicts.keys() - turns.keys()) | vanished, now)
        self._reexamine(rated & self._shard_of.keys(), now)
        released = self.queue.forming.pop_ready(now)
        self.queue.waiting += released
        if skipped := self.queue.enter_skipped():
            self.mark_done(skipped, "skipped")
        if new or rated or released:
            self.queue.waiting = in_order(self.queue.waiting, grouped=self.config.credit == "group")
        return has_more

    def _is_of_others(self, path: Path) -> bool:
        """Whether no turn of a shard can be used here. A hundred people's feeds then read the others' shards once, not each."""
        if self.run.policy == DEFAULT_POLICY:
            return False
        try:
            status = path.stat()
            return all(map(self._is_foreign, _policies(path, status.st_mtime_ns, status.st_ino)))
        except (UnreadableShard, FileNotFoundError):
            return False  # counted when it is read

    def _forget_expired(self, existing: Set[str]) -> None:
        """Remove turns whose shard was deleted: they cannot be examined again."""
        expired = self._read_stems - self._expired - existing
        if expired:
            self._expired |= expired
            self._partly_read -= expired
            self._unread_keys = {stem: keys for stem, keys in self._unread_keys.items() if stem not in expired}
            self._shard_of = {turn_id: stem for turn_id, stem in self._shard_of.items() if stem not in expired}
            self.queue.refusals = {turn_id: reason for turn_id, reason in self.queue.refusals.items() if turn_id in self._shard_of}

    def _name_halved(self, stems: Set[str], now: float) -> None:
        """Log once which shards have had only one of their two files for a while: no step can use their turns."""
        self._halved_since = {stem: self._halved_since.get(stem, now) for stem in stems}
        for stem, since in self._halved_since.items():
            if now - since >= _MERGED_WITHIN_S:
                self._halved_since[stem] = math.inf
                halves = [folder / f"{stem}.parquet" for folder in (self.run.trajectories, self.run.verdicts)]
                missing, left = sorted(halves, key=Path.exists)
                log.warning("%s is missing, so its turns are not trained: put it back, or delete %s", missing, left)

    def _is_merged(self, stem: str, path: Path) -> bool:
        """Whether a shard contains only rows of shards that were read."""
        try:
            parts = set(merged_from(path))
        except UnreadableShard:
            return False  # counted when it is read
        if parts:
            self._merged.add(stem)
        if not parts or not parts <= self._read_stems - self._partly_read:
            return False
        self._shard_of.update({turn_id: stem for turn_id, part in self._shard_of.items() if part in parts})
        self.origins[stem] = next(self.origins[part] for part in sorted(parts) if part in self.origins)
        self._partly_read.discard(stem)
        self._unread_keys.pop(stem, None)
        return True

    def _reexamine(self, rated: Set[str], now: float) -> None:
        """Examine turns again that were rated after they were examined.

        The reward of a waiting turn may have changed, and a refused turn may have become usable.
        """
        by_stem: defaultdict[str, set[str]] = defaultdict(set)
        for turn_id in rated:
            by_stem[self._shard_of[turn_id]].add(turn_id)
        for stem, turn_ids in sorted(by_stem.items()):
            self._add_shard(stem, now, turn_ids)

    def _add_shard(self, stem: str, now: float, again: Set[str] = frozenset()) -> bool:
        """Add the new turns of a shard, or in a shard that was read before, the turns to examine `again`.

        Returns False if turns are left because enough turns of their keys wait.
        """
        demand, unread_keys, unread = self._demand(), set[str](), set[str]()

        def is_wanted(row: dict[str, Any]) -> bool:
            if again or not self._is_wanted(row):
                return row["turn_id"] in again
            if demand.wants(row["user"]):
                demand.count(row["user"])
                return True
            unread_keys.add(row["user"])
            unread.add(row["turn_id"])
            return False

        turns_path, verdicts_path = (folder / f"{stem}.parquet" for folder in (self.run.trajectories, self.run.verdicts))
        try:
            since = min(verdicts_path.stat().st_mtime, now)  # another host's clock may be ahead
            self.origins[stem] = read_origin(turns_path)
            self.queue.admission.check_origin(self.origins[stem])
            for piece in judged_pieces(self.run, stem, is_wanted):
                self._add_piece(stem, piece, since, again, unread)
                demand = self._demand()
                unread.clear()
        except FileNotFoundError:
            self._read_stems.discard(stem)  # as in `_quarantine`
        except UnreadableShard as error:
            self._quarantine(stem, turns_path, error)
        except UnreadableHalf as error:
            self._quarantine(stem, error.path, error)
        else:
            if unread_keys:
                self._partly_read.add(stem)
                self._unread_keys[stem] = unread_keys
                return False
            if not again:
                self._partly_read.discard(stem)
                self._unread_keys.pop(stem, None)
        return True

    def _demand(self) -> Demand:
        return demand_of(self.queue.waiting, self.config, self._read_ahead)

    def _quarantine(self, stem: str, path: Path, error: Exception) -> None:
        self._read_stems.discard(stem)  # if its half is published again, it is read then
        if not path.exists():
            return  # after the listing, collect merged it or another worker quarantined it
        log.warning("quarantined %s: %s", path, error)
        self.unreadable += 1
        self._partly_read.add(stem)
        quarantine(self.run, path, str(error))

    def _is_wanted(self, row: dict[str, Any]) -> bool:
        """Whether a turn must be read completely: a step may use it, or other turns are compared with it."""
        if row["turn_id"] in self._seen or self._is_foreign(row["policy_name"]):
            return False
        if self.config.credit != "reward":
            return True
        rating = self.queue.ratings.of(row["user"], row["turn_id"])
        outcome = self.queue.ratings.late_outcome(row["user"], row["turn_id"])
        changed = row if outcome is None else {**row, **outcome.changes(row["untrainable_reason"])}
        state = changed["source"], changed["untrainable_reason"]
        is_usable = is_judged(changed["trainable"], *state) or (rating is not None and lacks_reaction(*state))
        return is_usable and row["turn_id"] not in self.queue.used

    def _is_foreign(self, policy: str) -> bool:
        """Whether a turn belongs to another policy, and this one belongs to a key. The shared one also trains imported turns."""
        return self.run.policy not in (policy, DEFAULT_POLICY)

    def _add_piece(self, stem: str, piece: JudgedPiece, since: float, again: Set[str], unread: Set[str]) -> None:
        for row in piece.passed if not again else []:
            if row["turn_id"] not in unread and self._is_new(stem, row["turn_id"]) and row["turn_id"] not in self.queue.used:
                self.queue.refuse(row["turn_id"], OTHER_POLICY if self._is_foreign(row["policy_name"]) else UNTRAINABLE)
        for turn, verdict in piece.turns:
            if again:
                self.queue.discard(turn)
            if again or self._is_new(stem, turn.turn_id):
                self.queue.admit(stem, self.origins[stem], turn, verdict, since)

    def _is_new(self, stem: str, turn_id: str) -> bool:
        """Whether a turn is seen for the first time. The turn is recorded as seen."""
        if turn_id not in self._seen:
            self._seen.update([turn_id])
            if turn_id not in self.queue.used:
                self._shard_of[turn_id] = stem
            return True
        if stem not in self._merged and stem not in self._partly_read:
            self.queue.refused["in two shards"] += 1
        elif turn_id in self._shard_of:
            self._shard_of[turn_id] = stem  # the part that contained it was removed
        return False

    def _load_history(self, stems: Iterable[str]) -> None:
        """Record the newest MAX_TURNS turns that steps used before this start. Other turns are not decoded."""
        newest, chosen = list[str](), set[str]()
        for stem in sorted(stems, reverse=True) if self.queue.used else ():
            with suppress(UnreadableShard, FileNotFoundError):  # reported when the shard is read
                if self._is_of_others(path := self.run.turn_shard(stem)):
                    continue
                used = [turn_id for turn_id in read_turn_ids(path) if turn_id in self.queue.used]
                chosen.update(used[len(chosen) - MAX_TURNS :])
                newest.insert(0, stem)
            if len(chosen) >= MAX_TURNS:
                break
        for stem in newest:
            with suppress(UnreadableHalf, UnreadableShard, FileNotFoundError):
                for piece in judged_pieces(self.run, stem, lambda row: row["turn_id"] in chosen):
                    for turn, verdict in starmap(self.queue.as_rated, piece.turns):
                        self.queue.remember(turn, verdict, worth_of(turn, verdict))


@lru_cache(maxsize=1 << 16)
def _policies(path: Path, written_ns: int, inode: int) -> frozenset[str]:
    """Return the policies that sampled the turns of a shard. Raises UnreadableShard or FileNotFoundError."""
    return frozenset(read_values(path, "turns", ("policy_name",))["policy_name"])


class CountsFile:
    """`train/feed.json`, which `inspect` reads. It is written only when something changed."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.feed_counts
        self._written: bytes = b""

    def write(self, counts: Counts) -> None:
        text = orjson.dumps(counts, option=orjson.OPT_INDENT_2)
        if text != self._written:
            try:
                publish_bytes(self._path, text)
            except OSError as error:  # only counts: written again when they change
                log.error("cannot write train/feed.json, so `inspect` shows old counts: %s", error)
            self._written = text


def summary_line(counts: Counts, config: TrainConfig) -> str:
    """The number of trained, waiting and refused turns, with reasons."""
    fewest = min(config.batch_min_turns, config.batch_turns)
    needed = f" (a step needs {config.batch_turns}, or {fewest} after {config.batch_wait_s:g} s)" if counts["waiting"] else ""
    refused = ", ".join(f"{reason} {count}" for reason, count in counts["refused"].items())
    text = f"{counts['used']} turns trained so far, {counts['skipped']} skipped, {counts['waiting']} waiting{needed}"
    return text + (f"; refused: {refused}" if refused else "")
