"""The tokens of a model whose tokenizer is on this machine. Needs no torch.

The ids of imported turns come from the model's own chat template. The teacher's prompt is the turn's own prompt, changed only from
where the hint or the reply stands.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clawctl.control_tokens import Guarded, guard
from clawctl.run.rows import Message, Turn, is_plain
from clawctl.trainers import Unrenderable

_SURE = 8  # ids by which the end of a recorded prompt is recognised


@dataclass(frozen=True, slots=True)
class TokenizerTexts:
    """`Texts` implemented with a transformers tokenizer."""

    tokenizer: Any
    vocabulary: int
    context: int | None = None

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode([number for number in ids if 0 <= number < self.vocabulary]))

    def render(self, turn: Turn) -> Turn:
        return rendered(self.tokenizer, turn)

    def prompt_of(self, turn: Turn, messages: Sequence[Message]) -> list[int] | None:
        return prompt_ids_of(self.tokenizer, turn, messages)


def prompt_ids_of(tokenizer: Any, turn: Turn, messages: Sequence[Message]) -> list[int] | None:
    """The recorded prompt, changed to that of `messages`; None if the renderings do not show where it changes.

    If the last message is the assistant's, the answer may continue that message.
    """
    if not turn.messages or not messages:
        return None
    result = _with_other_end(tokenizer, turn, messages, continued=False)
    if result is None and turn.messages[-1].get("role") == messages[-1].get("role") == "assistant":
        result = _with_other_end(tokenizer, turn, messages, continued=True)
    return result


def _with_other_end(tokenizer: Any, turn: Turn, messages: Sequence[Message], continued: bool) -> list[int] | None:
    """From the first id where the renderings differ, that of the turn's own messages must be the end of the recorded ids. That end
    is replaced by the end of the other rendering. Everything before it stays as recorded: only the messages differ.
    """
    recorded = list(turn.prompt_ids or [])
    try:
        rendered = _render(tokenizer, turn.messages, turn.tools, continued)
        other = _render(tokenizer, list(messages), turn.tools, continued)
    except (ValueError, TypeError, KeyError, AttributeError, template_error()):  # a template may refuse any conversation
        return None
    start = next((i for i, (a, b) in enumerate(zip(rendered, other, strict=False)) if a != b), min(len(rendered), len(other)))
    tail = rendered[start if start < len(rendered) else -_SURE :]  # if messages are added, all of `rendered` is the same
    if rendered == other or recorded[-len(tail) :] != tail:
        return None
    return [*recorded[: len(recorded) - len(tail)], *other[len(rendered) - len(tail) :]]


def _render(tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]] | None, continued: bool) -> list[int]:
    safe = guard(tokenizer, messages, tools)
    if continued:  # up to the end of the last message, as serve renders a prompt whose answer continues it
        mark, last = secrets.token_hex(12), safe.messages[-1]
        marked = [*safe.messages[:-1], {**last, "content": mark}]
        return safe.encode(
            tokenizer.apply_chat_template(marked, tools=safe.tools, tokenize=False).rpartition(mark)[0] + last["content"]
        )
    return safe.encode(tokenizer.apply_chat_template(safe.messages, tools=safe.tools, add_generation_prompt=True, tokenize=False))


def template_error() -> type[Exception]:
    """The error class of chat templates."""
    from jinja2 import TemplateError  # installed with transformers' chat templates

    return TemplateError


def rendered(tokenizer: Any, turn: Turn) -> Turn:
    """The turn with the ids of its prompt and of its answer, including the end token. Raises Unrenderable.

    The answer's ids are those of the text that the template writes after the prompt, as if a server had sampled it.
    """
    if turn.response is None or is_plain(turn.messages):  # a template would render a plain prompt differently
        raise Unrenderable
    if any(isinstance(message.get("content"), list) for message in (*turn.messages, turn.response)):
        raise Unrenderable
    safe = guard(tokenizer, [*turn.messages, turn.response], turn.tools)
    try:
        prompt = _text(tokenizer, safe.messages[:-1], safe, add_generation_prompt=True)
        whole = _text(tokenizer, safe.messages, safe)
    except (ValueError, TypeError, KeyError, AttributeError, template_error()) as error:  # a template may refuse any conversation
        raise Unrenderable from error
    content, end = safe.messages[-1].get("content") or "", tokenizer.eos_token
    answer, result, remaining = whole[len(prompt) :].rpartition(end)
    if not whole.startswith(prompt) or not result or remaining.strip() or not answer or content.strip() not in answer:
        raise Unrenderable  # if the template rewrites messages, other text would be trained
    prompt_ids, completion_ids = (safe.encode(text) for text in (prompt, answer + end))
    return replace(turn, prompt_ids=prompt_ids, completion_ids=completion_ids)


def _text(tokenizer: Any, messages: list[dict[str, Any]], safe: Guarded, **settings: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=safe.tools, tokenize=False, **settings))
