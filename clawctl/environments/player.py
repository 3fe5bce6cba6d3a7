"""Plays all attempts at many tasks, for training.

All state is on disk. A worker claims a task by its lock. It writes one line for each episode before the first call, and appends the
outcome when the episode is over. A killed worker leaves no outcome and no lock, so another worker plays the attempt again. No
attempt is lost, and none has two outcomes.
"""

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import orjson

from clawctl.config.environment import is_stage_of_up
from clawctl.environments import EPISODE_S, Environment, Outcome, Split, Task, draw_tasks
from clawctl.environments.code_version import version_of
from clawctl.environments.episode import graded, refusal_of
from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed, proxy_for
from clawctl.run.backlog import Backlog
from clawctl.run.capabilities import episode_secret, issue
from clawctl.run.directory import RunDir, claimed
from clawctl.run.endings import MAX_TRIES
from clawctl.run.endpoint import Endpoint
from clawctl.run.episodes import EpisodeSpec, Played, SpecFile, content_hash
from clawctl.run.feedback import FeedbackFile
from clawctl.run.keys import OWN
from clawctl.run.outcomes import TRUNCATED, SessionOutcome, by_turn, scoped_id

log = logging.getLogger("play")

_LOOK_S = 0.5  # interval between checks of other workers' progress and of the stop signal
_SERVER_WAIT_S = 600.0  # the longest wait for a restarting server
_LONGEST_LOG = 16_000  # characters kept of a verdict's log
_PLAIN = "!#$&'()*+,/:;=?@[] "  # characters of a task's name that a header may hold; all others are percent-encoded


@dataclass(frozen=True)
class Plan:
    """The episodes to play: each task `attempts` times. The same arguments give the same plan, on any host and at any time."""

    name: str  # the environment's name as the user typed it
    environment: Environment
    tasks: Sequence[Task]
    attempts: int
    seed: int
    round: int = 0  # a later round plays the same tasks again; its episodes form other groups
    options: Mapping[str, Any] = field(default_factory=dict)  # the environment's options; with others, it is another plan
    sampling: dict[str, Any] = field(default_factory=dict)  # of the agent's calls, for the record
    key: str = OWN  # name of the API key whose turns the episodes are

    @cached_property
    def version(self) -> str:
        """The environment's version: its attribute `version`, or a hash of its code, whatever its comments."""
        return version_of(self.environment, self.name)

    @cached_property
    def hashes(self) -> list[str]:
        """Hashes of the tasks' contents."""
        return [content_hash(task.spec) for task in self.tasks]

    @cached_property
    def id(self) -> str:
        """The plan's id: "e" and ten hexadecimal digits."""
        tasks = [(task.id, task.split, task.group, hashed) for task, hashed in zip(self.tasks, self.hashes, strict=True)]
        named = [self.name, self.version, tasks, self.attempts, self.seed, self.round, *([self.options] if self.options else [])]
        return f"e{blake2b(orjson.dumps(named, default=str), digest_size=5).hexdigest()}"


def make_plan(
    environment: Environment, name: str, count: int, attempts: int, seed: int, round_: int = 0, split: Split = "train"
) -> Plan:
    """Make a plan. Raises ClawError (exit code 2) if the environment has no tasks for the split, or two tasks share an id."""
    tasks = draw_tasks(environment, name, split, count, seed)
    if not tasks:
        raise ClawError(f"{name} has no tasks for {split!r}", f"return some from tasks({split!r}, count, seed)", 2)
    if repeated := [task_id for task_id, times in Counter(task.id for task in tasks).items() if times > 1]:
        raise ClawError(f"{name} has several tasks with the id {repeated[0]!r}", "give each task an id of its own", 2)
    return Plan(name, environment, tasks, attempts, seed, round_)


