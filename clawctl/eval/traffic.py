"""Compares how often users complain under two versions, in the run's collected and judged conversations.

A conversation under one version counts once. Its value is the share of its turns with a value below 0 (`run/reward.py`: ratings,
outcomes, rules, the judge). Turns of one conversation are too similar to be counted separately. A conversation counts once it has
been idle for `collect.session_timeout_s` and all of its turns are judged. Its value then no longer changes during the test.

Each conversation under the new version is paired with one of the same API key under the other version. The pairs go through the
gate's test.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.eval.comparisons import Comparison
from clawctl.eval.sequential import PairedEvidence, examine
from clawctl.run.directory import RunDir, published
from clawctl.run.feedback import Ratings
from clawctl.run.reward import worth
from clawctl.run.rows import is_judged
from clawctl.run.shards import UnreadableShard, read_columns

METRIC = "no complaint"
MARGIN = 0.1  # in the share of complaints
_TURN = (
    "turn_id", "session_id", "kind", "source", "user", "created_at", "policy_name", "policy_version", "policy_version_end",
    "outcome_reward", "feedback", "trainable", "untrainable_reason",
)  # fmt: skip
_VERDICT = ("turn_id", "reward", "judge")


@dataclass(frozen=True, slots=True)
class TrafficSession:
    """The turns of a session that were answered by one version."""

    session: str
    key: str
    version: int
    began: float  # unix seconds
    ended: float
    complaints: float  # 0 to 1: complaints as a share of the turns that have a value


Row = dict[str, Any]


class Traffic:
    """Reads conversations. A shard's columns are read once, and again if the shard is replaced."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._ratings = run, Ratings(run)
        self._rows: dict[Path, tuple[tuple[int, int], list[Row]]] = {}

    def conversations(self, rest_s: float, now: float) -> list[TrafficSession]:
        """Conversations of real users that have been idle for `rest_s` seconds, oldest first. `now` is in unix seconds."""
        self._ratings.poll()
        verdicts = {row["turn_id"]: row for row in self._read(self._run.verdicts, "verdicts", _VERDICT)}
        sessions: dict[tuple[str, int], list[tuple[Row, float | None, bool]]] = defaultdict(list)
        last: dict[str, float] = {}
        for turn in self._read(self._run.trajectories, "turns", _TURN):
            if turn["source"] != "serve" or turn["kind"] != "main" or turn["policy_name"] != self._run.policy:
                continue
            last[turn["session_id"]] = max(turn["created_at"], last.get(turn["session_id"], 0.0))
            if turn["policy_version"] is None or turn["policy_version"] != turn["policy_version_end"]:
                continue
            verdict, rating = verdicts.get(turn["turn_id"]), self._ratings.of(turn["user"], turn["turn_id"])
            judged = (None, None) if verdict is None else (verdict["judge"], verdict["reward"])
            value = worth(turn["feedback"] if rating is None else rating.rating, turn["outcome_reward"], *judged).value
            waits = verdict is None and is_judged(turn["trainable"], turn["source"], turn["untrainable_reason"])
            sessions[turn["session_id"], turn["policy_version"]].append((turn, value, waits and rating is None))
        result = []
        for (session, version), turns in sessions.items():
            values = [value for _, value, _ in turns if value is not None]
            if not values or any(waits for _, _, waits in turns) or now - last[session] < rest_s:
                continue
            times = [turn["created_at"] for turn, _, _ in turns]
            share = sum(value < 0 for value in values) / len(values)
            result.append(TrafficSession(session, turns[0][0]["user"], version, min(times), max(times), share))
        return sorted(result, key=lambda session: (session.ended, session.session))

    def _read(self, folder: Path, kind: str, columns: Sequence[str]) -> list[Row]:
        rows = []
        there = set(published(folder, ".parquet"))
        for path in sorted(there):
            try:
                stat = path.stat()
                stamp = stat.st_mtime_ns, stat.st_ino
                if self._rows.get(path, (None, []))[0] != stamp:
                    self._rows[path] = stamp, read_columns(path, kind, columns)
            except (OSError, UnreadableShard):
                continue  # the stage that owns the shard reports it
            rows += self._rows[path][1]
        for path in [path for path in self._rows if path.parent == folder and path not in there]:
            del self._rows[path]
        return rows


def pair(new: Sequence[TrafficSession], old: Sequence[TrafficSession]) -> list[Comparison]:
    """Pair each conversation of `new`, in order, with one of `old` of the same key. No conversation is in two pairs."""
    waiting: dict[str, list[TrafficSession]] = defaultdict(list)
    for session in reversed(old):
        waiting[session.key].append(session)
    pairs = []
    for session in new:
        if waiting[session.key]:
            other = waiting[session.key].pop()
            detail = {"reference_session": other.session}
            pairs.append(Comparison(METRIC, session.session, 1 - session.complaints, 1 - other.complaints, session.key, detail))
    return pairs


def compare_traffic(new: Sequence[TrafficSession], old: Sequence[TrafficSession], error: float) -> PairedEvidence:
    """The evidence from the paired conversations."""
    return examine(pair(new, old), MARGIN, error)


def in_words(evidence: PairedEvidence) -> str:
    """The evidence as text: "3 conversations went better, 19 worse, 8 alike, e-value 240"."""
    counts = f"{evidence.wins} conversations went better, {evidence.losses} worse, {evidence.ties} alike"
    return f"{counts}, e-value {max(evidence.e_worse, evidence.e_better):.3g}"
