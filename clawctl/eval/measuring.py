"""Measures policy versions: their records, further tasks for a comparison, and what it costs.

All state is on disk, except the number of failures.
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

from clawctl.asking import counted_calls
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.eval.gate import BEST, Decision, Scores, Tested
from clawctl.eval.results import KEPT, in_short, is_measured, is_open, read_record, scores, settings_of, write_record
from clawctl.eval.suites import CannotMeasure, Measured
from clawctl.eval.suites.loading import LoadedSuite, load_suites
from clawctl.eval.trial import ROUND, add_comparisons, add_spent, add_values, asked_so_far
from clawctl.run.directory import RunDir
from clawctl.run.disk import retry_while_full
from clawctl.run.endpoint import Endpoint, key_for_another_server, own_endpoint
from clawctl.run.policies import PolicyId

log = logging.getLogger("eval")

Done = TypeVar("Done")
_TRIES = 3  # after this many failures on a responding server, a version counts as unmeasurable


class Stopped(Exception):
    """A stop was requested during a measurement. Nothing was written."""


class Measurements:
    """The records of a run's versions, which are measured when they are needed."""

    def __init__(self, run: RunDir, recipe: Recipe, stop: threading.Event, as_json: bool) -> None:
        self.run, self.recipe, self.stop, self.as_json = run, recipe, stop, as_json
        self.suites = load_suites(recipe.eval, run, recipe)
        self.failures: Counter[int] = Counter()

    def read(self, version: int) -> dict[str, Any]:
        """The record of a version, also if it was not measured."""
        return read_record(self.run, version) or _unmeasurable(self.run, self.recipe, version, "it has no record")

    def is_comparable(self, record: dict[str, Any] | None) -> bool:
        """Whether the record has numbers that are comparable for this recipe."""
        return is_measured(record, self.recipe.eval)

    def is_missing(self, version: int) -> bool:
        """Whether a version is still to be measured: it has no comparable numbers, and has not failed too often."""
        record = read_record(self.run, version)
        return record is None or not (self.is_comparable(record) or self.failures[version] >= _TRIES)

    def measured(self, version: int) -> dict[str, Any]:
        """The record of `version` with numbers that are comparable for this recipe, measured now if necessary.

        It has no numbers if the server could not serve the version in several attempts. Raises CannotMeasure before that.
        """
        record = read_record(self.run, version)
        if record is not None and not self.is_missing(version):
            return record
        fresh = self._measure(version)
        if record is not None:
            fresh |= {name: record[name] for name in KEPT if name in record and name != "decision"}
        if record is not None and not is_open(record):
            fresh["decision"] = record["decision"]
        self.write(fresh)
        log.info("policy %d: %s", version, in_short(fresh))
        self._print_record(fresh)
        return fresh

    def measured_again(self, version: int) -> Scores:
        """The second measurement of a version, made now if it is missing or used other tasks.

        If the server cannot serve the version, returns the first measurement. Raises CannotMeasure if it may still succeed later.
        """
        record = self.read(version)
        again = record.get("again")
        if again is not None and is_measured(again, self.recipe.eval):
            return scores(again)
        if again is not None and not again["suites"] and again["settings"] == settings_of(self.recipe.eval):
            return scores(record)
        fresh = self._measure(version)
        record["again"] = {name: fresh[name] for name in ("settings", "suites", "at", "values")}
        self.write(record)
        log.info("policy %d measured again as an anchor: %s", version, in_short(fresh))
        return scores(fresh) if fresh["suites"] else scores(record)

    def _measure(self, version: int) -> dict[str, Any]:
        """A new record of `version`. After _TRIES failures it has no numbers. Raises CannotMeasure before that."""
        try:
            return measure(self.run, self.recipe, self.suites, version, self.stop)
        except CannotMeasure as error:
            if not self.has_given_up(version, error):
                raise
            return _unmeasurable(self.run, self.recipe, version, str(error))

    def has_given_up(self, version: int, error: CannotMeasure) -> bool:
        """Whether `version` has failed _TRIES times. An unreachable server does not count as a failure."""
        self.failures[version] += not error.unreachable
        return not error.unreachable and self.failures[version] >= _TRIES

    def note(self, version: int, **fields: Any) -> None:
        """Add fields to the record of a version, and write it if it changed."""
        record = self.read(version)
        if any(record.get(name) != value for name, value in fields.items()):
            self.write({**record, **fields})

    def decide(self, version: int, decision: Decision, accepted: str = "goes live", refused: str = "does not go live") -> None:
        """Write the decision on a version to its record, and log it."""
        record = self.read(version)
        record["decision"] = asdict(decision)
        self.write(record)
        log.info("policy %d %s: %s", version, accepted if decision.promote else refused, decision.reason)
        self._print_record(record)

    def ask_for_more(self, candidate: int, tested: Sequence[Tested], exhausted: set[str]) -> None:
        """Make one more round of comparisons for the open rows. Adds suites that have no more tasks to `exhausted`.

        Raises CannotMeasure and Stopped.
        """
        wanting = [test for test in tested if test.evidence.verdict == "open" and test.more]
        for suite in self.suites:
            versions = sorted({(test.version, test.what) for test in wanting if test.row.suite == suite.name})
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
        endpoints = [reachable(self.run, self.recipe, other) for other in (candidate, version)]
        comparisons = run_until(suite.compare(endpoints[0], endpoints[1], begin, ROUND), self.stop)
        add_comparisons(record, suite.name, version, comparisons, ROUND)
        self.write(record)
        return bool(comparisons)

    def _measure_more(self, suite: LoadedSuite, candidate: int, references: Sequence[tuple[int, str]]) -> bool:
        """Measure the candidate and its references on further tasks. All of them get the same tasks.

        References that lack some of the candidate's tasks catch up first. Returns False if no more tasks exist.
        """
        tasks = _tasks(read_record(self.run, candidate) or {}, suite.name)
        outdated = [reference for reference in references if not tasks <= _tasks(self._part(*reference)[1], suite.name)]
        count = len(tasks) if outdated else len(tasks) + ROUND
        came = False
        for version, what in outdated or [(candidate, ""), *references]:
            record, part = self._part(version, what)
            endpoint = reachable(self.run, self.recipe, version)
            measured = run_until(suite.measure_more(endpoint, count, _tasks(part, suite.name)), self.stop)
            came = add_values(part, suite.name, measured) or came
            self.write(record)
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
                    self.write(record)

    def write(self, record: dict[str, Any]) -> None:
        retry_while_full(lambda: write_record(self.run, record), f"eval/{record['version']}.json", self.stop)

    def _print_record(self, record: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps({key: record[key] for key in ("version", "suites", "decision")}), flush=True)


def measure(run: RunDir, recipe: Recipe, suites: Sequence[LoadedSuite], version: int, stop: threading.Event) -> dict[str, Any]:
    """Run all suites against `version` and return the record, without writing it.

    Raises CannotMeasure and Stopped.
    """
    endpoint = reachable(run, recipe, version)
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


def reachable(run: RunDir, recipe: Recipe, version: int) -> Endpoint:
    """The endpoint of a version to measure. Raises CannotMeasure."""
    if recipe.eval.endpoint is None:
        try:
            return own_endpoint(run, recipe, version)
        except ClawError as error:
            raise CannotMeasure(error.problem, unreachable=True, fix=error.fix) from error
    return Endpoint(
        recipe.eval.endpoint.rstrip("/"),
        key_for_another_server(run, recipe),
        f"{recipe.model_name}@{PolicyId(run.policy, version)}",
    )


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
