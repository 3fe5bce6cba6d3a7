"""Recognises words in static text, that is system prompts and tools, that only look like a secret. Clients send them with every
request.

`identified by shellId.` in a tool description looks like a password clause of SQL. One such place makes every turn of that client
untrainable. A finding in static text is accepted as harmless only if it is certain that it is not secret:

- It was found by the words around it. A known format, a private key, a card or a login in an address is never accepted.
- It is plain words: letters only, in a form that password generators do not produce.
- It is the name of a tool or of a parameter in the same request, or the same place was sent with `KEYS` API keys.

A key counts once, however many sessions it has. On a server with fewer keys, recurrence never makes a finding harmless. A team
shares its own instructions in the system prompt, so a value beside a name like `password` is always treated as a secret there.
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from clawctl.privacy.finders import Secret

KEYS = 3  # API keys that must have sent the same place
TOOLS, SYSTEM = "the tool descriptions", "the system prompt"
PUNCTUATION = "\"'`“”«»„()[]{}<>.,;:!?* "
_AROUND = 24  # characters before and after a finding that must recur with it
_REMEMBERED = 4096  # findings, about 1 MB
_PLAIN_WORDS = re.compile(r"[A-Za-z]{1,16}(?:[_. -][A-Za-z]{1,16}){0,4}")


class Recurring:
    """Records which keys have sent a finding, as digests only. Its size is bounded: an evicted finding counts as a secret again."""

    def __init__(self, keys: int = KEYS, capacity: int = _REMEMBERED) -> None:
        self._keys, self._capacity = keys, capacity
        self._salt = secrets.token_bytes(16)
        self._keys_by_finding: OrderedDict[bytes, frozenset[bytes]] = OrderedDict()
        self.changes = 0  # how often a finding was accepted for the first time

    def recurs(self, key: str, finding: str) -> bool:
        """Record that `key` has sent `finding`. Returns whether enough keys have sent it."""
        finding_digest, sender = self._digest(finding), self._digest(key)
        keys = self._keys_by_finding.pop(finding_digest, frozenset())
        if sender not in keys and len(keys) < self._keys:
            keys |= {sender}
            self.changes += len(keys) == self._keys
        self._keys_by_finding[finding_digest] = keys
        if len(self._keys_by_finding) > self._capacity:
            self._keys_by_finding.popitem(last=False)
        return len(keys) >= self._keys

    def _digest(self, text: str) -> bytes:
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._salt).digest()


@dataclass(slots=True)
class StaticText:
    """One static text of one exchange while it is searched."""

    part: str  # TOOLS or SYSTEM
    key: str  # the name of the API key
    tools: Any
    recurring: Recurring
    accepted: set[str] = field(default_factory=set)
    _names: frozenset[str] | None = None

    def accepts(self, text: str, span: Secret) -> bool:
        value = text[span.start : span.end].strip(PUNCTUATION)
        if span.by == "form" or _PLAIN_WORDS.fullmatch(value) is None:
            return False
        if self._names is None:
            self._names = frozenset(names_of_tools(self.tools))
        if value not in self._names:
            if self.part == SYSTEM and span.by == "name":
                return False
            around = text[max(0, span.start - _AROUND) : span.end + _AROUND]
            if not self.recurring.recurs(self.key, f"{span.rule}\n{around}"):
                return False
        self.accepted.add(value)
        return True


def names_of_tools(value: Any, depth: int = 12) -> Iterator[str]:
    """Yield the names of tools and parameters from a list of tools in any dialect."""
    if isinstance(value, list):
        for item in value:
            yield from names_of_tools(item, depth)
    elif isinstance(value, dict) and depth:
        for key, inner in value.items():
            if key in ("name", "title") and isinstance(inner, str):
                yield inner
            if key == "properties" and isinstance(inner, dict):
                yield from inner
            if isinstance(inner, dict | list):
                yield from names_of_tools(inner, depth - 1)
