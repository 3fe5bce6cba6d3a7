"""Finds the already published turns of a session, for outcomes that arrive after the rows."""

import itertools
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from clawctl.run.directory import RunDir, published
from clawctl.run.outcomes import EPISODE_FAILED
from clawctl.run.rows import REGENERATED
from clawctl.run.shards import UnreadableShard, read_columns

MAX_TURNS = 1 << 17  # the newest; a later outcome has no effect on older turns
_COLUMNS = ("turn_id", "user", "session_id", "created_at", "kind", "outcome_reward", "untrainable_reason")


class PublishedSessions:
    """Published turns without an outcome, by session. Nothing is read before the first late outcome; then each shard is read
    once.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._stems: set[str] = set()
        # By id: (user, session), time of the request
        self._turns: OrderedDict[str, tuple[tuple[str, str], float]] = OrderedDict()
        self._of_session: dict[tuple[str, str], list[str]] = {}

    def poll(self) -> None:
        """Read the new shards, newest first, until MAX_TURNS rows are read."""
        new = [path for path in published(self._run.trajectories, ".parquet") if path.stem not in self._stems]
        self._stems.update(path.stem for path in new)
        shards: list[list[dict[str, Any]]] = []
        while new and sum(map(len, shards)) < MAX_TURNS:
            with suppress(UnreadableShard):  # readers of the whole shard quarantine it
                shards.append(read_columns(new.pop(), "turns", _COLUMNS))
        for row in itertools.chain.from_iterable(reversed(shards)):
            has_outcome = row["outcome_reward"] is not None or row["untrainable_reason"] in (EPISODE_FAILED, REGENERATED)
            if row["kind"] == "main" and not has_outcome and row["turn_id"] not in self._turns:
                session = row["user"], row["session_id"]
                self._turns[row["turn_id"]] = session, row["created_at"]
                self._of_session.setdefault(session, []).append(row["turn_id"])
        while len(self._turns) > MAX_TURNS:
            turn_id, (session, _) = self._turns.popitem(last=False)
            self._of_session[session].remove(turn_id)
            if not self._of_session[session]:
                del self._of_session[session]

    def before(self, user: str, session_id: str, requested_before: float) -> list[str]:
        """Return the turns of a session that were requested before `moment` and have no outcome in their rows."""
        return [turn_id for turn_id in self._of_session.get((user, session_id), ()) if self._turns[turn_id][1] <= requested_before]
