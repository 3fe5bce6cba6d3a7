"""`verdicts/<stem>.jsonl`: the verdicts of a shard in progress, one per line, so that a restart does not repeat them.

The worker that holds the shard's claim writes it and deletes it once the shard is published. It only saves work: without it the
turns are judged again.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import orjson

from clawctl.run.checksums import Damaged, read_sealed, sealed
from clawctl.run.directory import RunDir
from clawctl.run.names import open_to_append
from clawctl.run.rows import Verdict


class Journal:
    """The journal of one claimed shard. `found` contains the verdicts of an earlier worker, by turn."""

    def __init__(self, run: RunDir, stem: str, turn_ids: Iterable[str]) -> None:
        self.path = run.journal(stem)
        wanted = set(turn_ids)
        self.found = {verdict.turn_id: verdict for verdict in _read(self.path) if verdict.turn_id in wanted}
        self._file: IO[bytes] | None = None
        self._torn = True  # the file may end within a line: a worker was killed, or the disk was full

    def add(self, verdict: Verdict) -> None:
        """Keep one verdict. A disk that is full only means that it may be paid for twice."""
        line = sealed(orjson.dumps(verdict)) + b"\n"
        with suppress(OSError):
            if self._file is None:
                descriptor = open_to_append(self.path)
                self._file = os.fdopen(descriptor, "ab", buffering=0)
            line = b"\n" * self._torn + line
            self._torn = self._file.write(line) < len(line)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def remove(self) -> None:
        """Delete the journal, because the shard is published with its verdicts."""
        self.close()
        self.path.unlink(missing_ok=True)


def _read(path: Path) -> list[Verdict]:
    verdicts = []
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(Damaged, TypeError):  # half a line, or another than was written
                verdicts.append(Verdict(**read_sealed(line)))
    return verdicts
