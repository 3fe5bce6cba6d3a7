"""`verdicts/<stem>.jsonl`: the verdicts of a shard in progress, one per line, so that a restart does not repeat them.

The worker that holds the shard's claim writes it and deletes it once the shard is published. It only saves work: without it the
turns are judged again.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import orjson

from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.rows import Verdict, from_json


class Journal:
    """The journal of one claimed shard. `verdicts` contains the verdicts of an earlier worker, by turn."""

    def __init__(self, run: RunDir, stem: str, turn_ids: Iterable[str]) -> None:
        self.path = run.journal(stem)
        wanted = set(turn_ids)
        self.verdicts = {verdict.turn_id: verdict for verdict in _read(self.path) if verdict.turn_id in wanted}

    def add(self, verdict: Verdict) -> None:
        """Keep one verdict. If the disk is full, a restart may pay for it again."""
        with suppress(OSError):
            append_lines(self.path, [sealed(orjson.dumps(verdict))], to_disk=False)

    def remove(self) -> None:
        """Delete the journal, because the shard is published with its verdicts."""
        self.path.unlink(missing_ok=True)


def _read(path: Path) -> Iterator[Verdict]:
    with suppress(OSError):
        for row in read_lines(path):
            with suppress(ValueError):
                yield from_json(Verdict, row)
