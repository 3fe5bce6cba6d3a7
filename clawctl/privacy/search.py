"""Finds and hides secrets in one text or JSON value.

A long text is searched in overlapping pieces. Between two pieces `pause` is called, so that other work can run. The time is linear
in the length of the text.
"""

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from clawctl.privacy.finders import DEFAULT, Kind, Secret, load_finder
from clawctl.privacy.said import (
    CONTENTS,
    NOTHING_SAID,
    QUESTION,
    STAYS_OPEN,
    Said,
    is_asked,
    is_late,
    last_words,
    lines_of_talk,
    quoted,
)
from clawctl.privacy.static_text import PUNCTUATION, StaticText
from clawctl.privacy.views import ESCAPES, View, plain_view, printable_view, unescaped_view
from clawctl.run.rows import Message

SHORTEST = 8  # characters; no secret is shorter, including its name
_DEEPEST = 64  # levels of nesting; anything deeper is searched as one text
_PIECE = 8 << 10  # characters searched at once
_OVERLAP = 1536  # characters that two pieces share; longer than the context that any rule needs
_LONGEST = {"assistant": 200, "tool": 80}  # characters; a longer text explains or reports, and does not give a secret away
_INSTRUCTING = ("system", "developer")  # roles of messages that ask and answer nothing
_DECODED_DEPTH = 2  # base64 within base64
_USERS = frozenset(("username", "user_name", "user", "login"))  # keys that hold a login name
_LONG_RUN = re.compile(r"[A-Za-z0-9_+/=-]*")
_LONG_PEM = re.compile(r"""(?:[A-Za-z0-9+/=\s\\:,.()>|"'*#&;%]|-(?!----))*""")  # line ends may be escaped, quoted or indented
NAMED = "a value beside a name like password or key"  # the rule for values in JSON
AROUND = 256  # characters before and after an escape that are searched in unescaped form
_ANSWER = 400  # characters after a question for a secret that are searched together with it
# Keys that hold the text of a message part
TEXTS = ("text", "refusal", "thinking", "reasoning", "input_text", "output_text")


def no_pause() -> None:
    """Do nothing: the pause for callers without concurrent work."""


class _ThreadState(threading.local):
    """State of one thread: several threads may work on exchanges in turn."""

    def __init__(self) -> None:
        self.rules: Counter[str] = Counter()  # rules that found something
        self.static: StaticText | None = None  # the static text that is being searched
        self.accepted: set[str] = set()  # while token ids are searched: values accepted in the exchange's static texts


