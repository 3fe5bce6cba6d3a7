"""Watches how often people complain under the live version, and under a candidate that answers a share of the sessions."""

import time
from dataclasses import asdict

from clawctl.config import GateConfig
from clawctl.eval.gate import Decision
from clawctl.eval.measuring import Measurements
from clawctl.eval.traffic import METRIC, Traffic, TrafficSession, compare_traffic, in_words
from clawctl.run.lineage import BY_EVAL
from clawctl.run.policies import list_versions, live_version, read_moves
from clawctl.run.sharing import Share

_LOOK_S = 30.0  # the longest interval between two reads of the traffic, in seconds


class Watching:
    """Compares the conversations of two versions. Each read of the traffic covers all shards, so reads are limited in frequency."""

    def __init__(self, measurements: Measurements) -> None:
        self.versions, self.run, self.recipe = measurements, measurements.run, measurements.recipe
        self.traffic = Traffic(self.run)
        self._next_look: dict[str, float] = {}  # the monotonic time of the next read of the traffic

    def complaints(self) -> tuple[int, int, str] | None:
        """The live version, the version before it, and why it must be rolled back; None if it may stay.

        A version chosen by a person stays live.
        """
        live, move = live_version(self.run), next(iter(read_moves(self.run)[::-1]), None)
        if live is None or move is None or move["to"] != live or move["by"] not in ("eval", "train") or not self._due("watch"):
            return None
        before = move["from"]
        if before is None or before not in list_versions(self.run):
            return None
        sessions = self._conversations()
        new = [session for session in sessions if session.version == live and session.began >= move["at"]]
        old = [session for session in sessions if session.version == before and session.ended < move["at"]]
        error = (self.recipe.gate or GateConfig()).error
        evidence = compare_traffic(new, old[::-1], error)  # the most recent sessions first
        if evidence.comparisons:
            self.versions.note(live, watch={"against": before, "metric": METRIC, **evidence.as_json()})
        return (
            None if evidence.e_worse < 1 / error else (live, before, f"{BY_EVAL} {in_words(evidence)} than under version {before}")
        )

    def judge_share(self, shared: Share, live: int, gate: GateConfig) -> Decision | None:
        """The decision on a candidate that answers a share of the sessions, or None while more evidence may come."""
        over = time.time() - shared.since > gate.share_wait_s
        if not over and not self._due("share"):
            return None
        sessions = [session for session in self._conversations() if session.began >= shared.since]
        new, old = ([session for session in sessions if session.version == version] for version in (shared.version, live))
        evidence = compare_traffic(new, old, gate.error)
        measured = self.versions.read(shared.version).get("share", {}).get("measured") or asdict(Decision(True, "", live))
        self.versions.note(shared.version, share={"measured": measured, "against": live, "metric": METRIC, **evidence.as_json()})
        if evidence.verdict == "open" and not over:
            return None
        change = f"{in_words(evidence)} in the shared sessions than under the live version {live}"
        if evidence.verdict == "worse":
            return Decision(False, f"users complained more: {change}", live)
        return Decision(True, f"{measured['reason']}; {change}".lstrip("; "), live)

    def _conversations(self) -> list[TrafficSession]:
        return self.traffic.conversations(self.recipe.collect.session_timeout_s, time.time())

    def _due(self, what: str) -> bool:
        """Whether it is time to read the traffic again."""
        now = time.monotonic()
        if now < self._next_look.get(what, 0.0):
            return False
        self._next_look[what] = now + min(_LOOK_S, self.recipe.collect.session_timeout_s / 10)
        return True
