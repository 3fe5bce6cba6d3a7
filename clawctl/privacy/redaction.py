"""Removes secrets from an exchange before it is written: from messages, tools, the response and the client's claims.

The stream to the client is not changed. The complete exchange is searched, so that a secret split across chunks is not missed. A
secret is replaced by `[redacted:KIND]`. The same text always gets the same replacement, so a conversation that repeats it in its
next request is still recognised.

A conversation is read in order, so an answer to `Please enter your PIN.` is a secret, and so is what a later message repeats of an
earlier secret. What is found is hidden in the words and, at the same place, in the ids of the prompt (`prompt_ids.py`), where
placeholders of the same length stand for it; the trainer scores such an answer again. Ids can decode to more than the words, for
instance to content that a dialect dropped, so the rest of their text is searched as well. A turn loses its ids and is not trained
(`untrainable_reason`: "redacted") if its answer holds a secret, or if a secret cannot be located in the ids.

A long text is searched in overlapping pieces. Between two pieces `pause` is called, so that other work can run. The time is linear
in the length of the text.
"""

import os
import re
import threading
import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from typing import Any, TypeVar

import orjson

from clawctl.config.privacy import PrivacyConfig
from clawctl.privacy.finders import DEFAULT, Kind, Secret, load_finder
from clawctl.privacy.prompt_ids import DecodedIds, Finding, Range, ReadPrompts, findings, hide, occurrences, strings_of
from clawctl.privacy.static_text import PUNCTUATION, SYSTEM, TOOLS, Recurring, StaticText
from clawctl.privacy.views import ESCAPES, View, plain_view, printable_view, unescaped_view
from clawctl.run.rows import Exchange, Message, Turn

NAMED = "a value beside a name like password or key"  # the rule for values in JSON
REPEATED = "a secret of an earlier message"
REDACTED = "redacted"  # the reason why such a turn is not trained
Decode = Callable[[list[int]], str]  # from token ids to their text; with a method `placeholder`: `prompt_ids.TokenReader`
Row = TypeVar("Row", Exchange, Turn)
_CACHE_SIZE = 1 << 12  # messages of one key; an agent sends its whole history again with each turn
_LONGEST_CACHED = 8 << 10  # bytes of JSON; for clean values only the digest is remembered
_SHORTEST = 8  # characters; no secret is shorter, including its name
_DEEPEST = 64  # levels of nesting; anything deeper is searched as one text
_PIECE = 8 << 10  # characters searched at once
_OVERLAP = 1536  # characters that two pieces share; longer than the context that any rule needs
_AROUND = 256  # characters before and after an escape that are searched in unescaped form
_DECODED_DEPTH = 2  # base64 within base64
_KEYS = 256  # API keys whose messages are remembered
_PROMPTS = 256  # prompts of one key that are remembered
_QUESTION, _ANSWER = 240, 400  # characters of a question for a secret, and of what follows it, that are searched together
_SHORTEST_REPEATED = 4  # characters; a shorter secret is not looked for in later messages
# Different secrets of one conversation that are looked for one by one: in later messages, and in the ids. All text is read once for
# each, so a message of ten thousand keys would hold up everybody's captures for minutes. With more, the ids are not written.
_MOST_SECRETS = 256
# Keys that hold the text of a message part
_TEXTS = ("text", "refusal", "thinking", "reasoning", "input_text", "output_text")
_CONTENTS = ("", "content", "parts", "text", "input", "output", "summary")  # lists whose bare strings form one text
_STATIC_CACHE_SIZE = 64  # tools and system prompts in which something was found
_USERS = frozenset(("username", "user_name", "user", "login"))  # keys that hold a login name
_SYSTEM_ROLES = ("system", "developer")
_CONTROL_TOKEN = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>")  # ends a word
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


@dataclass(slots=True)
class _Memory:
    """What was searched for one API key: digests, and redacted texts in place of those that held a secret."""

    # Digest → replacement (None: the value is clean), and the rules that found something in the value
    values: OrderedDict[bytes, tuple[Any, Counter[str]]] = field(default_factory=OrderedDict)
    prompts: ReadPrompts = field(default_factory=lambda: ReadPrompts(_PROMPTS))


