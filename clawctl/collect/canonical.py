"""Messages in a canonical form, for comparison only; stored and trained messages are always the original ones.

Clients change messages that they send back: `developer` becomes `system`, a text becomes a list of parts, tool arguments get
different spaces, ids lose their punctuation, reasoning disappears. Two messages are the same if their digests are equal.
"""

import html
import re
import unicodedata
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from clawctl.collect.side_rules import is_pair, is_transient
from clawctl.run.images import IMAGE
from clawctl.run.rows import Exchange, Message

SHORTEST_HANDLE = 16  # characters of a tool-call id
MAX_MERGED = 32  # maximum number of line breaks of an answer that are examined
MAX_LETTERS = 1 << 16  # characters of a message whose letters are compared
MAX_LINES = 512  # of a user message; a longer message is only compared as a whole

_NO_LETTERS = re.compile(r"[\W_]+")
_MARK = re.compile(r"[\[(<][^\n\[\]()<>]{1,60}[\])>]\s*\Z")  # "[interrupted by user]"
_ROLES = {"developer": "system", "function": "tool"}


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """The messages of one request without its system prompt, which some clients rewrite each turn, and without known transients.

    `digests`, `roles`, `positions`, `paths` and `before` have one entry per message. Tool results of one answer are sorted, because
    clients return them in any order. System messages count as results if only they are between two answers, as in gptme.
    """

    digests: tuple[bytes, ...]
    roles: str  # one letter per message: "u", "a", "t", "s"
    positions: tuple[int, ...]  # index of the message in the request
    paths: tuple[bytes, ...]  # digest of everything up to and including the message
    before: tuple[bytes, ...]  # digest of the request before the message, including system messages and transients
    system: bytes  # digest of all other system messages
    whole: bytes  # digest of the request
    transient_at: tuple[int, ...]  # positions of known transients, as the number of messages before them

    @property
    def path(self) -> bytes:
        """Digest of the complete conversation."""
        return self.paths[-1] if self.paths else b""

    def path_before(self, index: int) -> bytes:
        """Digest of the conversation up to the last answer before a message; empty without one."""
        last = self.roles.rfind("a", 0, index)
        return self.paths[last] if last >= 0 else b""


def read_conversation(messages: Sequence[Message]) -> CanonicalRequest:
    """Return the canonical form of one request."""
    items: list[tuple[bytes, str, int]] = []
    before: list[bytes] = []
    transient_at: list[int] = []
    system = blake2b(digest_size=12)
    roles = [role_of(message) for message in messages]
    results = _system_results(roles, messages)
    whole = b""
    run_start = 0  # start of the current run of consecutive tool results
    for index, message in enumerate(messages):
        role, digest, digest_before = roles[index], message_digest(message), whole
        whole = extend_path(whole, digest)
        if role == "system" and index not in results:
            system.update(digest)
        elif role == "user" and is_transient(text_of(message.get("content"))):
            transient_at.append(len(items))
        elif _is_of_pair(messages, index, role):
            continue
        else:
            if role != "tool":
                run_start = len(items) + 1
            items.append((digest, role[:1], index))
            before.append(digest_before)
            if role == "tool" and len(items) - run_start > 1:
                items[run_start:] = sorted(items[run_start:])
    digests = tuple(item[0] for item in items)
    return CanonicalRequest(
        digests=digests,
        roles="".join(item[1] for item in items),
        positions=tuple(item[2] for item in items),
        paths=_paths(digests),
        before=tuple(before),
        system=system.digest(),
        whole=whole,
        transient_at=tuple(transient_at),
    )


def _system_results(roles: Sequence[str], messages: Sequence[Message]) -> set[int]:
    """Return the indices of system messages that are alone between an answer and the next one, or the end."""
    results: set[int] = set()
    run: list[int] | None = None  # indices of system messages directly after an answer
    for index, role in enumerate(roles if "system" in roles[1:] else ()):
        if role == "system":
            if run is not None and text_of(messages[index].get("content")).strip():
                run.append(index)
        else:
            results.update(run or () if role == "assistant" else ())
            run = [] if role == "assistant" else None
    results.update(run or ())
    return results


