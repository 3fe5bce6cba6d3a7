"""The suite `replay`: the likelihood of held-out answers that users praised, and of answers that they complained about.

Nothing is sampled and no judge is asked. The exact ids of the captured answer are scored after the exact ids of its prompt.
"""

import logging
import math
from collections.abc import Sequence

from clawctl.asking import Refused
from clawctl.at_once import at_once
from clawctl.eval.comparisons import Comparison
from clawctl.eval.suites import Measured, SuiteSettings
from clawctl.eval.suites.answers import client_of, score
from clawctl.eval.suites.held_out import HeldOut, asked_before, held_out_turns, key_name, whole_turns
from clawctl.eval.suites.own import NO_TURNS, asked_in, run_of
from clawctl.http_client import Client
from clawctl.intervals import estimate
from clawctl.run.endpoint import Endpoint
from clawctl.run.rows import Turn

log = logging.getLogger("eval")

_DIGITS = 3  # two engines with equal weights differ by less than this precision, and count as a tie
_CANNOT = (400, 404, 413, 422, 501)


class ReplaySuite:
    """The value of a turn is the geometric mean p of its tokens' probabilities, or 1 - p if users complained about it."""

    metrics = ("praised", "unlike_complaints")

    async def __call__(self, endpoint: Endpoint, settings: SuiteSettings) -> Measured:
        chosen = _with_a_value(settings)[: settings.problems]
        values: dict[str, dict[str, float]] = {}
        async with client_of(endpoint) as client:
            for turn, good, (value,) in await _scored(client, settings, chosen, endpoint):
                values.setdefault(_metric(good), {})[turn.turn_id] = value
        return Measured({name: estimate(list(by_task.values())) for name, by_task in sorted(values.items())}, values=values)

    async def compare(
        self, candidate: Endpoint, reference: Endpoint, settings: SuiteSettings, begin: int, count: int
    ) -> Sequence[Comparison]:
        chosen = _with_a_value(settings, candidate, reference)[begin : begin + count]
        async with client_of(candidate) as client:
            scores = await _scored(client, settings, chosen, candidate, reference)
        return [
            Comparison(
                _metric(good), turn.turn_id, new, old, key_name(turn.user), {"turn_id": turn.turn_id, "request": asked_in(turn)}
            )
            for turn, good, (new, old) in scores
        ]


def _metric(good: bool) -> str:
    return "praised" if good else "unlike_complaints"


def _with_a_value(settings: SuiteSettings, *pair: Endpoint) -> list[HeldOut]:
    run = run_of(settings)
    turns = held_out_turns(run, settings, asked_before(run, *pair) if pair else float("inf"))
    if not turns:
        log.info("suite replay: %s", NO_TURNS)
    return [turn for turn in turns if turn.value]


async def _scored(
    client: Client, settings: SuiteSettings, chosen: Sequence[HeldOut], *endpoints: Endpoint
) -> list[tuple[Turn, bool, list[float]]]:
    """Each turn, whether it was praised, and its value by each endpoint. Skips turns that an engine cannot score.

    Raises Refused.
    """
    refusals, praised = list[Refused](), {turn.turn_id: (turn.value or 0) > 0 for turn in chosen}

    async def values_of(turn: Turn) -> tuple[Turn, bool, list[float]] | None:
        good, values = praised[turn.turn_id], list[float]()
        for endpoint in endpoints:
            try:
                logprobs = await score(client, endpoint, turn.prompt_ids or (), turn.completion_ids or ())
            except Refused as refused:
                if refused.status not in _CANNOT:
                    raise
                refusals.append(refused)
                return None
            likely = math.exp(math.fsum(logprobs) / max(1, len(logprobs)))
            values.append(round(min(1.0, likely if good else 1 - likely), _DIGITS))
        return turn, good, values

    results = await at_once(settings.concurrency, values_of, whole_turns(run_of(settings), chosen))
    if refusals:
        log.warning("suite replay: %d of %d answers cannot be scored: %s", len(refusals), len(results), refusals[0])
    return [result for result in results if result is not None]
