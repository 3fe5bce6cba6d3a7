"""Removes secrets from an exchange before it is written: from messages, tools, the response and the client's claims.

The stream to the client is not changed. The complete exchange is searched, so that a secret split across chunks is not missed. A
secret is replaced by `[redacted:KIND]`. The same text always gets the same replacement, so a conversation that repeats it in its
next request is still recognised.

A conversation is read in order, so an answer to `Please enter your PIN.` is a secret, and so is what a later message repeats of an
earlier secret. What is found is hidden in the words and, at the same place, in the ids of the prompt (`prompt_ids.py`), where
placeholders of the same length stand for it; the trainer scores such an answer again. Ids can decode to more than the words, for
instance to content that a dialect dropped, so the rest of their text is searched as well. A turn loses its ids and is not trained
(`untrainable_reason`: "redacted") if its answer holds a secret, or if a secret cannot be located in the ids.

`search.py` finds the secrets of one text, and `memory.py` keeps text that was sent before from being searched again.
"""

import operator
import os
import re
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from itertools import islice
from typing import Any, TypeVar

import orjson

from clawctl.config.privacy import PrivacyConfig
from clawctl.privacy.finders import DEFAULT, Kind, Secret
from clawctl.privacy.memory import MOST_VALUES, Memories, Memory
from clawctl.privacy.prompt_ids import DecodedIds, Finding, Range, findings, hide, occurrences, strings_of
from clawctl.privacy.said import NOTHING_SAID, Said
from clawctl.privacy.search import AROUND, SHORTEST, TextSearch, no_pause
from clawctl.privacy.static_text import SYSTEM, TOOLS, Recurring, StaticText
from clawctl.run.rows import Exchange, Message, Turn

REPEATED = "a secret of an earlier message"
REDACTED = "redacted"  # the reason why such a turn is not trained
# From token ids to their text. A method `placeholder(length)`, if there is one, returns so many ids that stand for a removed text.
Decode = Callable[[list[int]], str]
Row = TypeVar("Row", Exchange, Turn)
_SHORTEST_REPEATED = 4  # characters; a shorter secret is not looked for in later messages
# Secrets of one conversation that are looked for in later messages and in the ids. All text is read once for each of them, so ten
# thousand keys would hold up all captures for minutes. With more, the ids are not written.
_MOST_SECRETS = 256
_STATIC_CACHE_SIZE = 64  # tools and system prompts in which something was found
_GROUPING_CLAIMS = {"session_id", "agent_id", "task_id", "group_id", "turn_of_client"}  # claims that only group requests
_SYSTEM_ROLES = ("system", "developer")
_CONTROL_TOKEN = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>")  # ends a word


class RedactionFailed(Exception):
    """An exchange could not be searched. The message quotes none of its content."""


@dataclass(slots=True)
class _Reading:
    """One conversation while it is searched: what the model read, beside what may be written."""

    key: str
    memory: Memory
    hits: dict[str, Counter[str]] = field(default_factory=dict)  # by place: the rules that found something
    accepted: set[str] = field(default_factory=set)  # values in static texts that are certainly no secrets
    before: Said = NOTHING_SAID  # what the next message follows
    secrets: set[str] = field(default_factory=set)  # those of earlier messages, which later ones may repeat
    digest: bytes = b""  # of `secrets`


