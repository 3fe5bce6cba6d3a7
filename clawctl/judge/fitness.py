"""Whether a chat model can judge: its votes on twelve planted turns whose scores are clear to a person.

A small model often gives no valid vote, or the same one for everything. Its verdicts would be trained, so it is not asked. The
turns (`planted.jsonl`) were written by somebody who had not seen the judge's prompt.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.judge.client import JudgeClient
from clawctl.judge.prompts import PROMPT_VERSION, Vote
from clawctl.judge.protocol import Evidence
from clawctl.run.directory import RunDir, claimed
from clawctl.run.fitness import NEEDED, Fitness, JudgeIdentity, publish_fitness, read_fitness
from clawctl.run.rows import Message

log = logging.getLogger(__name__)

_LOCK = "judge-fitness"
_LOOK_S = 0.5  # between looks at the result of another worker
_REST_S = 30.0  # before a judge that did not answer enough of the planted turns is asked again
_SCORES = {"good": 1, "bad": -1, "nothing": 0}

AskVote = Callable[[Evidence], Coroutine[Any, Any, Vote | None]]  # one vote on a turn; None: no answer


@cache
def planted_turns() -> list[tuple[Evidence, int]]:
    """The planted turns, each with its score."""
    lines = (Path(__file__).parent / "planted.jsonl").read_bytes().splitlines()
    return [(_evidence(number, row), _SCORES[row["kind"]]) for number, row in enumerate(map(orjson.loads, lines))]


def _evidence(number: int, row: dict[str, str]) -> Evidence:
    request, reply = ([{"role": "user", "content": row[name]}] for name in ("request", "reply"))
    answer: Message = {"role": "assistant", "content": row["answer"]}
    return Evidence(f"planted-{number}", "planted", "", request, answer, reply, None, None, False, "planted")


def judge_identity(recipe: Recipe, model: str) -> JudgeIdentity:
    """The identity of a chat model that judges. Settings that change its answers belong to it."""
    settings = recipe.judge
    urls = [settings.endpoint, *settings.endpoints] if settings.endpoint else settings.endpoints
    backend = " ".join(urls) or f"this run's server: {recipe.serve.upstream or recipe.model_path}"
    return JudgeIdentity(backend, model, PROMPT_VERSION, settings.temperature, settings.max_tokens)


async def check_fitness(run: RunDir, recipe: Recipe, client: JudgeClient, ask: AskVote, again: bool = False) -> Fitness:
    """Return the result for this judge: the recorded one, or that of asking it now, which is recorded.

    Waits while another worker asks. `again`: ask although there is a record, and log nothing. Raises ClawError as
    `JudgeClient.complete` does, and if a client with limited patience gets too few answers.
    """
    judge = judge_identity(recipe, client.model)
    while True:
        with claimed(run, _LOCK) as acquired:
            recorded = read_fitness(run)
            if recorded is not None and recorded.judge == judge and not again:
                return _logged(recorded)
            if acquired and (fitness := await _ask(judge, recipe, client, ask)) is not None:
                with suppress(OSError):  # if the disk is full, the next start asks again
                    publish_fitness(run, fitness)
                return fitness if again else _logged(fitness)
        await asyncio.sleep(_REST_S if acquired else _LOOK_S)


def _logged(fitness: Fitness) -> Fitness:
    log.log(logging.INFO if fitness.fit else logging.WARNING, "%s", fitness.line)
    return fitness


async def _ask(judge: JudgeIdentity, recipe: Recipe, client: JudgeClient, ask: AskVote) -> Fitness | None:
    """The result of asking now. None if the missing answers would decide it, because a server that fails is not an unfit judge."""
    settings, planted = recipe.judge, planted_turns()
    rounds, rate = math.ceil(len(planted) / settings.concurrency), settings.requests_per_s or math.inf
    limit_s = settings.timeout_s * rounds + len(planted) / rate
    votes = await _votes(client, [ask(turn) for turn, _ in planted], limit_s)
    right = sum(vote is not None and vote.score == score for vote, (_, score) in zip(votes, planted, strict=True))
    missing = votes.count(None)
    if right < NEEDED <= right + missing:
        problem = f"the judge answered only {len(planted) - missing} of {len(planted)} planted turns in {limit_s:.0f} s"
        if client.has_limited_patience:
            raise ClawError(problem, "check judge.endpoint, or raise judge.timeout_s; nothing is lost")
        log.warning("%s; it is asked again", problem)
        return None
    invalid = sum(vote is None or vote.score is None for vote in votes)
    return Fitness(judge, len(planted), right, invalid, time.time())


async def _votes(client: JudgeClient, works: list[Coroutine[Any, Any, Vote | None]], limit_s: float) -> list[Vote | None]:
    """The votes that arrive in time. Time in which no endpoint is available does not count."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if pending and not client.is_away:
                break
        return [task.result() if task.done() else None for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
