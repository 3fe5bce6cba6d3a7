"""The run in memory. A thread follows its files, so that no page waits for the disk or for another server."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from clawctl.inspect.better import judge_progress
from clawctl.inspect.episodes import Episode, EpisodeReader, PlayedPlan, plans_of
from clawctl.inspect.health import read_state, training
from clawctl.inspect.joined import Joined, Rows
from clawctl.inspect.policies import describe_policies
from clawctl.inspect.rows import TurnReader, read_open
from clawctl.inspect.sessions import SessionTable
from clawctl.inspect.web.text_search import TextIndex, request_of, title_of
from clawctl.run.directory import RunDir, changes, published
from clawctl.run.lines import CountedLines
from clawctl.run.policies import policy_names, read_moves
from clawctl.run.progress import Progress, read_progress
from clawctl.run.rows import DEFAULT_POLICY, Feedback

T = TypeVar("T")

_log = logging.getLogger(__name__)
_POLL_S = 1.0
_MAX_DERIVED = 24  # values, some with 4 bytes for each turn
_SHARE = 4  # the thread rests this many times as long as it has worked
_IDLE_SHARE, _IDLE_S = 200, 10.0  # the same while no file changes, and the shortest such rest


@dataclass(frozen=True, slots=True, eq=False)
class RunSnapshot:
    """The run at one moment, with the versions of one policy. Pages only read it, except that they add values computed from its
    rows to `derived`."""

    at: float
    joined: Joined
    sessions: SessionTable  # as in `inspect sessions`, but newest first
    policies: list[dict[str, Any]]
    moves: list[dict[str, Any]]
    health: dict[str, Any]
    better: dict[str, Any]
    episodes: list[Episode]  # by their start
    plans: list[PlayedPlan]  # the plan played last comes last
    problems: list[str]
    derived: dict[Any, Any] = field(default_factory=dict)
    names: Sequence[str] = (DEFAULT_POLICY,)  # of all policies of the run
    policy: str = DEFAULT_POLICY  # to which `policies`, `moves`, `better` and parts of `health` belong

    @property
    def chosen(self) -> str | None:
        """The policy, for links. None if the run has no other."""
        return self.policy if len(self.names) > 1 else None

    @property
    def own_rows(self) -> Rows:
        """The turns that the policy answered."""
        return self.rows.where(lambda row: row.policy == self.policy)

    @property
    def rows(self) -> Rows:
        return self.joined.rows

    @property
    def shards(self) -> dict[Path, tuple[int, int]]:
        """The readable turn shards, each with a stamp that changes if the file is published again."""
        return self.joined.turns.stamps

    def once(self, name: Any, make: Callable[[], T]) -> T:
        """The result of `make`, computed once per name as long as the rows do not change."""
        value = self.derived.get(name, self)
        if value is self:
            value = make()
            if len(self.derived) >= _MAX_DERIVED:
                self.derived.clear()
            self.derived[name] = value
        return value  # type: ignore[no-any-return]


class FollowedRun:
    """Keeps `snapshot` up to date until `stop`."""

    def __init__(self, run: RunDir, prepare: Callable[[RunSnapshot], object] = lambda snapshot: None) -> None:
        self._prepare = prepare  # derives data from each snapshot before pages see it
        self.run, self.text_index = run, TextIndex()
        self.labels: dict[str, Feedback] = {}  # given on these pages and not yet read from the disk
        self._turns, self._captured, self._episodes = TurnReader(run), CountedLines(run.captures), EpisodeReader(run)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self.is_ending: Callable[[], bool] = lambda: False  # whether the server of the pages is told to stop
        self.progress: Progress | None = None  # of the running step
        self.changed = 0  # the number of changes so far: pages that were made before the last one are out of date
        self.snapshot = self._take_snapshot(None)
        self._of_policies: tuple[RunSnapshot, dict[str, RunSnapshot]] = self.snapshot, {}

    def of(self, policy: str) -> RunSnapshot:
        """The snapshot with the versions of one policy, which are read when a page first shows them. Raises KeyError."""
        seen = self.snapshot
        if policy == seen.policy:
            return seen
        if policy not in seen.names:
            raise KeyError(policy)
        if self._of_policies[0] is not seen:
            self._of_policies = seen, {}
        made = self._of_policies[1]
        if policy not in made:
            run, problems = self.run.of(policy), seen.problems.copy()
            policies = describe_policies(run, problems)
            better = judge_progress(run, seen.rows, policies, problems)
            newest = max((row["version"] for row in policies), default=None)
            health = {"live_version": better["live"], "newest_version": newest, "training": training(run, problems)}
            made[policy] = replace(
                seen, policy=policy, policies=policies, moves=read_moves(run), better=better, health={**seen.health, **health},
                problems=list(dict.fromkeys(problems)),
            )  # fmt: skip
        return made[policy]

    def start(self) -> None:
        for target in (self._follow, self._read_ahead):
            thread = threading.Thread(target=target, name=target.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def refresh(self) -> None:
        """Read the disk now."""
        with self._lock:
            self.snapshot = self._take_snapshot(self.snapshot)
            self.changed += 1

    def _follow(self) -> None:
        run = self.run
        folders = [
            run.captures, run.episodes, run.feedback, run.trajectories, run.verdicts, run.policies, run.train, run.eval, run.notes,
            run.logs,
        ]  # fmt: skip
        self._prepare(self.snapshot)
        stamps, due = _stamps(run), time.monotonic() + _IDLE_S
        for _ in changes([folder for folder in folders if folder.exists()], self._stop, _POLL_S, step_ms=100):
            stamps, before, began, progress = _stamps(run), stamps, time.monotonic(), self.progress
            self.progress = read_progress(run)
            self.changed += self.progress != progress
            if stamps == before and began < due:
                continue
            try:
                self._read_again(stamps != before)
            except Exception:  # noqa: BLE001 - the edge of a thread: the pages keep what they have, and the log has the error
                _log.exception("the run could not be read")
            took = time.monotonic() - began
            due = time.monotonic() + max(_IDLE_S, _IDLE_SHARE * took)
            self._stop.wait(max(0.2, _SHARE * took))

    def _read_again(self, is_new: bool) -> None:
        """Read the disk. Without a change of a file, only what no file says may be new: whether the stages are running."""
        with self._lock:
            before, self.snapshot = self.snapshot, self._take_snapshot(self.snapshot)
            self.changed += is_new or before.health["stages"] != self.snapshot.health["stages"]

    def _read_ahead(self) -> None:
        done: object = None
        while not self._stop.wait(0.2):
            shards = self.snapshot.shards
            if shards is not done:
                self.text_index.read_ahead(shards, self._stop)
                done = shards

    def _take_snapshot(self, before: RunSnapshot | None) -> RunSnapshot:
        """The current state of the run."""
        joined = self._turns.poll()
        problems = joined.problems.copy()
        policies = describe_policies(self.run, problems)
        if before is not None and before.joined is joined:
            sessions, derived = before.sessions, before.derived
        else:
            sessions, derived = SessionTable(joined, for_pages=True), {}
            self.text_index.follow(joined.turns.stamps)
        health = read_state(self.run, joined, self._captured)
        health["open"] = read_open(self.run, problems)
        better = judge_progress(self.run, joined.rows, policies, problems)
        for turn_id, label in list(self.labels.items()):
            row = joined.decided(turn_id)
            if row is None or (row.rating is not None and row.rating.created_at >= label.created_at):
                del self.labels[turn_id]
        episodes = self._episodes.poll()
        snapshot = RunSnapshot(
            time.time(), joined, sessions, policies, read_moves(self.run), health, better, episodes,
            plans_of(episodes, time.time()), list(dict.fromkeys([*health["problems"], *problems])), derived, policy_names(self.run),
        )  # fmt: skip
        if before is not None:  # `_follow` prepares the first snapshot, so that the first page does not wait
            self._prepare(snapshot)
        return snapshot

    # ---- text ------------------------------------------------------------------------------------------------------------

    def titles(self, turn_ids: Iterable[str]) -> dict[str, str]:
        """The first words of conversations, by the id of their first turn."""
        joined, titles, left = self.snapshot.joined, dict[str, str](), list[int]()
        names = list(turn_ids)
        for turn_id, index in zip(names, joined.positions(names).tolist(), strict=True):
            if index >= 0 and (title := self.text_index.titles(joined.path_of(index)).get(turn_id)) is not None:
                titles[turn_id] = title
            elif index >= 0:
                left.append(index)
        begins = joined.parents_of(np.array(left, np.int64)) == 0
        for indices, is_first in ((np.array(left, np.int64)[begins], True), (np.array(left, np.int64)[~begins], False)):
            wanted = ("turn_id", "response", "next_state", *(["messages"] if is_first else []))
            for row in joined.turns.read(joined.place[indices], wanted).values():
                titles[row["turn_id"]] = title_of(row, request_of(row["messages"]) if is_first else None)
        return titles

    def texts(self, turn_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The messages, tools, answer and next state of turns. Turns that have been removed are omitted."""
        joined = self.snapshot.joined
        index = joined.positions(list(turn_ids))
        rows = joined.turns.read(joined.place[index[index >= 0]], ("turn_id", "messages", "tools", "response", "next_state"))
        return {row["turn_id"]: row for row in rows.values()}


def _stamps(run: RunDir) -> list[tuple[str, int, int]]:
    """Values that change with each change of the run. Whole files are published into a folder, which has the time of the last one.
    To others, lines are appended."""
    growing = [path for folder in (run.captures, run.feedback, run.episodes) for path in published(folder, ".jsonl")]
    single = [run.server, run.position, *sorted(run.logs.glob("*.log"))]
    whole = [run.trajectories, run.verdicts, run.quarantine, run.notes, *run.notes.glob("*/")]
    for policy_run in map(run.of, policy_names(run)):
        single += [policy_run.steps, policy_run.feed_counts, policy_run.refusals]
        whole += [policy_run.ledger, policy_run.policies, policy_run.eval]
    stamps = []
    for path in (*growing, *single, *whole):
        with suppress(FileNotFoundError):
            status = path.stat()
            stamps.append((path.name, status.st_mtime_ns, status.st_size))
    return stamps
