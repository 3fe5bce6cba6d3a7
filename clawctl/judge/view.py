"""The judge's view of a turn: request, answer, next state, and some history, as text.

A judge's context is finite, and the author of a turn chooses its length. The characters are therefore divided: each block, and each
message within a block, gets a share, and unused characters go to the longer ones. Text is compressed before it is cut, because runs
of one character, unbroken strings and repeated lines are no evidence. A cut text keeps its beginning and its end.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from clawctl.judge.fences import visible
from clawctl.judge.noise import LEFT_OUT, without_noise
from clawctl.judge.protocol import Evidence
from clawctl.run.rows import Message

VIEW_CHARS = 24_000  # for all blocks together, because a judge's context is finite
MIN_CHARS = 240  # views are not made shorter than this
_MAX_READ = 20_000  # the number of characters searched for evidence in a text that exceeds its share, to bound the work

_ROLES = frozenset(("user", "assistant", "tool", "function", "environment", "system", "developer"))
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # after each of these, a line may name a speaker
# A line within a message that could look like another speaker's: a name, possibly decorated, and the mark that ends a name
_SPEAKER = re.compile(
    r"^(?=[^\S\n]*+(?:[^\w\n]|_){0,40}(?:user|human|customer|assistant|system|developer|tool|environment|function|model|ai|bot)(?![^\W_])"
    r"[^\n]{0,30}?[:\ua789>|\]\u2013\u2014-])",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class TurnView:
    """The parts of a turn that become arguments of `prompts.judge_messages`."""

    request: str
    answer: str
    next_state: str | None
    role: str  # "user", "tool", "tool and user"
    earlier: str

    def __len__(self) -> int:
        """The total number of characters."""
        return len(self.request) + len(self.answer) + len(self.next_state or "") + len(self.earlier)


Plain = Callable[[str, str], str]  # (text, role) -> the ordinary sentences of the text


def view_turn(turn: Evidence, history_chars: int, chars: int = VIEW_CHARS, plain: Plain | None = None) -> TurnView:
    """The view of a turn. The request is everything after the previous answer: the user's words, or tool results.

    `earlier` is the last `history_chars` characters of the conversation before the request, without the system prompt. All blocks
    together have about `chars` characters. With `plain`, each message is reduced to its ordinary sentences before it is cut. If a
    person replied, tool results next to the reply are then dropped, and so are tool calls next to the answer's text.
    """
    conversation = [message for message in turn.messages if message.get("role") not in ("system", "developer")]
    conversation, response = _whole_answer(conversation, turn.response or {})
    begin = max((at + 1 for at, message in enumerate(conversation) if message.get("role") == "assistant"), default=0)
    next_state = turn.next_state
    if plain and (people := [message for message in next_state or [] if message.get("role") == "user" and _words(message).strip()]):
        next_state, response = people, _seen_by_people(response)
    blocks = [conversation[:begin], conversation[begin:], [{"role": "assistant", **response}], next_state or []]
    request, answer, reply = (list(map(_words, messages)) for messages in blocks[1:])
    history = _recent(blocks[0], min(history_chars, chars // 4))
    texts = [history, request, answer, reply]
    lengths = [sum(map(len, block)) for block in texts]
    limits = shares(lengths, chars, (1, 1, 1, 2))  # the next state is the evidence
    shown = [_fitted(messages, block, limit, plain) for messages, block, limit in zip(blocks, texts, limits, strict=True)]
    earlier = _end(_with_names(blocks[0][len(blocks[0]) - len(history) :], shown[0]), history_chars)
    return TurnView(
        request=_shown(blocks[1], shown[1]),
        answer="\n\n".join(shown[2]),
        next_state=None if next_state is None else _shown(next_state, shown[3]),
        role=" and ".join(dict.fromkeys(map(_speaker, next_state or []))) or "user",
        earlier=earlier,
    )


def _whole_answer(messages: list[Message], response: Message) -> tuple[list[Message], Message]:
    """The messages and the complete answer. If the answer continues the last message, the two are joined.

    In that case the client wrote the beginning of the answer, and the model the rest.
    """
    if not messages or messages[-1].get("role") != "assistant" or messages[-1].get("tool_calls"):
        return messages, response
    return messages[:-1], {**response, "content": _text(messages[-1].get("content")) + _text(response.get("content"))}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


def _seen_by_people(response: Message) -> Message:
    """An answer as a person sees it: its text, or its tool calls if it has no text."""
    return {key: value for key, value in response.items() if key != "tool_calls"} if response.get("content") else response


def shares(lengths: Sequence[int], total: int, weights: Sequence[int]) -> list[int]:
    """The number of characters for each text, out of `total`. A text shorter than its share leaves the rest to the others."""
    given = [0] * len(lengths)
    left, waiting = total, sorted(range(len(lengths)), key=lambda at: lengths[at] / weights[at])
    while waiting:
        at, rest = waiting[0], sum(weights[other] for other in waiting)
        given[at] = min(lengths[at], left * weights[at] // rest)
        left -= given[at]
        waiting = waiting[1:]
    return given


def _recent(messages: Sequence[Message], chars: int) -> list[str]:
    """The texts of the last messages: as many as begin within the last `chars` characters."""
    recent: list[str] = []
    while chars > 0 and len(recent) < len(messages):
        recent.insert(0, _words(messages[len(messages) - 1 - len(recent)]))
        chars -= len(recent[0])
    return recent


def _fitted(messages: Sequence[Message], texts: Sequence[str], limit: int, plain: Plain | None) -> list[str]:
    """Each message without noise, compressed and cut to its share of `limit`. Users' messages get four times the share."""
    shown = list(messages)[len(messages) - len(texts) :]
    weights = [4 if message.get("role") == "user" else 1 for message in shown]
    limits = shares(list(map(len, texts)), limit, weights)
    return [
        _settled(text, share, message.get("role", "user"), plain) for message, text, share in zip(shown, texts, limits, strict=True)
    ]