@dataclass(slots=True)
class _Reading:
    """One conversation while it is searched: what the model read, beside what may be written."""

    key: str
    hits: dict[str, Counter[str]] = field(default_factory=dict)  # by place: the rules that found something
    accepted: set[str] = field(default_factory=set)  # values in static texts that are certainly no secrets
    before: str = ""  # the end of what was said last
    secrets: set[str] = field(default_factory=set)  # those of earlier messages, which later ones may repeat


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
        self._memories: OrderedDict[str, _Memory] = OrderedDict()  # by key, so that no key displaces what another sent

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

    def turn(self, turn: Turn) -> Turn:
        """Return a turn that was not captured, in the form that may be written. Its prompt ids follow its words, as in `exchange`;
        a turn with a secret in its answer, or whose ids cannot be followed, has no ids and is redacted."""
        if not self._finders:
            return turn
        reading = _Reading(turn.user)
        tools, messages, response = self._conversation(turn, reading)
        after = [] if turn.next_state is None else self._messages(turn.next_state, reading)
        shown = self._shown_ids(turn, reading, [*_pairs(turn.tools, tools), *zip(turn.messages, messages, strict=True)], response)
        clean = replace(
            turn, messages=shown.messages(messages), tools=tools, response=shown.of(response),
            next_state=None if turn.next_state is None else after,
            prompt_ids=shown.prompt_ids if shown.trainable else turn.prompt_ids,
            redacted_by=_first_rule(reading.hits) or turn.redacted_by,
        )  # fmt: skip
        return clean if shown.trainable else without_ids(clean)

    def _exchange(self, exchange: Exchange, unwritten: Any) -> Exchange:
        reading = _Reading(exchange.key)
        tools, messages, response = self._conversation(exchange, reading)
        hits = reading.hits
        claims = {key: self._redact_part({key: value}, "what the client claims", reading) for key, value in exchange.hints.items()}
        model = self._redact_part(exchange.model, "the name of the model", reading)
        secret_claims = {key for key, value in exchange.hints.items() if claims[key] != {key: value}}
        hints = {key: self._replace_claim(key, value) if key in secret_claims else value for key, value in exchange.hints.items()}
        clean_unwritten = self._redact_part(unwritten, "the settings of the template", reading)
        around = [*_pairs(exchange.tools, tools), (unwritten, clean_unwritten)]
        shown = self._shown_ids(exchange, reading, [*around, *zip(exchange.messages, messages, strict=True)], response)
        unchanged = (tools, messages, response, model, hints, clean_unwritten, shown.trainable, shown.secrets)
        if unchanged == (exchange.tools, exchange.messages, exchange.response, exchange.model, exchange.hints, unwritten, True, ()):
            if response is None and exchange.completion_ids:  # the text of these tokens was never searched
                return replace(exchange, completion_ids=None, logprobs=None, allowed=None)
            return exchange
        if secret_claims <= _GROUPING_CLAIMS:  # they group requests, and a hash still does
            hits.pop("what the client claims", None)
        clean = replace(
            exchange, messages=shown.messages(messages), tools=tools, response=shown.of(response), hints=hints, model=model,
            prompt_ids=shown.prompt_ids, redacted_by=_first_rule(hits),
        )  # fmt: skip
        unread = self._decode is None and (model != exchange.model or bool(secret_claims - _GROUPING_CLAIMS))
        return without_ids(clean) if unread or not shown.trainable else clean

    def _conversation(self, row: Exchange | Turn, reading: _Reading) -> tuple[Any, list[Message], Message | None]:
        """Redact tools, messages and answer, in the order in which the model reads them."""
        tools = None if row.tools is None else self._redact_static(row.tools, TOOLS, row.tools, reading)
        messages = self._messages(row.messages, reading, row.tools)
        response = None if row.response is None else self._redact_message(row.response, "the answer", reading)
        return tools, messages, response

    def _messages(self, messages: list[Message], reading: _Reading, tools: Any = None) -> list[Message]:
        return [
            self._redact_static(message, SYSTEM, tools, reading)
            if message.get("role") in _SYSTEM_ROLES
            else self._redact_message(message, "the conversation", reading)
            for message in messages
        ]

    def _replace_claim(self, claim: str, value: Any) -> str | None:
        """Return the replacement of a claim that holds a secret. A fixed placeholder would merge the sessions of all users, so a
        hash is used.
        """
        if claim not in _GROUPING_CLAIMS or not isinstance(value, str):
            return None
        return f"redacted-{blake2b(value.encode(errors='replace'), key=self._salt, digest_size=12).hexdigest()}"

    def _redact_part(self, value: Any, part: str, reading: _Reading, before: str = "") -> Any:
        """Redact `value` and count under `part` the rules that found something in it."""
        self._thread.rules = Counter()
        clean = self._redact_cached(value, reading.key, before)
        if self._thread.rules:
            reading.hits.setdefault(part, Counter()).update(self._thread.rules)
        return clean

    def _redact_message(self, message: Message, part: str, reading: _Reading) -> Message:
        """Redact a message that follows `reading.before`. A secret of an earlier message is one here as well."""
        clean: Message = self._redact_part(message, part, reading, reading.before)
        if reading.secrets:
            repeated = _without_values(clean, reading.secrets)
            if repeated != clean:
                clean = repeated
                reading.hits.setdefault(part, Counter())[REPEATED] += 1
        if clean != message and len(reading.secrets) < _MOST_SECRETS:
            values = [found.value for found in findings(message, clean) or () if len(found.value) >= _SHORTEST_REPEATED]
            reading.secrets.update(values[: _MOST_SECRETS - len(reading.secrets)])
        reading.before = last_words(message) or reading.before
        return clean

    def _redact_static(self, value: Any, part: str, tools: Any, reading: _Reading) -> Any:
        """Like `_redact_part`, but keep static text that is certainly no secret (`static_text.py`)."""
        self._thread.rules = Counter()
        if self._redact_cached(value, reading.key) == value:
            return value
        content = [value, part, reading.key, tools, self._recurring.changes]
        digest = blake2b(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), digest_size=16).digest()
        if digest not in self._static_cache:
            self._static_cache[digest] = self._search(value, StaticText(part, reading.key, tools, self._recurring))
            if len(self._static_cache) > _STATIC_CACHE_SIZE:
                self._static_cache.popitem(last=False)
        clean, rules, harmless = self._static_cache[digest]
        reading.accepted |= harmless
        if rules:
            reading.hits.setdefault(part, Counter()).update(rules)
        return clean

    def _search(self, value: Any, static: StaticText) -> tuple[Any, Counter[str], set[str]]:
        self._thread.static, self._thread.rules = static, Counter()
        try:
            return self.value(value), self._thread.rules, static.accepted
        finally:
            self._thread.static = None

    def messages(self, messages: list[Message], key: str = "") -> list[Message]:
        """Redact a conversation. A message seen before costs only its digest."""
        return self._messages(messages, _Reading(key))

    def _memory(self, key: str) -> _Memory:
        memory = self._memories.pop(key, None) or _Memory()
        self._memories[key] = memory
        if len(self._memories) > _KEYS:
            self._memories.popitem(last=False)
        return memory

    def _redact_cached(self, value: Any, key: str = "", before: str = "") -> Any:
        """Redact `value`, from memory if the key sent it before, after the same question."""
        digest = blake2b(orjson.dumps([value, before], option=orjson.OPT_NON_STR_KEYS), digest_size=16).digest()
        cache = self._memory(key).values
        if digest in cache:
            cache.move_to_end(digest)
            replacement, rules = cache[digest]
            self._thread.rules.update(rules)
            return value if replacement is None else replacement
        outer, self._thread.rules = self._thread.rules, Counter()
        clean = self.value(value)
        if before or (isinstance(value, dict) and isinstance(value.get("content"), list) and len(value["content"]) > 1):
            clean = self._answered(clean, self._question(before))
        rules, self._thread.rules = self._thread.rules, outer
        outer.update(rules)
        if clean != value and len(orjson.dumps(clean, option=orjson.OPT_NON_STR_KEYS)) > _LONGEST_CACHED:
            return clean
        cache[digest] = None if clean == value else clean, rules
        if len(cache) > self._cache_size:
            cache.popitem(last=False)
        return clean

    def _answered(self, message: Any, question: str) -> Any:
        """Redact what answers a question for a secret, such as `4829` after `Please enter your PIN.`, or beside an image."""
        if not isinstance(message, dict):
            return message

        def answer(text: str) -> str:
            nonlocal question
            hidden = self._answers(question, text[:_ANSWER]) if question else []
            question = self._question(text.strip()[-_QUESTION:]) if text.strip() else question
            return _hidden(text[:_ANSWER], hidden) + text[_ANSWER:] if hidden else text

        return {key: _in_texts(inner, answer) if key in _CONTENTS else inner for key, inner in message.items()}

    def _question(self, text: str) -> str:
        return text if text and any(finder.asks(text) for finder in self._finders) else ""

    def _answers(self, question: str, text: str) -> list[Secret]:
        """Return the secrets in what follows a question."""
        found = []
        if "password" in self._kinds:
            found = [secret for finder in self._finders for secret in finder.find_answer(question, text)]
        for joined in (f"{question.rstrip(' .?!:')}: ", f"{question}\n") if not found else ():
            found += [
                replace(span, start=span.start - len(joined), end=span.end - len(joined))
                for span in self.spans(joined + text)
                if span.start >= len(joined)
            ]
        self._thread.rules.update(secret.rule for secret in found)
        return _merged(sorted(found, key=lambda secret: secret.start))

    def _shown_ids(
        self, row: Exchange | Turn, reading: _Reading, pairs: list[tuple[Any, Any]], response: Message | None
    ) -> "_Shown":
        """Return the ids that may be written beside the redacted conversation, and what only the ids held."""
        answer_kept = response == row.response and "the answer" not in reading.hits
        if self._decode is None or not row.prompt_ids:
            whole = answer_kept and all(original == clean for original, clean in pairs)
            if whole and self._decode is not None and row.completion_ids:
                return self._shown_answer(row, reading, _Shown(row.prompt_ids, True))
            return _Shown(row.prompt_ids, whole)
        read = self._memory(reading.key).prompts
        ids = array("q", row.prompt_ids)
        around = len(pairs) - len(row.messages)
        begin, count, hidden = read.longest(ids, len(row.messages))
        prompt = DecodedIds(ids[begin:], self._decode)
        prompt.read(self._pause)
        new = pairs[around + count :] if begin else pairs
        prompt.align(text for original, _ in new for text in strings_of(original))
        ranges = self._ranges(prompt, new)
        secrets: tuple[str, ...] = ()
        if ranges is not None:
            gaps = list(islice(self._in_gaps(prompt, ranges, reading, "the token ids"), _MOST_SECRETS + 1))
            if len(gaps) > _MOST_SECRETS:
                return _Shown(None, False)
            secrets = tuple(prompt.text[start:end] for start, end in gaps)
            ranges += [*gaps, *(place for value in set(secrets) for place in occurrences(prompt.text, value))]
            hidden = [*hidden, *((begin + first, begin + last) for first, last in (prompt.id_range(*part) for part in ranges))]
        clean = hide(row.prompt_ids, hidden, getattr(self._decode, "placeholder", _no_placeholder)) if hidden else row.prompt_ids
        if ranges is None or clean is None:
            return _Shown(None, False, secrets)
        if ranges:
            text = self._decode(list(clean[begin:]))
            if any(value in text for start, end in ranges if len(value := prompt.text[start:end].strip()) >= _SHORTEST):
                return _Shown(None, False, secrets)
        read.add(ids, len(row.messages), hidden)
        shown = _Shown(clean, answer_kept, secrets)
        return self._shown_answer(row, reading, shown, prompt.text[-_AROUND:]) if answer_kept and row.completion_ids else shown

    def _ranges(self, prompt: DecodedIds, pairs: list[tuple[Any, Any]]) -> list[Range] | None:
        """Where the ids' text has what is hidden in the conversation. None: something hidden is not found there."""
        counts: Counter[Finding] = Counter()
        for original, clean in pairs:
            found = findings(original, clean)
            if found is None:
                return None
            counts.update(found)
            if len(counts) > _MOST_SECRETS:
                return None
        located = [prompt.locate(finding, times) for finding, times in counts.items()]
        return [place for places in located for place in places] if all(located) else None

    def _in_gaps(self, decoded: DecodedIds, ranges: list[Range], reading: _Reading, place: str) -> Iterator[Range]:
        """Yield secrets in the text between the conversation's strings, which a template or a dialect put there."""
        hidden = sorted(ranges)
        for start, end in decoded.gaps():
            text = _CONTROL_TOKEN.sub(lambda match: "\n" * len(match[0]), decoded.text[start:end])
            if len(text) < _SHORTEST or self._is_clean(text, reading):
                continue
            for span in self._spans_beside(text, reading):
                first, last = start + span.start, start + span.end
                if not any(begin <= first and last <= stop for begin, stop in hidden):
                    reading.hits.setdefault(place, Counter())[span.rule] += 1
                    yield first, last

    def _spans_beside(self, text: str, reading: _Reading) -> list[Secret]:
        self._thread.accepted = reading.accepted
        try:
            return self.spans(text)
        finally:
            self._thread.accepted = set()

    def _is_clean(self, text: str, reading: _Reading) -> bool:
        self._thread.rules, self._thread.accepted = Counter(), reading.accepted
        try:
            clean = self.text(text) if reading.accepted else self._redact_cached(text, reading.key)
            return bool(clean == text)
        finally:
            self._thread.accepted = set()

    def _shown_answer(self, row: Exchange | Turn, reading: _Reading, shown: "_Shown", before: str = "") -> "_Shown":
        """Whether the sampled ids may be written: a secret in them is nowhere replaced, because it would be trained."""
        assert self._decode is not None
        answer = DecodedIds(row.completion_ids or (), self._decode)
        answer.read(self._pause)
        answer.align(strings_of(row.response))
        found = tuple(answer.text[start:end] for start, end in self._in_gaps(answer, [], reading, "the token ids"))
        if before and before[-1] not in "\n>":  # a plain prompt, whose last word the answer may complete
            for span in self._spans_beside(before + answer.text[:_AROUND], reading):
                if span.start < len(before) < span.end:
                    found += (before[span.start :], answer.text[: span.end - len(before)])
        repeated = any(next(occurrences(answer.text, value), None) for value in reading.secrets)
        return replace(shown, trainable=not (found or repeated), secrets=(*shown.secrets, *found))

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
        return _hidden(text, self.spans(text))

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


