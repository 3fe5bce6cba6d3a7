"""What the judge is shown of a turn: the request, the answer, what came back, and some history, as text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import normalize

from clawctl.judge.evidence import Evidence
from clawctl.judge.fences import visible
from clawctl.types import Message

BLOCK_CHARS = 24_000  # a longer text is shown by its beginning and its end: a judge's context is not endless

_ROLES = frozenset(("user", "assistant", "tool", "function", "environment", "system", "developer"))
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # each begins a line for somebody
# A line within a message that could be taken for the next speaker's: a name, however decorated, and what ends a name
_SPEAKER = re.compile(
    r"^(?=[^\S\n]*+(?:[^\w\n]|_){0,40}(?:user|human|customer|assistant|system|developer|tool|environment|function|model|ai|bot)(?![^\W_])"
    r"[^\n]{0,30}?[:\ua789>|\]\u2013\u2014-])",
    re.IGNORECASE | re.MULTILINE,
)


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
        role=" and ".join(dict.fromkeys(map(_speaker, came_back or []))) or "user",
        earlier=_end(earlier, history_chars),
    )


def _shown(messages: Sequence[Message]) -> str:
    """Messages of one speaker as they are; of several, each under its name."""
    several = len(set(map(_speaker, messages))) > 1
    return _cut(_with_names(messages) if several else "\n\n".join(map(_words, messages)))


def _with_names(messages: Sequence[Message]) -> str:
    """Each message under its name. Words that begin a line as a name would are quoted: nobody speaks for another."""
    return "\n\n".join(f"{_speaker(message)}: {_quoted(_words(message))}" for message in messages)


def _quoted(text: str) -> str:
    """`text` with a mark before each line that begins as a name would, in letters of any width."""
    if text.isascii():
        return _SPEAKER.sub("> ", text)
    return "\n".join(f"> {line}" if _SPEAKER.match(normalize("NFKC", line)) else line for line in text.split("\n"))


def _speaker(message: Message) -> str:
    """Who speaks. It stands outside the fences' care (in a header, before a colon), so it is never the client's own invention."""
    role = message.get("role", "user")
    return role if role in _ROLES else "another"


def _words(message: Message) -> str:
    """A message's text and its tool calls, one a line, without what nobody sees: it would hide a name from us."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(p["text"]) if isinstance(p, dict) and "text" in p else "[not text]" for p in content)
    lines = [str(content)] if content else []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(f"[calls {function.get('name')}({function.get('arguments')})]")
    return visible(_LINE_ENDS.sub("\n", "\n".join(lines)))


def _cut(text: str) -> str:
    """The beginning and the end, in one line where a line is cut: else its second half would begin a line of its own choosing."""
    if len(text) <= BLOCK_CHARS:
        return text
    half = BLOCK_CHARS // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters left out …] {text[-half:]}"


def _end(text: str, count: int) -> str:
    """The last `count` characters, from the first line that is whole, if one is."""
    if len(text) <= count or not count:
        return text if count else ""
    _, cut, whole = text[-count - 1 :].partition("\n")
    return whole if cut else f"… {text[-count:]}"