@dataclass(slots=True)
class Summary:
    """The results of the episodes that this process and other workers played."""

    endings: Counter[str] = field(default_factory=Counter)  # {"done": 14, "sandbox": 2}
    rewards: list[float] = field(default_factory=list)
    by_task: dict[int, list[float]] = field(default_factory=dict)  # the rewards of each task
    settled: Counter[int] = field(default_factory=Counter)  # settled attempts at each task
    running: int = 0

    def add(self, number: int, outcome: SessionOutcome) -> None:
        self.endings[outcome.ending or outcome.status] += 1
        self.settled[number] += 1
        if outcome.reward is not None:
            self.rewards.append(outcome.reward)
            self.by_task.setdefault(number, []).append(outcome.reward)

    def solved(self, attempts: int) -> tuple[int, float]:
        """The number of finished tasks that have a reward, and the share of them that some attempt solved (reward above 0).

        A task is finished once `attempts` attempts are settled. The share is pass@k for k attempts.
        """
        whole = [rewards for number, rewards in self.by_task.items() if self.settled[number] >= attempts]
        return len(whole), sum(max(rewards) > 0 for rewards in whole) / max(1, len(whole))

    @property
    def text(self) -> str:
        """The summary as text: "16 episodes: 14 done, 2 sandbox; mean reward 0.25"."""
        endings = ", ".join(f"{count} {ending}" for ending, count in sorted(self.endings.items()))
        reward = f"; mean reward {sum(self.rewards) / len(self.rewards):.2f}" if self.rewards else ""
        return f"{sum(self.endings.values())} episodes: {endings or 'none'}{reward}"


