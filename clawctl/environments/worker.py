"""`clawctl collect --env`: one worker that plays an environment until every attempt of its plan is settled."""

import asyncio
import itertools
import logging
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.live import Live
from rich.text import Text

from clawctl.asking import ServerHealth, new_client
from clawctl.config import Recipe
from clawctl.config.environment import is_stage_of_up
from clawctl.environments import ENVIRONMENTS, create
from clawctl.environments.player import Player, Summary, is_ready, make_plan
from clawctl.environments.rollouts import environment_of, is_rollout
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed
from clawctl.privacy.redaction import redactor_of
from clawctl.process import stop_on_signals
from clawctl.run.backlog import Backlog
from clawctl.run.default_sampling import default_sampling
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.gaps import Gaps

log = logging.getLogger("play")

_REPORT_S = 10.0
_START_S = 60.0  # the time that a registered server has to respond
_SHOW_S = 0.5
_LEARNS_FROM = 0.5  # if the share of solved tasks is lower, reinforcement has too few good attempts to select from
_EARLY_TASKS = 24  # after this many tasks the share is checked for the first time, while the others are still played
_OPTION = "play.env"


def play(run: RunDir, recipe: Recipe, is_worker: bool = False, server: str | None = None) -> Summary:
    """Play the episodes of `recipe.play` that have not been played yet. Returns the summary of this plan over all workers.

    `is_worker`: skip tasks that other workers are playing, instead of waiting for them. `server`: the URL of the run's server,
    if it differs from the URL that the server announced. Raises ClawError.
    """
    settings, stop = recipe.play, stop_on_signals()
    if settings.env is None:
        raise ClawError("no environment is named", "use `clawctl collect --env NAME`, or set play.env", 2)
    made = ENVIRONMENTS.load(settings.env, _OPTION)
    environment = create(environment_of(made) if is_rollout(made) else made, settings.env, _OPTION, settings.options)
    redactor = redactor_of(recipe.privacy)
    find = partial(_server, run, recipe, server)
    wait_for_server(find, stop)
    if (prepare := getattr(environment, "prepare", None)) is not None and not stop.is_set():
        prepare(run, recipe, find())
    local, summary = recipe.train.local, Summary()
    gaps = Gaps(local.when, local.idle_s, ServerHealth(find).idle_for) if local.when == "idle" else None
    for round_ in itertools.count() if settings.rounds == 0 else range(settings.rounds):
        if stop.is_set():
            break
        plan = make_plan(environment, settings.env, settings.tasks, settings.attempts, settings.seed, round_)
        plan = replace(plan, options=settings.options, sampling={"temperature": default_sampling(recipe).temperature})
        player = Player(run, plan, find, settings.parallel, stop, redactor.text, Backlog(run, recipe.train, gaps))
        log.info("plan %s, round %d: %d tasks, %d attempts each", plan.id, round_, len(plan.tasks), plan.attempts)
        summary = asyncio.run(_watched(player, find, not is_worker))
        if player.training_has_ended():
            break
    return summary


def _server(run: RunDir, recipe: Recipe, url: str | None) -> Endpoint:
    local = own_endpoint(run, recipe)
    return local if url is None else Endpoint(f"{url.rstrip('/').removesuffix('/v1')}/v1", local.api_key, local.model)


def wait_for_server(find: partial[Endpoint], stop: threading.Event) -> None:
    """Wait until the server is ready. A registered server may be restarting, and `clawctl up` starts it concurrently.

    Raises ClawError.
    """
    began, is_told = time.monotonic(), False
    while not stop.is_set():
        try:
            if asyncio.run(is_ready(find())):
                return
            if not is_told:
                log.warning("the server at %s does not answer; waiting for it", find().url)
            is_told = True
            waited_s = time.monotonic() - began
            if waited_s > _START_S and not is_stage_of_up():
                cure = "start `clawctl serve --intercept` on this run, or name another address with --server"
                raise ClawError(f"the server at {find().url} has not answered for {waited_s:.0f} s", cure)
        except ClawError:
            if not is_stage_of_up():
                raise
        stop.wait(1.0)


def warn_if_unsolved(summary: Summary, attempts: int, fewest: int = 8) -> bool:
    """Warn if too few tasks have a successful attempt. Reinforcement makes good attempts more frequent, so it needs some.

    Returns False if fewer than `fewest` tasks are over.
    """
    tasks, solved = summary.solved(attempts)
    if attempts < 2 or tasks < fewest:
        return False
    if solved < _LEARNS_FROM:
        warning = "pass@%d is %.2f: most tasks have no attempt that succeeds, and reinforcement only selects among what the model "
        warning += "does already; use easier tasks, or train on demonstrations first (`clawctl import`)"
        log.warning(warning, attempts, solved)
    return True


# ---- progress ------------------------------------------------------------------------------------------------------------


async def _watched(player: Player, find: partial[Endpoint], wait_for_others: bool) -> Summary:
    """Play, and show the progress: one live line on a terminal, otherwise a log line every ten seconds."""
    playing = asyncio.create_task(player.play(wait_for_others))
    console = Console(stderr=True)
    tokens, reported_at, is_looked_at = _TokenRate(), time.monotonic(), False
    with Live(console=console, transient=True, auto_refresh=False) if sys.stderr.isatty() else nullcontext() as live:
        while not playing.done():
            await asyncio.wait({playing}, timeout=_SHOW_S)
            await tokens.update(find)
            is_looked_at = is_looked_at or warn_if_unsolved(player.summary, player.attempts, _EARLY_TASKS)
            line = f"{player.summary.text} of {player.total}, {player.summary.running} running, {tokens.rate:.0f} tokens/s"
            if live is not None:
                live.update(Text(line), refresh=True)
            elif time.monotonic() - reported_at >= _REPORT_S:
                reported_at = time.monotonic()
                log.info("%s", line)
    summary = await playing
    if not is_looked_at:
        warn_if_unsolved(summary, player.attempts)
    return summary


class _TokenRate:
    """The server's sampling rate in tokens per second, over all of its clients."""

    def __init__(self) -> None:
        self.rate, self._tokens, self._at = 0.0, None, time.monotonic()  # type: float, float | None, float

    async def update(self, find: partial[Endpoint]) -> None:
        if time.monotonic() - self._at < 2.0:
            return
        try:
            server = find()
            async with new_client(server) as client:
                text = (await client.request("/metrics", timeout_s=2.0, method="GET")).body.decode(errors="replace")
        except (RequestFailed, ClawError):
            return
        lines = [line for line in text.splitlines() if line.startswith("clawctl_completion_tokens")]
        sampled = sum(float(line.rpartition(" ")[2]) for line in lines)
        now = time.monotonic()
        if self._tokens is not None:
            self.rate = max(0.0, sampled - self._tokens) / (now - self._at)
        self._tokens, self._at = sampled, now
