"""From a chat to the ids that enter the engine: the model's own template, nothing added."""

from typing import Any

import jinja2
import orjson
from transformers import AutoTokenizer

from clawctl.errors import ClawError
from clawctl.serve.dialects import Ask, Refusal
from clawctl.serve.text import THINK


def load_tokenizer(path: str) -> Any:
    """The tokenizer beside the model. Raises ClawError if there is none, or one without a chat template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ClawError(
            f"the tokenizer in {path} cannot be loaded: {error}", "name a whole model directory with --model", 2
        ) from error
    if not tokenizer.chat_template:
        raise ClawError(f"the tokenizer in {path} has no chat template", "name a chat (instruct) model with --model", 2)
    return tokenizer


def render(tokenizer: Any, ask: Ask) -> tuple[list[int], bool]:
    """The prompt's ids, and whether the answer begins within reasoning. Raises Refusal where the template objects."""
    if any(isinstance(message.get("content"), list) for message in ask.messages):
        raise Refusal(400, "this model takes no images", "messages")
    messages = [_for_template(message) for message in ask.messages]
    tools = [tool for tool in ask.tools or [] if tool.get("type") == "function" and isinstance(tool.get("function"), dict)]
    settings = {key: value for key, value in ask.template_settings.items() if key not in ("tokenize", "return_dict")}
    settings.setdefault("add_generation_prompt", True)
    try:
        text = _apply(tokenizer, messages, tools, settings)
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise Refusal(400, f"the model's chat template cannot render these messages: {error}", "messages") from error
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return list(ids), text.rstrip().endswith(THINK)


def _apply(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    """The template's text. Some templates take a system message at the beginning only, and some clients write one later on."""
    try:
        return str(tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False, **settings))
    except jinja2.TemplateError:
        moved = later_system_as_user(messages)
        if moved == messages:
            raise
        return str(tokenizer.apply_chat_template(moved, tools=tools or None, tokenize=False, **settings))


def later_system_as_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same words, with every system message but the first message said by the user."""
    return [{**m, "role": "user"} if i and m["role"] == "system" else m for i, m in enumerate(messages)]


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """Templates expect text, not parts, and tool arguments as values."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_values(call) for call in calls]}


def _with_values(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = orjson.loads(function["arguments"])
    except orjson.JSONDecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
