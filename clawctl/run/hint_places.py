"""Where a hint stands in a prompt: at the end or the beginning of the last user message, in one of a few forms.

A hint that a model follows in one form has no effect in another, and models differ. `train.hint_place` names the form, or `auto`:
the form that the untrained model followed most often when it was tried (`environments/hint_trial.py`).
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import orjson

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.rows import HintPlace, Message

# What stands before and after the request. `block` is the published form of OpenClaw-RL (arXiv 2603.10165).
_FORMS: dict[HintPlace, tuple[str, str]] = {
    "block": ("", "\n\n[user's hint / instruction]\n{hint}"),
    "line": ("", " {hint}"),
    "below": ("", "\n\n{hint}"),
    "above": ("{hint}\n\n", ""),
}
PLACES: Sequence[HintPlace] = ("line", "below", "above", "block")  # in a tie, the first one is chosen
PUBLISHED: HintPlace = "block"


def with_hint(messages: Sequence[Message], hint: str, place: HintPlace = PUBLISHED) -> list[Message]:
    """`messages` with the hint in the last user message, or in the last message if there is no user message."""
    target = _target(messages)
    before, after = (form.replace("{hint}", hint) for form in _FORMS[place])
    content = messages[target].get("content")
    if isinstance(content, list):
        parts = ([{"type": "text", "text": before}] if before else [], [{"type": "text", "text": after}] if after else [])
        hinted: Any = [*parts[0], *content, *parts[1]]
    else:
        hinted = before + (content or "") + after
    return [{**message, "content": hinted} if index == target else message for index, message in enumerate(messages)]


def without_hint(messages: Sequence[Message], hint: str, place: HintPlace = PUBLISHED) -> list[Message] | None:
    """The messages that `with_hint` was given; None if the hint does not stand there, or if the message is not plain text."""
    target = _target(messages)
    before, after = (form.replace("{hint}", hint) for form in _FORMS[place])
    content = messages[target].get("content") if messages else None
    if not isinstance(content, str) or not (content.startswith(before) and content.endswith(after)):
        return None
    plain = content[len(before) : len(content) - len(after)]
    return [{**message, "content": plain} if index == target else message for index, message in enumerate(messages)]


def after_reply(messages: Sequence[Message], answer: Message | None, reply: Sequence[Message] | None) -> list[Message] | None:
    """The conversation up to a person's reply, and then the person's request again: with the reply before it, a model knows in
    hindsight what was wanted (arXiv 2603.12273). None if no request was answered in words, or no person replied."""
    if answer is None or answer.get("tool_calls") or not reply or not messages:
        return None
    if any(message.get("role") != "user" or not isinstance(message.get("content"), str) for message in (messages[-1], *reply)):
        return None
    return [*messages, answer, *reply, messages[-1]]


def read_hint_place(run: RunDir) -> HintPlace | None:
    """The place that was tried and recorded for this run's model; None: not yet. Raises ClawError if the record is damaged."""
    try:
        name = orjson.loads(run.hint_place.read_bytes())["place"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ClawError(f"{run.hint_place} cannot be read: {error}", "delete it; the next practice tries again") from error
    if name not in PLACES:
        raise ClawError(f"{run.hint_place} names the place {name!r}", "delete it; the next practice tries again")
    return cast(HintPlace, name)


def used_hint_place(run: RunDir, setting: HintPlace | Literal["auto"]) -> HintPlace:
    """The place that `train.hint_place` stands for: `auto` is the recorded one, and before there is a record the published one."""
    return (read_hint_place(run) or PUBLISHED) if setting == "auto" else setting


def _target(messages: Sequence[Message]) -> int:
    users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    return users[-1] if users else len(messages) - 1
