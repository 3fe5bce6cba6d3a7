"""How often users complain under one version and under another, of what was collected and judged on this run.

A conversation under one version counts once, by the share of its turns that were worth something below 0 (`run/reward.py`: ratings,
outcomes, rules, the judge). The turns of a conversation are too much alike to count each. It counts when it has rested for
`collect.session_timeout_s` and all of its turns are judged, so its value does not change while the test looks at it.

Conversations of the same API key are paired, one under the new version with one under the other, and go through the gate's test.
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
MARGIN = 0.1  # of the share of complaints
_TURN = (
    "turn_id", "session_id", "kind", "source", "user", "created_at", "policy_name", "policy_version", "policy_version_end",
    "outcome_reward", "feedback", "trainable", "untrainable_reason",
)  # fmt: skip
_VERDICT = ("turn_id", "reward", "judge")


@dataclass(frozen=True, slots=True)
class TrafficSession:
    """The turns of a session that one version answered."""

    session: str
    key: str
    version: int
    began: float  # unix seconds
    ended: float
    complaints: float  # share of its turns with an opinion, 0 to 1


Row = dict[str, Any]


class Traffic:
    """Reads conversations. Columns of a shard are read once, until it is replaced."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._ratings = run, Ratings(run)
        self._rows: dict[Path, tuple[tuple[int, int], list[Row]]] = {}

    def conversations(self, rest_s: float, now: float) -> list[TrafficSession]:
        """Those of real users that have rested for `rest_s`, oldest first."""
        self._ratings.look()
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
            said = (None, None) if verdict is None else (verdict["judge"], verdict["reward"])
            value = worth(turn["feedback"] if rating is None else rating.rating, turn["outcome_reward"], *said).value
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
        return sorted(result, key=lambda one: (one.ended, one.session))

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
                continue  # its own stage reports it
            rows += self._rows[path][1]
        for path in [path for path in self._rows if path.parent == folder and path not in there]:
            del self._rows[path]
        return rows


def pair(new: Sequence[TrafficSession], old: Sequence[TrafficSession]) -> list[Comparison]:
    """Each conversation of `new`, in order, with one of `old` of the same key. Each counts in one pair."""
    waiting: dict[str, list[TrafficSession]] = defaultdict(list)
    for one in reversed(old):
        waiting[one.key].append(one)
    pairs = []
    for one in new:
        if waiting[one.key]:
            other = waiting[one.key].pop()
            detail = {"reference_session": other.session}
            pairs.append(Comparison(METRIC, one.session, 1 - one.complaints, 1 - other.complaints, one.key, detail))
    return pairs


def compare_traffic(new: Sequence[TrafficSession], old: Sequence[TrafficSession], error: float) -> PairedEvidence:
    """The evidence of the paired conversations."""
    return examine(pair(new, old), MARGIN, error)


def words(evidence: PairedEvidence) -> str:
    """ "3 conversations went better, 19 worse, 8 alike, e-value 240"."""
    counts = f"{evidence.wins} conversations went better, {evidence.losses} worse, {evidence.ties} alike"
    return f"{counts}, e-value {max(evidence.e_worse, evidence.e_better):.3g}"
