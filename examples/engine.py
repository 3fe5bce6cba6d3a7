"""An engine without a model, which samples digits. `serve.engine: examples/engine.py:start` in a recipe.

`Answer.sampled` has what a turn needs to be trained: the exact ids, the logprob of each under the distribution that it was
sampled from, and the versions at its first and last token. The other methods state that this engine has a single version and
cannot pause.
"""

import asyncio
import math
import random
from contextlib import nullcontext

from clawctl.engines import Capabilities, Sampled
from clawctl.engines.requests import Refusal, Shown, TextDelta
from clawctl.errors import ClawError


class Answer:
    def __init__(self, request):
        prompt = list(str(request.messages[-1]["content"]).encode())
        ids = [random.randrange(48, 58) for _ in range(min(request.max_tokens or 8, 8))]
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "finish_reason": "length"}
        self.sampled = Sampled(1.0, 1.0, 0, prompt, ids, [-math.log(10)] * len(ids), version=0, version_end=0, **counts)

    async def __aiter__(self):
        for token in self.sampled.completion_ids:
            yield Shown([TextDelta(chr(token))], [])

    def cancel(self):
        pass


class Digits:
    version, max_context = 0, None
    capabilities = Capabilities(ids=True, logprobs=True, processed=True, adapters=False, weights=False)

    async def begin(self, request, version, stack):
        return [Answer(request) for _ in range(request.n)]

    async def keep(self, up):
        await asyncio.to_thread(up)  # requests are accepted from now on
        await asyncio.Event().wait()

    def load(self, version):
        raise ClawError("this engine has no weights", "serve version 0")

    async def refuse(self, *arguments):
        raise Refusal(501, "this engine only samples")

    def nothing(self, *arguments):
        return None

    def hold(self, version):
        return nullcontext()

    count = score = unload = pause = resume = sleep = wake = refuse
    at_once = waiting_for = doubt = failure = stop = nothing


def start(run, recipe):
    return Digits()
