"""What a note does to answers, measured with version 0 alone: no judge, no rule and no word of the note is needed.

For an answer y to a request x, its `effect` is log p0(y | x, note) - log p0(y | x), in nats: the log-likelihood ratio of two
explanations, that version 0 was told the note and that it was not. The sum over the tokens is half as noisy as their mean, because
long answers tell more. Answers of version 0 that is told the note have a high effect, those without the note a low one.
`followed` says where between the two another version stands that was not told: at 0 it answers as version 0 does without the note,
at 1 as version 0 does with it.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import orjson

from clawctl.asking import TIMEOUT_S, Refused, ask, completion, new_client
from clawctl.environments.hint_trial import EVERYDAY
from clawctl.http_client import Client, RequestFailed
from clawctl.run.endpoint import QUIET, Endpoint
from clawctl.run.hint_places import HintPlace, with_hint
from clawctl.run.rows import Message


@dataclass(frozen=True, slots=True)
class Range:
    """The effects between which versions are compared."""

    plain: float  # of version 0 without the note
    noted: float  # of version 0 with the note

    def followed(self, effect: float) -> float:
        """Where an effect stands: 0 at `plain`, 1 at `noted`. It may be beyond both."""
        return (effect - self.plain) / (self.noted - self.plain) if self.noted > self.plain else 0.0


class NoteEffect:
    """Measures one note on some requests. `server` must have the run's own key, which may score."""

    def __init__(
        self, server: Endpoint, note: str, place: HintPlace, requests: Sequence[list[Message]], max_tokens: int = 48
    ) -> None:
        self._server = replace(server, headers={**server.headers, **QUIET})
        self._base = f"{server.model.partition('@')[0]}@0"
        self._requests, self._max_tokens = list(requests), max_tokens
        self._noted = [with_hint(request, note, place) for request in requests]
        self._prompts: tuple[list[list[int]], list[list[int]]] = ([], [])  # of `_requests` and `_told`, once they were asked
        self._range: Range | None = None

    async def range(self) -> Range:
        """The effects of version 0 without and with the note. Raises Refused."""
        if self._range is None:
            plain, with_note = await asyncio.gather(self._asked(self._base, self._requests), self._asked(self._base, self._noted))
            self._prompts = [prompt for prompt, _ in plain], [prompt for prompt, _ in with_note]
            effects = [await self._effect([answer for _, answer in answers]) for answers in (plain, with_note)]
            self._range = Range(*effects)
        return self._range

    async def followed(self, model: str, seed: int = 0) -> float:
        """How far the answers of a version (`NAME`, `NAME@3`) that is not told the note are those of version 0 that is. Another
        `seed` gives other answers. Raises Refused."""
        effects = await self.range()
        return effects.followed(await self._effect([answer for _, answer in await self._asked(model, self._requests, seed)]))

    async def _asked(self, model: str, requests: Sequence[list[Message]], seed: int = 0) -> list[tuple[list[int], list[int]]]:
        """The ids of each prompt and of its answer."""
        async with new_client(self._server) as client:

            async def answer_of(index: int, messages: list[Message]) -> tuple[list[int], list[int]]:
                body = {
                    "messages": messages,
                    "max_tokens": self._max_tokens,
                    "seed": len(requests) * seed + index,
                    "return_token_ids": True,
                }
                answer = await completion(self._server, client, model=model, **body)
                try:
                    return answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
                except (LookupError, TypeError) as error:
                    raise Refused(f"the server returns no token ids: {error!r}") from error

            return await asyncio.gather(*(answer_of(index, messages) for index, messages in enumerate(requests)))

    async def _effect(self, answers: Sequence[list[int]]) -> float:
        async with new_client(self._server) as client:

            async def effect_of(index: int, answer: list[int]) -> float:
                without, with_note = await asyncio.gather(*(self._scored(client, side[index], answer) for side in self._prompts))
                return sum(with_note) - sum(without)

            effects = await asyncio.gather(*(effect_of(index, answer) for index, answer in enumerate(answers) if answer))
        if not effects:
            raise Refused("the server returns no token ids, or no answer has any")
        return fmean(effects)

    async def _scored(self, client: Client, prompt: list[int], answer: list[int]) -> list[float]:
        body = orjson.dumps({"model": self._base, "ids": [*prompt, *answer], "first": len(prompt)})
        path, key = f"{self._server.url.removeprefix(client.url)}/score", {"authorization": f"Bearer {self._server.api_key}"}
        try:
            response = await client.request(path, body, TIMEOUT_S, headers=key)
            logprobs: list[float] = orjson.loads(response.body)["logprobs"]
        except (RequestFailed, ValueError, LookupError, TypeError) as error:
            raise Refused(f"no score: {error!r}") from error
        return logprobs


_TRIED = 8  # requests
_ASKED = (
    "An assistant was told:\n{note}\n\nIt was asked:\n{request}\n\nIt answered:\n{answer}\n\nDoes the answer do what the assistant "
    "was told? Write yes or no."
)


async def followed_share(judge: Endpoint, base: Endpoint, note: str, place: HintPlace) -> float | None:
    """The share of version 0's answers that do what it is told in a note, as a judge reads them. None if the judge says neither yes
    nor no to at least half of them. Raises Refused."""
    base = replace(base, headers={**base.headers, **QUIET})

    async def is_followed(request: str) -> bool | None:
        answer = await ask(base, with_hint([{"role": "user", "content": request}], note, place), max_tokens=64)
        question = _ASKED.format(note=note, request=request, answer=answer)
        said = await ask(judge, [{"role": "user", "content": question}], temperature=0, max_tokens=512)
        replies = re.findall(r"\b(yes|no)\b", said.rpartition("</think>")[2].lower())
        return replies[-1] == "yes" if replies else None

    votes = [vote for vote in await asyncio.gather(*map(is_followed, EVERYDAY[:_TRIED])) if vote is not None]
    return fmean(votes) if len(votes) >= _TRIED / 2 else None
