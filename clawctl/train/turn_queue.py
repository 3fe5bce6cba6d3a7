"""Turns judged turns into batches: which turns are usable, which are refused and why, and which of them a step takes.

Turns wait in the order of their shards. Turns beyond a batch stay in the queue, and untrainable turns never take a place in one.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.run.complaints import JudgedAnswer
from clawctl.run.directory import RunDir
from clawctl.run.feedback import Ratings, with_comment
from clawctl.run.hint_places import used_hint_place
from clawctl.run.holdout import HELD_OUT
from clawctl.run.images import read_image
from clawctl.run.keys import teachers_of_shared
from clawctl.run.policies import read_policy
from clawctl.run.reward import Worth
from clawctl.run.rows import Turn, Verdict, lacks_reaction
from clawctl.run.shards import UNKNOWN, Origin
from clawctl.train.admission import MISSING_IMAGE, Admission, TurnRefused, worth_of
from clawctl.train.changes import OUTDATED, Changes
from clawctl.train.earlier_hints import EarlierHints
from clawctl.train.fair import fair_batch
from clawctl.train.forming import Forming
from clawctl.train.identical import IDENTICAL, TrainedMarks, marks_of
from clawctl.train.ledger import write_skipped
from clawctl.train.sample import Batch, Sample
from clawctl.train.turn_ids import TurnIds
from clawctl.train.waiting import Waiting
from clawctl.trainers import Model

log = logging.getLogger("clawctl.train")

OTHER_POLICY = "sampled by another policy"


class TurnQueue:
    """The judged turns that were read: each waits for a step, or was refused with a reason."""

    def __init__(
        self,
        run: RunDir,
        config: TrainConfig,
        model: Model,
        used: dict[str, str],
        trained_model: Origin = UNKNOWN,
        given_back: Iterable[str] = (),
    ) -> None:
        """`used` maps the id of each turn in the ledger to its result: "trained" or "skipped". `trained_model` is the origin
        of the weights that are trained. `given_back` are the turns of dead steps that may be trained again, and so may turns
        identical to them.
        """
        self.run, self.config, self._longest_fitting = run, config, model.longest_tokens
        hint_place = partial(used_hint_place, run, config.hints.hint_place)
        self.admission = Admission(config, model.texts, trained_model, model.plain, model.images, run.images, hint_place)
        self.used, self.outcomes = TurnIds(used), Counter(used.values())
        self.waiting: list[Waiting] = []
        self.refused: Counter[str] = Counter()
        self.refusals: dict[str, str] = {}  # why turns with a verdict did not become samples
        self.ratings = Ratings(run)
        self.forming = Forming(config, self.refused, self.ratings)
        self._version = 0  # version of the policy that the next batch is for
        self._updates: Mapping[int, int] | None = None  # updates from each version to that version
        self._served: dict[str, int] = {}  # by key: the last step that trained one of its turns
        self._trained_marks = TrainedMarks(run.trained_marks, given_back)
        self.waiting_marks: dict[int, str] | None = None  # with their owners; None: must be computed again
        self._to_skip: list[tuple[Sample, str]] = []  # turns to be entered as skipped, with the reason
        self._changes, self._earlier_hints = Changes(), EarlierHints(config.hints.earlier_hints)
        self.learns_from_people = False  # whether turns of people's policies are trained too, if their keys teach the shared one
        self._teachers: set[str] = set()  # those keys

    def move_to(self, version: int, updates: Mapping[int, int] | None) -> None:
        """Set the version of the policy that the next batch is for, and the updates from each version to it (`Feed.next_batch`)."""
        self._version, self._updates = version, updates
        self._teachers = teachers_of_shared(self.run) if self.learns_from_people else set()

    def batch(self, count: int) -> Batch | None:
        """Return a batch of at least `count` turns, or None if turns were refused for a missing image: choose again."""
        turns = fair_batch(self.waiting, count, self.config, self._staleness, self._served)
        version = self._version
        samples = [replace(turn.sample, policy_version=version) if turn.sample.imported else turn.sample for turn in turns]
        images, missing = self._images_of(samples)
        if missing:
            for turn_id in missing:
                self.refuse(turn_id, MISSING_IMAGE)
            self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in missing]
            return None
        return Batch(version + 1, samples, parent=version, updates=self._updates or {}, images=images)

    def _images_of(self, samples: Iterable[Sample]) -> tuple[dict[str, bytes], set[str]]:
        """Return the files of the samples' images, and the ids of turns with an image that was removed since their admission."""
        files: dict[str, bytes] = {}
        missing: set[str] = set()
        for sample in samples:
            try:
                names = {image["sha256"] for image in sample.images} - files.keys()
                files |= {name: read_image(self.run.images, name) for name in sorted(names)}
            except (OSError, ValueError):
                missing.add(sample.turn_id)
        return files, missing

    def mark_done(self, turn_ids: list[str], outcome: str) -> None:
        """Record that these turns are now in the ledger, as "trained" or "skipped"."""
        finished = set(turn_ids)
        self.outcomes[outcome] += sum(turn_id not in self.used for turn_id in finished)
        self.used.update(finished)
        if outcome == "trained":
            used = [turn for turn in self.waiting if turn.sample.turn_id in finished]
            self._served.update({turn.key: self._version + 1 for turn in used})
            self._trained_marks.add((turn.marks, self._owner(turn)) for turn in used)
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in finished]

    def drop_hints(self, reasons: dict[str, str], kept: list[str]) -> None:
        """Remove hints for which the teacher gave no answer (reasons by turn id).

        Turns that are not in `kept` have nothing left to train. They leave the queue but are not entered in the ledger, so a later
        start tries them again.
        """
        for turn_id, reason in reasons.items():
            (self.admission.lost_hints if turn_id in kept else self.refused)[reason] += 1
        dropped = reasons.keys() - set(kept)
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in dropped]

    def _staleness(self, sample: Sample) -> int:
        """Return the updates between the version that sampled a turn and the version of the next batch; negative if unknown."""
        if sample.imported:
            return 0  # the version that trains it also scores it
        sampler = sample.policy_version
        if self._updates is None or sampler == self._version:
            return self._version - sampler
        return self._updates.get(sampler, -1)

    def refuse_stale(self) -> None:
        """Refuse the waiting turns that are too old for the next batch."""
        self._changes.log_rises()

        def is_fresh(turn: Waiting) -> bool:
            staleness = self._staleness(turn.sample)
            if staleness < 0:
                self.refused["sampled by a version that this trainer has not made"] += 1
            elif staleness > self.config.max_staleness:
                self.refused["stale"] += 1
            elif turn.asked_at < self._changes.since(turn.key):
                self.refused[OUTDATED] += 1
                return False
            return 0 <= staleness <= self.config.max_staleness

        self.waiting = [turn for turn in self.waiting if is_fresh(turn)]
        self.forming.drop_unless(is_fresh)

    def admit(self, stem: str, origin: Origin, turn: Turn, verdict: Verdict | None, since: float) -> None:
        """Queue a turn, or refuse it."""
        if turn.untrainable_reason == HELD_OUT:
            self.refuse(turn.turn_id, HELD_OUT)  # nothing is learned from it: its reward does not affect its group either
            return
        by_another = turn.policy_version is not None and turn.policy_name != self.run.policy
        if by_another:
            stood_on = self._shared_version(turn)
            if stood_on is None:
                self.refuse(turn.turn_id, OTHER_POLICY)  # it is not compared with turns of this policy either
                return
            turn = replace(turn, policy_version=stood_on, policy_version_end=stood_on)
        turn, verdict = self.as_rated(turn, verdict)
        earned = worth_of(turn, verdict)
        self.forming.add(turn, earned.value, earned.outcome)
        self.remember(turn, verdict, earned)
        if turn.turn_id in self.used:
            return
        try:
            earlier = self._earlier_hints.before(turn, self._changes.since(turn.user))
            sample = self.admission.sample(stem, turn, verdict, origin, self._version, earlier)
            sample = replace(sample, by_another=by_another)
            marks = marks_of(turn, sample.prompt_ids, sample.completion_ids)
            waiting = Waiting(sample, since, self.forming.unit_of(turn), turn.user, marks, turn.created_at)
            is_played = self.ratings.groups.is_played(turn.user, turn.group_id or "")
            self._check_length(sample)
            if not is_played and self._is_copy(waiting):
                self._to_skip.append((sample, IDENTICAL))
                raise TurnRefused(IDENTICAL)
            self._queue(waiting)
        except TurnRefused as reason:
            self.refuse(turn.turn_id, str(reason))

    def _shared_version(self, turn: Turn) -> int | None:
        """Return the shared version that a person's policy stood on when it sampled a turn. None: the turn does not train the
        shared one. Notes and practice are a person's own."""
        if turn.user not in self._teachers or turn.notes is not None or (turn.episode or {}).get("hint") is not None:
            return None
        with suppress(ClawError):  # the version was forgotten
            return read_policy(self.run.of(turn.policy_name), turn.policy_version or 0).shared
        return None

    def as_rated(self, turn: Turn, verdict: Verdict | None) -> tuple[Turn, Verdict | None]:
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

    def remember(self, turn: Turn, verdict: Verdict | None, earned: Worth) -> None:
        """Record the reaction to this turn, for the detection of changes and for earlier hints."""
        if turn.kind == "main":
            if earned.value:
                self._changes.add(JudgedAnswer(turn.turn_id, turn.parent_turn_id, turn.user, turn.created_at, earned.value < 0))
            self._earlier_hints.add(turn, verdict)

    def _check_length(self, sample: Sample) -> None:
        """Raises TurnRefused for a turn that is longer than the recipe allows or, without a limit there, than what fits."""
        allowed, fitting = self.config.longest_turn_tokens, self._longest_fitting
        if allowed is not None and sample.longest > allowed:
            self._to_skip.append((sample, f"too long: {sample.longest} tokens, and train.longest_turn_tokens is {allowed}"))
            raise TurnRefused("longer than train.longest_turn_tokens")
        if allowed is None and fitting is not None and sample.longest > fitting:
            self._to_skip.append((sample, f"too long: {sample.longest} tokens, and the trainer's memory holds {fitting}"))
            raise TurnRefused("longer than the trainer's memory holds")

    def _is_copy(self, turn: Waiting) -> bool:
        """Whether an identical turn waits or was trained."""
        owner = self._owner(turn)
        if self._trained_marks.has(turn.marks, owner):
            return True
        if self.waiting_marks is None:
            queued = (*self.waiting, *self.forming.waiting)
            self.waiting_marks = {mark: self._owner(other) for other in queued for mark in other.marks}
        return any(self.waiting_marks.get(mark, owner) != owner for mark in turn.marks)

    def _owner(self, turn: Waiting) -> str:
        """Return the owner of a turn's marks: its group, whose identical turns all count, or the turn itself."""
        return turn.unit if self.config.credit == "group" and turn.unit is not None else turn.sample.turn_id

    def enter_skipped(self) -> list[str]:
        """Enter turns that are too long or identical to others in the ledger, so that they are accounted for. Returns their ids."""
        entered: list[str] = []
        while self._to_skip:
            reason = self._to_skip[0][1]
            samples = [sample for sample, other in self._to_skip if other == reason]
            try:
                write_skipped(self.run, self._version + 1, samples, reason)
            except OSError as error:  # they are refused again, and entered after the next start
                log.error("cannot write the ledger: %s", error)
                break
            self._to_skip = [(sample, other) for sample, other in self._to_skip if other != reason]
            entered += [sample.turn_id for sample in samples]
        return entered

    def refuse(self, turn_id: str, reason: str) -> None:
        self.refused[reason] += 1
        self.refusals[turn_id] = reason

    def discard(self, turn: Turn) -> None:
        """Discard the current result of a turn."""
        reason = self.refusals.pop(turn.turn_id, None)
        if reason is not None:
            self.refused[reason] -= 1
        self.waiting = [other for other in self.waiting if other.sample.turn_id != turn.turn_id]
        self.forming.remove(turn)
        self.waiting_marks = None

    def _queue(self, turn: Waiting) -> None:
        if self.waiting_marks is not None:
            self.waiting_marks |= dict.fromkeys(turn.marks, self._owner(turn))
        if turn.unit is None:
            self.waiting.append(turn)
        else:
            self.forming.queue(turn)
