"""Secrets are taken out of an exchange before it is written: from messages, tools, the response and the client's claims.

The client's stream is not touched: what is looked at is the whole exchange, once it is there, so that no secret is missed because
it came in pieces. A secret is replaced by `[redacted:KIND]`, the same text always by the same, so that a conversation that repeats
it in its next request is still recognised. Token ids say what the text said: an exchange that held a secret loses its ids and
log-probabilities, and with them its place in training (`untrainable_reason`: "redacted").
"""

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import orjson

from clawctl.privacy.rules import Kind, Rule, is_secret_under, make_rules
from clawctl.types import Exchange, Message

REDACTED = "redacted"  # the reason why such a turn is not trained
_REMEMBERED = 1 << 14  # messages; an agent sends its whole history again with each turn
_LONGEST_REMEMBERED = 8 << 10  # bytes of JSON; of what is clean the digest alone is remembered
_SHORTEST = 8  # no secret is shorter, its name included
_DEEPEST = 64  # levels of nesting that are walked; what lies below is looked at as one text
_GROUPS = ("value", "quoted", "bare")
_MEDIA = re.compile(r"data:(?:image|audio|video)/[\w.+-]{1,40};base64,[A-Za-z0-9+/=\s]*\Z")
_KEY_CHARACTERS = re.compile(r"[A-Za-z0-9_-]*")


class RedactionFailed(Exception):
    """An exchange could not be looked through. The message has no word of it."""


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: Kind