class Redactor(TextSearch):
    """Redaction of some kinds of secrets. It remembers digests of the messages and ids that it has searched.

    Not thread-safe: at most one thread may run outside `pause` at any time. Threads may alternate during `pause`. `decode` turns
    token ids into text; without it only the text is searched. `not_secrets` are texts that the user declared not to be secrets.
    Raises ClawError if one of the `finders` cannot be loaded.
    """

    def __init__(
        self,
        kinds: Collection[Kind],
        cache_size: int = MOST_VALUES,
        decode: Decode | None = None,
        pause: Callable[[], None] = no_pause,
        not_secrets: Collection[str] = (),
        finders: Sequence[str] = DEFAULT,
    ) -> None:
        super().__init__(kinds, pause, not_secrets, finders)
        self._decode = decode
        self._salt = os.urandom(32)
        self._recurring = Recurring()
        self._static_cache: OrderedDict[bytes, tuple[Any, Counter[str], set[str]]] = OrderedDict()
        self._memories = Memories(cache_size)

    def exchange(self, exchange: Exchange, unwritten: Any = None) -> Exchange:
        """Return the exchange in the form that may be written. Raises RedactionFailed.

        `unwritten` (settings of the chat template) entered the prompt, so the ids contain it, but no field of the exchange does.
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
        reading = _Reading(turn.user, self._memories.of(turn.user))
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
        reading = _Reading(exchange.key, self._memories.of(exchange.key))
        tools, messages, response = self._conversation(exchange, reading)
        claims = {key: self._redact_part({key: value}, "what the client claims", reading) for key, value in exchange.hints.items()}
        model = self._redact_part(exchange.model, "the name of the model", reading)
        secret_claims = {key for key, value in exchange.hints.items() if claims[key] != {key: value}}
        hints = {key: self._replace_claim(key, value) if key in secret_claims else value for key, value in exchange.hints.items()}
        clean_unwritten = self._redact_part(unwritten, "the template's settings", reading)
        notes = None if exchange.notes is None else self._redact_part(exchange.notes, "the notes", reading)
        around = [*_pairs(exchange.tools, tools), (unwritten, clean_unwritten), *_pairs(exchange.notes, notes)]
        shown = self._shown_ids(exchange, reading, [*around, *zip(exchange.messages, messages, strict=True)], response)
        unchanged = (tools, messages, response, model, hints, clean_unwritten, notes, shown.trainable, shown.secrets)
        sent = (exchange.tools, exchange.messages, exchange.response, exchange.model, exchange.hints, unwritten, exchange.notes)
        if unchanged == (*sent, True, ()):
            if response is None and exchange.completion_ids:  # the text of these tokens was never searched
                return replace(exchange, completion_ids=None, logprobs=None, allowed=None)
            return exchange
        if secret_claims <= _GROUPING_CLAIMS:  # they group requests, and a hash still does
            reading.hits.pop("what the client claims", None)
        clean = replace(
            exchange, messages=shown.messages(messages), tools=tools, response=shown.of(response), hints=hints, model=model,
            prompt_ids=shown.prompt_ids, notes=shown.of(notes), redacted_by=_first_rule(reading.hits),
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
        beginnings, is_begun = reading.memory.beginnings, reading.before != NOTHING_SAID or bool(reading.secrets)
        seen, said, digest = (0, reading.before, b"") if is_begun else beginnings.longest(messages)
        # Static texts are read again, because what is accepted in them is accepted in the token ids as well
        begun = [self._read(old, reading, tools) if old.get("role") in _SYSTEM_ROLES else old for old in messages[:seen]]
        if not all(map(operator.is_, begun, messages)):
            begun, seen, said = [], 0, NOTHING_SAID
        reading.before = said
        clean = begun + [self._read(message, reading, tools) for message in messages[seen:]]
        if not is_begun and all(map(operator.is_, clean, messages)):
            beginnings.add(digest, reading.before)
        return clean

    def _read(self, message: Message, reading: _Reading, tools: Any) -> Any:
        if message.get("role") in _SYSTEM_ROLES:
            return self._redact_static(message, SYSTEM, tools, reading)
        return self._redact_message(message, "the conversation", reading)

    def _replace_claim(self, claim: str, value: Any) -> str | None:
        """Return the replacement of a claim that holds a secret. A fixed placeholder would merge the sessions of all users, so a
        hash is used.
        """
        if claim not in _GROUPING_CLAIMS or not isinstance(value, str):
            return None
        return f"redacted-{blake2b(value.encode(errors='replace'), key=self._salt, digest_size=12).hexdigest()}"

    def _redact_part(self, value: Any, part: str, reading: _Reading, follows: _Reading | None = None) -> Any:
        """Redact `value` and count under `part` the rules that found something in it."""
        clean, rules = self._remembered(value, reading.memory, follows)
        if rules:
            reading.hits.setdefault(part, Counter()).update(rules)
        return clean

    def _redact_message(self, message: Message, part: str, reading: _Reading) -> Message:
        """Redact a message that follows `reading.before`. A secret of an earlier message is one here as well."""
        clean: Message = self._redact_part(message, part, reading, reading)
        if clean is not message and len(reading.secrets) < _MOST_SECRETS:
            values = [finding.value for finding in findings(message, clean) or () if len(finding.value) >= _SHORTEST_REPEATED]
            reading.secrets.update(values[: _MOST_SECRETS - len(reading.secrets)])
            reading.digest = sha256(reading.digest + orjson.dumps(values)).digest()
        reading.before = self.said(message, reading.before)
        return clean

    def _redact_static(self, value: Any, part: str, tools: Any, reading: _Reading) -> Any:
        """Like `_redact_part`, but keep static text that is certainly no secret (`static_text.py`)."""
        if self._remembered(value, reading.memory)[0] is value:
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
        return value if clean == value else clean

    def _search(self, value: Any, static: StaticText) -> tuple[Any, Counter[str], set[str]]:
        self._thread.static, self._thread.rules = static, Counter()
        try:
            return self.value(value), self._thread.rules, static.accepted
        finally:
            self._thread.static = None

    def messages(self, messages: list[Message], key: str = "") -> list[Message]:
        """Redact a conversation. A message seen before costs only its digest."""
        return self._messages(messages, _Reading(key, self._memories.of(key)))

    def _remembered(self, value: Any, memory: Memory, follows: _Reading | None = None) -> tuple[Any, Counter[str]]:
        """Redact `value`, from memory if the key sent it before, after the same words, and return the rules that matched."""
        before, secrets = (follows.before, follows.digest) if follows else (NOTHING_SAID, b"")
        text = orjson.dumps((value, before), option=orjson.OPT_NON_STR_KEYS)
        digest = sha256(secrets + text).digest()  # faster than BLAKE2 in hardware
        if (kept := memory.get(digest)) is not None:
            return (value if kept[0] is None else kept[0]), kept[1]
        outer, self._thread.rules = self._thread.rules, Counter()
        clean = self.value(value)
        if before.text or (isinstance(value, dict) and "role" in value):
            clean = self._answered(clean, before)
        rules, self._thread.rules = self._thread.rules, outer
        if follows and (repeated := _without_values(clean, follows.secrets)) != clean:
            clean = repeated
            rules[REPEATED] += 1
        if clean == value:  # what was found may stand in the question alone
            clean, rules = value, Counter()
        size = 0 if clean is value else len(orjson.dumps(clean, option=orjson.OPT_NON_STR_KEYS))
        memory.add(digest, (None if clean is value else clean, rules, size))
        return clean, rules

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
        read = reading.memory.prompts
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
            ranges += [*gaps, *(span for value in set(secrets) for span in occurrences(prompt.text, value))]
            hidden = [*hidden, *((begin + first, begin + last) for first, last in (prompt.id_range(*part) for part in ranges))]
        clean = hide(row.prompt_ids, hidden, getattr(self._decode, "placeholder", lambda _: None)) if hidden else row.prompt_ids
        if ranges is None or clean is None:
            return _Shown(None, False, secrets)
        if ranges:
            text = self._decode(list(clean[begin:]))
            if any(value in text for start, end in ranges if len(value := prompt.text[start:end].strip()) >= SHORTEST):
                return _Shown(None, False, secrets)
        read.add(ids, len(row.messages), hidden)
        shown = _Shown(clean, answer_kept, secrets)
        return self._shown_answer(row, reading, shown, prompt.text[-AROUND:]) if answer_kept and row.completion_ids else shown

    def _ranges(self, prompt: DecodedIds, pairs: list[tuple[Any, Any]]) -> list[Range] | None:
        """Where the ids' text has what is hidden in the conversation. None: something hidden is not found there."""
        counts: Counter[Finding] = Counter()
        for original, clean in pairs:
            differences = findings(original, clean)
            if differences is None:
                return None
            counts.update(differences)
            if len(counts) > _MOST_SECRETS:
                return None
        located = [prompt.locate(finding, times) for finding, times in counts.items()]
        return [span for spans in located for span in spans] if all(located) else None

    def _in_gaps(self, decoded: DecodedIds, ranges: list[Range], reading: _Reading, part: str) -> Iterator[Range]:
        """Yield secrets in the text between the conversation's strings, which a template or a dialect put there."""
        hidden = sorted(ranges)
        for start, end in decoded.gaps():
            text = _CONTROL_TOKEN.sub(lambda match: "\n" * len(match[0]), decoded.text[start:end])
            if len(text) < SHORTEST or self._is_clean(text, reading):
                continue
            for span in self._spans_beside(text, reading):
                first, last = start + span.start, start + span.end
                if not any(begin <= first and last <= stop for begin, stop in hidden):
                    reading.hits.setdefault(part, Counter())[span.rule] += 1
                    yield first, last

    def _spans_beside(self, text: str, reading: _Reading) -> list[Secret]:
        self._thread.accepted = reading.accepted
        try:
            return self.spans(text)
        finally:
            self._thread.accepted = set()

    def _is_clean(self, text: str, reading: _Reading) -> bool:
        if reading.accepted:
            return not self._spans_beside(text, reading)
        return bool(self._remembered(text, reading.memory)[0] == text)

    def _shown_answer(self, row: Exchange | Turn, reading: _Reading, shown: "_Shown", before: str = "") -> "_Shown":
        """Whether the sampled ids may be written: a secret in them is nowhere replaced, because it would be trained."""
        assert self._decode is not None
        answer = DecodedIds(row.completion_ids or (), self._decode)
        answer.read(self._pause)
        answer.align(strings_of(row.response))
        leaked = tuple(answer.text[start:end] for start, end in self._in_gaps(answer, [], reading, "the token ids"))
        if before and before[-1] not in "\n>":  # a plain prompt, whose last word the answer may complete
            for span in self._spans_beside(before + answer.text[:AROUND], reading):
                if span.start < len(before) < span.end:
                    leaked += (before[span.start :], answer.text[: span.end - len(before)])
        repeated = any(next(occurrences(answer.text, value), None) for value in reading.secrets)
        return replace(shown, trainable=not (leaked or repeated), secrets=(*shown.secrets, *leaked))


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


def _pairs(original: Any, clean: Any) -> list[tuple[Any, Any]]:
    return [] if original is None else [(original, clean)]


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


def redactor_of(privacy: PrivacyConfig, decode: Decode | None = None, pause: Callable[[], None] = no_pause) -> Redactor:
    """The redactor of a recipe. Raises ClawError (exit code 2) if redaction is on and a finder is missing."""
    return Redactor(privacy.redact, decode=decode, pause=pause, not_secrets=privacy.not_secrets, finders=privacy.finders)


def _first_rule(hits: dict[str, Counter[str]]) -> str | None:
    """Return the rule with the most findings in the first place where something was found."""
    return next((f"{rules.most_common(1)[0][0]}, in {part}" for part, rules in hits.items() if rules), None)
