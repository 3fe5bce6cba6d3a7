"""What the judge is shown of a turn: the request, the answer, what came back, and some history, as text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clawctl.judge.evidence import Evidence
from clawctl.types import Message

BLOCK_CHARS = 24_000  # a longer text is shown by its beginning and its end: a judge's context is not endless

# A line within a message that could be taken for the next speaker's
_SPEAKER = re.compile(r"(?im)^(?=[ \t]*(?:user|human|assistant|system|developer|tool|environment|function|ai)[ \t]*:)")


@dataclass(frozen=True, slots=True)
class View:
    """The arguments of `prompts.judge_messages` that come from the turn."""

    request: str
    answer: str
    next_state: str | None
    role: str  # "user", "tool", "tool and user"
    earlier: str


def view_turn(turn: Evidence, history_chars: int) -> View:
    """The request is everything after the previous answer: the user's words, or the tool results that the turn works on.

    `earlier` is the conversation before that without its system prompt, the last `history_chars` characters of it.
    """
    said = [message for message in turn.messages if message.get("role") not in ("system", "developer")]
    begin = max((at + 1 for at, message in enumerate(said) if message.get("role") == "assistant"), default=0)
    earlier = _with_names(said[:begin])
    came_back = turn.next_state
    return View(
        request=_shown(said[begin:]),
        answer=_cut(_words(turn.response or {})),
        next_state=None if came_back is None else _shown(came_back),
        role=" and ".join(dict.fromkeys(str(message.get("role", "user")) for message in came_back or [])) or "user",
        earlier=earlier[-history_chars:] if history_chars else "",
    )


def _shown(messages: Sequence[Message]) -> str:
    """Messages of one speaker as they are; of several, each under its name."""
    several = len({message.get("role") for message in messages}) > 1
    return _cut(_with_names(messages) if several else "\n\n".join(map(_words, messages)))


def _with_names(messages: Sequence[Message]) -> str:
    """Each message under its name. Words that begin a line as a name would are quoted: nobody speaks for another."""
    return "\n\n".join(f"{message.get('role')}: {_SPEAKER.sub('> ', _words(message))}" for message in messages)


def _words(message: Message) -> str:
    """A message's text and its tool calls, one a line."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(p["text"]) if isinstance(p, dict) and "text" in p else "[not text]" for p in content)
    lines = [str(content)] if content else []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(f"[calls {function.get('name')}({function.get('arguments')})]")
    return "\n".join(lines)


def _cut(text: str) -> str:
    if len(text) <= BLOCK_CHARS:
        return text
    half = BLOCK_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
