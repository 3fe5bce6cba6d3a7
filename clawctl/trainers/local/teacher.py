"""The prompt of the teacher: the turn's own prompt, with the hint where the user would have written it."""

import secrets
from typing import Any

from clawctl.control_tokens import guard
from clawctl.run.rows import Message, Turn


def with_hint(messages: list[Message], hint: str) -> list[Message]:
    """`messages` with the hint block at the end of the last user message, or of the last message if there is no user message.

    The block is the published one of OpenClaw-RL (arXiv 2603.10165).
    """
    users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    target = users[-1] if users else len(messages) - 1
    block = f"\n\n[user's hint / instruction]\n{hint}"
    content = messages[target].get("content")
    hinted: Any = [*content, {"type": "text", "text": block}] if isinstance(content, list) else (content or "") + block
    return [{**message, "content": hinted} if index == target else message for index, message in enumerate(messages)]


def teacher_prompt_ids(tokenizer: Any, turn: Turn, hint: str) -> list[int] | None:
    """The recorded prompt with the hint inserted; None if the rendering shows no place for it in the recorded ids.

    The prompt is rendered with and without the hint. From the first id where the two differ, the plain rendering must be the end of
    the recorded ids. That end is replaced by the end of the rendering with the hint. Everything before it stays as recorded, so
    teacher and policy differ in the hint only. If the last message is the assistant's, the answer may continue that message.
    """
    if not turn.messages:
        return None
    found = _with_hint_in_it(tokenizer, turn, hint, continued=False)
    if found is None and turn.messages[-1].get("role") == "assistant":
        found = _with_hint_in_it(tokenizer, turn, hint, continued=True)
    return found


def _with_hint_in_it(tokenizer: Any, turn: Turn, hint: str, continued: bool) -> list[int] | None:
    recorded = turn.prompt_ids or []
    try:
        plain = _render(tokenizer, turn.messages, turn.tools, continued)
        hinted = _render(tokenizer, with_hint(turn.messages, hint), turn.tools, continued)
    except (ValueError, TypeError, KeyError, AttributeError, template_error()):  # a template may refuse any conversation
        return None
    start = next((i for i, (a, b) in enumerate(zip(plain, hinted, strict=False)) if a != b), min(len(plain), len(hinted)))
    tail = plain[start:]
    if not tail or list(recorded[-len(tail) :]) != tail:
        return None
    return [*recorded[: len(recorded) - len(tail)], *hinted[start:]]


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
    """The error of a chat template."""
    from jinja2 import TemplateError  # comes with transformers' chat templates

    return TemplateError
