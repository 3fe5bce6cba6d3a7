"""From judged turns to batches: which turns are usable, which are refused and why, and when there are enough of them.

Turns wait in the order of their shards. What exceeds a batch goes on waiting; what cannot be trained never takes a place in one.
"""

import logging
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import TrainConfig
from clawctl.run_dir import RunDir, publish_bytes, published, quarantine
from clawctl.shards import Origin, UnreadableShard, read_origin, read_turns, read_verdicts
from clawctl.train.forming import Forming, Waiting
from clawctl.train.sample import Batch, Sample
from clawctl.train.teacher import teacher_prompt_ids
from clawctl.types import Turn, Verdict

log = logging.getLogger("clawctl.train")


class Refused(Exception):
    """This turn is not trained; the message is the counted reason."""


class Feed:
    """The usable turns of a run that no step has used."""

    def __init__(
        self,
        run: RunDir,
        config: TrainConfig,
        tokenizer: Any,
        vocabulary: int,
        context: int | None,
        used: dict[str, str],
        fingerprint: str | None = None,
    ) -> None:
        """`used` maps the id of each turn in the ledger to what became of it: "trained" or "skipped". `fingerprint` is the
        tokenizer's."""
        self.run, self.config, self.tokenizer = run, config, tokenizer
        self.vocabulary, self.context, self.fingerprint = vocabulary, context, fingerprint
        self.origins: dict[str, Origin] = {}  # by shard
        self.used = dict(used)
        self.waiting: list[Waiting] = []
        self.refused: Counter[str] = Counter()
        self.forming = Forming(config, self.refused)
        self.lost_hints: Counter[str] = Counter()  # hints that a turn with a reward is trained without
        self.unreadable = 0  # shards
        self._known: set[str] = set()  # ids of all turns that were looked at
        self._stems: set[str] = set()  # shards that were read
        self._told: bytes = b""

    def take(self, version: int, now: float | None = None) -> Batch | None:
        """The next batch for a policy that stands at `version`, or None while there are too few turns. Nothing leaves the feed
        until `done` says what became of it."""
        now = time.time() if now is None else now
        self._look(now)
        self._refuse_stale(version)
        ready = self._ready(now)
        self.tell()
        return Batch(version + 1, [turn.sample for turn in self.waiting[:ready]]) if ready else None

    def done(self, turn_ids: list[str], outcome: str) -> None:
        """These turns are in the ledger now, as "trained" or "skipped"."""
        gone = set(turn_ids)
        self.used.update(dict.fromkeys(turn_ids, outcome))
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in gone]
        self.tell()

    def lose_hints(self, reasons: dict[str, str], kept: list[str]) -> None:
        """The teacher did not answer for these turns (reasons by id). Those not among `kept` have nothing left to train: they wait
        no longer, but are not in the ledger either, so that a later start tries them again."""
        for turn_id, reason in reasons.items():
            (self.lost_hints if turn_id in kept else self.refused)[reason] += 1
        gone = reasons.keys() - set(kept)
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in gone]
        self.tell()

    def tell(self) -> None:
        """`train/feed.json`: counts for `inspect`. Written only when something changed."""
        outcomes = Counter(self.used.values())
        waiting = self.waiting + self.forming.waiting
        counts = {
            "used": outcomes["trained"],
            "skipped": outcomes["skipped"],
            "waiting": len(waiting),
            "forming": len(waiting) - len(self.waiting),
            "oldest_since": min((turn.since for turn in waiting), default=None),
            "refused": dict(sorted(self.refused.items())),
            "lost_hints": dict(sorted(self.lost_hints.items())),
            "unreadable_shards": self.unreadable,
        }
        text = orjson.dumps(counts, option=orjson.OPT_INDENT_2)
        if text != self._told:
            publish_bytes(self.run.train / "feed.json", text)
            self._told = text

    def _ready(self, now: float) -> int:
        """How many turns the next batch has: a full batch, or those that have waited long enough, or none. A group is not torn."""
        count, config = len(self.waiting), self.config
        if count >= config.batch_turns:
            full = config.batch_turns
            while config.credit == "group" and full < count and self.waiting[full].unit == self.waiting[full - 1].unit is not None:
                full += 1
            return full
        oldest = min((turn.since for turn in self.waiting), default=now)
        return count if count and count >= config.batch_min_turns and now - oldest >= config.batch_wait_s else 0

    def _refuse_stale(self, version: int) -> None:
        def fresh(turn: Waiting) -> bool:
            behind = version - turn.sample.policy_version
            if behind < 0:
                self.refused["sampled by a version that this trainer has not made"] += 1
            elif behind > self.config.max_staleness:
                self.refused["stale"] += 1
            return 0 <= behind <= self.config.max_staleness

        self.waiting = [turn for turn in self.waiting if fresh(turn)]
        self.forming.keep(fresh)

    def _look(self, now: float) -> None:
        """Read the shards that have both halves and were not read yet, in stem order."""
        turns = {path.stem: path for path in published(self.run.trajectories, ".parquet")}
        verdicts = {path.stem: path for path in published(self.run.verdicts, ".parquet")}
        new = [stem for stem in sorted(turns.keys() & verdicts.keys()) if stem not in self._stems]
        for stem in new:
            self._stems.add(stem)
            self._join(stem, turns[stem], verdicts[stem])
        released = self.forming.release(now)
        self.waiting += released
        if new or released:
            self._sort()

    def _sort(self) -> None:
        """In the order of their shards, turns of a group together; rows keep their order within a shard (the sort is stable)."""
        order = {stem: place for place, stem in enumerate(sorted(self._stems))}
        first: dict[str | None, int] = {}
        for turn in self.waiting:
            first[turn.unit] = min(first.get(turn.unit, len(order)), order[turn.sample.stem])
        grouped = self.config.credit == "group"

        def place(turn: Waiting) -> tuple[int, str, int]:
            own = order[turn.sample.stem]
            return (first[turn.unit], turn.unit, own) if grouped and turn.unit is not None else (own, "", own)

        self.waiting.sort(key=place)

    def _join(self, stem: str, turns_path: Path, verdicts_path: Path) -> None:
        try:
            since = verdicts_path.stat().st_mtime
            path = turns_path
            turns, self.origins[stem] = read_turns(path), read_origin(path)
            path = verdicts_path
            verdicts = {verdict.turn_id: verdict for verdict in read_verdicts(path)}
        except FileNotFoundError:
            self._stems.discard(stem)  # another worker put it into quarantine between our listing and our reading
            return
        except UnreadableShard as error:
            log.warning("%s is put into quarantine: %s", path, error)
            self.unreadable += 1
            self._stems.discard(stem)  # should its half be published again, it is read then
            if path.exists():
                quarantine(self.run, path, str(error))
            return
        for turn in turns:
            if turn.turn_id in self._known:
                self.refused["in two shards"] += 1
                continue
            self._known.add(turn.turn_id)
            verdict = verdicts.get(turn.turn_id)
            self.forming.see(turn, reward_of(turn, verdict))
            if turn.turn_id in self.used:
                continue
            try:
                self._hold(Waiting(self._sample(stem, turn, verdict), since, self.forming.unit_of(turn)))
            except Refused as reason:
                self.refused[str(reason)] += 1

    def _hold(self, turn: Waiting) -> None:
        if turn.unit is None:
            self.waiting.append(turn)
        else:
            self.forming.hold(turn)

    def _sample(self, stem: str, turn: Turn, verdict: Verdict | None) -> Sample:
        """The turn as the trainer sees it. Raises Refused."""
        if not turn.trainable:
            raise Refused("untrainable")
        if self.fingerprint is not None and self.origins[stem].tokenizer not in (None, self.fingerprint):
            raise Refused("ids of another tokenizer")
        if verdict is None:
            raise Refused("no verdict")
        hints = self._hints(verdict)
        reward = self._reward(turn, verdict, bool(hints))
        self._check_numbers(turn)
        prompts = [ids for hint in hints if (ids := teacher_prompt_ids(self.tokenizer, turn, hint)) is not None]
        if hints and not prompts:
            if reward is None:
                raise Refused("teacher prompt does not match")
            self.lost_hints["teacher prompt does not match"] += 1
        kind = (turn.task_id or "").split("/")[0].split("-")[0]
        assert turn.prompt_ids is not None
        assert turn.completion_ids is not None
        assert turn.logprobs is not None
        assert turn.policy_version is not None
        return Sample(
            turn.turn_id, stem, kind, turn.prompt_ids, turn.completion_ids, turn.logprobs, turn.temperature,
            turn.policy_version, reward, prompts[0] if prompts else None, turn.policy_version_end,
            other_prompts=tuple(map(tuple, prompts[1:])), session_id=turn.session_id,
        )  # fmt: skip

    def _hints(self, verdict: Verdict) -> list[str]:
        """The hints that the method's teachers read, shortest first: all different ones where it chooses among them."""
        if not self.config.uses_hints:
            return []
        if self.config.method != "hybrid":
            return [verdict.hint] if verdict.hint else []
        found = dict.fromkeys(hint.strip() for hint in (*verdict.hints, verdict.hint or "") if hint.strip())
        return sorted(found, key=len)[: self.config.hint_candidates]

    def _reward(self, turn: Turn, verdict: Verdict, hinted: bool) -> float | None:
        """None where the method trains the turn without one. Raises Refused where nothing is left to train."""
        reward = reward_of(turn, verdict)
        if reward is not None and not math.isfinite(reward):
            raise Refused("reward is not a number")
        if not self.config.uses_rewards:
            if not hinted:
                raise Refused("no hint")
            return None
        if self.config.credit == "group" and turn.group_id is None:
            if not hinted:
                raise Refused("in no group")
            return None
        if reward == 0 and turn.outcome_reward is None and self.config.credit == "reward":
            reward = None  # no opinion, unless it is compared with others or an environment measured it
        if reward is None and not hinted:
            raise Refused("no reward" if verdict.hint else "neutral")
        return reward

    def _check_numbers(self, turn: Turn) -> None:
        """Raises Refused where the ids or logprobs are not those of the distribution that the trainer computes."""
        prompt, completion, logprobs = turn.prompt_ids or [], turn.completion_ids or [], turn.logprobs or []
        if turn.temperature <= 0:
            raise Refused("greedy")
        if turn.top_p < 1 or turn.top_k > 0:
            raise Refused("sampled with top-p or top-k")
        if any(not 0 <= token < self.vocabulary for token in (*prompt, *completion)):
            raise Refused("ids outside the vocabulary")
        if self.context is not None and len(prompt) + len(completion) > self.context:
            raise Refused("longer than the model's context")
        if any(value is None or not math.isfinite(value) or value > 1e-3 for value in logprobs):
            raise Refused("a logprob is missing or not one")


def reward_of(turn: Turn, verdict: Verdict | None) -> float | None:
    """What a turn earned: the judge's reward and, in an environment, the outcome of its episode added to it (OpenClaw-RL, arXiv
    2603.10165: r = outcome + mean of the step's votes). None: nobody knows."""
    step = verdict.reward if verdict is not None else None
    if turn.outcome_reward is None:
        return step
    return turn.outcome_reward + (step or 0.0)
