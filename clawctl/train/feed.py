"""From judged turns to batches: which turns are usable, which are refused and why, and when there are enough of them.

Turns wait in the order of their shards. What exceeds a batch goes on waiting; what cannot be trained never takes a place in one.
"""

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import TrainConfig
from clawctl.run_dir import RunDir, publish_bytes, published, quarantine
from clawctl.shards import UnreadableShard, read_turns, read_verdicts
from clawctl.train.sample import Batch, Sample
from clawctl.train.teacher import teacher_prompt_ids
from clawctl.types import Turn, Verdict

log = logging.getLogger("clawctl.train")


class Refused(Exception):
    """This turn is not trained; the message is the counted reason."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    sample: Sample
    since: float  # unix seconds when its verdict was published


class Feed:
    """The usable turns of a run that no step has used."""

    def __init__(
        self, run: RunDir, config: TrainConfig, tokenizer: Any, vocabulary: int, context: int | None, used: dict[str, str]
    ) -> None:
        """`used` maps the id of each turn in the ledger to what became of it: "trained" or "skipped"."""
        self.run, self.config, self.tokenizer = run, config, tokenizer
        self.vocabulary, self.context = vocabulary, context
        self.used = dict(used)
        self.waiting: list[_Waiting] = []
        self.refused: Counter[str] = Counter()
        self.lost_hints: Counter[str] = Counter()  # hints that a turn with a reward is trained without
        self.unreadable = 0  # shards
        self._known: set[str] = set()  # ids of all turns that were looked at
        self._stems: set[str] = set()  # shards that were read
        self._told: bytes = b""

    def take(self, version: int, now: float | None = None) -> Batch | None:
        """The next batch for a policy that stands at `version`, or None while there are too few turns. Nothing leaves the feed
        until `done` says what became of it."""
        self._look()
        self._refuse_stale(version)
        ready = self._ready(time.time() if now is None else now)
        self.tell()
        return Batch(version + 1, [turn.sample for turn in self.waiting[:ready]]) if ready else None

    def done(self, turn_ids: list[str], outcome: str) -> None:
        """These turns are in the ledger now, as "trained" or "skipped"."""
        gone = set(turn_ids)
        self.used.update(dict.fromkeys(turn_ids, outcome))
        self.waiting = [turn for turn in self.waiting if turn.sample.turn_id not in gone]
        self.tell()

    def tell(self) -> None:
        """`train/feed.json`: counts for `inspect`. Written only when something changed."""
        outcomes = Counter(self.used.values())
        counts = {
            "used": outcomes["trained"],
            "skipped": outcomes["skipped"],
            "waiting": len(self.waiting),
            "oldest_since": min((turn.since for turn in self.waiting), default=None),
            "refused": dict(sorted(self.refused.items())),
            "lost_hints": dict(sorted(self.lost_hints.items())),
            "unreadable_shards": self.unreadable,
        }
        text = orjson.dumps(counts, option=orjson.OPT_INDENT_2)
        if text != self._told:
            publish_bytes(self.run.train / "feed.json", text)
            self._told = text

    def _ready(self, now: float) -> int:
        """How many turns the next batch has: a full batch, or those that have waited long enough, or none."""
        count, config = len(self.waiting), self.config
        if count >= config.batch_turns:
            return config.batch_turns
        oldest = min((turn.since for turn in self.waiting), default=now)
        return count if count and count >= config.batch_min_turns and now - oldest >= config.batch_wait_s else 0

    def _refuse_stale(self, version: int) -> None:
        def fresh(turn: _Waiting) -> bool:
            behind = version - turn.sample.policy_version
            if behind < 0:
                self.refused["sampled by a version that this trainer has not made"] += 1
            elif behind > self.config.max_staleness:
                self.refused["stale"] += 1
            return 0 <= behind <= self.config.max_staleness

        self.waiting = [turn for turn in self.waiting if fresh(turn)]

    def _look(self) -> None:
        """Read the shards that have both halves and were not read yet, in stem order."""
        turns = {path.stem: path for path in published(self.run.trajectories, ".parquet")}
        verdicts = {path.stem: path for path in published(self.run.verdicts, ".parquet")}
        new = [stem for stem in sorted(turns.keys() & verdicts.keys()) if stem not in self._stems]
        for stem in new:
            self._stems.add(stem)
            self._join(stem, turns[stem], verdicts[stem])
        if new:
            order = {stem: place for place, stem in enumerate(sorted(self._stems))}
            self.waiting.sort(key=lambda turn: order[turn.sample.stem])  # stable: rows keep their order within a shard

    def _join(self, stem: str, turns_path: Path, verdicts_path: Path) -> None:
        try:
            since = verdicts_path.stat().st_mtime
            path = turns_path
            turns = read_turns(path)
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
            if turn.turn_id in self.used:
                continue
            try:
                self.waiting.append(_Waiting(self._sample(stem, turn, verdicts.get(turn.turn_id)), since))
            except Refused as reason:
                self.refused[str(reason)] += 1

    def _sample(self, stem: str, turn: Turn, verdict: Verdict | None) -> Sample:
        """The turn as the trainer sees it. Raises Refused."""
        if not turn.trainable:
            raise Refused("untrainable")
        if verdict is None:
            raise Refused("no verdict")
        reward = self._reward(verdict)
        hint = verdict.hint if self.config.method != "binary" else None
        self._check_numbers(turn)
        teacher = teacher_prompt_ids(self.tokenizer, turn, hint) if hint else None
        if hint and teacher is None:
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
            turn.policy_version, reward, teacher,
        )  # fmt: skip

    def _reward(self, verdict: Verdict) -> float | None:
        """1.0, -1.0, or None where the method trains the turn without one. Raises Refused where nothing is left to train."""
        method, reward, hint = self.config.method, verdict.reward, bool(verdict.hint)
        if reward not in (1.0, -1.0, 0.0, None):
            raise Refused("reward is neither 1, 0 nor -1")
        opinion = reward or None  # 0 is no opinion
        if opinion is None and not hint:
            raise Refused("neutral")
        if method == "binary" and opinion is None:
            raise Refused("no reward")
        if method == "opd" and not hint:
            raise Refused("no hint")
        return None if method == "opd" else opinion

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
