"""What a note costs the untrained model: short questions that it gets wrong once it is told the note.

A small model that is told "Address the user as Captain." greets the captain and forgets the answer. Practice would take that over.
The answers are numbers and names, so that they can be read in most languages.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from math import comb
from typing import Any

import orjson

from clawctl.asking import ask, new_client
from clawctl.run.endpoint import QUIET, Endpoint
from clawctl.run.hint_places import HintPlace, with_hint

_MAX_TOKENS = 32
_COSTLY, _CHANCE = 0.05, 0.05  # share of the questions that a note may cost; level of the test


def short_questions() -> list[dict[str, Any]]:
    """Questions, each with the words or numbers that a right answer has one of."""
    lines = files("clawctl.environments").joinpath("short_questions.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines]


def answered(server: Endpoint, note: str | None, place: HintPlace) -> list[bool]:
    """Which of the short questions the model answers right, with the note in each request or without one. Nothing is captured.
    Raises Refused."""
    quiet = replace(server, headers={**server.headers, **QUIET})

    async def all_of_them() -> list[bool]:
        async with new_client(quiet) as client:

            async def is_right(question: str, answers: Sequence[str]) -> bool:
                messages = [{"role": "user", "content": question}]
                sent = messages if note is None else with_hint(messages, note, place)
                answer = await ask(quiet, sent, client=client, max_tokens=_MAX_TOKENS, temperature=0)
                return re.search(rf"(?<!\w)(?:{'|'.join(map(re.escape, answers))})(?!\w)", answer.lower()) is not None

            return await asyncio.gather(*(is_right(row["question"], row["answers"]) for row in short_questions()))

    return asyncio.run(all_of_them())


def is_costly(before: Sequence[bool], with_note: Sequence[bool]) -> bool:
    """Whether a note costs more than `_COSTLY` of the answers when it is told, and more than chance explains: McNemar's test (1947)
    in its exact form, one-sided."""
    lost, gained = (sum(a and not b for a, b in zip(*pair, strict=True)) for pair in ((before, with_note), (with_note, before)))
    changed = lost + gained
    chance = sum(comb(changed, count) for count in range(lost, changed + 1)) / 2**changed
    return lost - gained > _COSTLY * len(before) and chance < _CHANCE