class TextSearch:
    """The search for some kinds of secrets with some finders. `not_secrets` are texts that the user declared not to be secrets.

    Raises ClawError if one of the `finders` cannot be loaded.
    """

    def __init__(
        self,
        kinds: Collection[Kind],
        pause: Callable[[], None] = no_pause,
        not_secrets: Collection[str] = (),
        finders: Sequence[str] = DEFAULT,
    ) -> None:
        self._kinds = frozenset(kinds)
        self._finders = [load_finder(name) for name in finders] if kinds else []
        self._pause = pause
        self._not_secrets = frozenset(not_secrets)
        self._thread = _ThreadState()  # one state per thread

    def value(self, value: Any, name: str = "", depth: int = 0, beside: Collection[str] = ()) -> Any:
        """Redact any JSON value. `name` is the key that holds it. `beside`: see `Finder.is_password`."""
        if isinstance(value, str):
            return self._redacted_by_name(name, value, depth, beside)
        if depth > _DEEPEST:
            text = orjson.dumps(value).decode()
            clean = self.text(text)
            return value if clean == text else clean
        if isinstance(value, dict):
            paired = value.get("name") or value.get("key")  # {"name": "DB_PASSWORD", "value": "…"}
            names = {"value": paired} if isinstance(paired, str) and "value" in value else {}
            if not _USERS.isdisjoint(map(str, value)):
                names["key"] = "api_key"  # {"username": "ann", "key": "…"}
            return {
                self.text(str(key)): self.value(inner, names.get(key) or str(key), depth + 1, value if key in names else ())
                for key, inner in value.items()
            }
        if isinstance(value, list):
            inner = [self.value(item, name, depth + 1) for item in value]
            return self._joined(value, inner, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = str(value)
            clean = self._redacted_by_name(name, text, depth, beside)
            return value if clean == text else clean
        return value

    def _joined(self, parts: list[Any], clean: list[Any], name: str) -> list[Any]:
        """Redact secrets that are split across parts. The model reads the parts as one text, and the client may later send them as
        one.
        """
        bare = name in CONTENTS
        texts = [text for part in parts if (text := _text_of(part, bare)) is not None]
        if len(texts) < 2:
            return clean
        whole = self.text("".join(texts))
        if whole == "".join(_text_of(part, bare) or "" for part in clean):
            return clean
        replacements = iter([whole, *[""] * len(texts)])
        return [part if _text_of(part, bare) is None else _with_text(part, next(replacements)) for part in clean]

    def _redacted_by_name(self, name: str, text: str, depth: int, beside: Collection[str]) -> str:
        if (
            "password" in self._kinds
            and len(text) >= 3
            and name
            and any(finder.is_password(name, text, beside) for finder in self._finders)
        ):
            if not self._not_secrets.isdisjoint((text, text.strip(PUNCTUATION))):
                return text
            self._thread.rules[NAMED] += 1
            return "[redacted:password]"
        if text[:1] in ("{", "[") and text[-1:] in ("}", "]", "\n", " ") and len(text) >= SHORTEST and depth <= _DEEPEST:
            try:  # tool arguments: JSON inside a string, which must stay valid JSON
                inner = orjson.loads(text)
            except orjson.JSONDecodeError:
                return self.text(text)
            clean = self.value(inner, "", depth + 1)
            if clean != inner:
                text = orjson.dumps(clean).decode()
        return self.text(text)

    def text(self, text: str) -> str:
        """Redact one text."""
        return hidden(text, self.spans(text))

    def spans(self, text: str) -> list[Secret]:
        """Return the spans of the secrets, in order; overlapping spans are merged."""
        if len(text) < SHORTEST:
            return []
        if len(text) <= _PIECE + _OVERLAP:
            spans = list(self._spans_in(text))
        else:
            spans = [span for start in range(0, len(text), _PIECE) for span in self._spans_from(text, start)]
        if not spans:
            return []
        secret = [span for span in spans if not self._is_accepted(text, span)]
        self._thread.rules.update(span.rule for span in secret)
        return merged(sorted(secret, key=lambda span: span.start)) if secret else []

    def _is_accepted(self, text: str, span: Secret) -> bool:
        secret = text[span.start : span.end]
        value = secret.strip(PUNCTUATION)
        if not self._not_secrets.isdisjoint((secret, value)) or value in self._thread.accepted:
            return True
        return self._thread.static is not None and self._thread.static.accepts(text, span)

    def _spans_from(self, text: str, start: int) -> Iterator[Secret]:
        """Yield the secrets that start in the piece at `start`. A secret that reaches the end of the window is extended to the end
        of its run.
        """
        self._pause()
        begin, end = max(0, start - _OVERLAP), min(len(text), start + _PIECE + _OVERLAP)
        for span in self._spans_in(text[begin:end]):
            first, last = span.start + begin, span.end + begin
            if start <= first < start + _PIECE or (first < start < last and start == 0):
                if last == end < len(text):
                    pattern = _LONG_PEM if span.kind == "private_key" else _LONG_RUN
                    last = _end_of(pattern, text, last, self._pause)
                yield Secret(first, last, span.kind, span.rule, span.by)

    def _spans_in(self, text: str, depth: int = 0) -> Iterator[Secret]:
        """Search one piece in three forms: as displayed, with escapes undone, and decoded from base64."""
        view = plain_view(text)
        for span in self._spans_in_views(view.text, depth):
            yield _to_original(view, span, 0)
        if (mail := printable_view(view)) is not None:
            for span in self._spans_in_views(mail.text, depth):
                yield _to_original(mail, span, 0)
        for start, end in _escaped(view.text):
            if unescaped := unescaped_view(View(view.text[start:end], [], [])):
                for span in self._spans_in_views(unescaped.text, depth):
                    yield _to_original(view, _to_original(unescaped, span, 0), start)

    def _spans_in_views(self, text: str, depth: int) -> Iterator[Secret]:
        for part in (part for finder in self._finders for part in finder.find(text, self._kinds)):
            # A span that reaches beyond the text would misplace those of other finders.
            if part.start < 0 or part.end > len(text):
                part = replace(part, start=max(0, part.start), end=min(len(text), part.end))
            if part.start >= part.end:
                continue
            if isinstance(part, Secret):
                if part.kind in self._kinds:
                    yield part
            elif depth < _DECODED_DEPTH:
                first = next(self._spans_in(part.text, depth + 1), None)
                if first is not None:
                    yield Secret(part.start, part.end, first.kind, first.rule)

    def _answered(self, message: Any, before: Said) -> Any:
        """Redact what answers a question for a secret, such as `4829` after `Please enter your PIN.`, or beside an image."""
        if not isinstance(message, dict) or message.get("role") in _INSTRUCTING:
            return message
        role = message.get("role")
        # What an agent says before it calls a tool is seldom a question, and a tool seldom asks a person.
        last = (before.text, before.role if role != "tool" else "user")
        pending = before.pending if before.age or role != "user" == before.role else ""
        longest, question = _LONGEST.get(str(role), sys.maxsize), None  # whether `last` is a question; None: not examined yet

        def answer(text: str) -> str:
            nonlocal last, question
            if question is None and len(text) <= longest:
                question = self._question(*last)
            spans = self._answers(question, text[:_ANSWER]) if question and len(text) <= longest else []
            if role == "tool":
                spans = [span for span in spans if is_late(span, text, role, "user")]
            if not spans and pending and len(text) <= QUESTION:
                spans = self._late_answers(before, text, str(role))
            for request, end in quoted(text) if not spans and role in ("user", "tool") else ():
                spans += _moved(self._answers(request, text[end:]), end) if self._question(request, "tool") else []
            if lines := lines_of_talk(text, before.pending):
                spans = merged(sorted([*spans, *self._told_in(lines, before)[0]], key=lambda span: span.start))
            if text.strip() and len(text) <= QUESTION:  # a longer part is what a client adds, and the next does not answer it
                last, question = (text.strip(), ""), None
            return hidden(text, spans)

        return {key: _in_texts(inner, answer) if key in CONTENTS else inner for key, inner in message.items()}

    def _question(self, text: str, role: str) -> str:
        return text if text and any(finder.asks(text, role) for finder in self._finders) else ""

    def _late_answers(self, before: Said, text: str, role: str = "user") -> list[Secret]:
        """Return what answers an earlier question. Other things were said since, so a word without a digit may answer those. What a
        tool prints and an assistant explains answers it only by its form."""
        answers = (secret for finder in self._finders for secret in finder.find_answer(before.pending, text))
        late = [secret for secret in answers if is_late(secret, text, role, before.asker)]
        self._thread.rules.update(secret.rule for secret in late)
        return merged(sorted(late, key=lambda secret: secret.start))

    def said(self, message: Message, before: Said) -> Said:
        """What the next message follows. A question for a secret is pending until it is answered or a few messages old."""
        role, text = str(message.get("role")), last_words(message)
        if not text:
            return before
        if lines := lines_of_talk(str(message.get("content")), before.pending):
            return replace(self._told_in(lines, before)[1], role=role, text=text)
        if question := self._question(text, role):
            return Said(role, text, question, role)
        if role == "user" and (question := next((part for part, _ in quoted(text) if self._question(part, "tool")), "")):
            return Said(role, text, question, "tool")
        pending = before if before.age < STAYS_OPEN else NOTHING_SAID
        if any(finder.continues(text) for finder in self._finders):
            question = pending.pending or self._question(f"{before.text}\nWhat is it?", "assistant")
            return Said(role, question, question, "assistant") if question else Said(role, text)
        return replace(pending, role=role, text=text, age=pending.age + 1) if pending.pending else Said(role, text)

    def _told_in(self, lines: list[re.Match[str]], before: Said) -> tuple[list[Secret], Said]:
        """Return the secrets that people tell each other in a chat that one message quotes, and what its last line leaves open."""
        secrets = []
        for line in lines:
            text, at = line["text"], line.start("text")
            if before.pending:
                spans = self._late_answers(before, text) if before.age else self._answers(before.pending, text)
                secrets += _moved(spans, at)
            before = self.said({"role": "tool" if is_asked(text) else "user", "content": text}, before)
        return secrets, before

    def _answers(self, question: str, text: str) -> list[Secret]:
        """Return the secrets in what follows a question."""
        secrets = []
        if "password" in self._kinds:
            secrets = [secret for finder in self._finders for secret in finder.find_answer(question, text)]
        for joined in (f"{question.rstrip(' .?!:')}: ", f"{question}\n") if not secrets else ():
            secrets += _moved([span for span in self.spans(joined + text) if span.start >= len(joined)], -len(joined))
        self._thread.rules.update(secret.rule for secret in secrets)
        return merged(sorted(secrets, key=lambda secret: secret.start))


def _moved(spans: list[Secret], by: int) -> list[Secret]:
    return [replace(span, start=span.start + by, end=span.end + by) for span in spans]


def hidden(text: str, spans: Iterable[Secret]) -> str:
    pieces, position = [], 0
    for span in spans:
        pieces += [text[position : span.start], f"[redacted:{span.kind}]"]
        position = span.end
    return "".join([*pieces, text[position:]]) if pieces else text


def _to_original(view: View, span: Secret, offset: int) -> Secret:
    start, end = view.to_original(span.start + offset, span.end + offset)
    return Secret(start, end, span.kind, span.rule, span.by)


def _escaped(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text that contain escapes, with some context; a part starts at a word if possible."""
    parts: list[tuple[int, int]] = []
    if "\\" not in text and "&" not in text and "%" not in text:
        return parts
    for match in ESCAPES.finditer(text):
        position = match.start()
        if parts and position < parts[-1][1]:
            parts[-1] = (parts[-1][0], position + AROUND)
            continue
        start = max(0, position - AROUND)
        if start:
            start = text.find(" ", start, position) + 1 or text.find("\n", start, position) + 1 or start
        if parts and start < parts[-1][1]:
            parts[-1] = (parts[-1][0], position + AROUND)
        else:
            parts.append((start, position + AROUND))
    return parts


def _end_of(pattern: re.Pattern[str], text: str, position: int, pause: Callable[[], None]) -> int:
    """Return the end of the run of `pattern` that starts at `position`."""
    while match := pattern.match(text, position, position + _PIECE):
        position = match.end()
        if len(match[0]) < _PIECE:
            break
        pause()
    return position


def _text_of(part: Any, bare: bool) -> str | None:
    """Return the text of a message part, or None if it has none."""
    if isinstance(part, str):
        return part if bare else None
    if not isinstance(part, dict):
        return None
    return next((part[name] for name in TEXTS if isinstance(part.get(name), str)), None)


def _with_text(part: Any, text: str) -> Any:
    if isinstance(part, str):
        return text
    name = next(name for name in TEXTS if isinstance(part.get(name), str))
    return {**part, name: text}


def merged(spans: list[Secret]) -> list[Secret]:
    merged = spans[:1]
    for span in spans[1:]:
        last = merged[-1]
        if span.start >= last.end:
            merged.append(span)
        elif span.end > last.end:
            merged[-1] = Secret(last.start, span.end, last.kind, last.rule)
    return merged


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a message's content with its strings changed: its texts, and names of files."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_in_texts(inner, change) for inner in value]
    if isinstance(value, dict):
        names = (*TEXTS, "filename", "title", "content", "file", "source", "name")
        return {key: _in_texts(inner, change) if key in names else inner for key, inner in value.items()}
    return value
