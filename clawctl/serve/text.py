"""Converts sampled ids to text, reasoning and tool calls as they arrive. Ambiguous text is held back."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from tokenizers.decoders import DecodeStream

from clawctl.engines.requests import CallDelta, CallStart, Event, ReasoningDelta, TextDelta

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


_CONTEXT = 8  # number of preceding ids that affect the decoding of the next one, such as a space before it


class Detokenizer:
    """Converts ids to text, one at a time. A character is returned once all its bytes have arrived; end markers are never text."""

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        """`before`: ids that the text continues, if both form one text."""
        self._tokenizer = tokenizer.backend_tokenizer
        markers = {THINK, END_THINK, CALL, END_CALL}
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special and token.content not in markers}
        self._hidden = special | set(tokenizer.all_special_ids)
        self._stream = DecodeStream(ids=list(before[-_CONTEXT:]), skip_special_tokens=False)
        self._waiting: list[int] = []

    def is_hidden(self, token: int) -> bool:
        return token in self._hidden

    def feed(self, token: int) -> str:
        """The text that is now complete, possibly empty."""
        if token in self._hidden:
            return ""
        self._waiting.append(token)
        text = self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._waiting = []
        return str(text)

    def end(self) -> str:
        """Incomplete bytes at the end, as replacement characters."""
        waiting, self._waiting = self._waiting, []
        return str(self._tokenizer.decode(waiting, skip_special_tokens=False)) if waiting else ""


class StopCutter:
    """Cuts text before the first occurrence of any of `stops`, even if it spans several pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit: str | None = None  # the stop string that was found

    def feed(self, text: str) -> str:
        """The text that can be shown for certain."""
        if not self._stops or self.hit:
            return "" if self.hit else text
        self._held += text
        hits = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if hits:
            at, self.hit = min(hits)
            shown, self._held = self._held[:at], ""
            return shown
        keep = max(held_back(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def end(self) -> str:
        held, self._held = self._held, ""
        return held


def held_back(text: str, marker: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


def joined(events: Iterable[Event]) -> list[Event]:
    """Adjacent events of the same kind, joined."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if type(event) is type(last) and not isinstance(event, CallStart):
            joined[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
        else:
            joined.append(event)
    return joined


class Parser:
    """Converts text to events, in the Qwen and Hermes format: first `<think>…</think>`, then `<tool_call>{json}</tool_call>` if
    tools were given.

    The text may be split anywhere: the joined events are the same. A call is shown as soon as its name and the beginning of its
    arguments are certain. Text that does not begin like a call stays text.
    """

    def __init__(self, thinking: bool, tools: bool) -> None:
        self._tools = tools
        self._mode = "think" if thinking else "start"
        self._held = ""
        self._blank = thinking  # only whitespace since the mode began
        self._arguments = JsonObject()

    @property
    def thinking(self) -> bool:
        return self._mode == "think"

    @property
    def in_call(self) -> bool:
        """Whether a call, or the first part of its marker, has begun and not ended."""
        begun = self._tools and self._mode == "text" and held_back(self._held, CALL) > 0
        return begun or self._mode in ("call", "arguments")

    def feed(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def end(self, cut: bool = False) -> list[Event]:
        """Emit the text that was held back. `cut`: the answer did not end by itself, so a call without a name is not text."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if cut and self._mode == "call":
            return events
        if self._mode == "arguments":
            text = self._arguments.feed(held)
            return [CallDelta(text)] if text else []
        if self._mode == "call":
            held = CALL + held
        if self._mode == "think":
            held = held.rstrip()
        if held:
            events.append(ReasoningDelta(held) if self._mode == "think" else TextDelta(held))
        return events

    def _step(self, events: list[Event]) -> bool:
        """Emit the events that are certain; True if the mode changed and there may be more."""
        if self._mode == "start":
            return self._start()
        if self._mode == "think":
            return self._until(END_THINK, events, "text")
        if self._mode == "text":
            return self._until(CALL, events, "call") if self._tools else self._until(None, events, "text")
        return self._call(events) if self._mode == "call" else self._continue_call(events)

    def _start(self) -> bool:
        stripped = self._held.lstrip()
        if THINK.startswith(stripped) and stripped != THINK:  # empty, or an incomplete marker
            return False
        if stripped.startswith(THINK):
            self._held, self._mode, self._blank = stripped[len(THINK) :], "think", True
        else:
            self._mode, self._blank = "text", False
        return True

    def _until(self, marker: str | None, events: list[Event], after: str) -> bool:
        """Emit text up to `marker`. Whitespace before it, and after the previous marker, is not part of the text."""
        kind = ReasoningDelta if self._mode == "think" else TextDelta
        if self._blank:
            self._held = self._held.lstrip()
            self._blank = not self._held
        at = self._held.find(marker) if marker else -1
        if marker and at >= 0:
            text, self._held = self._held[:at].rstrip(), self._held[at + len(marker) :]
            self._mode, self._blank = after, after == "text"
        else:
            keep = held_back(self._held, marker) if marker else 0
            text = self._held[: len(self._held) - keep]
            text = text.rstrip() if marker else text
            self._held = self._held[len(text) :]
        if text:
            events.append(kind(text))
        return bool(marker and at >= 0)

    def _call(self, events: list[Event]) -> bool:
        at = self._held.find(END_CALL)
        match = _CALL_START.match(self._held, 0, at if at >= 0 else len(self._held))
        if match is not None and (name := _text_of(match[1])) is not None:
            events.append(CallStart(name))
            self._held, self._mode, self._arguments = self._held[match.end() - 1 :], "arguments", JsonObject()
            return True
        if at < 0:
            return False
        body, self._held = self._held[:at], self._held[at + len(END_CALL) :]
        events += _read_call(body) or [TextDelta(CALL + body + END_CALL)]
        self._mode, self._blank = "text", True
        return True

    def _continue_call(self, events: list[Event]) -> bool:
        at = self._held.find(END_CALL)
        length = at if at >= 0 else len(self._held) - held_back(self._held, END_CALL)
        text = self._arguments.feed(self._held[:length])
        self._held = self._held[length:]
        if text:
            events.append(CallDelta(text))
        if at >= 0:
            self._held, self._mode, self._blank = self._held[len(END_CALL) :], "text", True
        return at >= 0


class PlainText:
    """Like `Parser`, for an answer without structure."""

    thinking = in_call = False

    def feed(self, text: str) -> list[Event]:
        return [TextDelta(text)] if text else []

    def end(self, cut: bool = False) -> list[Event]:
        return []


_CALL_START = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*\{')
_BRACES = re.compile(r'[{}"\\]')


class JsonObject:
    """Finds the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped, self.closed = 0, False, False, False

    def feed(self, text: str) -> str:
        """The part of `text` that belongs to the object, up to and including the brace that closes it."""
        at = 0
        while not self.closed and at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            match = _BRACES.search(text, at)
            if match is None:
                return text
            at = match.end()
            self._take(match[0])
        return text[:at]

    def _take(self, character: str) -> None:
        if character == '"':
            self._quoted = not self._quoted
        elif character == "\\":
            self._escaped = self._quoted
        elif not self._quoted:
            self._depth += 1 if character == "{" else -1
            self.closed = self._depth <= 0


def _text_of(quoted: str) -> str | None:
    try:
        return str(orjson.loads(quoted))
    except orjson.JSONDecodeError:
        return None


def _read_call(body: str) -> list[Event] | None:
    """The events of a complete call, with any order of keys, and arguments as an object or a string; None if it is not a call."""
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    return [CallStart(call["name"]), CallDelta(arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode())]