def _is_of_pair(messages: Sequence[Message], index: int, role: str) -> bool:
    """Whether this message and its neighbour form a question and answer that the client itself inserted."""
    first = index if role == "user" else index - 1
    if role not in ("user", "assistant") or first < 0 or first + 1 >= len(messages):
        return False
    question, answered = messages[first], messages[first + 1]
    if role_of(question) != "user" or role_of(answered) != "assistant" or answered.get("tool_calls"):
        return False
    return is_pair(text_of(question.get("content")), text_of(answered.get("content")))


def _paths(digests: Sequence[bytes]) -> tuple[bytes, ...]:
    paths = []
    path = b""
    for digest in digests:
        path = extend_path(path, digest)
        paths.append(path)
    return tuple(paths)


def extend_path(path: bytes, digest: bytes) -> bytes:
    """Return the path of a conversation after one more message."""
    return blake2b(path + digest, digest_size=12).digest()


def role_of(message: Message) -> str:
    """Return system, user, assistant or tool. Any other role counts as user, because the message was an input."""
    role = _ROLES.get(message.get("role", ""), message.get("role", ""))
    return role if role in ("system", "assistant", "tool") else "user"


def message_digest(message: Message, with_arguments: bool = True) -> bytes:
    """Return a digest that is equal for all serialisations of a message. It ignores ids, names, reasoning, whitespace, how letters
    are composed, and optionally the arguments of tool calls.
    """
    role = role_of(message)
    text = text_of(message.get("content"))
    if role == "assistant":
        text = text.rpartition("</think>")[2]
    digest = blake2b(_encoded(f"{role}:{text.strip()}").translate(None, b" \t\n\r\v\f"), digest_size=12)
    if role == "assistant":
        for name, arguments in _calls(message):
            digest.update(_encoded(f"\ncall {name} {arguments if with_arguments else ''}"))
    return digest.digest()


def _encoded(text: str) -> bytes:
    """The bytes of a text, in one normal form: a file system or an editor may decompose its letters."""
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


def continued_digest(messages: Sequence[Message], answer: Message) -> bytes | None:
    """Return the digest of the last message and the answer as one message, or None if the last message is not assistant text.

    Clients show an answer that continues a message in this form.
    """
    last = messages[-1] if messages else {}
    if role_of(last) != "assistant" or _calls(last):
        return None
    return message_digest({**answer, "content": text_of(last.get("content")) + text_of(answer.get("content"))})


@dataclass(frozen=True, slots=True)
class AnswerText:
    """The text of an answer, for comparison with the start of another text."""

    length: int  # characters
    digest: bytes
    has_calls: bool


def answer_text(message: Message) -> str:
    """Return the text of an assistant message without reasoning and without surrounding whitespace."""
    return text_of(message.get("content")).rpartition("</think>")[2].strip()


def letters_of(message: Message) -> str:
    """Return the letters and digits of a message's text, which stay when a client cleans, escapes, wraps or cuts the text.

    A mark in brackets at the end is ignored.
    """
    content = message.get("content")
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else [content]
    text = "".join(part for part in parts if isinstance(part, str)).rpartition("</think>")[2][:MAX_LETTERS]
    return _NO_LETTERS.sub("", unicodedata.normalize("NFKC", html.unescape(_MARK.sub("", text))))


def read_answer(exchange: Exchange) -> tuple[bytes | None, bytes | None, AnswerText | None]:
    """Return the digest of an answer, its digest without arguments if it has calls, and its text and calls. None after an error:
    nothing can follow it.
    """
    message = exchange.response
    if message is None or exchange.status == "error":
        return None, None, None
    text, has_calls = answer_text(message), bool(_calls(message))
    called = message_digest(message, with_arguments=False) if has_calls else None
    shown = AnswerText(len(text), _text_digest(text), has_calls) if text or has_calls else None
    return message_digest(message), called, shown


def begins_with(shown: str, answer: AnswerText) -> bool:
    """Whether a client's text begins with an answer: the text continues after it, or its tool call was removed."""
    more = len(shown) > answer.length or (len(shown) == answer.length and answer.has_calls)
    return more and (answer.length > 0 or not shown) and _text_digest(shown[: answer.length]) == answer.digest


def _text_digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def lines_of(message: Message) -> "array[int]":
    """Return a hash for each of `line_texts`, for comparison in this process. A hash is odd if the line begins with a tag."""
    return array("q", map(line_hash, line_texts(message)))


