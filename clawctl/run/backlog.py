"""How much of what was played the trainer has not taken yet. Episodes wait rather than grow staler than the trainer accepts.

A trainer that is `n` batches behind makes `n` updates before it trains what is sampled now. So no episode begins while more turns
wait than the trainer can take within `train.max_staleness` updates. Without `train/feed.json` no trainer has looked at this run,
and no episode waits.
"""

import time
from contextlib import suppress

import orjson

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir, published
from clawctl.run.policies import list_versions, live_version
from clawctl.run.shards import UnreadableShard, read_columns

_LOOK_EVERY_S = 1.0
_MOST_WAIT_S = 600.0  # for an ended episode to reach the trainer: one without turns never does


class Backlog:
    """The backlog as one worker sees it: what waits in the trainer, and its own episodes that are on their way there."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        self._run, self._config = run, config
        self._began = max((path.stem for path in published(run.trajectories, ".parquet")), default="")
        self._read: set[str] = set()  # stems whose sessions are known
        self._turns, self._episodes = 0, 0  # of the sessions that were published
        self._ended: dict[str, float] = {}  # sessions on their way, with the time when they ended
        self._stem_of: dict[str, str] = {}
        self._looked_at, self._why = float("-inf"), None  # type: float, str | None

    def ended(self, session_id: str) -> None:
        """An episode is over, and its turns are on their way."""
        self._ended[session_id] = time.monotonic()

    def has_ended(self) -> bool:
        """Whether the trainer has made all its updates (`train.max_steps`), so that nothing that is played would be trained."""
        return self._config.max_steps is not None and (list_versions(self._run) or [0])[-1] >= self._config.max_steps

    def is_full(self, running: int) -> str | None:
        """Why no episode should begin while `running` are played; None if one may."""
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S and self._why is None:
            return None
        self._looked_at = time.monotonic()
        self._why = self._look(running)
        return self._why

    def _look(self, running: int) -> str | None:
        try:
            counts = orjson.loads(self._run.feed_counts.read_bytes())
            waiting, newest = int(counts["waiting"]), str(counts.get("newest_shard") or "")
        except (OSError, LookupError, TypeError, ValueError):
            return None
        self._read_shards()
        now = time.monotonic()
        for session_id, since in list(self._ended.items()):
            if self._stem_of.get(session_id, "~") <= newest or now - since > _MOST_WAIT_S:
                del self._ended[session_id]
                self._stem_of.pop(session_id, None)
        each = self._turns / self._episodes if self._episodes else 1.0
        coming = each * (len(self._ended) + running)
        unserved = max(0, (list_versions(self._run) or [0])[-1] - (live_version(self._run) or 0))
        most = max(1, self._config.max_staleness + 1 - unserved) * self._config.batch_turns
        if waiting + coming < most:
            return None
        return (
            f"{waiting} turns wait for the trainer and about {coming:.0f} are on their way; it takes {self._config.batch_turns} in "
            f"an update, and none that is more than {self._config.max_staleness} updates old"
        )

    def _read_shards(self) -> None:
        for path in published(self._run.trajectories, ".parquet"):
            if path.stem > self._began and path.stem not in self._read:
                self._read.add(path.stem)
                with suppress(UnreadableShard, FileNotFoundError):
                    sessions = [row["session_id"] for row in read_columns(path, "turns", ("session_id",))]
                    own = set(sessions) & self._ended.keys()
                    self._stem_of.update(dict.fromkeys(own, path.stem))
                    self._turns += sum(session in own for session in sessions)
                    self._episodes += len(own)
