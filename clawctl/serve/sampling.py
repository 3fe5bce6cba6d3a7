"""What a client may ask of the sampling, and what of it changes the distribution so that the turn cannot be trained."""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class EngineField:
    """A field of OpenAI's or vLLM's chat completions that goes to an upstream as it is."""

    reason: str | None = None  # why a turn with it is not trained; None: the logprobs stay the policy's own
    neutral: tuple[Any, ...] = ()  # values that change nothing, besides null


# Below it an answer is as good as greedy, and not sampled at what was asked for: vLLM takes 0.01 instead, and in float32 what is
# divided by 1e-300 is no number.
LEAST_TEMPERATURE: Final = 0.01
_STRUCTURED: Final = EngineField("structured output", ({},))
ENGINE_FIELDS: Final[dict[str, EngineField]] = {
    "presence_penalty": EngineField("presence_penalty", (0,)),
    "frequency_penalty": EngineField("frequency_penalty", (0,)),
    "repetition_penalty": EngineField("repetition_penalty", (1,)),
    "logit_bias": EngineField("logit_bias", ({},)),
    "min_p": EngineField("min_p", (0,)),
    "min_tokens": EngineField("min_tokens", (0,)),
    "bad_words": EngineField("bad_words", ([],)),
    "allowed_token_ids": EngineField("allowed_token_ids"),
    "ignore_eos": EngineField("ignore_eos", (False,)),
    "response_format": EngineField("structured output", ({"type": "text"},)),
    "structured_outputs": _STRUCTURED,
    "guided_json": _STRUCTURED,
    "guided_regex": _STRUCTURED,
    "guided_choice": _STRUCTURED,
    "guided_grammar": _STRUCTURED,
    "seed": EngineField(),
    "parallel_tool_calls": EngineField(),
    "reasoning_effort": EngineField(),
    "chat_template_kwargs": EngineField(),
    "stop_token_ids": EngineField(neutral=([],)),
    "cache_salt": EngineField(),
}


def engine_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chat completion's body that an upstream gets as they are."""
    return {name: body[name] for name in ENGINE_FIELDS if body.get(name) is not None}


def altered(temperature: float, top_p: float, top_k: int, tool_choice: Any, fields: dict[str, Any]) -> str | None:
    """Why logprobs are not the policy's own. Temperature is known to the trainer; a cut or bent distribution is not."""
    if temperature < LEAST_TEMPERATURE:
        return "greedy"
    if top_p < 1:
        return "top_p"
    if top_k > 0:
        return "top_k"
    if tool_choice == "required" or isinstance(tool_choice, dict):
        return "forced tool choice"
    for name, value in fields.items():
        field = ENGINE_FIELDS[name]
        if field.reason is not None and value not in field.neutral:
            return field.reason
    return None


def beyond_embedded(tool_choice: Any, fields: dict[str, Any], steers: bool) -> str | None:
    """The parameter that only an engine with guided decoding or other logits processors can honour, or None. `steers`: the engine
    bends its own distribution."""
    if tool_choice == "required" or isinstance(tool_choice, dict):
        return "tool_choice"
    beyond = _BENDING - _STEERED if steers else _BENDING
    return next((name for name in fields if name in beyond and fields[name] not in ENGINE_FIELDS[name].neutral), None)


_BENDING: Final = frozenset(name for name, field in ENGINE_FIELDS.items() if field.reason is not None) | {"stop_token_ids"}
_STEERED: Final = frozenset(("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_p"))