def _settled(text: str, limit: int, role: str, plain: Plain | None) -> str:
    """`text` as it is shown: compressed if it is long, without noise, optionally in ordinary sentences only, cut to `limit`."""
    if len(text) > limit:
        text = without_repetitions(_cut(text, max(_MAX_READ, limit)), 1, _VARIES)
    text = without_noise(text, role == "user")
    return _cut(plain(text, role) if plain else text, limit)


_BLANK = re.compile(r"[^\S\n]{16,}")
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]{0,15}\n){2,}")
_RUN = re.compile(r"(.)\1{11,}")
_REPEATED = re.compile(r"(..|...|.{4}|.{5}|.{6}|.{8}|.{12})\1{5,}")
_UNBROKEN = re.compile(r"[!-~]{120,}")
_HEXADECIMAL = re.compile(r"(?:\b[0-9a-fA-F]{6,}\b[ \t]*){4,}")
_PIECE = re.compile(r"(?<=[\n.!?;,}\]\u3002\uff01\uff1f])")
_LETTER = re.compile(r"[^\W\d]")
_SHORT = 12  # shorter pieces are often repeated legitimately
_VARIES = re.compile(r"\d+")


def compressed(text: str) -> str:
    """`text` without repeated characters or short strings, blank lines, and strings that are too long to be words."""
    if len(text) < 64:
        return text
    text = _BLANK_LINES.sub("\n\n", _BLANK.sub(" ", text))
    text = _RUN.sub(r"\1\1\1", text)
    if len(text) < 200:
        return text
    text = _HEXADECIMAL.sub(LEFT_OUT, _REPEATED.sub(rf"\1\1{LEFT_OUT}", text))
    return without_repetitions(_UNBROKEN.sub(lambda match: f"{match[0][:40]}{LEFT_OUT}{match[0][-20:]}", text), 2)


def without_repetitions(text: str, limit: int, varies: re.Pattern[str] | None = None) -> str:
    """`text` with at most `limit` of its sentences or lines that are equal up to `varies`. A mark replaces the others."""
    counts: dict[str, int] = {}
    pieces: list[str] = []
    dropping = False
    for piece in _PIECE.split(text):
        same = piece.strip() if varies is None else varies.sub("#", " ".join(piece.split()))
        counts[same] = counts.get(same, 0) + 1
        if dropping and not _LETTER.search(piece):
            continue  # text between two dropped parts
        if counts[same] <= limit or len(same) < 2 or (varies is None and len(same) < _SHORT):
            pieces.append(piece)
            dropping = False
        elif not dropping:
            pieces.append(LEFT_OUT)
            dropping = True
    return "".join(pieces)


def _shown(messages: Sequence[Message], texts: Sequence[str]) -> str:
    """The text of messages. If they have several speakers, each message is preceded by its speaker's name."""
    several = len(set(map(_speaker, messages))) > 1
    return _with_names(messages, texts) if several else "\n\n".join(texts)


def _with_names(messages: Sequence[Message], texts: Sequence[str]) -> str:
    """Each message after its speaker's name. Lines that begin like a name are quoted, so no message can imitate a speaker."""
    return "\n\n".join(f"{_speaker(message)}: {_quoted(text)}" for message, text in zip(messages, texts, strict=True))


def _quoted(text: str) -> str:
    """`text` with a mark before each line that begins like a name, in letters of any width."""
    if text.isascii():
        return _SPEAKER.sub("> ", text)
    return "\n".join(f"> {line}" if _SPEAKER.match(normalize("NFKC", line)) else line for line in text.split("\n"))


def _speaker(message: Message) -> str:
    """The speaker of a message.

    The name is not protected by fences (it is in a header or before a colon), so it is never a name that a client invented.
    """
    role = message.get("role", "user")
    return role if role in _ROLES else "another"


def _words(message: Message) -> str:
    """A message's text and its tool calls, one per line. Invisible characters are removed, because they could hide a name."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(p["text"]) if isinstance(p, dict) and "text" in p else "[not text]" for p in content)
    lines = [str(content)] if content else []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(f"[calls {function.get('name')}({function.get('arguments')})]")
    return compressed(visible(_LINE_ENDS.sub("\n", "\n".join(lines))))


def _cut(text: str, limit: int) -> str:
    """The beginning and the end of a text. A cut inserts no line break, so that its second half cannot imitate a new line."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters left out …] {text[len(text) - half :]}"


def _end(text: str, count: int) -> str:
    """The last `count` characters, starting at a complete line if there is one."""
    if len(text) <= count or not count:
        return text if count else ""
    _, cut, whole = text[-count - 1 :].partition("\n")
    return whole if cut else f"… {text[-count:]}"
