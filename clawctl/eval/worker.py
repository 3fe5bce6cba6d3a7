"""The eval stage: measures policy versions and, if the recipe has a gate, decides which of them go live.

After a refusal LIVE stays where it is, and the trainer goes back to it. Versions that were trained on a refused candidate are
neither measured nor accepted. Candidates that were overtaken before their measurement are skipped. The records of both contain the
reason.
"""

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from rich.table import Table

from clawctl.config import GateConfig, Recipe
from clawctl.errors import ClawError
from clawctl.eval.gate import Anchor, Decision, Scores, decide, is_below, limit
from clawctl.eval.results import METRICS, CannotMeasure, Finding, is_measured, read_record, scores, settings_of, write_record
from clawctl.eval.suites import SUITES
from clawctl.printing import answers, print_json
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, changes, sole_worker
from clawctl.run.disk import when_there_is_room
from clawctl.run.endpoint import Endpoint, own_api_key, own_endpoint
from clawctl.run.lineage import BUILT_ON, OVERTAKEN, Lineage, is_undecided, read_lineage, served
from clawctl.run.policies import LiveMoved, ensure_base_policy, list_versions, live_version, move_live, read_policy

log = logging.getLogger("eval")

_TRIES = 3  # a version that a server which answers cannot serve so often is refused


class Stopped(Exception):
    """Asked to stop in the middle of a measurement; nothing was written."""


def evaluate(run: RunDir, recipe: Recipe, version: int | None, once: bool, as_json: bool) -> None:
    """Measure `version` and end, or follow the trainer. Raises ClawError if the requested version cannot be measured."""
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
        answers().print(as_table(record))


def measure_by_hand(run: RunDir, recipe: Recipe, version: int, stop: threading.Event) -> dict[str, Any]:
    """Measure one version now, even if it was measured before. The gate's earlier decision stays."""
    read_policy(run, version)
    try:
        record = measure(run, recipe, version, stop)
    except CannotMeasure as error:
        raise ClawError(
            f"policy {version} cannot be measured: {error}", "check that `clawctl serve` is running on this run"
        ) from error
    except Stopped as error:
        raise ClawError(f"stopped before policy {version} was measured", "start eval again") from error
    earlier = read_record(run, version) or {}  # now: the gate may have decided while this measured
    record |= {name: earlier[name] for name in ("decision", "again", "compared") if name in earlier}
    write_record(run, record)
    return record


def measure(run: RunDir, recipe: Recipe, version: int, stop: threading.Event) -> dict[str, Any]:
    """Play all suites against `version`: the record, not yet written.

    Raises CannotMeasure and Stopped.
    """
    try:
        endpoint = _endpoint(run, recipe, version)
    except ClawError as error:
        raise CannotMeasure(error.problem, gone=True) from error
    began = time.monotonic()
    findings = asyncio.run(_play(endpoint, recipe, stop))
    return {
        "version": version,
        "settings": settings_of(recipe.eval),
        "suites": {name: finding.as_json() for name, finding in findings.items()},
        "examples": [example for finding in findings.values() for example in finding.examples],
        "decision": asdict(Decision(None, "measured without a decision")),
        "seconds": time.monotonic() - began,
        "at": time.time(),
    }


def _endpoint(run: RunDir, recipe: Recipe, version: int) -> Endpoint:
    if recipe.eval.endpoint is None:
        return own_endpoint(run, recipe, version)
    return Endpoint(recipe.eval.endpoint.rstrip("/"), own_api_key(run, recipe)[0], f"{recipe.model_name}@{version}")


async def _play(endpoint: Endpoint, recipe: Recipe, stop: threading.Event) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for name in recipe.eval.suites:
        playing = asyncio.create_task(SUITES[name](endpoint, recipe.eval))
        while not playing.done():
            await asyncio.wait({playing}, timeout=0.2)
            if stop.is_set():
                playing.cancel()
                raise Stopped
        findings[name] = await playing
    return findings


