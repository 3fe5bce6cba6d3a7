"""The bodies of requests to an upstream: chat completions, or plain completions with the prompt as text or token ids."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clawctl.engines import Sampled
from clawctl.engines.requests import GenerationRequest, Prompt
from clawctl.engines.upstream.adapters import Target
from clawctl.engines.upstream.tokens import IDS_WANTED

if TYPE_CHECKING:
    from clawctl.engines.upstream.forms import AnswerForm
    from clawctl.serve.prompt import Rendered  # transformers is needed only for splicing

COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_TEMPLATE_ONLY = ("messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs")
# If no client reads the stream, vLLM may send this many tokens at once, which saves most of the work of a stream. A cancelled
# answer loses fewer tokens than that. Not used if weights change under running requests, because each token then gets its version
# on arrival.
_UNREAD_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a request is sent to an upstream."""

    prompt: "Rendered | None" = None  # the prompt to send as ids; None: send the messages
    spliced: int | None = None  # see `Sampled`
    unspliced: str | None = None
    form: "AnswerForm | None" = None  # of the answer; None: the engine's own fields decide


def as_completion(chat: dict[str, Any], prompt_ids: list[int]) -> dict[str, Any]:
    """The body of a plain completion that is equivalent to a chat completion's body."""
    body = {name: value for name, value in chat.items() if name not in _TEMPLATE_ONLY}
    top = body.pop("top_logprobs", 0)
    body["max_tokens"] = body.get("max_tokens")  # without a limit, completions have 16 tokens
    return {**body, "prompt": prompt_ids, "logprobs": top, "return_tokens_as_token_ids": True}


def as_plain(chat: dict[str, Any], prompt: Prompt, add_special_tokens: bool) -> dict[str, Any]:
    """The body of a client's plain completion, made from a chat completion's body."""
    asks_logprobs = chat.get("logprobs") is True
    body = as_completion(chat, [])
    del body["return_tokens_as_token_ids"]
    if not asks_logprobs:
        del body["logprobs"]
    if not add_special_tokens:
        body["add_special_tokens"] = False
    return {**body, "prompt": prompt}


def path_of(body: dict[str, Any]) -> str:
    return COMPLETIONS if "prompt" in body else _CHAT


def without_limit(body: dict[str, Any]) -> dict[str, Any]:
    """The body without a limit. In plain completions a missing limit means 16 tokens, and null means no limit."""
    rest = {name: value for name, value in body.items() if name != "max_tokens"}
    return {**rest, "max_tokens": None} if "prompt" in body else rest


@dataclass(frozen=True, slots=True)
class BodyWriter:
    """Writes bodies for one server."""

    kind: str  # "vllm", "sglang", "openai"
    model: str  # its name for the base model
    logprobs: bool | None  # whether it returns them
    max_tokens: int | None  # of an answer whose request names no limit

    def body(self, request: GenerationRequest, target: Target, plan: CallPlan, sampled: Sampled, i: int) -> dict[str, Any]:
        """The request body, always for a stream. Only a stream shows when the first token arrived, which version sampled which
        token, and the tokens of a cancelled answer."""
        body: dict[str, Any] = {
            **request.engine_fields,
            "model": target.name,
            "messages": request.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampled.temperature,
            "top_p": sampled.top_p,
        }
        if (max_tokens := request.max_tokens or self.max_tokens) is not None:
            body["max_tokens"] = max_tokens  # otherwise the engine's own limit applies: the rest of the context
        if request.stop:
            body["stop"] = request.stop
        functions = request.functions if self.kind == "openai" else request.shown_tools
        if functions:  # known servers show tools to the model even if it must not call any
            body["tools"] = functions
            if request.tool_choice is not None:
                body["tool_choice"] = request.tool_choice
        if request.continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif not request.prompted:
            body["add_generation_prompt"] = False
        if request.top_k:
            body["top_k"] = request.top_k
        if "seed" in body and i:
            body["seed"] += i
        if self.logprobs or request.logprobs:
            body.update(logprobs=True, top_logprobs=request.top_logprobs if request.logprobs else 0)
        if self.kind != "openai":
            # Always sent, because a server's own defaults must not change the sampling of a turn that counts as unchanged.
            neutral = {"top_k": request.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
            body = {**neutral, **body, **IDS_WANTED[self.kind]}
        if self.kind == "sglang" and target.name != self.model:
            body |= {"model": self.model, "lora_path": target.name}
        if self.kind == "vllm" and target.steady and not request.stream:
            body["stream_interval"] = _UNREAD_TOKENS
        if plan.form is not None:
            body.pop("response_format", None)
            body["structured_outputs"] = {"grammar": plan.form.grammar}
        if request.prompts:
            return as_plain(body, request.prompts[0], request.add_special_tokens)
        return body if plan.prompt is None else as_completion(body, plan.prompt.ids)
