"""Turns judged turns into batches: which turns are usable, which are refused and why, and when there are enough of them.

Turns wait in the order of their shards. Turns beyond a batch stay in the queue, and untrainable turns never take a place in one.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

from clawctl.config import Recipe, TrainConfig
from clawctl.errors import ClawError
from clawctl.run.complaints import MAX_TURNS, JudgedAnswer
from clawctl.run.directory import RunDir, published, quarantine
from clawctl.run.feedback import Ratings, with_comment
from clawctl.run.hint_places import used_hint_place
from clawctl.run.holdout import HELD_OUT
from clawctl.run.images import read_image
from clawctl.run.keys import teachers_of_shared
from clawctl.run.lineage import read_lineage
from clawctl.run.model_files import origin_of
from clawctl.run.policies import read_policy
from clawctl.run.reward import Worth
from clawctl.run.rows import DEFAULT_POLICY, Turn, Verdict, is_judged, lacks_reaction
from clawctl.run.shards import UNKNOWN, Origin, UnreadableShard, merged_from, read_origin, read_turn_ids
from clawctl.train.admission import MISSING_IMAGE, UNTRAINABLE, Admission, TurnRefused, worth_of
from clawctl.train.changes import OUTDATED, Changes
from clawctl.train.earlier_hints import EarlierHints
from clawctl.train.fair import Demand, demand_of, fair_batch
from clawctl.train.feed_counts import Counts, CountsFile, summary_line
from clawctl.train.forming import Forming
from clawctl.train.identical import IDENTICAL, TrainedMarks, marks_of
from clawctl.train.judged import JudgedPiece, UnreadableHalf, judged_pieces
from clawctl.train.ledger import given_back, read_ledger, write_skipped
from clawctl.train.sample import Batch, Sample
from clawctl.train.turn_ids import TurnIds
from clawctl.train.waiting import READ_AHEAD, Waiting, in_order, ready_turns
from clawctl.trainers import Model

log = logging.getLogger("clawctl.train")

OTHER_POLICY = "sampled by another policy"


def open_feed(run: RunDir, recipe: Recipe, model: Model) -> "Feed":
    """Open the feed of a trainer that continues from the tip of the lineage."""
    lineage, trained_model = read_lineage(run), origin_of(recipe.model.path, recipe.model_path)
    used, again = read_ledger(run, lineage), given_back(run, lineage)
    feed = Feed(run, recipe.train, model, used, trained_model, given_back=again)
    feed.learns_from_people = recipe.policies.is_stacked and run.policy == DEFAULT_POLICY
    return feed


class Feed:
    """The usable turns of a run that no step has used."""

    def __init__(
        self,
        run: RunDir,
        config: TrainConfig,
        model: Model,
        used: dict[str, str],
        trained_model: Origin = UNKNOWN,
        read_ahead: int = READ_AHEAD,
        given_back: Iterable[str] = (),
    ) -> None:
        """`used` maps the id of each turn in the ledger to its result: "trained" or "skipped". `trained_model` is the origin
        of the weights that are trained.

        Reading pauses while `read_ahead` turns, or READ_AHEAD_TOKENS tokens of turns, wait and fill two batches. `given_back` are
        the turns of dead steps that may be trained again, and so may turns identical to them.
        """
        self.run, self.config, self._read_ahead = run, config, max(read_ahead, 2 * config.batch_turns)
        hint_place = partial(used_hint_place, run, config.hints.hint_place)
        self.admission = Admission(config, model.texts, trained_model, model.plain, model.images, run.images, hint_place)
        self.origins: dict[str, Origin] = {}  # by shard
        self.used = TurnIds(used)
        self._outcomes = Counter(used.values())
        self.waiting: list[Waiting] = []
        self.refused: Counter[str] = Counter()
        self.ratings = Ratings(run)
        self.forming = Forming(config, self.refused, self.ratings)
        self.unreadable = 0  # unreadable shards
        self._clock_offset = time.time() - time.monotonic()
        self._version = 0  # version of the policy that the next batch is for
        self._updates: Mapping[int, int] | None = None  # updates from each version to that version
        self._seen = TurnIds()  # turns that were examined
        self._known: dict[str, str] = {}  # the shard of each examined turn that a step may still use
        self._refusals: dict[str, str] = {}  # why turns with a verdict did not become samples
        self._read_stems: set[str] = set()  # shards that were read
        self._partly_read: set[str] = set()  # shards with unread pieces, or with a damaged half
        self._expired: set[str] = set()  # shards that no longer exist
        self._merged: set[str] = set()  # shards that contain the rows of others
        self._unread_keys: dict[str, set[str]] = {}  # the keys whose turns were left unread, by shard
        self._served: dict[str, int] = {}  # by key: the last step that trained one of its turns
        self._trained_marks = TrainedMarks(run.trained_marks, given_back)
        # Marks of waiting turns with their owners; None: must be recomputed
        self._waiting_marks: dict[int, str] | None = None
        self._to_skip: list[tuple[Sample, str]] = []  # turns to be entered as skipped, with the reason
        self._changes, self._earlier_hints = Changes(), EarlierHints(config.hints.earlier_hints)
        self._history_loaded = False  # whether turns used by earlier steps were recalled
        self._file = CountsFile(run)
        self.learns_from_people = False  # whether turns of people's policies are trained too, if their keys teach the shared one
        self._teachers: set[str] = set()  # those keys

    def next_batch(self, version: int, now: float | None = None, updates: Mapping[int, int] | None = None) -> Batch | None:
        """Return the next batch for a policy at `version`, or None while there are too few turns.

        Turns stay in the feed until `done` reports their result. `updates` is the number of updates between each published version
        and `version`; None means that there are no branches, so version numbers are subtracted.
        """
        # Monotonic, so that a clock change neither hastens nor delays a batch
        now = self._clock_offset + time.monotonic() if now is None else now
        self._version, self._updates = version, updates
        self._teachers = teachers_of_shared(self.run) if self.learns_from_people else set()
        ready, has_more = 0, True
        while has_more and not ready:  # more turns must be read from disk if all turns in memory are too stale
            has_more = self._read_new(now)
            self._changes.log_rises()
            self._refuse_stale()
            ready = ready_turns(self.waiting, self.config, now)
        self.write_counts()
        if not ready:
            return None
        count = min(ready, self.config.batch_turns)
        turns = fair_batch(self.waiting, count, self.config, self._staleness, self._served)
        samples = [replace(t.sample, policy_version=version) if t.sample.imported else t.sample for t in turns]
        images, missing = self._images_of(samples)
        if missing:
            self._drop(missing, MISSING_IMAGE)
            return self.next_batch(version, now, updates)
        return Batch(version + 1, samples, parent=version, updates=updates or {}, images=images)

    def _images_of(self, samples: Iterable[Sample]) -> tuple[dict[str, bytes], list[str]]:
        """Return the files of the samples' images, and the ids of turns with an image that was removed since their admission."""
        files: dict[str, bytes] = {}
        missing: list[str] = []
        for sample in samples:
            try:
                names = {image["sha256"] for image in sample.images} - files.keys()
                files |= {name: read_image(self.run.images, name) for name in sorted(names)}
            except (OSError, ValueError):
                missing.append(sample.turn_id)
        return files, missing

    def _drop(self, turn_ids: Iterable[str], reason: str) -> None:
        """Refuse waiting turns."""
        dropped = set(turn_ids)
        for turn_id in dropped:
            self._refuse(turn_id, reason)
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in dropped]

    def mark_done(self, turn_ids: list[str], outcome: str) -> None:
        """Record that these turns are now in the ledger, as "trained" or "skipped"."""
        finished = set(turn_ids)
        self._outcomes[outcome] += sum(turn_id not in self.used for turn_id in finished)
        self.used.update(finished)
        for turn_id in finished:
            self._known.pop(turn_id, None)
        if outcome == "trained":
            used = [turn for turn in self.waiting if turn.sample.turn_id in finished]
            self._served.update({turn.key: self._version + 1 for turn in used})
            self._trained_marks.add((turn.marks, self._owner(turn)) for turn in used)
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in finished]
        self.write_counts()

    def drop_hints(self, reasons: dict[str, str], kept: list[str]) -> None:
        """Remove hints for which the teacher gave no answer (reasons by turn id).

        Turns that are not in `kept` have nothing left to train. They leave the queue but are not entered in the ledger, so a later
        start tries them again.
        """
        for turn_id, reason in reasons.items():
            (self.admission.lost_hints if turn_id in kept else self.refused)[reason] += 1
        dropped = reasons.keys() - set(kept)
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in dropped]
        self.write_counts()

    def write_counts(self) -> None:
        """Save the counts of the turns by result, for `inspect`."""
        self._file.write(self._counts())

    def summary(self) -> str:
        """Return the counts of the turns by result as one line."""
        return summary_line(self._counts(), self.config)

    def _counts(self) -> Counts:
        waiting = self.waiting + self.forming.waiting
        return {
            "used": self._outcomes["trained"],
            "skipped": self._outcomes["skipped"],
            "waiting": len(waiting),
            "forming": len(waiting) - len(self.waiting),
            "newest_shard": max(self._read_stems, default=None),
            "oldest_since": min((turn.since for turn in waiting), default=None),
            "refused": {reason: count for reason, count in sorted(self.refused.items()) if count},
            "lost_hints": dict(sorted(self.admission.lost_hints.items())),
            "unreadable_shards": self.unreadable,
        }

    def _staleness(self, sample: Sample) -> int:
        """Return the number of updates between the version that sampled a turn and the version of the next batch; negative if
        unknown.
        """
        if sample.imported:
            return 0  # the version that trains it also scores it
        sampler = sample.policy_version
        if self._updates is None or sampler == self._version:
            return self._version - sampler
        return self._updates.get(sampler, -1)

    def _refuse_stale(self) -> None:
        def is_fresh(turn: Waiting) -> bool:
            staleness = self._staleness(turn.sample)
            if staleness < 0:
                self.refused["sampled by a version that this trainer has not made"] += 1
            elif staleness > self.config.max_staleness:
                self.refused["stale"] += 1
            elif self._changes.is_outdated(turn.key, turn.asked_at):
                self.refused[OUTDATED] += 1
                return False
            return 0 <= staleness <= self.config.max_staleness

        self.waiting = [turn for turn in self.waiting if is_fresh(turn)]
        self.forming.drop_unless(is_fresh)

    def _read_new(self, now: float) -> bool:
        """Read new shards that have turns and verdicts, in stem order, then new ratings.

        Returns True if shards are left because enough turns wait.
        """
        self._waiting_marks = None
        rated = {turn_id for turn_id in self.ratings.poll() if turn_id in self._known}
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
            if not self._is_merged(stem, turns[stem]) and not self._add_shard(stem, now):
                has_more = True
        self._forget_expired(turns.keys())
        self._reexamine(rated & self._known.keys(), now)
        released = self.forming.pop_ready(now)
        self.waiting += released
        self._enter_skipped()
        if new or rated or released:
            self.waiting = in_order(self.waiting, grouped=self.config.credit == "group")
        return has_more

    def _forget_expired(self, existing: Set[str]) -> None:
        """Remove turns whose shard was deleted: they cannot be examined again."""
        expired = self._read_stems - self._expired - existing
        if expired:
            self._expired |= expired
            self._partly_read -= expired
            self._unread_keys = {stem: keys for stem, keys in self._unread_keys.items() if stem not in expired}
            self._known = {turn_id: stem for turn_id, stem in self._known.items() if stem not in expired}
            self._refusals = {turn_id: reason for turn_id, reason in self._refusals.items() if turn_id in self._known}

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
        self._known.update({turn_id: stem for turn_id, part in self._known.items() if part in parts})
        self.origins[stem] = self.origins[min(parts)]
        self._partly_read.discard(stem)
        self._unread_keys.pop(stem, None)
        return True

    def _reexamine(self, rated: Set[str], now: float) -> None:
        """Examine turns again that were rated after they were examined.

        The reward of a waiting turn may have changed, and a refused turn may have become usable.
        """
        by_stem: defaultdict[str, set[str]] = defaultdict(set)
        for turn_id in rated:
            by_stem[self._known[turn_id]].add(turn_id)
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
            self.admission.check_origin(self.origins[stem])
            for piece in judged_pieces(self.run, stem, is_wanted):
                self._add_piece(stem, piece, since, again, unread)
                demand = self._demand()
                unread.clear()
        except FileNotFoundError:
            self._read_stems.discard(stem)  # another worker quarantined it after the listing
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
        return demand_of(self.waiting, self.config, self._read_ahead)

    def _quarantine(self, stem: str, path: Path, error: Exception) -> None:
        log.warning("quarantined %s: %s", path, error)
        self.unreadable += 1
        self._read_stems.discard(stem)  # if its half is published again, it is read then
        self._partly_read.add(stem)
        if path.exists():
            quarantine(self.run, path, str(error))

    def _is_wanted(self, row: dict[str, Any]) -> bool:
        """Whether a turn must be read completely: a step may use it, or other turns are compared with it."""
        if row["turn_id"] in self._seen or self._is_foreign(row["policy_name"]):
            return False
        if self.config.credit != "reward":
            return True
        rating = self.ratings.of(row["user"], row["turn_id"])
        outcome = self.ratings.late_outcome(row["user"], row["turn_id"])
        changed = row if outcome is None else {**row, **outcome.changes(row["untrainable_reason"])}
        state = changed["source"], changed["untrainable_reason"]
        is_usable = is_judged(changed["trainable"], *state) or (rating is not None and lacks_reaction(*state))
        return is_usable and row["turn_id"] not in self.used

    def _is_foreign(self, policy: str) -> bool:
        """Whether a turn belongs to another policy, and this one belongs to a key. The shared one also trains imported turns."""
        return self.run.policy not in (policy, DEFAULT_POLICY)

    def _add_piece(self, stem: str, piece: JudgedPiece, since: float, again: Set[str], unread: Set[str]) -> None:
        for row in piece.passed if not again else []:
            if row["turn_id"] not in unread and self._is_new(stem, row["turn_id"]) and row["turn_id"] not in self.used:
                self._refuse(row["turn_id"], OTHER_POLICY if self._is_foreign(row["policy_name"]) else UNTRAINABLE)
        for turn, verdict in piece.turns:
            if again:
                self._discard(turn)
                self._admit(stem, turn, verdict, since)
            elif self._is_new(stem, turn.turn_id):
                self._admit(stem, turn, verdict, since)

    def _is_new(self, stem: str, turn_id: str) -> bool:
        """Whether a turn is seen for the first time. The turn is recorded as seen."""
        if turn_id not in self._seen:
            self._seen.update([turn_id])
            if turn_id not in self.used:
                self._known[turn_id] = stem
            return True
        if stem not in self._merged and stem not in self._partly_read:
            self.refused["in two shards"] += 1
        elif turn_id in self._known:
            self._known[turn_id] = stem  # the part that contained it was removed
        return False

    def _admit(self, stem: str, turn: Turn, verdict: Verdict | None, since: float) -> None:
        """Queue a turn, or refuse it."""
        if turn.untrainable_reason == HELD_OUT:
            self._refuse(turn.turn_id, HELD_OUT)  # nothing is learned from it: its reward does not affect its group either
            return
        by_another = turn.policy_version is not None and turn.policy_name != self.run.policy
        if by_another:
            stood_on = self._shared_version(turn)
            if stood_on is None:
                self._refuse(turn.turn_id, OTHER_POLICY)  # it is not compared with turns of this policy either
                return
            turn = replace(turn, policy_version=stood_on, policy_version_end=stood_on)
        turn, verdict = self._as_rated(turn, verdict)
        earned = worth_of(turn, verdict)
        self.forming.add(turn, earned.value, earned.outcome)
        self._remember(turn, verdict, earned)
        if turn.turn_id in self.used:
            return
        try:
            earlier = self._earlier_hints.before(turn, self._changes.since(turn.user))
            sample = self.admission.sample(stem, turn, verdict, self.origins[stem], self._version, earlier)
            sample = replace(sample, by_another=by_another)
            marks = marks_of(turn, sample.prompt_ids, sample.completion_ids)
            waiting = Waiting(sample, since, self.forming.unit_of(turn), turn.user, marks, turn.created_at)
            is_played = self.ratings.groups.is_played(turn.user, turn.group_id or "")
            if (longest := self.config.longest_turn_tokens) is not None and sample.longest > longest:
                self._to_skip.append((sample, f"too long: {sample.longest} tokens, and train.longest_turn_tokens is {longest}"))
                raise TurnRefused("longer than train.longest_turn_tokens")
            if not is_played and self._is_copy(waiting):
                self._to_skip.append((sample, IDENTICAL))
                raise TurnRefused(IDENTICAL)
            self._queue(waiting)
        except TurnRefused as reason:
            self._refuse(turn.turn_id, str(reason))

    def _shared_version(self, turn: Turn) -> int | None:
        """Return the shared version that a person's policy stood on when it sampled a turn. None: the turn does not train the
        shared one. Notes and practice are a person's own."""
        if turn.user not in self._teachers or turn.notes is not None or (turn.episode or {}).get("hint") is not None:
            return None
        with suppress(ClawError):  # the version was forgotten
            return read_policy(self.run.of(turn.policy_name), turn.policy_version or 0).shared
        return None

    def _as_rated(self, turn: Turn, verdict: Verdict | None) -> tuple[Turn, Verdict | None]:
        """Return the turn and its verdict with later data applied: a rating or an outcome."""
        rating = self.ratings.of(turn.user, turn.turn_id)
        if rating is not None:
            turn = replace(turn, feedback=float(rating.rating))  # newer than the row's value
        if rating is not None and lacks_reaction(turn.source, turn.untrainable_reason):
            turn = replace(turn, trainable=True, untrainable_reason=None)  # its user has reacted late
        outcome = self.ratings.late_outcome(turn.user, turn.turn_id)
        if outcome is not None:
            turn = replace(turn, **outcome.changes(turn.untrainable_reason, turn.turn_id))
            verdict = replace(verdict, reward=None) if verdict is not None and outcome.decides else verdict
        return turn, None if verdict is None else with_comment(verdict, rating)

    def _remember(self, turn: Turn, verdict: Verdict | None, earned: Worth) -> None:
        """Record the reaction to this turn, for the detection of changes and for earlier hints."""
        if turn.kind == "main":
            if earned.value:
                self._changes.add(JudgedAnswer(turn.turn_id, turn.parent_turn_id, turn.user, turn.created_at, earned.value < 0))
            self._earlier_hints.add(turn, verdict)

    def _load_history(self, stems: Iterable[str]) -> None:
        """Record the newest MAX_TURNS turns that steps used before this start. Other turns are not decoded."""
        newest, chosen = list[str](), set[str]()
        for stem in sorted(stems, reverse=True) if self.used else ():
            with suppress(UnreadableShard, FileNotFoundError):  # reported when the shard is read
                used = [turn_id for turn_id in read_turn_ids(self.run.turn_shard(stem)) if turn_id in self.used]
                chosen.update(used[len(chosen) - MAX_TURNS :])
                newest.insert(0, stem)
            if len(chosen) >= MAX_TURNS:
                break
        for stem in newest:
            with suppress(UnreadableHalf, UnreadableShard, FileNotFoundError):
                for piece in judged_pieces(self.run, stem, lambda row: row["turn_id"] in chosen):
                    for turn, verdict in starmap(self._as_rated, piece.turns):
                        self._remember(turn, verdict, worth_of(turn, verdict))

    def _is_copy(self, turn: Waiting) -> bool:
        """Whether an identical turn waits or was trained."""
        owner = self._owner(turn)
        if self._trained_marks.has(turn.marks, owner):
            return True
        if self._waiting_marks is None:
            queued = (*self.waiting, *self.forming.waiting)
            self._waiting_marks = {mark: self._owner(other) for other in queued for mark in other.marks}
        return any(self._waiting_marks.get(mark, owner) != owner for mark in turn.marks)

    def _owner(self, turn: Waiting) -> str:
        """Return the owner of a turn's marks: its group, whose identical turns all count, or the turn itself."""
        return turn.unit if self.config.credit == "group" and turn.unit is not None else turn.sample.turn_id

    def _enter_skipped(self) -> None:
        """Enter turns that are too long or identical to others in the ledger, so that they are accounted for."""
        while self._to_skip:
            reason = self._to_skip[0][1]
            samples = [sample for sample, other in self._to_skip if other == reason]
            try:
                write_skipped(self.run, self._version + 1, samples, reason)
            except OSError as error:  # they are refused again, and entered after the next start
                log.error("cannot write the ledger: %s", error)
                return
            self._to_skip = [(sample, other) for sample, other in self._to_skip if other != reason]
            self.mark_done([sample.turn_id for sample in samples], "skipped")

    def _refuse(self, turn_id: str, reason: str) -> None:
        self.refused[reason] += 1
        self._refusals[turn_id] = reason

    def _discard(self, turn: Turn) -> None:
        """Discard the current result of a turn."""
        reason = self._refusals.pop(turn.turn_id, None)
        if reason is not None:
            self.refused[reason] -= 1
        self.waiting = [other for other in self.waiting if other.sample.turn_id != turn.turn_id]
        self.forming.remove(turn)
        self._waiting_marks = None

    def _queue(self, turn: Waiting) -> None:
        if self._waiting_marks is not None:
            self._waiting_marks |= dict.fromkeys(turn.marks, self._owner(turn))
        if turn.unit is None:
            self.waiting.append(turn)
        else:
            self.forming.queue(turn)
