"""Reads `captures/`: every complete line of every file once, ordered by time. Unreadable lines are quarantined."""

import heapq
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, quarantine_bytes
from clawctl.run.lines import Lines
from clawctl.run.rows import SCHEMA_VERSION, Exchange, from_json, newer

log = logging.getLogger(__name__)

_START = b'{"exchange_id":'


class BadLine(Exception):
    """A line is not a readable exchange. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Captured:
    """An exchange and its place in the captures."""

    exchange: Exchange
    file: str
    offset: int


class Captures:
    """Follows all capture files of a run, each from `start` (byte offsets by name; default: the beginning)."""

    def __init__(self, run: RunDir, start: Mapping[str, int] | None = None) -> None:
        self.quarantined = 0
        # Quarantined lines not written because the disk was full: name, line, reason
        self._unwritten: list[tuple[str, bytes, bytes]] = []
        self._run = run
        self._lines = Lines(run.captures, start)

    @property
    def offsets(self) -> dict[str, int]:
        """How far each file was read, in bytes."""
        return self._lines.offsets

    def read(self) -> Iterator[Captured]:
        """Yield the exchanges appended since the last call, in the order in which they ended, which is the order of writing.

        Reading everything at once gives the same order as reading in parts. A line without its newline is not returned until it is
        complete. Its writer may have died before finishing it. Then no client received its answer, and it stays in the file.
        """
        self._write_quarantined()
        files = [self._follow(path) for path in self._lines.grown()]
        return heapq.merge(*files, key=lambda captured: captured.exchange.finished_at)

    def _follow(self, path: Path) -> Iterator[Captured]:
        for offset, line in self._lines.read(path):
            try:
                yield Captured(parse_exchange(line), path.name, offset)
            except BadLine as error:
                for exchange in self._quarantine_line(path, offset, line, str(error)):
                    yield Captured(exchange, path.name, offset)

    def _quarantine_line(self, path: Path, offset: int, line: bytes, reason: str) -> Iterator[Exchange]:
        """Quarantine the line with the reason. A complete exchange that directly follows a torn one in the same line is still
        read.
        """
        glued = line.rfind(_START)  # quotes inside a JSON string are escaped, so this is the start of an exchange
        if glued > 0:
            try:
                yield parse_exchange(line[glued:])
                line, reason = line[:glued], "incomplete line: its writer died while writing it"
            except BadLine:
                pass
        self.quarantined += 1
        name = f"{path.stem}-{offset}.jsonl"
        if not self._run.quarantined(name).exists():
            log.warning("quarantined one line of %s at byte %d: %s", path.name, offset, reason)
            self._unwritten.append((name, line + b"\n", f"{path.name} at byte {offset}: {reason}\n".encode()))
            self._write_quarantined()

    def _write_quarantined(self) -> None:
        """Write quarantined lines. If the disk is full, they are written at the next read or by the next worker."""
        while self._unwritten:
            name, line, reason = self._unwritten[0]
            try:
                quarantine_bytes(self._run, name, line, reason)
            except OSError as error:
                log.error("cannot write quarantine/%s yet: %s", name, error)
                return
            self._unwritten.pop(0)


def parse_exchange(line: bytes) -> Exchange:
    """Parse one line of captures. Checks the types that later code relies on. Raises BadLine."""
    try:
        row = read_sealed(line)
    except Damaged as error:
        raise BadLine(str(error)) from error
    if not isinstance(row, dict):
        raise BadLine("not a JSON object")
    version = row.pop("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise BadLine(newer(version))
    try:
        prompt_ids, completion_ids = _packed(row["prompt_ids"]), _packed(row["completion_ids"])
        # Unknown fields from a newer serve stay in captures/
        exchange = from_json(Exchange, row | {"prompt_ids": None, "completion_ids": None})
        exchange = replace(exchange, prompt_ids=prompt_ids, completion_ids=completion_ids)
        orjson.dumps([exchange.messages, exchange.tools, exchange.response])  # reject content that cannot be serialised again
    except (LookupError, TypeError, ValueError) as error:
        raise BadLine(str(error)) from error
    if not (exchange.exchange_id and exchange.key and exchange.policy_name):
        raise BadLine("exchange_id, key or policy_name is empty")
    if not all(0 <= (version or 0) < 2**63 for version in (exchange.policy_version, exchange.policy_version_end)):
        raise BadLine("policy_version is out of range")
    return exchange


def _packed(ids: Sequence[int] | None) -> Sequence[int] | None:
    """Return token ids as 32-bit integers, a ninth of a list's memory while the turn is open. Raises ValueError."""
    try:
        packed = None if ids is None else array("i", ids)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"prompt_ids or completion_ids has a wrong shape: {error}") from error
    if packed and int(np.frombuffer(packed, np.int32).min()) < 0:
        raise ValueError("prompt_ids or completion_ids has a negative id")
    return packed
