"""Puts the sampled ids of earlier answers back into a prompt, for an upstream that accepts token ids (vLLM). A request for an
answer in a form, whose grammar clawctl writes, is sent in the same way.

The tokenizer in this process renders and splices. The upstream receives ids only if it renders the same prompt.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.engines.upstream.bodies import CallPlan
from clawctl.engines.upstream.forms import AnswerForms
from clawctl.http_client import Client, RequestFailed
from clawctl.serve.answer_decoder import why_undecodable
from clawctl.serve.prompt import Rendered, render_in_thread
from clawctl.serve.sampling import altered_fields
from clawctl.serve.work_queues import WorkQueues

RENDERED_DIFFERENTLY = "the engine renders these messages differently"
_UNMASKED_REASONING = "structured output after reasoning"
_PARSED_BY_ENGINE = ("forced tool choice", "structured output")  # the engine's own parsers influence the sampling


class Splicer:
    """Decides whether a request is sent as token ids."""

    def __init__(self, tokenizer: Any, client: Client, forms: AnswerForms | None = None, splices: bool = True) -> None:
        self.tokenizer, self._client, self._queues, self._forms = tokenizer, client, WorkQueues(), forms
        self._spliced = 0 if splices else None

    async def plan(self, request: GenerationRequest, model: str) -> CallPlan:
        """Send token ids if splicing changes the prompt, or if clawctl writes the grammar. Otherwise the engine's own chat call
        renders the prompt and parses the answer. Raises Refusal for a form that cannot be enforced."""
        forms = self._forms if self._forms is not None and self._forms.follows(request) else None
        if not (request.answers or forms) or request.continues or not request.prompted:
            return CallPlan(spliced=self._spliced)
        request = _with_engine_settings(request)
        try:
            rendered = await render_in_thread(self.tokenizer, request, self._queues, self._spliced is not None)
        except Refusal as refusal:
            return CallPlan(spliced=self._spliced, unspliced=refusal.message)
        if not rendered.spliced and forms is None:
            return CallPlan(spliced=self._spliced, unspliced=rendered.unspliced)
        reason = why_undecodable(self.tokenizer.chat_template, request.use_tools) or (None if forms else _steered(request))
        if reason is None and await self._ids_of_engine(request, rendered, model) != rendered.plain:
            reason = RENDERED_DIFFERENTLY
        form = None if reason or forms is None else await forms.open(request, rendered)
        if forms is not None and form is None:
            reason = reason or _UNMASKED_REASONING
        return CallPlan(spliced=self._spliced, unspliced=reason) if reason else CallPlan(rendered, rendered.spliced, form=form)

    async def _ids_of_engine(self, request: GenerationRequest, rendered: Rendered, model: str) -> list[int] | None:
        body = {"model": model, "messages": rendered.messages, "chat_template_kwargs": request.template_settings}
        body |= {"tools": request.shown_tools} if request.shown_tools else {}
        with suppress(RequestFailed, orjson.JSONDecodeError, KeyError, TypeError):
            answer = await self._client.request("/tokenize", orjson.dumps(body))
            if answer.status == 200:
                return list(orjson.loads(answer.body)["tokens"])
        return None


def _with_engine_settings(request: GenerationRequest) -> GenerationRequest:
    """The request with the template settings that vLLM adds to the client's."""
    settings = dict(request.template_settings)
    if (effort := request.engine_fields.get("reasoning_effort")) is not None:
        settings = {"reasoning_effort": effort, "enable_thinking": effort != "none", **settings}
    names = ("name", "description", "parameters")
    filled = [{**tool, "function": {**dict.fromkeys(names), **tool["function"]}} for tool in request.shown_tools]
    return replace(request, template_settings=settings, tools=filled or request.tools)


def _steered(request: GenerationRequest) -> str | None:
    reason = altered_fields(1.0, 1.0, 0, request.tool_choice if request.use_tools else None, request.engine_fields)
    return reason if reason in _PARSED_BY_ENGINE else None
