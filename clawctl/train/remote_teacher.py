"""The teacher behind a URL: any server that supports vLLM's completions with `prompt_logprobs`.

It is called before the step with exact ids: the prompt with the hint, and the turn's own tokens. A turn without a complete answer
loses its hint, and the reason is recorded. Missing numbers are never replaced.
"""

import asyncio
from dataclasses import replace
from functools import partial

import orjson

from clawctl.at_once import at_once
from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed, fetch, proxy_for
from clawctl.train.advantages import likeliest
from clawctl.train.sample import Batch, Sample

CALLS = 8  # concurrent calls
TIMEOUT_S = 120.0


class NoTeacherLogprobs(Exception):
    """The teacher returned no usable logprobs. The message is the reason, which is counted."""


class RemoteTeacher:
    """A client of the teacher's server. The server's tokenizer must be that of the policy."""

    def __init__(self, url: str, model: str | None, api_key: str | None) -> None:
        """Raises ClawError if the server does not list its models and `model` is None, or if it lists others than `model`."""
        self._url, self._key = url.rstrip("/"), api_key
        self.model = self._served(model)

    def ask(self, batch: Batch) -> list[tuple[float, ...] | str | None]:
        """Return for each turn the logprobs of its tokens, the reason why they are missing, or None if it has no hint."""
        return asyncio.run(self._answers(batch))

    async def _answers(self, batch: Batch) -> list[tuple[float, ...] | str | None]:
        async with Client(self._url, self._key, proxy=proxy_for(self._url)) as client:
            return await at_once(CALLS, partial(self._answer, client), batch.samples)

    async def _answer(self, client: Client, sample: Sample) -> tuple[float, ...] | str | None:
        if sample.teacher_prompt_ids is None:
            return None
        if sample.allowed is not None:
            return "the teacher's server scores over the whole vocabulary, but this answer has structured output"
        if sample.images:
            return "the teacher's server scores token ids alone, but this turn has images"
        try:
            return await self._logprobs(client, sample.teacher_prompt_ids, sample.completion_ids, sample.temperature)
        except NoTeacherLogprobs as reason:
            return str(reason)

    async def _logprobs(self, client: Client, prompt: list[int], completion: list[int], temperature: float) -> tuple[float, ...]:
        if temperature != 1:
            raise NoTeacherLogprobs("the teacher's server scores at temperature 1 only")
        request = {"model": self.model, "prompt": prompt + completion, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        try:
            response = await client.request("/completions", orjson.dumps(request), TIMEOUT_S)
        except RequestFailed as error:
            raise NoTeacherLogprobs("the teacher's server does not answer") from error
        if response.status != 200:
            raise NoTeacherLogprobs(f"the teacher's server answers {response.status}")
        try:
            scored = orjson.loads(response.body)["choices"][0]["prompt_logprobs"][len(prompt) :]
            values = tuple(float(entry[str(token)]["logprob"]) for entry, token in zip(scored, completion, strict=True))
        except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
            raise NoTeacherLogprobs("the teacher's server did not return a logprob for each token") from error
        if any(not -1e30 < value <= 1e-3 for value in values):
            raise NoTeacherLogprobs("the teacher's server returned an invalid logprob")
        return values

    def _served(self, wanted: str | None) -> str:
        """The name of the model: `wanted`, or the first one that the server lists. Not every server lists its models."""
        try:
            response = fetch("GET", f"{self._url}/models", key=self._key, timeout_s=TIMEOUT_S)
            if response.status != 200:
                raise RequestFailed(f"it answers {response.status}")
            listed = [str(model["id"]) for model in orjson.loads(response.body)["data"]]
            first = listed[0]
        except (RequestFailed, orjson.JSONDecodeError, LookupError, TypeError) as error:
            if wanted is not None:
                return wanted
            problem = f"train.teacher {self._url} does not list its models: {error}"
            raise ClawError(problem, "start it, or set train.teacher_model") from error
        if wanted is not None and wanted not in listed:
            problem = f"train.teacher {self._url} serves no model {wanted!r}"
            raise ClawError(problem, f"set train.teacher_model to one of {', '.join(listed[:5])}", 2)
        return wanted or first


def open_remote_teacher(config: TrainConfig) -> RemoteTeacher | None:
    """Return the recipe's teacher if it is a URL, else None. Raises ClawError."""
    if not config.teacher.startswith("http"):
        return None
    if likeliest(config) is not None:
        problem = (
            f"train.method {config.method.kind} compares whole distributions here, which a teacher behind a URL does not return"
        )
        raise ClawError(problem, "use train.teacher self, base or ema, or train.method opd or combine without train.topk", 2)
    return RemoteTeacher(config.teacher, config.hints.teacher_model, config.hints.teacher_api_key)


def with_teacher_logprobs(batch: Batch, answers: list[tuple[float, ...] | str | None]) -> tuple[Batch, dict[str, str]]:
    """Return the batch with the teacher's answers, and the reason for each turn without one.

    Such a turn is trained with its reward only, or leaves the batch if it has none.
    """
    samples, missing = [], {}
    for sample, answer in zip(batch.samples, answers, strict=True):
        if isinstance(answer, str):
            missing[sample.turn_id] = answer
            if sample.reward is not None:
                samples.append(replace(sample, teacher_prompt_ids=None))
        else:
            samples.append(replace(sample, teacher_logprobs=answer))
    return replace(batch, samples=samples), missing