class Player:
    """One worker of a plan. Any number of workers may run, on any host that can reach the run directory."""

    def __init__(
        self,
        run: RunDir,
        plan: Plan,
        server: Callable[[], Endpoint],
        parallel: int,
        stop: threading.Event,
        redact: Callable[[str], str] = str,
        backlog: Backlog | None = None,
    ) -> None:
        """`server` is called for each episode, because a restarted server may have another address. With a `backlog`, new episodes
        wait while the trainer has enough turns."""
        self.summary, self.attempts, self.total = Summary(), plan.attempts, len(plan.tasks) * plan.attempts
        self._run, self._plan, self._server, self._stop = run, plan, server, stop
        self._slots = asyncio.Semaphore(parallel)
        self._played = Played(run, plan.id)
        self._secret, self._specs, self._outcomes = episode_secret(run), SpecFile(run), FeedbackFile(run.feedback)
        self._redact, self._backlog = redact, backlog
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._counted: set[tuple[int, int]] = set()  # attempts that are in the summary
        self._began = time.time()
        self._refused = dict[int, str]()  # why a task is left out, by its number
        self._claimed = 0  # attempts at claimed tasks that are not over: they run or wait for a slot

    async def play(self, wait_for_others: bool = True) -> Summary:
        """Play the rest of the plan until every attempt is settled or the worker is stopped.

        A stopped worker leaves its running episodes without an outcome. Without `wait_for_others`, tasks that other workers are
        playing are left to them. Raises ClawError.
        """
        playing = asyncio.create_task(self._play(wait_for_others))
        while not playing.done():
            await asyncio.wait({playing}, timeout=_LOOK_S)
            if self._stop.is_set():
                playing.cancel()
        try:
            await playing
        except asyncio.CancelledError:
            log.info("stopped; the running episodes have no outcome and will be played again")
        except ExceptionGroup as failed:  # the first exception cancelled the other tasks
            raise failed.exceptions[0] from None
        return self.summary

    async def _play(self, wait_for_others: bool) -> None:
        self._add_settled()
        left = [number for number in range(len(self._plan.tasks)) if not self._is_settled(number)]
        while left and not self.training_has_ended():
            busy: list[int] = []
            async with asyncio.TaskGroup() as groups:
                for number in left:
                    await self._wait_for_capacity()
                    if self.training_has_ended():
                        log.info("the trainer has made all its updates (train.max_steps); no further episode starts")
                        break
                    lock = self._claim(number)
                    if lock is None:
                        busy.append(number)
                    else:
                        self._claimed += self._plan.attempts
                        groups.create_task(self._group(number, lock))
            self._add_settled()
            left = [number for number in busy if not self._is_settled(number)] if wait_for_others else []
            if left:
                await asyncio.sleep(_LOOK_S)
        if all(map(self._is_settled, range(len(self._plan.tasks)))):
            for number in range(len(self._plan.tasks)):  # a worker that still holds one of these locks finds its task settled
                self._run.lock(self._lock_name(number)).unlink(missing_ok=True)

    async def _wait_for_capacity(self) -> None:
        """Wait until a new episode may begin."""
        logged = False
        async with self._slots:  # queued behind the episodes that already wait for a slot
            while self._backlog is not None and not self.training_has_ended() and (why := self._backlog.is_full(self._claimed)):
                if not logged:
                    log.info("waiting: %s", why)
                logged = True
                await asyncio.sleep(_LOOK_S)

    def training_has_ended(self) -> bool:
        """Whether training is over: `clawctl up` started this worker together with a trainer that takes no more turns."""
        return self._backlog is not None and is_stage_of_up() and self._backlog.has_ended()

    def _add_settled(self) -> None:
        """Add the attempts that any worker has settled since the last call."""
        self._played.poll()
        for number, attempts in self._played.tasks.items():
            for attempt, outcome in attempts.settled.items():
                if (number, attempt) not in self._counted:
                    self._counted.add((number, attempt))
                    if self._backlog is not None and outcome.created_at >= self._began:
                        self._backlog.ended(outcome.session_id)
                    self.summary.add(number, outcome)

    def _is_settled(self, number: int) -> bool:
        return len(self._played.of(number).settled) >= self._plan.attempts

    def _claim(self, number: int) -> ExitStack | None:
        """Take a task's lock. Returns None if another worker holds it."""
        with ExitStack() as stack:
            if stack.enter_context(claimed(self._run, self._lock_name(number))):
                return stack.pop_all()
        return None

    def _lock_name(self, number: int) -> str:
        return f"play-{self._plan.id}-{number}"

    async def _group(self, number: int, lock: ExitStack) -> None:
        with lock:
            self._add_settled()  # under the lock, because another worker may have played the task in the meantime
            todo = [attempt for attempt in range(self._plan.attempts) if attempt not in self._played.of(number).settled]
            self._claimed -= self._plan.attempts - len(todo)
            if todo:
                await self._check(number)
            async with asyncio.TaskGroup() as attempts:
                for attempt in todo:
                    attempts.create_task(self._attempt(number, attempt))
            self._add_settled()

    async def _check(self, number: int) -> None:
        """Ask the environment whether it refuses the task, before the first episode."""
        task = self._plan.tasks[number]
        async with self._slots:
            reason = await refusal_of(self._plan.environment, task)
        if reason is not None:
            self._refused[number] = reason
            log.warning("the task %s is left out: %s", task.id, reason)

    async def _attempt(self, number: int, attempt: int) -> None:
        """Play episodes until one settles the attempt."""
        settled, tries = False, self._played.of(number).tries.get(attempt, 0)
        while not settled:
            async with self._slots:
                outcome = await self._episode(number, attempt, tries)
            settled, tries = outcome.settled, tries + 1
            self._claimed -= settled
            if outcome.ending == "server":
                await self._server_again()

    async def _episode(self, number: int, attempt: int, tries: int) -> SessionOutcome:
        task, plan, now = self._plan.tasks[number], self._plan, time.time()
        limit_s = float(getattr(plan.environment, "episode_s", EPISODE_S))
        spec = EpisodeSpec(
            session_id=f"{plan.id}-{number}-{attempt}-{secrets.token_hex(4)}", created_at=now, plan=plan.id, environment=plan.name,
            version=plan.version, task_id=quote(task.id, safe=_PLAIN), task_hash=plan.hashes[number], split=task.split,
            seed=plan.seed, number=number, group_id=task.group or f"{plan.id}-{number}", attempt=attempt, attempts=plan.attempts,
            attempt_try=tries, deadline=now + limit_s, sampling=plan.sampling, worker=self._worker, key=plan.key,
        )  # fmt: skip
        endpoint = episode_endpoint(self._server(), issue(self._secret, spec), spec)
        self._specs.append(spec)
        self.summary.running += 1
        began = time.monotonic()
        try:
            if (reason := self._refused.get(number)) is not None:
                outcome = Outcome(status="failed", ending="verifier", log=reason)
            else:
                outcome = await graded(plan.environment, task, endpoint, limit_s)
        finally:
            self.summary.running -= 1
        if outcome.status == "failed":  # Ctrl-C also ends agents and browsers, perhaps before this worker notices it
            await asyncio.sleep(_LOOK_S)
            if self._stop.is_set():
                raise asyncio.CancelledError  # `play` stops the other episodes as well
        ended = self._ended(spec, outcome, time.monotonic() - began)
        self._outcomes.append(ended)
        self._add_settled()
        log.debug("episode %s: %s, reward %s", spec.session_id, ended.ending, ended.reward)
        return ended

    def _ended(self, spec: EpisodeSpec, outcome: Outcome, seconds: float) -> SessionOutcome:
        shown_log = None if outcome.log is None else self._redact(outcome.log[-_LONGEST_LOG:])
        return SessionOutcome(
            feedback_id=secrets.token_hex(12), created_at=time.time(), key=spec.key,
            session_id=scoped_id(spec.key, spec.session_id), status=outcome.status,
            reward=None if outcome.reward is None else float(outcome.reward),
            parts={name: float(value) for name, value in outcome.parts.items()},
            steps=by_turn(outcome.steps), ending=outcome.ending,
            truncated=outcome.ending in TRUNCATED, log=shown_log, timings={"play": round(seconds, 3)},
            settled=outcome.status == "done" or outcome.ending == "unverified" or spec.number in self._refused
            or spec.attempt_try + 1 >= MAX_TRIES,
            episode=asdict(spec),
            hint=None if outcome.hint is None else self._redact(outcome.hint), hint_place=outcome.hint_place,
            agents={
                name: {"reward": float(agent.reward), "turns": list(by_turn(dict.fromkeys(agent.turns, 0.0)))}
                for name, agent in outcome.agents.items()
            },
            verdict=outcome.verdict,
        )  # fmt: skip

    async def _server_again(self) -> None:
        """Wait until the server answers, so that its restart does not use up the episodes' tries. Raises ClawError."""
        began, warned = time.monotonic(), False
        while not await is_ready(self._server()):
            if not warned:
                log.warning("the server does not answer; waiting for it")
            warned = True
            if time.monotonic() - began > _SERVER_WAIT_S:
                raise ClawError("the server has not answered for ten minutes", "start `clawctl serve --intercept` on this run")
            await asyncio.sleep(_LOOK_S)


