"""What was searched for each API key, so that text that was sent before is not searched again."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

from clawctl.privacy.prompt_ids import ReadPrompts
from clawctl.privacy.said import NOTHING_SAID, Said

MOST_VALUES = 1 << 12  # messages of one key; an agent sends its whole history again with each turn
_BYTES = 1 << 20  # JSON of one key's replacements; for clean values only the digest is remembered
_KEYS = 256  # API keys whose messages are remembered
_PROMPTS = 256  # prompts of one key that are remembered
_NEW_MESSAGES = 8  # at the end of a conversation; with more, each of its messages is looked up
Remembered = tuple[Any, Counter[str], int]  # the replacement (None: the value is clean), the rules that found something, its bytes


class Beginnings:
    """Beginnings of conversations in which nothing was found, and who said what last in them. A conversation grows at its end, so
    one look replaces one for each of its messages."""

    def __init__(self) -> None:
        self._said: OrderedDict[bytes, Said] = OrderedDict()

    def longest(self, messages: list[Any]) -> tuple[int, Said, bytes]:
        """The number of messages in the longest known beginning, what was said last in it, and the digest of all messages."""
        chain, length, said, looked_at = sha256(), 0, NOTHING_SAID, len(messages) - _NEW_MESSAGES
        for count, message in enumerate(messages, 1):
            chain.update(orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS))
            if count >= looked_at and (last := self._said.get(chain.digest())) is not None:
                length, said = count, last
        return length, said, chain.digest()

    def add(self, digest: bytes, said: Said) -> None:
        self._said[digest] = said
        self._said.move_to_end(digest)
        if len(self._said) > _PROMPTS:
            self._said.popitem(last=False)


@dataclass(slots=True)
class Memory:
    """What was searched for one API key: digests, and redacted texts in place of those that held a secret."""

    most: int
    values: OrderedDict[bytes, Remembered] = field(default_factory=OrderedDict)
    prompts: ReadPrompts = field(default_factory=lambda: ReadPrompts(_PROMPTS))
    beginnings: "Beginnings" = field(default_factory=lambda: Beginnings())
    size: int = 0  # bytes of all replacements

    def get(self, digest: bytes) -> Remembered | None:
        remembered = self.values.get(digest)
        if remembered is not None:
            self.values.move_to_end(digest)
        return remembered

    def add(self, digest: bytes, remembered: Remembered) -> None:
        if remembered[2] > _BYTES:
            return
        previous = self.values.pop(digest, None)  # of another thread that searched the same text
        self.values[digest] = remembered
        self.size += remembered[2] - (0 if previous is None else previous[2])
        while len(self.values) > self.most or self.size > _BYTES:
            self.size -= self.values.popitem(last=False)[1][2]


class Memories:
    """The memories of all API keys. Those used longest ago are dropped, and no key displaces what another sent."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self.by_key: OrderedDict[str, Memory] = OrderedDict()
        self._most = most

    def of(self, key: str) -> Memory:
        memory = self.by_key.pop(key, None) or Memory(self._most)
        self.by_key[key] = memory
        if len(self.by_key) > _KEYS:
            self.by_key.popitem(last=False)
        return memory