@dataclass(frozen=True, slots=True)
class _Shown:
    """The ids that may be written, and secrets that no string of the conversation showed."""

    prompt_ids: Sequence[int] | None
    trainable: bool
    secrets: tuple[str, ...] = ()

    def of(self, value: Any) -> Any:
        """`value` without the secrets that were found in the ids, so that words and ids never disagree."""
        return _without_values(value, self.secrets) if self.secrets else value

    def messages(self, messages: list[Message]) -> list[Message]:
        return [self.of(message) for message in messages]


def without_ids(row: Row) -> Row:
    """Return an exchange or turn without everything that would reveal its tokens. It is not trained."""
    if isinstance(row, Turn):
        row = replace(row, trainable=False, untrainable_reason=REDACTED)
    return replace(
        row, prompt_ids=None, completion_ids=None, logprobs=None, allowed=None, images=None, untrainable_reason=REDACTED
    )  # fmt: skip


def _no_placeholder(length: int) -> list[int] | None:
    return None


def _pairs(original: Any, clean: Any) -> list[tuple[Any, Any]]:
    return [] if original is None else [(original, clean)]


def last_words(message: Message) -> str:
    """The end of what a message says, as the other side reads it before it answers."""
    texts = [text for key in _CONTENTS for text in strings_of(message.get(key))]
    return next((text.strip()[-_QUESTION:] for text in reversed(texts) if text.strip()), "")


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a message's content with its strings changed: its texts, and names of files."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_in_texts(inner, change) for inner in value]
    if isinstance(value, dict):
        names = (*_TEXTS, "filename", "title", "content", "file", "source", "name")
        return {key: _in_texts(inner, change) if key in names else inner for key, inner in value.items()}
    return value


def _without_values(value: Any, secrets: Collection[str]) -> Any:
    """Return any JSON value without secrets that are known from elsewhere."""
    if isinstance(value, str):
        if value[:1] in ("{", "[") and any(secret in value for secret in secrets):
            try:
                return orjson.dumps(_without_values(orjson.loads(value), secrets)).decode()
            except orjson.JSONDecodeError:
                pass
        for secret in secrets:
            if secret in value:
                kept, at = [], 0
                for start, end in occurrences(value, secret):
                    kept += [value[at:start], "[redacted:password]"]
                    at = end
                value = "".join([*kept, value[at:]])
        return value
    if isinstance(value, dict):
        return {key: inner if key in ("role", "type") else _without_values(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_values(inner, secrets) for inner in value]
    return "[redacted:password]" if isinstance(value, int | float) and str(value) in secrets else value


def _hidden(text: str, spans: Iterable[Secret]) -> str:
    pieces, position = [], 0
    for span in spans:
        pieces += [text[position : span.start], f"[redacted:{span.kind}]"]
        position = span.end
    return "".join([*pieces, text[position:]]) if pieces else text


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
    if "\\" not in text and "&" not in text and "%" not in text:
        return parts
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