def line_texts(message: Message) -> list[str]:
    """Return the non-empty lines of a message. Each part begins a new line. Empty for a message of more than MAX_LINES lines."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    text = "\n".join(text_of([part]) if isinstance(part, dict) else text_of(part) for part in parts)
    lines = [line.strip() for line in text.split("\n", MAX_LINES + 1)]
    return [line for line in lines if line] if len(lines) <= MAX_LINES else []


def line_hash(line: str) -> int:
    return (hash(line) & ~1) | (line[0] == "<")


def text_of(content: Any) -> str:
    """Return a message's content as text. Parts that are not text are included as JSON."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else canonical_json(content)
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and part.get("type") == IMAGE and isinstance(part.get(IMAGE), dict):
        return str(part[IMAGE].get("url")).partition("?")[0]  # behind it stands a signature that changes
    return canonical_json({key: value for key, value in part.items() if key != "cache_control"} if isinstance(part, dict) else part)


def _calls(message: Message) -> list[tuple[str, str]]:
    calls = message.get("tool_calls") or []
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    functions.append(message.get("function_call"))
    return [(str(f.get("name")), canonical_arguments(f.get("arguments"))) for f in functions if isinstance(f, dict)]


def tools_called(message: Message) -> list[str]:
    return [name for name, _ in _calls(message)]


def canonical_arguments(arguments: Any) -> str:
    """Return tool arguments as canonical text: `{ "a" : 5000.0 }` and `{"a":5000}` are equal. Text that is not JSON stays
    unchanged.
    """
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return str(arguments).strip()
    return canonical_json(arguments)


def canonical_json(value: Any) -> str:
    try:
        return orjson.dumps(_whole_numbers(value), option=orjson.OPT_SORT_KEYS).decode()
    except (RecursionError, orjson.JSONEncodeError):
        return "(nested too deeply to compare)"


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    return value


def handles(message: Message | None) -> tuple[str, ...]:
    """Return the ids by which an assistant message identifies its turn.

    One is the `handle` that serve read from the echoed ids (of responses and items, `encrypted_content`, `signature`). The others
    are the ids of its tool calls without punctuation, which some clients remove. An engine's call ids are random. A short id may be
    the model's own ("call_1") and identifies nothing.
    """
    issued = message.get("handle") if message else None
    calls = message.get("tool_calls") if message else None
    ids = [str(call.get("id", "")) if isinstance(call, dict) else "" for call in (calls if isinstance(calls, list) else [])]
    bare = ("".join(letter for letter in text if letter.isalnum()) for text in ids)
    handles_in_text = tuple(text for text in bare if len(text) >= SHORTEST_HANDLE)
    return (issued, *handles_in_text) if isinstance(issued, str) else handles_in_text


def answers_within(message: Message) -> list[tuple[bytes, bytes]]:
    """Return, for each line break where a client may have merged two answers into one message, digests of both parts."""
    text = text_of(message.get("content"))
    cuts, end = list[int](), len(text)
    while len(cuts) < MAX_MERGED and (end := text.rfind("\n", 0, end)) >= 0:
        cuts.insert(0, end)
    second = {**message, "content": None}
    return [
        (message_digest({"role": "assistant", "content": text[:cut]}), message_digest({**second, "content": text[cut:]}))
        for cut in cuts
    ]


def continued_paths(conversation: CanonicalRequest, exchange: Exchange) -> tuple[bytes, ...]:
    """Return the paths of a conversation that continues an answer, as clients show it: joined with the start of the answer, or
    without it.
    """
    joined = continued_digest(exchange.messages, exchange.response) if exchange.response is not None else None
    if joined is None or exchange.response is None:
        return ()
    before = conversation.paths[-2] if len(conversation.paths) > 1 else b""
    return extend_path(before, joined), extend_path(before, message_digest(exchange.response))


def last_user_lines(conversation: CanonicalRequest, messages: list[Message]) -> "tuple[int, array[int]] | None":
    index = conversation.roles.rfind("u")
    lines = lines_of(messages[conversation.positions[index]]) if index >= 0 else None
    return (index, lines) if lines and len(lines) > 1 else None
