"""Removes secrets from an exchange before it is written: from messages, tools, the response and the client's claims.

The stream to the client is not changed. The complete exchange is searched, so that a secret split across chunks is not missed. A
secret is replaced by `[redacted:KIND]`. The same text always gets the same replacement, so a conversation that repeats it in its
next request is still recognised.

Token ids can decode to more than the text, for instance to content that a dialect dropped from an answer. They are therefore
decoded and searched as well. An exchange that held a secret loses its ids and log-probabilities and is not trained
(`untrainable_reason`: "redacted").

A long text is searched in overlapping pieces. Between two pieces `pause` is called, so that other work can run. The time is linear
in the length of the text.
"""

import os
import re
import threading
import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import orjson

from clawctl.config.privacy import PrivacyConfig
from clawctl.privacy.finders import DEFAULT, Kind, Secret, load_finder
from clawctl.privacy.static_text import PUNCTUATION, SYSTEM, TOOLS, Recurring, StaticText
from clawctl.privacy.views import ESCAPES, View, plain_view, printable_view, unescaped_view
from clawctl.run.rows import Exchange, Message, Turn

NAMED = "a value beside a name like password or key"  # the rule for values in JSON
REDACTED = "redacted"  # the reason why such a turn is not trained
Decode = Callable[[list[int]], str]  # from token ids to their text
_CACHE_SIZE = 1 << 14  # messages; an agent sends its whole history again with each turn
_LONGEST_CACHED = 8 << 10  # bytes of JSON; for clean values only the digest is remembered
_SHORTEST = 8  # characters; no secret is shorter, including its name
_DEEPEST = 64  # levels of nesting; anything deeper is searched as one text
_PIECE = 8 << 10  # characters searched at once
_OVERLAP = 1536  # characters that two pieces share; longer than the context that any rule needs
_AROUND = 256  # characters before and after an escape that are searched in unescaped form
_DECODED_DEPTH = 2  # base64 within base64
_IDS_PIECE = 512  # ids whose clean result is remembered together
_IDS_OVERLAP = 512  # ids before the new ones that are searched again, because a secret may start there
_DECODE_AT_ONCE = 4096  # ids
# Keys that hold the text of a message part
_TEXTS = ("text", "refusal", "thinking", "reasoning", "input_text", "output_text")
_CONTENTS = ("", "content", "parts", "text", "input", "output", "summary")  # lists whose bare strings form one text
_STATIC_CACHE_SIZE = 64  # tools and system prompts in which something was found
_USERS = frozenset(("username", "user_name", "user", "login"))  # keys that hold a login name
_SYSTEM_ROLES = ("system", "developer")
_LONG_RUN = re.compile(r"[A-Za-z0-9_+/=-]*")
_LONG_PEM = re.compile(r"""(?:[A-Za-z0-9+/=\s\\:,.()>|"'*#&;%]|-(?!----))*""")  # line ends may be escaped, quoted or indented


class RedactionFailed(Exception):
    """An exchange could not be searched. The message quotes none of its content."""


class FifoLock:
    """A lock that passes from thread to thread in the order in which they requested it."""

    def __init__(self) -> None:
        self._lock, self._locked = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        with self._lock:
            if not self._locked:
                self._locked = True
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append(ticket)
        ticket.acquire()  # until `release` of the current holder releases it

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the lock stays held, now by the next thread
            else:
                self._locked = False

    def yield_to_waiting(self) -> None:
        """Let all waiting threads run first. If there are none, yield the interpreter to other threads such as the event loop."""
        if self._waiting:
            self.release()
            self.acquire()
        else:
            time.sleep(0)


def _no_pause() -> None:
    """Do nothing: the pause for callers without concurrent work."""


_GROUPING_CLAIMS = {"session_id", "agent_id", "task_id", "group_id", "turn_of_client"}  # claims that only group requests