class Follower:
    """Measures versions as the trainer publishes them. Its state is in the run directory, except the number of failures."""

    def __init__(self, run: RunDir, recipe: Recipe, stop: threading.Event, as_json: bool):
        self.run, self.recipe, self.stop, self.as_json = run, recipe, stop, as_json
        self.failures: Counter[int] = Counter()
        self.waiting_for = ""  # the last logged reason for waiting: logged once

    def follow(self, once: bool) -> None:
        """Until stopped, or with `once` until nothing is left to do. Waits for a server that is not there, unless `once`."""
        for _ in changes([self.run.policies], self.stop):
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
        """Make one measurement or decision; False if there is none to make."""
        return self._step_open() if self.recipe.gate is None else self._step_gated(self.recipe.gate)

    def _step_open(self) -> bool:
        """Without a gate everything is measured, newest first, and nothing decided."""
        dead = set(read_lineage(self.run).dead())
        unseen = [v for v in list_versions(self.run) if v not in dead and read_record(self.run, v) is None]
        if unseen:
            self._measured(unseen[-1])
        return bool(unseen)

    def _step_gated(self, gate: GateConfig) -> bool:
        live = live_version(self.run)
        if live is None:
            return False
        live_record = self._measured(live)
        lineage = read_lineage(self.run)
        self._close_dead(lineage, live)
        candidates = [v for v in lineage.above(lineage.tip, live) if _undecided(read_record(self.run, v))]
        if not candidates:
            return False
        *overtaken, candidate = candidates
        for version in overtaken:
            self._decided(version, Decision(False, f"{OVERTAKEN} {candidate} before it was measured", live))
        record = self._measured(candidate)
        if live_version(self.run) != live:
            return True  # LIVE has moved meanwhile: look again
        if not record["suites"]:
            decision = Decision(False, record["decision"]["reason"], live)
        else:
            anchors = self._anchors(scores(record), gate, lineage, live)
            now_live = scores(live_record) if live_record["suites"] else None
            decision = decide(scores(record), now_live, gate, live, anchors)
            if now_live is None and decision.promote:
                decision = Decision(True, f"the live version itself {live_record['decision']['reason']}", live)
            record = {**(read_record(self.run, candidate) or record), "compared": [asdict(anchor) for anchor in anchors]}
            self._write(record)
        now = read_lineage(self.run)
        if now.live != live or candidate not in now.living():
            return True
        if decision.promote:
            # before the record: after a crash in between it counts as live, not as decided
            try:
                when_there_is_room(lambda: move_live(self.run, candidate, by="eval", only_from=live), "policies/LIVE", self.stop)
            except LiveMoved:
                return True
        self._decided(candidate, decision)
        return True

    def _close_dead(self, lineage: Lineage, live: int) -> None:
        """Write down of versions that were built on a dead one that they are not measured."""
        dead = set(lineage.dead())
        for version in sorted(dead):
            if lineage.parents[version] in dead and is_undecided(self.run, version):
                reason = f"{BUILT_ON} {lineage.parents[version]}, which did not go live"
                self._decided(version, Decision(False, reason, live))

    def _anchors(self, candidate: Scores, gate: GateConfig, lineage: Lineage, live: int) -> list[Anchor]:
        """The base version and the best version by each metric, with their scores on the tasks of this recipe.

        The highest of many noisy measurements is too high. So the best version is chosen by its first measurement, and a second,
        independent one counts. It is made once, when the first one would refuse a candidate, and stored.
        """
        anchors = []
        let_in = served(self.run).intersection(lineage.ancestry(live))
        if live != 0:
            base = self._measured(0)
            if base["suites"]:
                anchors += [Anchor("the base", 0, metric, getattr(scores(base), metric)) for metric in METRICS]
        records = {v: record for v in let_in if v and (record := read_record(self.run, v)) and record["suites"]}
        alike = {version for version, record in records.items() if is_measured(record, self.recipe.eval)}
        for metric in METRICS:
            for group in (alike, records.keys() - alike):  # measurements on other tasks hide no missing ones
                if not group:
                    continue
                best = max(group, key=lambda v: (getattr(scores(records[v]), metric), v))
                value = getattr(scores(records[best]), metric)
                if best != live and is_below(getattr(candidate, metric), value, limit(gate, metric)):
                    value = getattr(self._again(best), metric)
                elif best == live or best not in alike:
                    continue  # compared with anyway, or of other tasks and not in the way
                anchors.append(Anchor("the best so far", best, metric, value))
        return anchors

    def _again(self, version: int) -> Scores:
        """The second measurement of a version. It is made now if it is missing or used other tasks. If the server cannot serve the
        version, the first one is returned. Raises CannotMeasure if it is too early to decide that."""
        record = read_record(self.run, version) or _unmeasurable(self.recipe, version, "its record is missing")
        again = record.get("again")
        if again is not None and is_measured(again, self.recipe.eval):
            return scores(again)
        if again is not None and not again["suites"] and again["settings"] == settings_of(self.recipe.eval):
            return scores(record)
        fresh = self._measure(version)
        record["again"] = {name: fresh[name] for name in ("settings", "suites", "at")}
        self._write(record)
        log.info("policy %d measured again as an anchor: %s", version, _in_short(fresh))
        return scores(fresh) if fresh["suites"] else scores(record)

    def _measure(self, version: int) -> dict[str, Any]:
        """A new record of `version`; without numbers after _TRIES failures. Raises CannotMeasure before that."""
        try:
            return measure(self.run, self.recipe, version, self.stop)
        except CannotMeasure as error:
            if error.gone:
                raise
            self.failures[version] += 1
            if self.failures[version] < _TRIES:
                raise
            return _unmeasurable(self.recipe, version, str(error))

    def _measured(self, version: int) -> dict[str, Any]:
        """The record of `version` with numbers that are comparable for this recipe, measured now if needed. It has no numbers if
        the server could not serve the version after several attempts. Raises CannotMeasure if it is too early to decide that."""
        record = read_record(self.run, version)
        if record is not None and (is_measured(record, self.recipe.eval) or self.failures[version] >= _TRIES):
            return record
        fresh = self._measure(version)
        self.waiting_for = ""
        if record is not None:
            fresh |= {name: record[name] for name in ("again", "compared") if name in record}
        if record is not None and not _undecided(record):
            fresh["decision"] = record["decision"]
        self._write(fresh)
        log.info("policy %d: %s", version, _in_short(fresh))
        self._tell(fresh)
        return fresh

    def _decided(self, version: int, decision: Decision) -> None:
        record = read_record(self.run, version) or _unmeasurable(self.recipe, version, decision.reason)
        record["decision"] = asdict(decision)
        self._write(record)
        log.info("policy %d %s: %s", version, "goes live" if decision.promote else "does not go live", decision.reason)
        self._tell(record)

    def _write(self, record: dict[str, Any]) -> None:
        when_there_is_room(lambda: write_record(self.run, record), f"eval/{record['version']}.json", self.stop)

    def _tell(self, record: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps({key: record[key] for key in ("version", "suites", "decision")}), flush=True)

    def _wait(self, problem: str) -> None:
        if problem != self.waiting_for:
            log.warning("waiting: %s", problem)
            self.waiting_for = problem


