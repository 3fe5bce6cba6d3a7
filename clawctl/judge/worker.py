"""`clawctl judge`: follow trajectories, ask the judge about each trainable turn, publish one verdict shard per trajectory shard."""

import asyncio
import logging
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from clawctl.config import Recipe
from clawctl.judge.calls import Calls
from clawctl.judge.hints import hint_candidates
from clawctl.judge.prompts import PROMPT_VERSION, Vote, judge_messages, new_fence
from clawctl.judge.view import view_turn
from clawctl.judge.votes import decided, first_round, majority
from clawctl.process import stop_on_signals
from clawctl.run_dir import RunDir, changes, claimed, published, quarantine
from clawctl.shards import UnreadableShard, read_turns, write_verdicts
from clawctl.types import Turn, Verdict

log = logging.getLogger(__name__)

REPORT_S = 10.0


def judge(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Work until told to stop; with `once` until every shard has its verdicts or another worker on it.

    Any number of judge workers may share a run: each shard is claimed by one. What a worker had not published when it was stopped
    or killed is judged again by the next.
    """
    stop = stop_on_signals()
    asyncio.run(_Worker(run, recipe, once).work(stop))


class _Worker:
    """Judges several shards at a time, the oldest first, so that `judge.concurrency` calls are always under way."""

    def __init__(self, run: RunDir, recipe: Recipe, once: bool) -> None:
        self._run, self._recipe, self._once = run, recipe, once
        self._in_work: dict[str, int] = {}  # stem -> its turns
        self._tasks: set[asyncio.Task[None]] = set()
        self._judged: list[float | None] = []  # rewards since the last report
        self._hints, self._without_vote, self._shards = 0, 0, 0
        self._reported_at = time.monotonic()

    async def work(self, stop: threading.Event) -> None:
        self._calls = Calls(self._run, self._recipe, patience_s=self._recipe.judge.timeout_s if self._once else None)
        changed = asyncio.Event()
        if not self._once:
            _follow(self._run, stop, changed)
        try:
            while not stop.is_set():
                changed.clear()
                await self._claim_more()
                if self._once and not self._tasks:
                    break
                await self._wait(changed)
                if time.monotonic() - self._reported_at >= REPORT_S:
                    self._report()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._calls.close()
            self._report()

    async def _wait(self, changed: asyncio.Event) -> None:
        """Until a shard is done or something changed. A problem in a shard's work ends the worker."""
        change = asyncio.ensure_future(changed.wait())
        done, _ = await asyncio.wait({change, *self._tasks}, return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
        change.cancel()
        for task in done & self._tasks:
            self._tasks.discard(task)
            task.result()

    async def _claim_more(self) -> None:
        """Take up shards until there are turns enough to keep all calls busy."""
        finished = {path.stem for path in published(self._run.verdicts, ".parquet")}
        for path in published(self._run.trajectories, ".parquet"):
            if sum(self._in_work.values()) >= 2 * self._recipe.judge.concurrency:
                return
            if path.stem not in finished and path.stem not in self._in_work:
                await self._claim(path)

    async def _claim(self, path: Path) -> None:
        with ExitStack() as claim:
            mine = claim.enter_context(claimed(self._run, f"judge-{path.stem}"))
            if not mine or self._verdicts(path.stem).exists() or not path.exists():
                return
            try:
                turns = await asyncio.to_thread(read_turns, path)
            except UnreadableShard as error:
                with suppress(FileNotFoundError):  # collect was quicker
                    quarantine(self._run, path, str(error))
                    log.warning("put aside an unreadable shard: %s", error)
                return
            self._in_work[path.stem] = len(turns)
            self._tasks.add(asyncio.create_task(self._judge_shard(path.stem, turns, claim.pop_all())))

    def _verdicts(self, stem: str) -> Path:
        return self._run.verdicts / f"{stem}.parquet"

    async def _judge_shard(self, stem: str, turns: list[Turn], claim: ExitStack) -> None:
        """Judge all turns of a claimed shard and publish their verdicts in the same order."""
        with claim:
            try:
                await self._publish(stem, await asyncio.gather(*map(self._judge_turn, turns)))
            finally:
                del self._in_work[stem]

    async def _publish(self, stem: str, verdicts: list[Verdict]) -> None:
        """Write the verdicts, if need be as soon as the disk takes them: they were dear."""
        target = self._verdicts(stem)
        for left in target.parent.glob(f".{target.name}.*.tmp"):
            left.unlink(missing_ok=True)  # a worker that died left it: the claim is ours now
        refused = False
        while True:
            try:
                await asyncio.to_thread(write_verdicts, target, verdicts)
                break
            except OSError as error:
                if not refused:
                    log.error("cannot write verdicts, trying again each second: %s", error)
                refused = True
                await asyncio.sleep(1.0)
        (self._run.locks / f"judge-{stem}.lock").unlink(missing_ok=True)  # whoever waits for it finds the verdicts
        self._shards += 1

    async def _judge_turn(self, turn: Turn) -> Verdict:
        name = f"{self._calls.model} prompt {PROMPT_VERSION}"
        if not turn.trainable:
            return Verdict(turn.turn_id, None, [], None, [], name, f"not trainable: {turn.untrainable_reason}", None)
        if turn.feedback is not None:
            self._judged.append(turn.feedback)
            return Verdict(turn.turn_id, float(turn.feedback), [], None, [], "user feedback", None, None)
        begun = time.monotonic()
        votes = await self._ask(turn)
        reward = majority([vote.score for vote in votes])
        hints = hint_candidates(votes, reward, self._recipe.judge.min_hint_chars)
        self._count(reward, bool(hints))
        return Verdict(
            turn_id=turn.turn_id,
            reward=reward,
            votes=[vote.score for vote in votes],
            hint=hints[0] if hints else None,
            hints=hints,
            judge=name,
            reason=None if reward is not None else "no valid vote",
            latency_s=time.monotonic() - begun,
        )

    async def _ask(self, turn: Turn) -> list[Vote]:
        """As many votes as it takes, at most `judge.votes`."""
        settings = self._recipe.judge
        seen = view_turn(turn, settings.history_chars)
        votes: list[Vote] = []
        while not votes or not decided([vote.score for vote in votes], settings.votes):
            count = settings.votes - len(votes) if votes else first_round(settings.votes)
            asks = (
                judge_messages(seen.request, seen.answer, seen.next_state, seen.role, new_fence(), seen.earlier)
                for _ in range(count)
            )
            votes += await asyncio.gather(*map(self._calls.vote, asks))
        return votes

    def _count(self, reward: float | None, hint: bool) -> None:
        self._judged.append(reward)
        self._hints += hint
        if reward is None:
            if not self._without_vote:
                log.warning("the judge named no valid score for a turn: it stays untrained; how many do is counted below")
            self._without_vote += 1

    def _report(self) -> None:
        """Say how far we are: counts only."""
        rewards = [reward for reward in self._judged if reward is not None]
        signs = [
            sum(reward > 0 for reward in rewards),
            sum(reward == 0 for reward in rewards),
            sum(reward < 0 for reward in rewards),
        ]
        rate = len(self._judged) / max(time.monotonic() - self._reported_at, 1e-9)
        if self._judged:
            log.info("%d turns judged (%.1f/s): %d good, %d neutral, %d bad", len(self._judged), rate, *signs)
            totals = (self._shards, self._hints, self._without_vote, self._calls.made, self._calls.failed)
            log.info("in all %d shards, %d hints, %d turns without a valid vote, %d calls, %d failed", *totals)
        self._judged, self._reported_at = [], time.monotonic()


def _follow(run: RunDir, stop: threading.Event, changed: asyncio.Event) -> None:
    """Set `changed` whenever trajectories did, and when it is time to stop, from a thread of its own."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            for _ in changes([run.trajectories], stop):
                loop.call_soon_threadsafe(changed.set)
            loop.call_soon_threadsafe(changed.set)

    threading.Thread(target=watch, name="follow trajectories", daemon=True).start()