def episode_endpoint(server: Endpoint, capability: str, spec: EpisodeSpec) -> Endpoint:
    """The address at which an episode's agent calls the model.

    The capability is part of the URL, and is also the key: some agents accept only one of the two.
    """
    headers = {"X-Session-Id": spec.session_id, "X-Task-Id": spec.task_id, "X-Group-Id": quote(spec.group_id, safe=_PLAIN)}
    url = f"{server.url.removesuffix('/v1')}/e/{capability}/v1"
    return replace(server, url=url, api_key=capability, headers={**server.headers, **headers}, deadline=spec.deadline)


async def is_ready(server: Endpoint) -> bool:
    """Whether the server answers. Raises ClawError if it captures nothing, because the outcome would have no turns to apply to."""
    url = server.url.removesuffix("/v1")
    try:
        async with Client(url, server.api_key, proxy=proxy_for(url)) as client:
            ready = await client.request("/health/ready", timeout_s=10.0, method="GET")
            health = orjson.loads((await client.request("/health", timeout_s=10.0, method="GET")).body)
    except (RequestFailed, ValueError):
        return False
    if health.get("capture", {}).get("on") is False:
        problem = f"the server at {url} does not capture conversations, so no episode can be trained"
        raise ClawError(problem, "start `clawctl serve --intercept`")
    return ready.status == 200