class _ThreadState(threading.local):
    """State of one thread: several threads may work on exchanges in turn."""

    def __init__(self) -> None:
        self.rules: Counter[str] = Counter()  # rules that found something
        self.static: StaticText | None = None  # the static text that is being searched
        # While token ids are searched: values accepted in the static texts of the exchange
        self.accepted: set[str] = set()


class Redactor:
    """Redaction of some kinds of secrets. It remembers digests of the messages and ids that it has searched.

    Not thread-safe: at most one thread may run outside `pause` at any time. Threads may alternate during `pause`. `decode` turns
    token ids into text; without it only the text is searched. `not_secrets` are texts that the user declared not to be secrets.
    Raises ClawError if one of the `finders` cannot be loaded.
    """

    def __init__(
        self,
        kinds: Collection[Kind],
        cache_size: int = _CACHE_SIZE,
        decode: Decode | None = None,
        pause: Callable[[], None] = _no_pause,
        not_secrets: Collection[str] = (),
        finders: Sequence[str] = DEFAULT,
    ) -> None:
        self._kinds = frozenset(kinds)
        self._finders = [load_finder(name) for name in finders] if kinds else []
        self._cache_size, self._decode, self._pause = cache_size, decode, pause
        self._not_secrets = frozenset(not_secrets)
        self._salt = os.urandom(32)
        self._recurring = Recurring()
        self._static_cache: OrderedDict[bytes, tuple[Any, Counter[str], set[str]]] = OrderedDict()
        self._thread = _ThreadState()  # one state per thread
        # Digest → replacement (None: the value is clean), and the rules that found something in the value
        self._cache: OrderedDict[bytes, tuple[Any, Counter[str]]] = OrderedDict()
        # Digests of token id prefixes that hold no secret
        self._clean_ids: OrderedDict[bytes, None] = OrderedDict()

    def exchange(self, exchange: Exchange, unwritten: Any = None) -> Exchange:
        """Return the exchange in the form that may be written. Raises RedactionFailed.

        `unwritten` entered the prompt, so the ids contain it, but it is in no field of the exchange (settings of the chat
        template).
        """
        if not self._finders:
            return exchange
        try:
            return self._exchange(exchange, unwritten)
        except Exception as error:  # noqa: BLE001 - whatever it is, the original is not written, and nothing it quotes is logged
            raise RedactionFailed(f"redaction failed with {type(error).__name__}") from None

    def _exchange(self, exchange: Exchange, unwritten: Any) -> Exchange:
        hits: dict[str, Counter[str]] = {}
        accepted: set[str] = set()
        tools = None if exchange.tools is None else self._redact_static(exchange.tools, TOOLS, exchange, hits, accepted)
        messages = [
            self._redact_static(message, SYSTEM, exchange, hits, accepted)
            if message.get("role") in _SYSTEM_ROLES
            else self._redact_part(message, "the conversation", hits)
            for message in exchange.messages
        ]
        response = None if exchange.response is None else self._redact_part(exchange.response, "the answer", hits)
        claims = {key: self._redact_part({key: value}, "what the client claims", hits) for key, value in exchange.hints.items()}
        model = self._redact_part(exchange.model, "the name of the model", hits)
        clean_unwritten = self._redact_part(unwritten, "the settings of the template", hits)
        changed = (messages, tools, response, model) != (exchange.messages, exchange.tools, exchange.response, exchange.model)
        secret_claims = {key for key, value in exchange.hints.items() if claims[key] != {key: value}}
        hints = {key: self._replace_claim(key, value) if key in secret_claims else value for key, value in exchange.hints.items()}
        if secret_claims <= _GROUPING_CLAIMS:  # they group requests and are not part of the prompt
            exchange = replace(exchange, hints=hints) if secret_claims else exchange
        if changed or hints != exchange.hints or clean_unwritten != unwritten or self._ids_hold_secret(exchange, hits, accepted):
            return replace(
                exchange, messages=messages, tools=tools, response=response, hints=hints, model=model, prompt_ids=None,
                completion_ids=None, logprobs=None, allowed=None, images=None, untrainable_reason=REDACTED,
                redacted_by=_first_rule(hits),
            )  # fmt: skip
        if response is None and exchange.completion_ids:  # the text of these tokens was never searched
            return replace(exchange, completion_ids=None, logprobs=None, allowed=None)
        return exchange

    def _replace_claim(self, claim: str, value: Any) -> str | None:
        """Return the replacement of a claim that holds a secret. A fixed placeholder would merge the sessions of all users, so a
        hash is used.
        """
        if claim not in _GROUPING_CLAIMS or not isinstance(value, str):
            return None
        return f"redacted-{blake2b(value.encode(errors='replace'), key=self._salt, digest_size=12).hexdigest()}"

    def _redact_part(self, value: Any, part: str, hits: dict[str, Counter[str]]) -> Any:
        """Redact `value` and count under `part` the rules that found something in it."""
        self._thread.rules = Counter()
        clean = self._redact_cached(value)
        if self._thread.rules:
            hits.setdefault(part, Counter()).update(self._thread.rules)
        return clean

    def _redact_static(self, value: Any, part: str, exchange: Exchange, hits: dict[str, Counter[str]], accepted: set[str]) -> Any:
        """Like `_redact_part`, but keep static text that is certainly no secret (`static_text.py`). Add the accepted values to
        `accepted`.
        """
        self._thread.rules = Counter()
        if self._redact_cached(value) == value:
            return value
        content = [value, part, exchange.key, exchange.tools, self._recurring.changes]
        digest = blake2b(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), digest_size=16).digest()
        if digest not in self._static_cache:
            self._static_cache[digest] = self._search(value, StaticText(part, exchange.key, exchange.tools, self._recurring))
            if len(self._static_cache) > _STATIC_CACHE_SIZE:
                self._static_cache.popitem(last=False)
        clean, rules, harmless = self._static_cache[digest]
        accepted |= harmless
        if rules:
            hits.setdefault(part, Counter()).update(rules)
        return clean

    def _search(self, value: Any, static: StaticText) -> tuple[Any, Counter[str], set[str]]:
        self._thread.static, self._thread.rules = static, Counter()
        try:
            return self.value(value), self._thread.rules, static.accepted
        finally:
            self._thread.static = None

    def _ids_hold_secret(self, exchange: Exchange, hits: dict[str, Counter[str]], accepted: set[str]) -> bool:
        self._thread.rules, self._thread.accepted = Counter(), accepted
        try:
            holds_secret = self.ids_hold_secret(exchange)
        finally:
            self._thread.accepted = set()
        if holds_secret:
            hits["the token ids"] = self._thread.rules
        return holds_secret

    def messages(self, messages: list[Message]) -> list[Message]:
        """Redact a conversation. A message seen before costs only its digest."""
        return [self._redact_cached(message) for message in messages]

    def _redact_cached(self, value: Any) -> Any:
        """Redact `value`, from memory if it was seen before."""
        digest = blake2b(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), digest_size=16).digest()
        if digest in self._cache:
            self._cache.move_to_end(digest)
            replacement, rules = self._cache[digest]
            self._thread.rules.update(rules)
            return value if replacement is None else replacement
        before, self._thread.rules = self._thread.rules, Counter()
        clean = self.value(value)
        rules, self._thread.rules = self._thread.rules, before
        before.update(rules)
        if clean != value and len(orjson.dumps(clean, option=orjson.OPT_NON_STR_KEYS)) > _LONGEST_CACHED:
            return clean
        self._cache[digest] = None if clean == value else clean, rules
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return clean

    def ids_hold_secret(self, exchange: Exchange | Turn) -> bool:
        """Whether the decoded ids of prompt and answer hold a secret. A prefix known to be clean is not decoded again."""
        if self._decode is None or not (exchange.prompt_ids or exchange.completion_ids):
            return False
        ids = array("q", [*(exchange.prompt_ids or ()), *(exchange.completion_ids or ())])
        chain, digests = blake2b(digest_size=16), []
        for end in range(_IDS_PIECE, len(ids) + 1, _IDS_PIECE):
            chain.update(ids[end - _IDS_PIECE : end].tobytes())
            digests.append(chain.digest())
        known = max((index for index, end in enumerate(digests, 1) if end in self._clean_ids), default=0)
        if self._holds_secret(ids[max(0, known * _IDS_PIECE - _IDS_OVERLAP) :], self._decode):
            return True
        for digest in digests:
            self._clean_ids[digest] = None
            self._clean_ids.move_to_end(digest)
        while len(self._clean_ids) > self._cache_size:
            self._clean_ids.popitem(last=False)
        return False

    def _holds_secret(self, ids: Sequence[int], decode: Decode) -> bool:
        pieces = []
        for start in range(0, len(ids), _DECODE_AT_ONCE):
            pieces.append(decode(list(ids[start : start + _DECODE_AT_ONCE])))
            self._pause()
        return bool(self.spans("".join(pieces)))

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
            inner = [self.value(each, name, depth + 1) for each in value]
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
        bare = name in _CONTENTS
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
        if text[:1] in ("{", "[") and text[-1:] in ("}", "]", "\n", " ") and len(text) >= _SHORTEST and depth <= _DEEPEST:
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
        pieces, position = [], 0
        for span in self.spans(text):
            pieces += [text[position : span.start], f"[redacted:{span.kind}]"]
            position = span.end
        return "".join([*pieces, text[position:]]) if pieces else text

    def spans(self, text: str) -> list[Secret]:
        """Return the spans of the secrets, in order; overlapping spans are merged."""
        if len(text) < _SHORTEST:
            return []
        if len(text) <= _PIECE + _OVERLAP:
            spans = list(self._spans_in(text))
        else:
            spans = [span for start in range(0, len(text), _PIECE) for span in self._spans_from(text, start)]
        if not spans:
            return []
        secret = [span for span in spans if not self._is_accepted(text, span)]
        self._thread.rules.update(span.rule for span in secret)
        return _merged(sorted(secret, key=lambda span: span.start)) if secret else []

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


