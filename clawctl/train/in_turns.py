"""One trainer for the policies of a run (`policies.per: key`).

Policies take turns: in each round, a policy with a full batch makes one step, from its own checkpoint and with its own optimizer
state. The base model stays loaded, and only the adapter is exchanged. A kill is resumed for each policy like that of one policy.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

from clawctl.config import Recipe
from clawctl.run.directory import RunDir, changes
from clawctl.run.keys import begin_policies
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import check_policy, live_version, policy_names, read_policy
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.train.going_back import note_start
from clawctl.train.loop import Session, open_session, resume
from clawctl.train.pauses import Pauses
from clawctl.train.remote_teacher import open_remote_teacher
from clawctl.train.setback import start_of
from clawctl.train.trackers import Tracker, open_trackers
from clawctl.trainers import StackingTrainer, Trainer

log = logging.getLogger("clawctl.train")


def train_in_turns(
    run: RunDir, recipe: Recipe, trainer: Trainer, stop: threading.Event, once: bool, pauses: Pauses | None = None
) -> None:
    """Train all policies of the run until `stop` or, with `once`, until none has a full batch. Raises ClawError."""
    with ExitStack() as leaving:
        turns = _Turns(run, recipe, trainer, leaving, pauses)
        for _ in changes([run.trajectories, run.verdicts, run.feedback, run.policies, run.eval], stop):
            begin_policies(run)
            while not stop.is_set() and sum(turns.take(name, stop) for name in policy_names(run)):
                pass
            if once or stop.is_set():
                break
            trainer.idle()
        turns.log_summaries()


class _Turns:
    """The sessions of the policies, of which the trainer holds the weights of one."""

    def __init__(self, run: RunDir, recipe: Recipe, trainer: Trainer, leaving: ExitStack, pauses: Pauses | None = None) -> None:
        self._run, self._recipe, self._trainer, self._leaving, self._pauses = run, recipe, trainer, leaving, pauses
        self._teacher = open_remote_teacher(recipe.train)
        self._sessions: dict[str, Session] = {}
        self._trackers: dict[str, Sequence[Tracker]] = {}
        self._held: Session | None = None  # whose weights the trainer has, at the session's version

    def take(self, name: str, stop: threading.Event) -> bool:
        """Let a policy make a step if it has a full batch. Returns whether it tried."""
        if stop.is_set():
            return False
        session = self._session(name)
        if not session.is_due():
            return False
        shared = self._stand(session.run)
        if self._held is not session or session.shared != shared:
            start = start_of(session.run, self._recipe)
            self._trainer.resume(start.version, start.checkpoint, start.weights)
            self._held, session.shared = session, shared
        tried = session.batches
        moved = session.train(self._trackers[name], stop, once=True, most=1)
        return moved or session.batches > tried

    def _session(self, name: str) -> Session:
        """The session of a policy. A new one if the version from which its training continues has changed."""
        session, policy_run = self._sessions.get(name), self._run.of(name)
        if session is not None and read_lineage(policy_run).tip == session.version and not session.moved:
            return session
        if session is None:
            self._trackers[name] = open_trackers(policy_run, self._recipe.train, read_lineage(policy_run).newest)
            for tracker in self._trackers[name]:
                self._leaving.callback(tracker.finish)
        shared = self._stand(policy_run)
        if not self._sessions:
            session = self._held = resume(policy_run, self._recipe, self._trainer, self._teacher, self._pauses)
        else:
            model = next(iter(self._sessions.values())).model
            start = start_of(policy_run, self._recipe)
            note_start(policy_run, start)
            session = open_session(policy_run, self._recipe, self._trainer, start, model, self._teacher, self._pauses)
        self._sessions[name], session.shared = session, shared
        return session

    def _stand(self, policy_run: RunDir) -> int | None:
        """Choose the half of the adapter that is trained (`shared+` in `policies.per`). Returns the shared version below a person's
        policy. Raises ClawError."""
        if not self._recipe.policies.is_stacked:
            return None
        trainer, shared = cast(StackingTrainer, self._trainer), self._run.of(DEFAULT_POLICY)
        version = None if policy_run.policy == DEFAULT_POLICY else live_version(shared)
        if version is None:
            trainer.train_half(0, None)
            return None
        check_policy(shared, version)
        trainer.train_half(1, shared.version_folder(version) if read_policy(shared, version).kind == "adapter" else None)
        return version

    def log_summaries(self) -> None:
        for name, session in self._sessions.items():
            log.info("policy %s: %s", name, session.feed.summary())
