"""Detects tool calls that were cut off by the length limit, a stop string or a broken stream.

The client cannot parse such a call, and the next state refers to the error. Even if a cut call happens to parse, it is not the call
that the policy was writing. A turn with a cut call is therefore never trained.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

CUT_CALL = "cut tool call"

Decode = Callable[[list[int]], str]  # token ids to text, special tokens included; "" if no tokenizer is known

_MARKS: list[tuple[str, str | None]] = [
    (marks[0], marks[1] if len(marks) > 1 else None)
    for marks in yaml.safe_load((Path(__file__).parent / "call_marks.yaml").read_text("utf-8"))
]
# In the visible text, which the client parses: smolagents, Claude's XML.
_OF_CLIENTS = (("<code>", "</code>"), ("<invoke", "</invoke>"))
_AT_LIMIT = (*_MARKS, *_OF_CLIENTS)
_BEGINNINGS = tuple({begin[:length] for begin, _ in _AT_LIMIT for length in range(2, len(begin))})  # of start marks
_FINISHED = ("stop", "tool_calls", "function_call")
_END_TOKEN = re.compile(r"(<\|[^<>|\s]{1,40}\|>|<｜[^<>\s]{1,40}｜>|</s>|<eos>|<end_of_turn>|<\w{1,20}\|>|\[EOS\])\s*$")
_NOT_SHOWN = re.compile(r"</?think>|\s|\ufffd")  # markup that engines omit from the visible text


def has_cut_call(
    tools: Sequence[Any] | None,
    response: dict[str, Any] | None,
    finish_reason: str | None,
    ids: Sequence[int] | None = None,
    decode: Decode | None = None,
) -> bool:
    """Whether a call in `response` was cut off, or may have been. `finish_reason` is None if it is unknown. `ids` are the sampled
    tokens; with `decode`, text that the client did not see counts as well."""
    if response is None:
        return False
    calls = list(_arguments(response))
    if finish_reason not in (None, *_FINISHED):
        shown = _shown(response)
        if calls or _is_open_at_limit(shown):
            return True
        if not tools or not ids:
            return False
        return not shown.strip() or (decode is not None and _holds_more(decode(list(ids)), shown))
    if ids and decode is not None:
        if _END_TOKEN.search(decode(list(ids[-1:]))):
            return False  # the policy ended the answer itself, so a malformed call is its own output
        if _is_open(decode(list(ids)), _MARKS):
            return True
    return any(map(_is_unclosed, calls))


def _shown(response: dict[str, Any]) -> str:
    return "".join(map(_text, (response.get("reasoning_content"), response.get("content"))))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _arguments(response: dict[str, Any]) -> Iterator[Any]:
    calls = response.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        yield function.get("arguments") if isinstance(function, dict) else None
    if isinstance(response.get("function_call"), dict):
        yield response["function_call"].get("arguments")


def _is_unclosed(arguments: Any) -> bool:
    """Whether the arguments of a call are empty, or begin an object or list without ending it."""
    if not isinstance(arguments, str):
        return False
    if not arguments.strip():
        return True
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments.lstrip()[:1] in ("{", "[") and not arguments.rstrip().endswith(("}", "]"))
    return False


def _is_open(text: str, marks: Sequence[tuple[str, str | None]]) -> bool:
    """Whether a call begins in `text` and does not end there."""
    starts = ((end, start) for begin, end in marks if (start := text.rfind(begin)) >= 0)
    return any(end is None or text.find(end, start) < 0 for end, start in starts)


def _is_open_at_limit(text: str) -> bool:
    """Like `_is_open`, but also true if `text` ends with the first characters of a start mark."""
    return _is_open(text, _AT_LIMIT) or text.endswith(_BEGINNINGS)


def _holds_more(sampled: str, shown: str) -> bool:
    """Whether the engine sampled more text than it showed, as it does when it holds back a possible call. If the two texts begin
    differently, the ids belong to a different tokenizer than `decode`, and only marks count."""
    sampled, shown = _NOT_SHOWN.sub("", _END_TOKEN.sub("", sampled)), _NOT_SHOWN.sub("", shown)
    return _is_open(sampled, _MARKS) or (sampled.startswith(shown) and len(sampled) > len(shown))
