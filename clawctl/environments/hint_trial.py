"""Finds out where the untrained model follows a hint: a few requests with three simple wishes at each place, then others at the
usual place, which is the last line of the request, and at the place where it met the most besides.

The wishes are such that a rule reads whether they are met, so that no judge is needed. The usual place is left only for one that is
better beyond the chance of so few answers. The place is chosen once for a run.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson
from filelock import FileLock

from clawctl.asking import Refused, ask, new_client
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.endpoint import QUIET, Endpoint
from clawctl.run.hint_places import PLACES, PUBLISHED, HintPlace, read_hint_place, with_hint

log = logging.getLogger("play")

EVERYDAY = (
    "What is a good way to start the day?", "Why do birds sing in the morning?", "How do I look after a pair of boots?",
    "What makes a good neighbour?", "How does a bicycle stay upright?", "Which vegetables grow well in the shade?",
    "How do I write a letter of thanks?", "Why do we dream?", "How can I remember names better?", "What is a lighthouse for?",
    "How do I get a stain out of a shirt?", "Why do leaves fall in autumn?",
)  # fmt: skip
_ALL, _BEST = EVERYDAY[:2], EVERYDAY[2:6]  # requests at all places, and at the usual and the best other one
_USUAL: HintPlace = "line"
_BEYOND_CHANCE = 5  # more of 18 answers: 1.7 standard errors of the difference
_MAX_TOKENS = 48
_MOST_WORDS = 25  # of a short sentence
_BULLET = re.compile(r"(?m)^\s*(?:[-*•]|\d+[.)])\s+\S")
_SPANISH = re.compile(r"[áéíóúñ¿¡]")  # letters and marks that English lacks
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")


def _is_short(answer: str) -> bool:
    return len(answer.split()) <= _MOST_WORDS and len(_SENTENCE_END.findall(answer)) == 1


_WISHES: dict[str, Callable[[str], bool]] = {
    "Answer in one short sentence.": _is_short,
    "Answer as a list of bullet points.": lambda answer: len(_BULLET.findall(answer)) >= 2,
    "Answer in Spanish.": lambda answer: bool(_SPANISH.search(answer)),
}


def settle_hint_place(run: RunDir, server: Endpoint) -> HintPlace:
    """The place that is recorded for this run; without a record, the best one for `server`'s model, which is then recorded.

    The answers are not captured. If the model follows no wish anywhere, the published place is recorded. Of two processes, the
    second waits for the first and takes its place, because a run has one. Raises ClawError if the server answers no request.
    """
    if (recorded := read_hint_place(run)) is not None:
        return recorded
    with FileLock(run.lock("hint-place")):
        return read_hint_place(run) or _tried(run, server)


def _tried(run: RunDir, server: Endpoint) -> HintPlace:
    try:
        met, answers = asyncio.run(try_places(server))
    except Refused as error:
        raise ClawError(f"{server.url} failed while places of hints were tried: {error}", "they are tried again later") from error
    if not any(answers.values()):
        raise ClawError(f"{server.url} answered none of the requests that show where the model follows a hint", "read its log")
    shares = {name: round(met[name] / max(1, answers[name]), 2) for name in PLACES}
    best = met.most_common(1)[0][0] if any(met.values()) else PUBLISHED
    place = _USUAL if met[_USUAL] and met[best] - met[_USUAL] < _BEYOND_CHANCE else best
    publish_bytes(run.hint_place, orjson.dumps({"place": place, "followed": shares, "answers": answers}))
    log.info("hints stand %s: the untrained model followed them there in %.2f of %d", place, shares[place], answers[place])
    return place


async def try_places(server: Endpoint) -> tuple[Counter[HintPlace], Counter[str]]:
    """How many answers meet their wish, and how many there are, by place. Raises Refused if the server fails."""
    quiet, met, answers = replace(server, headers={**server.headers, **QUIET}), Counter(dict.fromkeys(PLACES, 0)), Counter[str]()
    async with new_client(quiet) as client:

        async def meets(request: str, wish: str, place: HintPlace) -> None:
            messages = with_hint([{"role": "user", "content": request}], wish, place)
            try:
                answer = await ask(quiet, messages, client=client, max_tokens=_MAX_TOKENS)
            except Refused as refused:
                if refused.status is None or refused.status >= 500:  # the server has ended or failed: that says nothing of a place
                    raise
                log.warning("a request was refused while places of hints were tried: %s", refused)
                return
            met[place] += _WISHES[wish](answer)
            answers[place] += 1

        async def try_each(requests: Sequence[str], places: Sequence[HintPlace]) -> None:
            await asyncio.gather(*(meets(request, wish, place) for request in requests for wish in _WISHES for place in places))

        await try_each(_ALL, PLACES)
        await try_each(_BEST, [_USUAL, max((place for place in PLACES if place != _USUAL), key=lambda place: met[place])])
    return met, answers
