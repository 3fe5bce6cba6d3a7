"""The eval stage: measures policy versions and, if the recipe has a gate, decides which of them go live.

After a refusal, LIVE does not move, and the trainer returns to the live version. Versions trained on top of a refused candidate are
neither measured nor accepted. A candidate is skipped if a newer one arrives before it is measured. The records of both contain the
reason.
"""

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from rich.table import Table

from clawctl.config import GateConfig, Recipe
from clawctl.environments.asking import counted_calls
from clawctl.errors import ClawError
from clawctl.eval.gate import BEST, Anchor, Decision, Scores, Tested, by_comparisons, decide, explain, is_below, open_rows, settle
from clawctl.eval.results import KEPT, is_measured, metrics_of, read_record, scores, settings_of, write_record
from clawctl.eval.suites import CannotMeasure, Measured
from clawctl.eval.suites.loading import LoadedSuite, load_suites
from clawctl.eval.traffic import METRIC, Traffic, TrafficSession, compare_traffic, in_words
from clawctl.eval.trial import (
    ROUND,
    add_comparisons,
    add_spent,
    add_values,
    asked_so_far,
    best_on_half,
    spent_budget,
    unreported,
    weigh_rows,
)
from clawctl.printing import answers, print_json
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, changes, sole_worker
from clawctl.run.disk import retry_while_full
from clawctl.run.endpoint import Endpoint, key_for_another_server, own_endpoint
from clawctl.run.lineage import BUILT_ON, BY_EVAL, OVERTAKEN, Lineage, is_undecided, read_lineage, served
from clawctl.run.policies import LiveMoved, ensure_base_policy, list_versions, live_version, move_live, read_moves, read_policy
from clawctl.run.sharing import Share, begin_share, end_share, read_share

log = logging.getLogger("eval")

Done = TypeVar("Done")
_LOOK_S = 30.0  # the longest interval between two reads of the traffic, in seconds
_TRIES = 3  # after this many failures on a responding server, a version counts as unmeasurable


class Stopped(Exception):
    """A stop was requested during a measurement. Nothing was written."""


def evaluate(run: RunDir, recipe: Recipe, version: int | None, once: bool, as_json: bool) -> None:
    """Measure `version` and return; if it is None, follow the trainer. Raises ClawError if `version` cannot be measured."""
    stop = stop_on_signals()
    ensure_base_policy(run, recipe.model.path)
    if version is None:
        with sole_worker(run, "eval"):
            Follower(run, recipe, stop, as_json).follow(once)
        return
    record = measure_by_hand(run, recipe, version, stop)
    if as_json:
        print_json(record)
    else:
        for table in as_tables(record):
            answers().print(table)


def measure_by_hand(run: RunDir, recipe: Recipe, version: int, stop: threading.Event) -> dict[str, Any]:
    """Measure one version now, even if it was measured before. The gate's earlier decision is kept."""
    read_policy(run, version)
    suites = load_suites(recipe.eval, run, recipe)
    try:
        record = measure(run, recipe, suites, version, stop)
    except CannotMeasure as error:
        raise ClawError(
            f"policy {version} cannot be measured: {error}", "check that `clawctl serve` is running on this run"
        ) from error
    except Stopped as error:
        raise ClawError(f"stopped before policy {version} was measured", "start eval again") from error
    earlier = read_record(run, version) or {}  # read now, because the gate may have decided during the measurement
    kept = (*KEPT, "comparisons", "asked") if is_measured(earlier, recipe.eval) else KEPT
    record |= {name: earlier[name] for name in kept if name in earlier}
    write_record(run, record)
    return record


