"""What was searched for each API key, so that text that was sent before is not searched again."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from clawctl.privacy.prompt_ids import ReadPrompts

MOST_VALUES = 1 << 12  # messages of one key; an agent sends its whole history again with each turn
_BYTES = 1 << 20  # JSON of one key's replacements; for clean values only the digest is remembered
_KEYS = 256  # API keys whose messages are remembered
_PROMPTS = 256  # prompts of one key that are remembered
Remembered = tuple[Any, Counter[str], int]  # the replacement (None: the value is clean), the rules that found something, its bytes


@dataclass(slots=True)
class Memory:
    """What was searched for one API key: digests, and redacted texts in place of those that held a secret."""

    most: int
    values: OrderedDict[bytes, Remembered] = field(default_factory=OrderedDict)
    prompts: ReadPrompts = field(default_factory=lambda: ReadPrompts(_PROMPTS))
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