def redactor_of(privacy: PrivacyConfig, decode: Decode | None = None, pause: Callable[[], None] = _no_pause) -> Redactor:
    """The redactor of a recipe. Raises ClawError (exit code 2) if redaction is on and a finder is missing."""
    return Redactor(privacy.redact, decode=decode, pause=pause, not_secrets=privacy.not_secrets, finders=privacy.finders)


def _first_rule(hits: dict[str, Counter[str]]) -> str | None:
    """Return the rule with the most findings in the first place where something was found."""
    return next((f"{rules.most_common(1)[0][0]}, in {part}" for part, rules in hits.items() if rules), None)


def _to_original(view: View, span: Secret, offset: int) -> Secret:
    start, end = view.to_original(span.start + offset, span.end + offset)
    return Secret(start, end, span.kind, span.rule, span.by)


def _escaped(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text that contain escapes, with some context; a part starts at a word if possible."""
    parts: list[tuple[int, int]] = []
    for match in ESCAPES.finditer(text):
        position = match.start()
        if parts and position < parts[-1][1]:
            parts[-1] = (parts[-1][0], position + _AROUND)
            continue
        start = max(0, position - _AROUND)
        if start:
            start = text.find(" ", start, position) + 1 or text.find("\n", start, position) + 1 or start
        if parts and start < parts[-1][1]:
            parts[-1] = (parts[-1][0], position + _AROUND)
        else:
            parts.append((start, position + _AROUND))
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
    return next((part[name] for name in _TEXTS if isinstance(part.get(name), str)), None)


def _with_text(part: Any, text: str) -> Any:
    if isinstance(part, str):
        return text
    name = next(name for name in _TEXTS if isinstance(part.get(name), str))
    return {**part, name: text}


def _merged(spans: list[Secret]) -> list[Secret]:
    merged = spans[:1]
    for span in spans[1:]:
        last = merged[-1]
        if span.start >= last.end:
            merged.append(span)
        elif span.end > last.end:
            merged[-1] = Secret(last.start, span.end, last.kind, last.rule)
    return merged
