"""The eval stage: measures policy versions and, if the recipe has a gate, decides which of them go live.

After a refusal, LIVE does not move, and the trainer returns to the live version. Versions trained on top of a refused candidate are
neither measured nor accepted. A candidate is skipped if a newer one arrives before it is measured. The records of both contain the
reason.
"""

import logging
import threading
from dataclasses import asdict
from typing import Any

from clawctl.config import GateConfig, Recipe
from clawctl.errors import ClawError
from clawctl.eval.gate import Decision
from clawctl.eval.gating import Gating
from clawctl.eval.measuring import Measurements, Stopped, measure
from clawctl.eval.results import KEPT, as_tables, is_measured, is_open, read_record, write_record
from clawctl.eval.suites import CannotMeasure
from clawctl.eval.suites.loading import load_suites
from clawctl.eval.watching import Watching
from clawctl.printing import answers, print_json
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, changes, sole_worker
from clawctl.run.disk import retry_while_full
from clawctl.run.lineage import BUILT_ON, BY_EVAL, OVERTAKEN, is_undecided, read_lineage
from clawctl.run.policies import (
    LiveMoved,
    ensure_base_policy,
    list_versions,
    live_version,
    move_live,
    policy_names,
    read_moves,
    read_policy,
)
from clawctl.run.sharing import Share, begin_share, end_share, read_share

log = logging.getLogger("eval")


def evaluate(run: RunDir, recipe: Recipe, version: int | None, once: bool, as_json: bool) -> None:
    """Measure `version` and return; if it is None, follow the trainer. Raises ClawError if `version` cannot be measured."""
    stop = stop_on_signals()
    ensure_base_policy(run, recipe.model.path)
    if version is None:
        with sole_worker(run, "eval"):
            follow(run, recipe, stop, as_json, once)
        return
    record = measure_by_hand(run, recipe, version, stop)
    if as_json:
        print_json(record)
    else:
        for table in as_tables(record):
            answers().print(table)


def follow(run: RunDir, recipe: Recipe, stop: threading.Event, as_json: bool, once: bool) -> None:
    """Follow the trainer until stopped; with `once`, until nothing is left to do. Follow each policy that people have."""
    followers = {run.policy: Follower(run, recipe, stop, as_json)}
    for _ in changes([run.policies], stop):  # also yields every second
        if recipe.policies.per_person:
            for name in policy_names(run):
                if name not in followers:
                    followers[name] = Follower(run.of(name), _without_share(recipe), stop, as_json)
        for follower in followers.values():
            follower.catch_up(once)
        if once or stop.is_set():
            return


