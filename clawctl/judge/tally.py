"""How far the worker is, in counts, for its log."""

import logging
import time
from collections import Counter

from clawctl.judge.calls import Spent
from clawctl.run.reward import signs
from clawctl.run.rows import Verdict

log = logging.getLogger("clawctl.judge.worker")

REPORT_S = 10.0


class Tally:
    """Counts of judged turns since the last report, and in total."""

    def __init__(self) -> None:
        self.shards = 0
        self._hints = self._invalid = 0
        self._without: Counter[str] = Counter()  # why turns that could be trained have no reward
        self._rewards: list[float | None] = []  # since the last report
        self._reported_at = time.monotonic()

    def count(self, verdict: Verdict, judged: bool) -> None:
        if not judged:
            return
        self._rewards.append(verdict.reward)
        self._hints += bool(verdict.hints)
        self._invalid += verdict.votes.count(None)
        if verdict.reward is None:
            if verdict.reason == "no valid vote" and not self._without[verdict.reason]:
                log.warning("the judge gave no valid score for a turn, so it is not trained; the count of such turns follows below")
            self._without[verdict.reason or "no reason"] += 1

    def report_now_and_then(self, spent: Spent) -> None:
        if time.monotonic() - self._reported_at >= REPORT_S:
            self.report(spent)

    def report(self, spent: Spent) -> None:
        """Log the progress: counts only."""
        if self._rewards:
            found = signs(self._rewards)
            rate = len(self._rewards) / max(time.monotonic() - self._reported_at, 1e-9)
            told = (len(self._rewards), rate, found.good, found.neutral, found.bad)
            log.info("%d turns judged (%.1f/s): %d good, %d neutral, %d bad", *told)
            without = ", ".join(f"{count} {reason}" for reason, count in sorted(self._without.items())) or "none"
            log.info("in total %d shards, %d hints; turns without a reward: %s", self.shards, self._hints, without)
            totals = (spent.calls, spent.failed, self._invalid, spent.prompt_tokens, spent.completion_tokens)
            log.info("%d calls, %d failed, %d votes invalid, %d tokens in, %d out", *totals)
        self._rewards, self._reported_at = [], time.monotonic()
