"""Compares a candidate, or the live version, with earlier versions, until the gate can decide (`gate.py`)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clawctl.config import GateConfig
from clawctl.errors import ClawError
from clawctl.eval.gate import BEST, Anchor, Decision, Scores, Tested, by_comparisons, decide, explain, is_below, open_rows, settle
from clawctl.eval.measuring import Measurements
from clawctl.eval.results import read_record, scores
from clawctl.eval.suites import CannotMeasure
from clawctl.eval.suites.loading import LoadedSuite
from clawctl.eval.trial import best_on_half, spent_budget, unreported, weigh_rows
from clawctl.run.lineage import Lineage, read_lineage, served
from clawctl.run.policies import live_version, read_moves


class Gating:
    """The decisions of a gate."""

    def __init__(self, measurements: Measurements, gate: GateConfig) -> None:
        self.versions, self.gate = measurements, gate
        self.run, self.suites, self.budget = measurements.run, measurements.suites, measurements.recipe.eval.budget
        check_gate(gate, self.suites)

    def compare(self, candidate: int, live: int) -> Decision | None:
        """The gate's decision on a measured candidate, after as many rounds of comparisons as necessary.

        Writes the evidence to the candidate's record. Returns None if LIVE moved in the meantime.
        """
        exhausted: set[str] = set()
        while True:
            record, live_record = self.versions.measured(candidate), self.versions.measured(live)
            if not record["suites"]:
                return Decision(False, record["decision"]["reason"], live)
            anchors = self._anchors(scores(record), read_lineage(self.run), live)
            tested = self._tested(candidate, live, anchors, exhausted)
            spent = spent_budget(record, tested, self.budget)
            outcome = settle(tested, spent, self.gate)
            fields = {"compared": [asdict(anchor) for anchor in anchors], "evidence": [test.as_json() for test in tested]}
            self.versions.write({**(read_record(self.run, candidate) or record), **fields})
            if outcome != "more":
                break
            try:
                self.versions.ask_for_more(candidate, tested, exhausted)
            except CannotMeasure as error:
                if not self.versions.has_given_up(candidate, error):
                    raise
                return Decision(False, f"it cannot be compared: {error}", live)
            if live_version(self.run) != live:
                return None
        if outcome != "means":
            return explain(tested, outcome == "promote", spent, live)
        live_scores = scores(live_record) if live_record["suites"] else None
        compares = {suite.name: suite.metrics or () for suite in self.suites if suite.comparing is not None}
        of_answers = [test for test in tested if test.row.suite in compares]
        if why := unreported(read_record(self.run, candidate) or record, of_answers, compares) or by_comparisons(of_answers):
            return Decision(False, why, live)
        rows = [row for row in open_rows(tested, self.gate) if row.suite not in compares]
        decision = decide(scores(record), live_scores, rows, live, anchors)
        if live_scores is None and decision.promote:
            return Decision(True, f"the live version itself {live_record['decision']['reason']}", live)
        if not decision.promote:
            return decision
        shown = [
            decision.reason,
            *(f"{test.name}: {test.text}" for test in tested if test.version == live and test.row not in rows),
        ]
        return Decision(True, "; ".join(part for part in shown if part), live)

    def _tested(self, candidate: int, live: int, anchors: Sequence[Anchor], exhausted: set[str]) -> list[Tested]:
        """The evidence for each row against the live version, the base, and the best version so far if it was measured again."""
        references = [("the live version", live, self.versions.measured(live))]
        if live != 0:
            references.append(("the base", 0, self.versions.measured(0)))
        for version in sorted({anchor.version for anchor in anchors if anchor.what == BEST} - {0, live}):
            again = (read_record(self.run, version) or {}).get("again")
            if again is not None and self.versions.is_comparable(again):
                references.append((BEST, version, again))
        record = read_record(self.run, candidate) or {}
        measured = [reference for reference in references if reference[2].get("suites")]
        return weigh_rows(record, measured, anchors, self.suites, self.gate, self.budget, exhausted)

    def _anchors(self, candidate: Scores, lineage: Lineage, live: int) -> list[Anchor]:
        """The base version and the best version by each metric, with their scores on the tasks of this recipe.

        The maximum of many noisy measurements is biased upwards. The best version is therefore chosen by its first measurement,
        but judged by a second, independent one. The second measurement is made once, when the first one would refuse a candidate,
        and is stored.
        """
        anchors = []
        admitted = served(self.run).intersection(lineage.ancestry(live))
        base = scores(self.versions.measured(0)) if live != 0 else {}
        records = {v: record for v in admitted if v and (record := read_record(self.run, v)) and record["suites"]}
        alike = {version for version, record in records.items() if self.versions.is_comparable(record)}
        for row in self.gate.rows:
            metric = row.suite, row.metric
            if metric in base:
                anchors.append(Anchor("the base", 0, *metric, base[metric]))
            of = {version: measured[metric] for version, record in records.items() if metric in (measured := scores(record))}
            for group in (alike & of.keys(), of.keys() - alike):  # measurements on other tasks must not hide missing ones
                if not group:
                    continue
                best = max(group, key=lambda v: (of[v], v))
                value = of[best]
                if best != live and metric in candidate and is_below(candidate[metric], value, row.max_drop):
                    value = self.versions.measured_again(best).get(metric, value)
                elif best == live or best not in alike:
                    continue  # it is compared anyway, or it used other tasks and does not exclude the candidate
                anchors.append(Anchor(BEST, best, *metric, value))
        return anchors

    def judge_live(self, record: dict[str, Any], accepted: dict[int, dict[str, Any]]) -> Decision:
        """The decision on the live version, by the measurements of the version before it, of the base, and of the best so far."""
        before = max(accepted)
        names = {before: "the version before", 0: "the base"}
        best = [pair for pair in best_on_half(accepted, self.gate.rows) if pair[0].version not in names]
        references = [(what, version, accepted[version]) for version, what in names.items() if version in accepted]
        references += [(BEST, anchor.version, half) for anchor, half in best]
        every_suite = {suite.name for suite in self.suites}  # the references are no longer served, so there are no more tasks
        anchors = [anchor for anchor, _ in best]
        tested = weigh_rows(record, references, anchors, self.suites, self.gate, self.budget, every_suite)
        tested = [test for test in tested if test.evidence.comparisons]
        if not tested:
            return Decision(True, "nothing can be compared", before)
        self.versions.note(record["version"], evidence=[test.as_json() for test in tested])
        if any(test.evidence.verdict == "worse" for test in tested):
            return explain(tested, False, None, before)
        if self.gate.undecided == "estimate" and (why := by_comparisons(tested)):
            return Decision(False, why, before)
        return Decision(True, "; ".join(f"{test.name} is not shown to be worse: {test.text}" for test in tested), before)

    def accepted_before(self, live: int) -> dict[int, dict[str, Any]]:
        """The records of the live version's ancestors that the gate or a person accepted, measured on the tasks of this recipe.

        A version that was replaced while it was measured is not among them, because nothing is known to be good about it.
        """
        by_person = {move["to"] for move in read_moves(self.run) if " by " in str(move["by"])}
        records = {v: read_record(self.run, v) for v in read_lineage(self.run).ancestry(live) if v != live}
        return {
            version: record
            for version, record in records.items()
            if record is not None
            and self.versions.is_comparable(record)
            and (version == 0 or version in by_person or record["decision"]["promote"])
        }


def check_gate(gate: GateConfig, suites: Sequence[LoadedSuite]) -> None:
    """Raises ClawError (exit code 2) if the gate names a metric that its suite does not declare."""
    metrics_of = {suite.name: suite.metrics for suite in suites if suite.comparing is None}
    for row in gate.rows:
        metrics = metrics_of.get(row.suite)
        if metrics is not None and row.metric not in metrics:
            problem = f"the gate names the metric {row.metric} of the suite {row.suite}, which does not report it"
            raise ClawError(problem, f"use one of {', '.join(metrics)}", 2)