def _without_share(recipe: Recipe) -> Recipe:
    """The recipe for the policy of a key, whose sessions are too few to share them."""
    return recipe if recipe.gate is None else recipe.model_copy(update={"gate": recipe.gate.model_copy(update={"share": 0.0})})


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
    """Measures versions as the trainer publishes them, and moves LIVE as the gate and the traffic decide."""

    def __init__(self, run: RunDir, recipe: Recipe, stop: threading.Event, as_json: bool):
        self.run, self.recipe, self.stop = run, recipe, stop
        self.versions = Measurements(run, recipe, stop, as_json)
        self.gating = Gating(self.versions, recipe.gate) if recipe.gate is not None else None
        self.watching = Watching(self.versions)
        self.waiting_for = ""  # the last logged reason for waiting; each reason is logged once

    def catch_up(self, once: bool) -> None:
        """Work until nothing is left to do. Without `once`, a server that does not respond is tried again later."""
        try:
            while not self.stop.is_set() and self.step():
                pass
            self.waiting_for = ""
        except Stopped:
            return
        except CannotMeasure as error:
            if once:
                raise ClawError(f"cannot measure: {error}", error.fix) from error
            self._wait(str(error))

    def step(self) -> bool:
        """Make one measurement or decision. Returns False if none is due."""
        if self.recipe.eval.watch and self._rolled_back():
            return True
        if self.gating is None:
            return self._step_open()
        return self._step_gated(self.gating) if self.recipe.waits_for_gate else self._step_live(self.gating)

    def _step_open(self) -> bool:
        """Without a gate, measure every version, newest first, and decide nothing."""
        end_share(self.run)
        dead = set(read_lineage(self.run).dead())
        unseen = [v for v in list_versions(self.run) if v not in dead and read_record(self.run, v) is None]
        if unseen:
            self.versions.measured(unseen[-1])
        return bool(unseen)

    def _step_gated(self, gating: Gating) -> bool:
        """Measure the live version and the newest candidate, compare them, and promote or refuse the candidate."""
        live = live_version(self.run)
        if live is None:
            return False
        shared = read_share(self.run)
        if shared is not None:
            if self._may_go_live(shared.version, live):
                return self._step_share(shared, live, gating.gate)
            end_share(self.run)
        self.versions.measured(live)
        candidate = self._candidate(live)
        if candidate is None:
            return False
        self.versions.measured(candidate)
        if live_version(self.run) != live:
            return True  # LIVE has moved in the meantime: start again
        decision = gating.compare(candidate, live)
        if decision is None or not self._may_go_live(candidate, live):
            return True
        share = gating.gate.share
        if decision.promote and share:
            begin_share(self.run, candidate, share)
            self.versions.note(candidate, share={"measured": asdict(decision)})
            log.info("policy %d answers %.0f %% of the new sessions before it goes live", candidate, 100 * share)
        else:
            self._carry_out(candidate, live, decision)
        return True

    def _step_share(self, shared: Share, live: int, gate: GateConfig) -> bool:
        """Decide on the candidate that answers a share of the sessions."""
        decision = self.watching.judge_share(shared, live, gate)
        if decision is not None:
            self._carry_out(shared.version, live, decision)
            end_share(self.run)
        return decision is not None

    def _step_live(self, gating: Gating) -> bool:
        """Measure the live version, and compare it with earlier versions as they were measured while they were live.

        A version that is worse is rolled back to the newest of its ancestors that was measured and accepted, by the gate or by a
        person. A version chosen by a person stays live.
        """
        end_share(self.run)
        live, move = live_version(self.run), next(iter(read_moves(self.run)[::-1]), None)
        if live is None:
            return False
        is_new = self.versions.is_missing(live)
        record = self.versions.measured(live)
        if live_version(self.run) != live:
            return True
        if move is None or (move["to"], move["by"]) != (live, "train") or not record["suites"] or not is_open(record):
            return is_new
        accepted = gating.accepted_before(live)
        if not accepted:
            self.versions.decide(live, Decision(True, "no earlier version was measured"), "stays live")
            return True
        before, decision = max(accepted), gating.judge_live(record, accepted)
        if decision.promote or self._move_live(live, before, f"{BY_EVAL} {decision.reason}"):
            self.versions.decide(live, decision, "stays live", f"is rolled back to {before}")
        return True

    def _rolled_back(self) -> bool:
        """Roll back to the previous version if users complain more under the live one."""
        complaints = self.watching.complaints()
        if complaints is None:
            return False
        live, before, why = complaints
        if self._move_live(live, before, why):
            log.warning("policy %d is rolled back to %d: %s", live, before, why)
        return True

    def _carry_out(self, candidate: int, live: int, decision: Decision) -> None:
        # Move LIVE before writing the record. After a crash in between, the version counts as live, not as decided.
        if not decision.promote or self._move_live(live, candidate, "eval"):
            self.versions.decide(candidate, decision)

    def _move_live(self, live: int, version: int, by: str) -> bool:
        """Returns False if LIVE no longer names `live`."""
        try:
            retry_while_full(lambda: move_live(self.run, version, by=by, only_from=live), "policies/LIVE", self.stop)
        except LiveMoved:
            return False
        return True

    def _may_go_live(self, version: int, live: int) -> bool:
        """Whether LIVE and the lineage still are as they were when `version` was compared with `live`."""
        lineage = read_lineage(self.run)
        return lineage.live == live and version in lineage.above(lineage.tip, live) and is_undecided(self.run, version)

    def _candidate(self, live: int) -> int | None:
        """The newest undecided version above the live one.

        Records why the other versions are not measured: they were built on a dead version, or were overtaken.
        """
        lineage = read_lineage(self.run)
        dead = set(lineage.dead())
        for version in sorted(dead):
            if lineage.parents[version] in dead and is_undecided(self.run, version):
                reason = f"{BUILT_ON} {lineage.parents[version]}, which did not go live"
                self.versions.decide(version, Decision(False, reason, live))
        undecided = [v for v in lineage.above(lineage.tip, live) if is_open(read_record(self.run, v))]
        for version in undecided[:-1]:
            self.versions.decide(version, Decision(False, f"{OVERTAKEN} {undecided[-1]} before it was measured", live))
        return undecided[-1] if undecided else None

    def _wait(self, problem: str) -> None:
        if problem != self.waiting_for:
            log.warning("waiting: %s", problem)
            self.waiting_for = problem