class Redactor:
    """Redaction by the rules of some kinds. Remembers, by digest alone, which messages it has seen; for one thread at a time."""

    def __init__(self, kinds: Collection[Kind], remembered: int = _REMEMBERED) -> None:
        self._everywhere, self._exact, self._folded = _indexed(make_rules(frozenset(kinds)))
        self._on = bool(kinds)
        self._names = "password" in kinds
        self._remembered = remembered
        self._seen: OrderedDict[bytes, Any] = OrderedDict()  # digest → what stands for it; None: itself, it is clean

    def exchange(self, exchange: Exchange, unwritten: Any = None) -> Exchange:
        """The exchange as it may be written. `unwritten` entered the prompt, so its ids tell it, but stands in no field of the
        exchange (settings of the template). Raises RedactionFailed."""
        if not self._on:
            return exchange
        try:
            return self._exchange(exchange, unwritten)
        except Exception as error:  # noqa: BLE001 - whatever it is, the original is not written, and nothing it quotes is logged
            raise RedactionFailed(f"redaction failed with {type(error).__name__}") from None

    def _exchange(self, exchange: Exchange, unwritten: Any) -> Exchange:
        messages = self.messages(exchange.messages)
        tools = None if exchange.tools is None else self._known(exchange.tools)
        response = None if exchange.response is None else self._known(exchange.response)
        hints = {key: value for key, value in exchange.hints.items() if self._known({key: value}) == {key: value}}
        model = self.text(exchange.model)
        found = (messages, tools, response, model) != (exchange.messages, exchange.tools, exchange.response, exchange.model)
        # A claim with a secret in it is dropped: a session named by a placeholder would be everybody's.
        hints = {key: hints.get(key) for key in exchange.hints}
        if found or hints != exchange.hints or self._known(unwritten) != unwritten:
            return replace(
                exchange, messages=messages, tools=tools, response=response, hints=hints, model=model, prompt_ids=None,
                completion_ids=None, logprobs=None, untrainable_reason=REDACTED,
            )  # fmt: skip
        if response is None and exchange.completion_ids:  # tokens of an answer whose text nobody has looked through
            return replace(exchange, completion_ids=None, logprobs=None)
        return exchange

    def messages(self, messages: list[Message]) -> list[Message]:
        """A conversation, redacted; a message that was seen before costs its digest."""
        return [self._known(message) for message in messages]

    def _known(self, value: Any) -> Any:
        """`value` redacted, from memory where it was seen before."""
        digest = blake2b(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), digest_size=16).digest()
        if digest in self._seen:
            self._seen.move_to_end(digest)
            kept = self._seen[digest]
            return value if kept is None else kept
        clean = self.value(value)
        if clean != value and len(orjson.dumps(clean, option=orjson.OPT_NON_STR_KEYS)) > _LONGEST_REMEMBERED:
            return clean
        self._seen[digest] = None if clean == value else clean
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return clean

    def value(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Any JSON value, redacted. `name` is the key it stands under."""
        if isinstance(value, str):
            return self._named(name, value)
        if depth > _DEEPEST:
            text = orjson.dumps(value).decode()
            clean = self.text(text)
            return value if clean == text else clean
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(inner, str(key), depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            inner = [self.value(each, name, depth + 1) for each in value]
            return self._joined(value, inner)
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = str(value)
            return value if self._named(name, text) == text else self._named(name, text)
        return value

    def _joined(self, parts: list[Any], clean: list[Any]) -> list[Any]:
        """Text parts are one text to the model, and may be sent as one next time: what shows only in the whole is taken out."""
        texts = [part["text"] for part in parts if _is_text(part)]
        if len(texts) < 2:
            return clean
        whole = self.text("".join(texts))
        if whole == "".join(part["text"] for part in clean if _is_text(part)):
            return clean
        rest = iter([whole, *[""] * len(texts)])
        return [{**part, "text": next(rest)} if _is_text(part) else part for part in clean]

    def _named(self, name: str, text: str) -> str:
        if self._names and len(text) >= 3 and name and is_secret_under(name, text, quoted=True):
            return "[redacted:password]"
        if text[:1] in "{[" and len(text) >= _SHORTEST:  # arguments of a tool: JSON in a text, which must stay JSON
            try:
                inner = orjson.loads(text)
            except orjson.JSONDecodeError:
                return self.text(text)
            clean = self.value(inner)
            if clean != inner:
                text = orjson.dumps(clean).decode()
        return self.text(text)

    def text(self, text: str) -> str:
        """One text, redacted."""
        pieces, at = [], 0
        for span in self.spans(text):
            pieces += [text[at : span.start], f"[redacted:{span.kind}]"]
            at = span.end
        return "".join([*pieces, text[at:]]) if pieces else text

    def spans(self, text: str) -> list[Span]:
        """Where the secrets stand, in order; those that overlap are one."""
        if len(text) < _SHORTEST or _MEDIA.match(text):
            return []
        lower = text.lower()
        if len(lower) != len(text):
            lower = text  # a few letters change their length: places would shift
        found = [_span(rule, match) for rule in self._everywhere for match in rule.matches(text)]
        for within, rules in ((text, self._exact), (lower, self._folded)):
            for anchor, anchored in rules.items():
                at = within.find(anchor)
                while at >= 0:
                    found += [_span(rule, match) for rule in anchored if (match := rule.match_at(text, at))]
                    at = within.find(anchor, at + 1)
        return _merged(sorted(found, key=lambda span: span.start)) if found else []


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _indexed(rules: list[Rule]) -> tuple[list[Rule], dict[str, list[Rule]], dict[str, list[Rule]]]:
    """Rules that are tried everywhere; the others by anchor: as written, and in lower case. A text is searched once for each."""
    exact: dict[str, list[Rule]] = {}
    folded: dict[str, list[Rule]] = {}
    for rule in rules:
        for anchor in rule.anchors:
            (folded if rule.fold else exact).setdefault(anchor, []).append(rule)
    return [rule for rule in rules if not rule.anchors], exact, folded


def _span(rule: Rule, match: re.Match[str]) -> Span:
    group = next((name for name in _GROUPS if name in rule.pattern.groupindex and match[name] is not None), 0)
    start, end = match.span(group)
    longer = _KEY_CHARACTERS.match(match.string, end) if rule.kind == "api_key" else None
    return Span(start, longer.end() if longer else end, rule.kind)  # a format may have grown since its rule was written


def _merged(spans: list[Span]) -> list[Span]:
    merged = spans[:1]
    for span in spans[1:]:
        last = merged[-1]
        if span.start >= last.end:
            merged.append(span)
        elif span.end > last.end:
            merged[-1] = Span(last.start, span.end, last.kind)
    return merged
