"""The tokens that were allowed at each position of a structured answer: exact sets, stored with the turn.

A grammar allows few tokens of the vocabulary at each position, and the sampler's log-probabilities belong to the distribution over
these tokens only. A trainer must compute them over the same sets. The sets are stored instead of the grammar. They stay exact when
the grammar library changes, and no client schema is stored.

An answer has few different sets, and most of them differ little, so the sets of a turn take about as much space as its token ids.
"""

import base64
import binascii
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

_HEAD: Final = struct.Struct("<BIIII")  # version of this layout, vocabulary size, tokens, different sets, CRC-32 of the rest
_VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20  # bytes, unpacked
LONGEST: Final = 1 << 20  # characters of a packed text; a turn that needs more is not trained
_ZSTD: Final = pa.Codec("zstd", compression_level=6)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed sets of one answer of T tokens."""

    vocabulary: int
    which: tuple[int, ...]  # [T] index of each token's set; -1: any token could be sampled
    sets: tuple[bytes, ...]  # one bit per token of the vocabulary, lowest first, in complete 32-bit words

    def __post_init__(self) -> None:
        size = _size(self.vocabulary)
        if any(len(ids) != size for ids in self.sets):
            raise ValueError(f"a set of {self.vocabulary} tokens takes {size} bytes")
        if any(not -1 <= index < len(self.sets) for index in self.which):
            raise ValueError("a token names a set that is not there")

    def admits(self, ids: Sequence[int]) -> bool:
        """Whether `ids` has the right length and each id is in the set of its position."""
        return len(ids) == len(self.which) and all(
            index < 0 or (0 <= token < self.vocabulary and self.sets[index][token >> 3] >> (token & 7) & 1)
            for token, index in zip(ids, self.which, strict=True)
        )

    def is_single(self, index: int) -> bool:
        """Whether the set allows only one token."""
        return index >= 0 and int.from_bytes(self.sets[index]).bit_count() == 1

    def packed(self) -> str | None:
        """Return the sets as base64 text, or None if the text would be too long to store."""
        if len(self.sets) * (self.vocabulary // 8 + 4) > _MAX_BYTES:
            return None
        bits = np.frombuffer(b"".join(self.sets), np.uint8).reshape(len(self.sets), _size(self.vocabulary))
        raw = array("i", self.which).tobytes() + bits[:1].tobytes() + (bits[1:] ^ bits[:-1]).tobytes()
        head = _HEAD.pack(_VERSION, self.vocabulary, len(self.which), len(self.sets), zlib.crc32(raw))
        text = base64.b64encode(head + bytes(_ZSTD.compress(raw, asbytes=True))).decode()
        return text if len(text) <= LONGEST else None


def unpack(text: str) -> Allowed:
    """Decode the text from `Allowed.packed`. Raises ValueError if it cannot be read or is damaged."""
    try:
        data = base64.b64decode(text, validate=True)
        version, vocabulary, tokens, count, checksum = _HEAD.unpack_from(data)
        size = _size(vocabulary)
        length = 4 * tokens + count * size
        if version != _VERSION or length > _MAX_BYTES + 4 * tokens or tokens > _MAX_BYTES:
            raise ValueError("sets of another layout, or too many")
        raw = bytes(_ZSTD.decompress(data[_HEAD.size :], length, asbytes=True))
    except (binascii.Error, struct.error, pa.ArrowException, OSError) as error:
        raise ValueError(f"sets that cannot be read: {error}") from error
    if len(raw) != length or zlib.crc32(raw) != checksum:
        raise ValueError("sets that are cut off or changed")
    which = array("i", raw[: 4 * tokens])
    sets = np.bitwise_xor.accumulate(np.frombuffer(raw, np.uint8, offset=4 * tokens).reshape(count, size), axis=0)
    return Allowed(vocabulary, tuple(which), tuple(row.tobytes() for row in sets))


def _size(vocabulary: int) -> int:
    """Bytes of a set: one bit per token, in complete 32-bit words."""
    return 4 * ((vocabulary + 31) // 32)