class Follower:
    """Measures versions as the trainer publishes them. All of its state is on disk, except the number of failures."""

    def __init__(self, run: RunDir, recipe: Recipe, stop: threading.Event, as_json: bool):
        self.run, self.recipe, self.stop, self.as_json = run, recipe, stop, as_json
        self.suites = load_suites(recipe.eval, run, recipe)
        if recipe.gate is not None:
            check_gate(recipe.gate, self.suites)
        self.failures: Counter[int] = Counter()
        self.traffic = Traffic(run)
        self.next_look: dict[str, float] = {}  # the monotonic time of the next read of the traffic
        self.waiting_for = ""  # the last logged reason for waiting; each reason is logged once

    def follow(self, once: bool) -> None:
        """Run until stopped; with `once`, until nothing is left to do. Without `once`, wait for a server that does not respond."""
        for _ in changes([self.run.policies], self.stop):  # also yields every second
            try:
                while not self.stop.is_set() and self.step():
                    pass
            except Stopped:
                return
            except CannotMeasure as error:
                if once:
                    raise ClawError(f"cannot measure: {error}", "start `clawctl serve --intercept` on this run first") from error
                self._wait(str(error))
            if once or self.stop.is_set():
                return

    def step(self) -> bool:
        """Make one measurement or decision. Returns False if none is due."""
        if self.recipe.eval.watch and self._rolled_back():
            return True
        gate = self.recipe.gate
        if gate is None:
            return self._step_open()
        return self._step_gated(gate) if self.recipe.waits_for_gate else self._step_live(gate)

    def _step_open(self) -> bool:
        """Without a gate, measure every version, newest first, and decide nothing."""
        end_share(self.run)
        dead = set(read_lineage(self.run).dead())
        unseen = [v for v in list_versions(self.run) if v not in dead and read_record(self.run, v) is None]
        if unseen:
            self._measured(unseen[-1])
        return bool(unseen)

    def _step_gated(self, gate: GateConfig) -> bool:
        """Measure the live version and the newest candidate, compare them, and promote or refuse the candidate."""
        live = live_version(self.run)
        if live is None:
            return False
        shared = read_share(self.run)
        if shared is not None:
            if self._may_go_live(shared.version, live):
                return self._step_share(shared, live, gate)
            end_share(self.run)
        self._measured(live)
        candidate = self._candidate(live)
        if candidate is None:
            return False
        self._measured(candidate)
        if live_version(self.run) != live:
            return True  # LIVE has moved in the meantime: start again
        decision = self._compare(candidate, live, gate)
        if decision is None:
            return True
        if not self._may_go_live(candidate, live):
            return True
        if not decision.promote:
            self._decided(candidate, decision)
            return True
        if gate.share:
            begin_share(self.run, candidate, gate.share)
            self._note(candidate, share={"measured": asdict(decision)})
            log.info("policy %d answers %.0f %% of the new sessions before it goes live", candidate, 100 * gate.share)
            return True
        self._promote(candidate, live, decision)
        return True

    def _step_live(self, gate: GateConfig) -> bool:
        """Measure the live version, and compare it with earlier versions as they were measured while they were live.

        A version that is worse is rolled back to the newest of its ancestors that was measured and accepted, by the gate or by a
        person. A version chosen by a person stays live.
        """
        end_share(self.run)
        live, move = live_version(self.run), next(iter(read_moves(self.run)[::-1]), None)
        if live is None:
            return False
        known = read_record(self.run, live)
        is_new = known is None or not (is_measured(known, self.recipe.eval) or self.failures[live] >= _TRIES)
        record = self._measured(live)
        if live_version(self.run) != live:
            return True
        if move is None or (move["to"], move["by"]) != (live, "train") or not record["suites"] or not _undecided(record):
            return is_new
        accepted = self._accepted_before(live)
        if not accepted:
            self._decided(live, Decision(True, "no earlier version was measured"), "stays live")
            return True
        before, decision = max(accepted), self._judged_live(record, accepted, gate)
        if not decision.promote:
            why = f"{BY_EVAL} {decision.reason}"
            try:
                retry_while_full(lambda: move_live(self.run, before, by=why, only_from=live), "policies/LIVE", self.stop)
            except LiveMoved:
                return True
        self._decided(live, decision, "stays live", f"is rolled back to {before}")
        return True

    def _accepted_before(self, live: int) -> dict[int, dict[str, Any]]:
        """The records of the live version's ancestors that the gate or a person accepted, measured on the tasks of this recipe.

        A version that was replaced while it was measured is not among them, because nothing is known to be good about it.
        """
        by_person = {move["to"] for move in read_moves(self.run) if " by " in str(move["by"])}
        records = {v: read_record(self.run, v) for v in read_lineage(self.run).ancestry(live) if v != live}
        return {
            version: record
            for version, record in records.items()
            if record is not None
            and is_measured(record, self.recipe.eval)
            and (version == 0 or version in by_person or record["decision"]["promote"])
        }

    def _judged_live(self, record: dict[str, Any], accepted: dict[int, dict[str, Any]], gate: GateConfig) -> Decision:
        """The decision on the live version, by the measurements of the version before it, of the base, and of the best so far."""
        before = max(accepted)
        names = {before: "the version before", 0: "the base"}
        best = [one for one in best_on_half(accepted, gate.rows) if one[0].version not in names]
        references = [(what, version, accepted[version]) for version, what in names.items() if version in accepted]
        references += [(BEST, anchor.version, half) for anchor, half in best]
        every_suite = {suite.name for suite in self.suites}  # the references are no longer served, so there are no more tasks
        anchors = [anchor for anchor, _ in best]
        tested = weigh_rows(record, references, anchors, self.suites, gate, self.recipe.eval.budget, every_suite)
        tested = [one for one in tested if one.evidence.comparisons]
        if not tested:
            return Decision(True, "nothing can be compared", before)
        self._note(record["version"], evidence=[one.as_json() for one in tested])
        if any(one.evidence.verdict == "worse" for one in tested):
            return explain(tested, False, None, before)
        if gate.undecided == "estimate" and (why := by_comparisons(tested)):
            return Decision(False, why, before)
        return Decision(True, "; ".join(f"{one.name} is not shown to be worse: {one.text}" for one in tested), before)

    def _may_go_live(self, version: int, live: int) -> bool:
        """Whether LIVE and the lineage still are as they were when `version` was compared with `live`."""
        lineage = read_lineage(self.run)
        return lineage.live == live and version in lineage.above(lineage.tip, live) and is_undecided(self.run, version)

    def _promote(self, candidate: int, live: int, decision: Decision) -> None:
        # Move LIVE before writing the record. After a crash in between, the version counts as live, not as decided.
        try:
            retry_while_full(lambda: move_live(self.run, candidate, by="eval", only_from=live), "policies/LIVE", self.stop)
        except LiveMoved:
            return
        self._decided(candidate, decision)

    def _step_share(self, shared: Share, live: int, gate: GateConfig) -> bool:
        """Decide on the candidate that answers a share of the sessions, once there is enough evidence or its time has expired."""
        over = time.time() - shared.since > gate.share_wait_s
        if not over and not self._due("share"):
            return False
        sessions = [one for one in self._conversations() if one.began >= shared.since]
        new, old = ([one for one in sessions if one.version == version] for version in (shared.version, live))
        evidence = compare_traffic(new, old, gate.error)
        record = read_record(self.run, shared.version) or {}
        measured = record.get("share", {}).get("measured") or asdict(Decision(True, "", live))
        self._note(shared.version, share={"measured": measured, "against": live, "metric": METRIC, **evidence.as_json()})
        if evidence.verdict == "open" and not over:
            return False
        change = f"{in_words(evidence)} in the shared sessions than under the live version {live}"
        if evidence.verdict == "worse":
            self._decided(shared.version, Decision(False, f"users complained more: {change}", live))
        else:
            self._promote(shared.version, live, Decision(True, f"{measured['reason']}; {change}".lstrip("; "), live))
        end_share(self.run)
        return True

    def _rolled_back(self) -> bool:
        """Roll back to the previous version if users complain more under the live one. A version chosen by a person stays live."""
        live, move = live_version(self.run), next(iter(read_moves(self.run)[::-1]), None)
        if live is None or move is None or move["to"] != live or move["by"] not in ("eval", "train") or not self._due("watch"):
            return False
        before = move["from"]
        if before is None or before not in list_versions(self.run):
            return False
        sessions = self._conversations()
        new = [one for one in sessions if one.version == live and one.began >= move["at"]]
        old = [one for one in sessions if one.version == before and one.ended < move["at"]]
        error = (self.recipe.gate or GateConfig()).error
        evidence = compare_traffic(new, old[::-1], error)  # the most recent sessions first
        if evidence.comparisons:
            self._note(live, watch={"against": before, "metric": METRIC, **evidence.as_json()})
        if evidence.e_worse < 1 / error:
            return False
        why = f"{BY_EVAL} {in_words(evidence)} than under version {before}"
        try:
            retry_while_full(lambda: move_live(self.run, before, by=why, only_from=live), "policies/LIVE", self.stop)
        except LiveMoved:
            return True
        log.warning("policy %d is rolled back to %d: %s", live, before, why)
        return True

    def _conversations(self) -> list[TrafficSession]:
        return self.traffic.conversations(self.recipe.collect.session_timeout_s, time.time())

    def _due(self, what: str) -> bool:
        """Whether it is time to read the traffic again. Each read covers all shards, so reads are limited in frequency."""
        now = time.monotonic()
        if now < self.next_look.get(what, 0.0):
            return False
        self.next_look[what] = now + min(_LOOK_S, self.recipe.collect.session_timeout_s / 10)
        return True

    def _note(self, version: int, **fields: Any) -> None:
        """Add fields to the record of a version, and write it if it changed."""
        record = read_record(self.run, version) or _unmeasurable(self.run, self.recipe, version, "its record is missing")
        if any(record.get(name) != value for name, value in fields.items()):
            self._write({**record, **fields})

    def _candidate(self, live: int) -> int | None:
        """The newest undecided version above the live one.

        Records why the other versions are not measured: they were built on a dead version, or were overtaken.
        """
        lineage = read_lineage(self.run)
        dead = set(lineage.dead())
        for version in sorted(dead):
            if lineage.parents[version] in dead and is_undecided(self.run, version):
                reason = f"{BUILT_ON} {lineage.parents[version]}, which did not go live"
                self._decided(version, Decision(False, reason, live))
        undecided = [v for v in lineage.above(lineage.tip, live) if _undecided(read_record(self.run, v))]
        for version in undecided[:-1]:
            self._decided(version, Decision(False, f"{OVERTAKEN} {undecided[-1]} before it was measured", live))
        return undecided[-1] if undecided else None

    def _compare(self, candidate: int, live: int, gate: GateConfig) -> Decision | None:
        """The gate's decision on a measured candidate, after as many rounds of comparisons as necessary.

        Writes the evidence to the candidate's record. Returns None if LIVE moved in the meantime.
        """
        exhausted: set[str] = set()
        while True:
            record, live_record = self._measured(candidate), self._measured(live)
            if not record["suites"]:
                return Decision(False, record["decision"]["reason"], live)
            anchors = self._anchors(scores(record), gate, read_lineage(self.run), live)
            tested = self._tested(candidate, live, anchors, gate, exhausted)
            spent = spent_budget(record, tested, self.recipe.eval.budget)
            outcome = settle(tested, spent, gate)
            fields = {"compared": [asdict(anchor) for anchor in anchors], "evidence": [one.as_json() for one in tested]}
            self._write({**(read_record(self.run, candidate) or record), **fields})
            if outcome != "more":
                break
            try:
                self._ask_for_more(candidate, tested, exhausted)
            except CannotMeasure as error:
                if not self._has_given_up(candidate, error):
                    raise
                return Decision(False, f"it cannot be compared: {error}", live)
            if live_version(self.run) != live:
                return None
        if outcome != "means":
            return explain(tested, outcome == "promote", spent, live)
        live_scores = scores(live_record) if live_record["suites"] else None
        compares = {suite.name: suite.metrics or () for suite in self.suites if suite.comparing is not None}
        of_answers = [one for one in tested if one.row.suite in compares]
        if why := unreported(read_record(self.run, candidate) or record, of_answers, compares) or by_comparisons(of_answers):
            return Decision(False, why, live)
        rows = [row for row in open_rows(tested, gate) if row.suite not in compares]
        decision = decide(scores(record), live_scores, rows, live, anchors)
        if live_scores is None and decision.promote:
            return Decision(True, f"the live version itself {live_record['decision']['reason']}", live)
        if not decision.promote:
            return decision
        shown = [decision.reason, *(f"{one.name}: {one.text}" for one in tested if one.version == live and one.row not in rows)]
        return Decision(True, "; ".join(part for part in shown if part), live)

    def _tested(self, candidate: int, live: int, anchors: Sequence[Anchor], gate: GateConfig, exhausted: set[str]) -> list[Tested]:
        """The evidence for each row against the live version, the base, and the best version so far if it was measured again."""
        references = [("the live version", live, self._measured(live))]
        if live != 0:
            references.append(("the base", 0, self._measured(0)))
        for version in sorted({anchor.version for anchor in anchors if anchor.what == BEST} - {0, live}):
            again = (read_record(self.run, version) or {}).get("again")
            if again is not None and is_measured(again, self.recipe.eval):
                references.append((BEST, version, again))
        record = read_record(self.run, candidate) or {}
        known = [reference for reference in references if reference[2].get("suites")]
        return weigh_rows(record, known, anchors, self.suites, gate, self.recipe.eval.budget, exhausted)

    def _ask_for_more(self, candidate: int, tested: Sequence[Tested], exhausted: set[str]) -> None:
        """Make one more round of comparisons for the open rows. Adds suites that have no more tasks to `exhausted`.

        Raises CannotMeasure and Stopped.
        """
        wanting = [one for one in tested if one.evidence.verdict == "open" and one.more]
        for suite in self.suites:
            versions = sorted({(one.version, one.what) for one in wanting if one.row.suite == suite.name})
            if not versions:
                continue
            with self._count_cost(candidate):
                if suite.comparing is not None:
                    came = [self._compare_more(suite, candidate, version) for version, _ in versions]
                else:
                    came = [self._measure_more(suite, candidate, versions)]
            if not any(came):
                exhausted.add(suite.name)

    def _compare_more(self, suite: LoadedSuite, candidate: int, version: int) -> bool:
        """Compare the candidate with one reference on further tasks. Returns False if no more tasks exist."""
        record = read_record(self.run, candidate) or {}
        begin = asked_so_far(record, suite.name, version)
        endpoints = [_reachable(self.run, self.recipe, one) for one in (candidate, version)]
        comparisons = run_until(suite.compare(endpoints[0], endpoints[1], begin, ROUND), self.stop)
        add_comparisons(record, suite.name, version, comparisons, ROUND)
        self._write(record)
        return bool(comparisons)

    def _measure_more(self, suite: LoadedSuite, candidate: int, references: Sequence[tuple[int, str]]) -> bool:
        """Measure the candidate and its references on further tasks. All of them get the same tasks.

        References that lack some of the candidate's tasks catch up first. Returns False if no more tasks exist.
        """
        asked = _tasks(read_record(self.run, candidate) or {}, suite.name)
        outdated = [one for one in references if not asked <= _tasks(self._part(*one)[1], suite.name)]
        count = len(asked) if outdated else len(asked) + ROUND
        came = False
        for version, what in outdated or [(candidate, ""), *references]:
            record, part = self._part(version, what)
            place = _reachable(self.run, self.recipe, version)
            measured = run_until(suite.measure_more(place, count, _tasks(part, suite.name)), self.stop)
            came = add_values(part, suite.name, measured) or came
            self._write(record)
        return came

    def _part(self, version: int, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The record of a version, and its relevant measurement: the second one for the best version so far, else the first."""
        record = read_record(self.run, version) or {}
        return record, record["again"] if what == BEST else record

    @contextmanager
    def _count_cost(self, version: int) -> Iterator[None]:
        """Add the cost of the block to the record of `version`."""
        began = time.monotonic()
        with counted_calls() as spent:
            try:
                yield
            finally:
                record = read_record(self.run, version)
                if record is not None:
                    add_spent(record, time.monotonic() - began, spent.calls, spent.tokens)
                    self._write(record)

    def _anchors(self, candidate: Scores, gate: GateConfig, lineage: Lineage, live: int) -> list[Anchor]:
        """The base version and the best version by each metric, with their scores on the tasks of this recipe.

        The maximum of many noisy measurements is biased upwards. The best version is therefore chosen by its first measurement,
        but judged by a second, independent one. The second measurement is made once, when the first one would refuse a candidate,
        and is stored.
        """
        anchors = []
        admitted = served(self.run).intersection(lineage.ancestry(live))
        base = scores(self._measured(0)) if live != 0 else {}
        records = {v: record for v in admitted if v and (record := read_record(self.run, v)) and record["suites"]}
        alike = {version for version, record in records.items() if is_measured(record, self.recipe.eval)}
        for row in gate.rows:
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
                    value = self._second_measurement(best).get(metric, value)
                elif best == live or best not in alike:
                    continue  # it is compared anyway, or it used other tasks and does not exclude the candidate
                anchors.append(Anchor(BEST, best, *metric, value))
        return anchors

    def _second_measurement(self, version: int) -> Scores:
        """The second measurement of a version, made now if it is missing or used other tasks.

        If the server cannot serve the version, returns the first measurement. Raises CannotMeasure if it may still succeed later.
        """
        record = read_record(self.run, version) or _unmeasurable(self.run, self.recipe, version, "its record is missing")
        again = record.get("again")
        if again is not None and is_measured(again, self.recipe.eval):
            return scores(again)
        if again is not None and not again["suites"] and again["settings"] == settings_of(self.recipe.eval):
            return scores(record)
        fresh = self._measure(version)
        record["again"] = {name: fresh[name] for name in ("settings", "suites", "at", "values")}
        self._write(record)
        log.info("policy %d measured again as an anchor: %s", version, _in_short(fresh))
        return scores(fresh) if fresh["suites"] else scores(record)

    def _measure(self, version: int) -> dict[str, Any]:
        """A new record of `version`. After _TRIES failures it has no numbers. Raises CannotMeasure before that."""
        try:
            return measure(self.run, self.recipe, self.suites, version, self.stop)
        except CannotMeasure as error:
            if not self._has_given_up(version, error):
                raise
            return _unmeasurable(self.run, self.recipe, version, str(error))

    def _has_given_up(self, version: int, error: CannotMeasure) -> bool:
        """Whether `version` has failed _TRIES times. An unreachable server does not count as a failure."""
        self.failures[version] += not error.unreachable
        return not error.unreachable and self.failures[version] >= _TRIES

    def _measured(self, version: int) -> dict[str, Any]:
        """The record of `version` with numbers that are comparable for this recipe, measured now if necessary.

        It has no numbers if the server could not serve the version in several attempts. Raises CannotMeasure before that.
        """
        record = read_record(self.run, version)
        if record is not None and (is_measured(record, self.recipe.eval) or self.failures[version] >= _TRIES):
            return record
        fresh = self._measure(version)
        self.waiting_for = ""
        if record is not None:
            fresh |= {name: record[name] for name in KEPT if name in record and name != "decision"}
        if record is not None and not _undecided(record):
            fresh["decision"] = record["decision"]
        self._write(fresh)
        log.info("policy %d: %s", version, _in_short(fresh))
        self._print_record(fresh)
        return fresh

    def _decided(self, version: int, decision: Decision, accepted: str = "goes live", refused: str = "does not go live") -> None:
        record = read_record(self.run, version) or _unmeasurable(self.run, self.recipe, version, decision.reason)
        record["decision"] = asdict(decision)
        self._write(record)
        log.info("policy %d %s: %s", version, accepted if decision.promote else refused, decision.reason)
        self._print_record(record)

    def _write(self, record: dict[str, Any]) -> None:
        retry_while_full(lambda: write_record(self.run, record), f"eval/{record['version']}.json", self.stop)

    def _print_record(self, record: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps({key: record[key] for key in ("version", "suites", "decision")}), flush=True)

    def _wait(self, problem: str) -> None:
        if problem != self.waiting_for:
            log.warning("waiting: %s", problem)
            self.waiting_for = problem


# ---- one measurement -----------------------------------------------------------------------------------------------------


def measure(run: RunDir, recipe: Recipe, suites: Sequence[LoadedSuite], version: int, stop: threading.Event) -> dict[str, Any]:
    """Run all suites against `version` and return the record, without writing it.

    Raises CannotMeasure and Stopped.
    """
    endpoint = _reachable(run, recipe, version)
    began = time.monotonic()
    with counted_calls() as spent:
        measured = run_until(_run_suites(endpoint, suites), stop)
    seconds = time.monotonic() - began
    return {
        "policy": run.policy,
        "version": version,
        "settings": settings_of(recipe.eval),
        "suites": {name: result.as_json() for name, result in measured.items()},
        "examples": [example for result in measured.values() for example in result.examples],
        "decision": asdict(Decision(None, "measured without a decision")),
        "values": {name: result.values for name, result in measured.items() if result.values},
        "seconds": seconds,
        "spent": {"seconds": seconds, "calls": spent.calls, "tokens": spent.tokens},
        "at": time.time(),
    }


def _reachable(run: RunDir, recipe: Recipe, version: int) -> Endpoint:
    """The endpoint of a version to measure. Raises CannotMeasure."""
    if recipe.eval.endpoint is None:
        try:
            return own_endpoint(run, recipe, version)
        except ClawError as error:
            raise CannotMeasure(error.problem, unreachable=True) from error
    return Endpoint(recipe.eval.endpoint.rstrip("/"), key_for_another_server(run, recipe), f"{recipe.model_name}@{version}")


async def _run_suites(endpoint: Endpoint, suites: Sequence[LoadedSuite]) -> dict[str, Measured]:
    return {suite.name: await suite.measure(endpoint) for suite in suites}


def run_until(work: Coroutine[Any, Any, Done], stop: threading.Event) -> Done:
    """The result of `work`. Raises Stopped if `stop` is set first."""

    async def watched() -> Done:
        working = asyncio.create_task(work)
        while not working.done():
            await asyncio.wait({working}, timeout=0.2)
            if stop.is_set():
                working.cancel()
                await asyncio.wait({working})
                raise Stopped
        return await working

    return asyncio.run(watched())


def _tasks(record: dict[str, Any], suite: str) -> set[str]:
    """The tasks of a suite that have values in a record."""
    return set().union(*record.get("values", {}).get(suite, {}).values())


def check_gate(gate: GateConfig, suites: Sequence[LoadedSuite]) -> None:
    """Raises ClawError (exit code 2) if the gate names a metric that its suite does not declare."""
    known = {suite.name: suite.metrics for suite in suites if suite.comparing is None}
    for row in gate.rows:
        metrics = known.get(row.suite)
        if metrics is not None and row.metric not in metrics:
            problem = f"the gate names the metric {row.metric} of the suite {row.suite}, which does not report it"
            raise ClawError(problem, f"use one of {', '.join(metrics)}", 2)


# ---- records -------------------------------------------------------------------------------------------------------------


def _undecided(record: dict[str, Any] | None) -> bool:
    return record is None or record["decision"]["promote"] is None


def _unmeasurable(run: RunDir, recipe: Recipe, version: int, reason: str) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "version": version,
        "settings": settings_of(recipe.eval),
        "suites": {},
        "examples": [],
        "decision": asdict(Decision(None, f"not measured: {reason}")),
        "seconds": 0.0,
        "at": time.time(),
    }


def _in_short(record: dict[str, Any]) -> str:
    if not record["suites"]:
        return str(record["decision"]["reason"])
    suites = (
        f"{suite}: " + ", ".join(f"{name} {_estimate(value)}" for name, value in metrics_of(result).items())
        for suite, result in record["suites"].items()
    )
    return "; ".join(suites) + f" ({record['seconds']:.1f} s)"


def _estimate(value: dict[str, Any]) -> str:
    low, high = value["ci95"]
    return f"{value['mean']:.2f} [{low:.2f}, {high:.2f}]"


def as_tables(record: dict[str, Any]) -> list[Table]:
    """The numbers of one version, as one table per suite: a row for all tasks, and a row for each kind of task."""
    tables = []
    for suite, result in record["suites"].items():
        metrics = list(metrics_of(result))
        table = Table("tasks", *metrics, "n", title=f"policy {record['version']}, {suite}", caption="mean and 95 % interval")
        for who, part in (("all", result), *result.get("by_role", {}).items()):
            cells = (_estimate(part[metric]) if metric in part else "" for metric in metrics)
            table.add_row(who, *cells, str(max((value["n"] for value in metrics_of(part).values()), default=0)))
        tables.append(table)
    return tables
