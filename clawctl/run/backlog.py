"""Limits how many sampled turns wait for the trainer. New episodes wait, so that turns do not become staler than the trainer
accepts.

A trainer that is `n` batches behind makes `n` updates before it trains a turn that is sampled now. Therefore no episode starts
while more turns wait than the trainer can take within `train.max_staleness` updates. If `train/feed.json` is missing, no trainer
has worked on this run, and episodes do not wait.
"""

import time
from contextlib import suppress

import orjson

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir, published
from clawctl.run.gaps import Gaps
from clawctl.run.policies import list_versions, live_version
from clawctl.run.shards import UnreadableShard, read_columns

_CHECK_EVERY_S = 1.0
# How long to wait for an ended episode to reach the trainer; an episode without turns never does
_MAX_WAIT_S = 600.0


class Backlog:
    """The backlog as one worker sees it: turns waiting for the trainer, and this worker's episodes on their way there."""

    def __init__(self, run: RunDir, config: TrainConfig, gaps: Gaps | None = None) -> None:
        """`gaps`: an episode starts in one of these only."""
        self._run, self._config, self._gaps = run, config, gaps
        self._first_stem = max((path.stem for path in published(run.trajectories, ".parquet")), default="")
        self._read_stems: set[str] = set()  # stems whose sessions were read
        self._turns, self._episodes = 0, 0  # published turns and episodes of this worker
        self._ended: dict[str, float] = {}  # sessions on their way, with the time they ended (monotonic clock, seconds)
        self._stem_of: dict[str, str] = {}
        self._checked_at, self._reason = float("-inf"), None  # type: float, str | None
        self._checked_running = 0

    def ended(self, session_id: str) -> None:
        """Record that an episode ended and its turns are on their way to the trainer."""
        self._ended[session_id] = time.monotonic()

    def has_ended(self) -> bool:
        """Whether the trainer has made all its updates (`train.max_steps`), so that new episodes would not be trained."""
        return self._config.max_steps is not None and (list_versions(self._run) or [0])[-1] >= self._config.max_steps

    def is_full(self, running: int) -> str | None:
        """Return the reason why no episode should start while `running` episodes run or are about to, or None if one may start."""
        if self._gaps is not None and (why := self._gaps.why_not()) is not None:
            return why
        if time.monotonic() - self._checked_at < _CHECK_EVERY_S and self._reason is None and running <= self._checked_running:
            return None
        self._checked_at, self._checked_running = time.monotonic(), running
        self._reason = self._check(running)
        return self._reason

    def _check(self, running: int) -> str | None:
        try:
            counts = orjson.loads(self._run.feed_counts.read_bytes())
            waiting, newest = int(counts["waiting"]), str(counts.get("newest_shard") or "")
        except (OSError, LookupError, TypeError, ValueError):
            return None
        self._read_shards()
        now = time.monotonic()
        for session_id, since in list(self._ended.items()):
            if self._stem_of.get(session_id, "~") <= newest or now - since > _MAX_WAIT_S:
                del self._ended[session_id]
                self._stem_of.pop(session_id, None)
        turns_per_episode = self._turns / self._episodes if self._episodes else 1.0
        expected = turns_per_episode * (len(self._ended) + running)
        unserved_versions = max(0, (list_versions(self._run) or [0])[-1] - (live_version(self._run) or 0))
        limit = max(1, self._config.max_staleness + 1 - unserved_versions) * self._config.batch_turns
        if waiting + expected < limit:
            return None
        return (
            f"{waiting} turns wait for the trainer, and about {expected:.0f} more are expected; an update trains "
            f"{self._config.batch_turns} turns, each at most {self._config.max_staleness} updates old"
        )

    def _read_shards(self) -> None:
        for path in published(self._run.trajectories, ".parquet"):
            if path.stem > self._first_stem and path.stem not in self._read_stems:
                self._read_stems.add(path.stem)
                with suppress(UnreadableShard, FileNotFoundError):
                    sessions = [row["session_id"] for row in read_columns(path, "turns", ("session_id",))]
                    ended = set(sessions) & self._ended.keys()
                    self._stem_of.update(dict.fromkeys(ended, path.stem))
                    self._turns += sum(session in ended for session in sessions)
                    self._episodes += len(ended)
