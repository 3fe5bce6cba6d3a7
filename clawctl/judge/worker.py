"""`clawctl judge`: follows trajectories, judges each turn that a step could use, and publishes one verdict shard per turn shard."""

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.judge.client import JudgeUsage
from clawctl.judge.fitness import check_fitness
from clawctl.judge.journal import Journal
from clawctl.judge.panel import Panel, gather_all
from clawctl.judge.protocol import Evidence, read_evidence
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, changes, claimed, is_published, published, quarantine, remove
from clawctl.run.disk import is_temporary, retry_while_full
from clawctl.run.endpoint import check_unserved_versions
from clawctl.run.fitness import Fitness
from clawctl.run.reward import signs
from clawctl.run.rows import Verdict
from clawctl.run.shards import UnreadableShard, write_verdicts

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_REPORT_S = 10.0
_MAX_DOUBTED = 64  # the number of verdicts that may wait until their scale is known


def judge(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Judge until stopped; with `once`, until every shard has its verdicts or is claimed by another worker.

    Any number of judge workers, on any number of hosts, may share a run. Each shard is claimed by one worker. The next worker
    continues the unpublished work of a stopped one, and judges only turns without a verdict in the journal.
    """
    check_unserved_versions(run, recipe)
    stop = stop_on_signals()
    asyncio.run(_Worker(run, recipe, once, stop).work())


async def check_judge(run: RunDir, recipe: Recipe) -> Fitness | None:
    """Ask the recipe's judge the planted turns now and record the result. None if it is not checked. Raises ClawError."""
    panel = Panel(run, recipe, patience_s=recipe.judge.timeout_s)
    try:
        if panel.checked is None:
            return None
        return await check_fitness(run, recipe, panel.client, panel.checked.planted_vote, again=True)
    finally:
        await panel.close()


class _Worker:
    """Judges several shards concurrently, oldest first, so that `judge.concurrency` calls are always in flight."""

    def __init__(self, run: RunDir, recipe: Recipe, once: bool, stop: threading.Event) -> None:
        self._run, self._recipe, self._once, self._stop = run, recipe, once, stop
        self._max_in_progress = 4 * recipe.judge.concurrency  # no further shard is claimed while this many turns are in progress
        # The number of turns that are read and judged concurrently. It is large enough that further turns always wait for a call.
        # Preparing a whole shard at once would delay the processing of answers that arrive in the meantime.
        self._slots = asyncio.Semaphore(2 * max(recipe.judge.concurrency, recipe.judge.prm_batch if recipe.judge.prm else 1))
        self._left: dict[str, int] = {}  # stem -> number of turns without a verdict
        self._queue: deque[Path] = deque()  # shards that had no verdicts at the last listing
        self._looked_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._tally = _Tally()
        self._doubted: dict[str, int] = {}  # stem -> number of verdicts that wait until their scale is known
        self._uncounted: dict[str, list[Verdict]] = {}  # stem -> verdicts that were not reliable yet and are not counted

    async def work(self) -> None:
        stop = self._stop
        self._panel = Panel(self._run, self._recipe, patience_s=self._recipe.judge.timeout_s if self._once else None)
        self._changed = asyncio.Event()
        self._begin_check()
        if not self._once:
            _follow(self._run, stop, self._changed)
        try:
            while not stop.is_set():
                self._changed.clear()
                async for stem, turns, claim in self._claim_more():
                    self._tasks.add(asyncio.create_task(self._judge_shard(stem, turns, claim)))
                if self._once and not self._tasks:
                    break
                self._refuse_doubted()
                await self._wait()
                self._tally.report_now_and_then(self._panel.client.spent)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._panel.close()
            self._tally.report(self._panel.client.spent)

    def _begin_check(self) -> None:
        """Check the judge before its first turn. `--once` checks it only if a turn needs it."""
        if self._panel.checked is None:
            with suppress(OSError):
                remove(self._run.fitness)  # the result of another judge
        elif not self._once and (checking := self._panel.check()) is not None:
            checking.add_done_callback(_log_failure)

    async def _wait(self) -> None:
        """Wait until a shard is done, few turns remain, or something changed. A failure in a shard's work ends the worker."""
        change = asyncio.ensure_future(self._changed.wait())
        done, _ = await asyncio.wait({change, *self._tasks}, return_when=asyncio.FIRST_COMPLETED, timeout=self._patience_s)
        change.cancel()
        for task in done & self._tasks:
            self._tasks.discard(task)
            task.result()

    async def _claim_more(self) -> AsyncIterator[tuple[str, list[Evidence], ExitStack]]:
        """Claim shards until enough turns are in progress to keep all calls busy. Yields stem, turns and claim.

        The folders are listed only if the queue is empty, and not too often, because this runs for each turn near the end.
        """
        self._patience_s, looked = 1.0, False
        while sum(self._left.values()) < self._max_in_progress:
            if not self._queue:
                if looked or (self._tasks and time.monotonic() - self._looked_at < _LOOK_S):
                    self._patience_s = 1.0 if looked else _LOOK_S
                    return
                self._queue.extend(self._unjudged())
                self._looked_at, looked = time.monotonic(), True
                continue
            path = self._queue.popleft()
            if path.stem in self._left:
                continue
            with ExitStack() as claim:
                turns = await self._claim(path, claim)
                if turns is not None:
                    self._left[path.stem] = len(turns)
                    yield path.stem, turns, claim.pop_all()

    def _unjudged(self) -> list[Path]:
        finished = {path.stem for path in published(self._run.verdicts, ".parquet")}
        waiting = published(self._run.trajectories, ".parquet")
        return [path for path in waiting if path.stem not in finished and path.stem not in self._left]

    async def _claim(self, path: Path, claim: ExitStack) -> list[Evidence] | None:
        """Claim a shard and return its turns. Returns None if this worker cannot judge it now."""
        try:
            acquired = claim.enter_context(claimed(self._run, f"judge-{path.stem}"))
            # Collect removes merged turns before their verdicts, so a shard that is there after the look has no verdicts
            acquired = acquired and not is_published(self._verdicts(path.stem)) and is_published(path)
        except OSError as error:
            if not is_temporary(error):
                raise
            # A full disk has no room for the lock; the next listing tries again
            log.error("cannot process %s: %s", path.name, error)
            return None
        if not acquired or not path.exists():
            return None
        try:
            turns = await asyncio.to_thread(read_evidence, path)
        except UnreadableShard as error:
            with suppress(FileNotFoundError):  # collect removed it first
                quarantine(self._run, path, str(error))
                log.warning("quarantined an unreadable shard: %s", error)
            return None
        self._panel.ratings.poll()
        return turns

    def _verdicts(self, stem: str) -> Path:
        return self._run.verdict_shard(stem)

    def _refuse_doubted(self) -> None:
        """Raises ClawError if no remaining turn can reveal the scale of a custom reward model."""
        enough = sum(self._doubted.values()) >= _MAX_DOUBTED
        if enough or (self._once and self._doubted and len(self._doubted) == len(self._tasks)):
            doubt = self._panel.judge.doubt()
            if doubt is not None:  # otherwise the waiting shards are about to continue
                raise doubt

    async def _until_sure(self, stem: str, verdicts: list[Verdict]) -> None:
        """Wait until the judge's rewards for a shard are reliable. Other shards are judged meanwhile and may reveal the scale."""
        while doubts := [doubt for verdict in verdicts if (doubt := self._panel.doubt(verdict)) is not None]:
            if not self._doubted:
                log.warning("%s", doubts[0])
            if stem not in self._doubted:
                self._changed.set()
            self._doubted[stem] = len(doubts)
            await asyncio.sleep(_LOOK_S)
        self._doubted.pop(stem, None)
        for verdict in self._uncounted.pop(stem, []):
            self._tally.count(verdict, True)

    async def _judge_shard(self, stem: str, turns: list[Evidence], claim: ExitStack) -> None:
        """Judge all turns of a claimed shard and publish their verdicts in the same order."""
        with claim:
            journal = Journal(self._run, stem, (turn.turn_id for turn in turns))
            try:
                verdicts = await gather_all(self._judge_turn(stem, turn, journal) for turn in turns)
                await self._until_sure(stem, verdicts)
                self._panel.ratings.poll()
                rated = list(map(self._panel.rated_since, turns, verdicts))
                commented = [pair for pair, first in zip(zip(turns, rated, strict=True), verdicts, strict=True) if pair[1] != first]
                self._tally.notes += sum(await gather_all(self._panel.take_note(*pair) for pair in commented))
                await self._publish(stem, rated)
                journal.remove()
                self._run.lock(f"judge-{stem}").unlink(missing_ok=True)  # waiting workers find the verdicts
            finally:
                del self._left[stem]

    async def _judge_turn(self, stem: str, turn: Evidence, journal: Journal) -> Verdict:
        verdict = journal.verdicts.get(turn.turn_id)
        if verdict is None:
            async with self._slots:
                verdict = await self._panel.verdict(turn)
                self._tally.notes += await self._panel.take_note(turn, verdict)
            if self._panel.doubt(verdict) is not None:
                self._uncounted.setdefault(stem, []).append(verdict)
            else:
                if verdict.latency_s is not None:  # the judge was asked
                    journal.add(verdict)
                self._tally.count(verdict, turn.judged)
        self._left[stem] -= 1
        if sum(self._left.values()) < self._max_in_progress:
            self._changed.set()
        return verdict

    async def _publish(self, stem: str, verdicts: list[Verdict]) -> None:
        """Write the verdicts as soon as the disk has room. Until then, the journal holds the judge's answers."""
        target = self._verdicts(stem)
        for left in target.parent.glob(f".{target.name}.*.tmp"):
            left.unlink(missing_ok=True)  # left by a worker that died; this worker holds the claim now
        work = partial(write_verdicts, target, verdicts)
        await asyncio.to_thread(retry_while_full, work, f"verdicts/{target.name}", self._stop)
        self._tally.shards += 1


def _log_failure(checking: "asyncio.Task[Fitness]") -> None:
    """Log why the judge could not be checked. The first turn that needs it tries again."""
    if not checking.cancelled() and isinstance(error := checking.exception(), ClawError):
        log.warning("the judge could not be checked: %s; %s", error.problem, error.fix)


def _follow(run: RunDir, stop: threading.Event, changed: asyncio.Event) -> None:
    """Set `changed` when trajectories change and when it is time to stop. Runs in a separate thread."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        with suppress(RuntimeError):  # the loop is closed
            for _ in changes([run.trajectories], stop):
                loop.call_soon_threadsafe(changed.set)
            loop.call_soon_threadsafe(changed.set)

    threading.Thread(target=watch, name="follow trajectories", daemon=True).start()


class _Tally:
    """Counts of judged turns since the last report, and in total."""

    def __init__(self) -> None:
        self.shards = 0
        self._hints = self._invalid = 0
        self.notes = 0  # that replies led to
        self._without: Counter[str] = Counter()  # why trainable turns have no reward
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
                log.warning(
                    "the judge gave no valid score for a turn, so it is not trained; a later line reports the number of such turns"
                )
            self._without[verdict.reason or "no reason"] += 1

    def report_now_and_then(self, spent: JudgeUsage) -> None:
        if time.monotonic() - self._reported_at >= _REPORT_S:
            self.report(spent)

    def report(self, spent: JudgeUsage) -> None:
        """Log the progress: counts only."""
        if self._rewards:
            rewards = signs(self._rewards)
            rate = len(self._rewards) / max(time.monotonic() - self._reported_at, 1e-9)
            counts = (len(self._rewards), rate, rewards.good, rewards.neutral, rewards.bad)
            log.info("%d turns judged (%.1f/s): %d good, %d neutral, %d bad", *counts)
            without = ", ".join(f"{count} {reason}" for reason, count in sorted(self._without.items())) or "none"
            log.info(
                "in total %d shards, %d hints, %d notes; turns without a reward: %s", self.shards, self._hints, self.notes, without
            )
            totals = (spent.calls, spent.failed, self._invalid, spent.prompt_tokens, spent.completion_tokens)
            log.info("%d calls, %d failed, %d votes invalid, %d tokens in, %d out", *totals)
        self._rewards, self._reported_at = [], time.monotonic()
