"""Puts earlier answers back as they were sampled, for an upstream that accepts token ids (vLLM).

The tokenizer here renders and splices. The upstream gets ids only if it renders the same prompt.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from clawctl.engines.upstream.completions import How
from clawctl.http_client import Client, RequestFailed
from clawctl.serve.answer_decoder import why_undecodable
from clawctl.serve.dialects import GenerationRequest, Refusal
from clawctl.serve.prompt import Rendered, render_in_thread
from clawctl.serve.sampling import altered_fields
from clawctl.serve.work_queues import WorkQueues

OTHERWISE = "the engine renders these messages otherwise"
_PARSED_THERE = ("forced tool choice", "structured output")  # the engine's own parsers steer the sampling


class Splicer:
    """Finds out whether an ask is to be sent as ids."""

    def __init__(self, tokenizer: Any, client: Client) -> None:
        self.tokenizer, self._client, self._lines = tokenizer, client, WorkQueues()

    async def how(self, ask: GenerationRequest, model: str) -> How:
        """Token ids if splicing changes the prompt. Otherwise the engine's own chat call renders it and parses the answer."""
        if not ask.answers or ask.continues or not ask.prompted:
            return How(spliced=0)
        ask = _as_rendered_there(ask)
        try:
            rendered = await render_in_thread(self.tokenizer, ask, self._lines, True)
        except Refusal as refusal:
            return How(spliced=0, unspliced=refusal.message)
        if not rendered.spliced:
            return How(spliced=0, unspliced=rendered.unspliced)
        reason = why_undecodable(self.tokenizer.chat_template, ask.use_tools) or _steered(ask)
        if reason is None and await self._rendered_there(ask, rendered, model) != rendered.plain:
            reason = OTHERWISE
        return How(spliced=0, unspliced=reason) if reason else How(rendered, rendered.spliced)

    async def _rendered_there(self, ask: GenerationRequest, rendered: Rendered, model: str) -> list[int] | None:
        body = {"model": model, "messages": rendered.messages, "chat_template_kwargs": ask.template_settings}
        body |= {"tools": ask.shown_tools} if ask.shown_tools else {}
        with suppress(RequestFailed, orjson.JSONDecodeError, KeyError, TypeError):
            answer = await self._client.post("/tokenize", orjson.dumps(body))
            if answer.status == 200:
                return list(orjson.loads(answer.body)["tokens"])
        return None


def _as_rendered_there(ask: GenerationRequest) -> GenerationRequest:
    """The template settings that vLLM adds to those of the client."""
    settings = dict(ask.template_settings)
    if (effort := ask.engine_fields.get("reasoning_effort")) is not None:
        settings = {"reasoning_effort": effort, "enable_thinking": effort != "none", **settings}
    names = ("name", "description", "parameters")
    filled = [{**tool, "function": {**dict.fromkeys(names), **tool["function"]}} for tool in ask.shown_tools]
    return replace(ask, template_settings=settings, tools=filled or ask.tools)


def _steered(ask: GenerationRequest) -> str | None:
    reason = altered_fields(1.0, 1.0, 0, ask.tool_choice if ask.use_tools else None, ask.engine_fields)
    return reason if reason in _PARSED_THERE else None