def _undecided(record: dict[str, Any] | None) -> bool:
    return record is None or record["decision"]["promote"] is None


def _unmeasurable(recipe: Recipe, version: int, reason: str) -> dict[str, Any]:
    return {
        "version": version,
        "settings": settings_of(recipe.eval),
        "suites": {},
        "examples": [],
        "decision": asdict(Decision(None, f"not measured: {reason}")),
        "seconds": 0.0,
        "at": time.time(),
    }


def _in_short(record: dict[str, Any]) -> str:
    found = record["suites"].get("personalisation")
    if found is None:
        return str(record["decision"]["reason"])
    return ", ".join(f"{name} {_estimate(found[name])}" for name in METRICS) + f" ({record['seconds']:.1f} s)"


def _estimate(found: dict[str, Any]) -> str:
    low, high = found["ci95"]
    return f"{found['mean']:.2f} [{low:.2f}, {high:.2f}]"


def as_table(record: dict[str, Any]) -> Table:
    """The numbers of one version, together and by role."""
    table = Table(title=f"policy {record['version']}", caption="mean and 95 % interval of first replies")
    for heading in ("suite", "who", *METRICS, "n"):
        table.add_column(heading)
    for name, found in record["suites"].items():
        for who, part in (("all", found), *found["by_role"].items()):
            table.add_row(name, who, *(_estimate(part[metric]) for metric in METRICS), str(part[METRICS[0]]["n"]))
    return table
