"""`verdicts/<stem>.jsonl`: the verdicts of a shard in progress, one per line, so that they survive a restart.

The worker that holds the shard's claim writes the journal, and deletes it once the shard is published. The journal only saves work:
without it, the turns are judged again.
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
    """The journal of one claimed shard. `verdicts` holds an earlier worker's verdicts by turn id."""

    def __init__(self, run: RunDir, stem: str, turn_ids: Iterable[str]) -> None:
        self.path = run.journal(stem)
        wanted = set(turn_ids)
        self.verdicts = {verdict.turn_id: verdict for verdict in _read(self.path) if verdict.turn_id in wanted}

    def add(self, verdict: Verdict) -> None:
        """Append one verdict. If the disk is full, the verdict is lost and a restart judges the turn again."""
        with suppress(OSError):
            append_lines(self.path, [sealed(orjson.dumps(verdict))], to_disk=False)

    def remove(self) -> None:
        """Delete the journal, because the shard has been published."""
        self.path.unlink(missing_ok=True)


def _read(path: Path) -> Iterator[Verdict]:
    with suppress(OSError):
        for row in read_lines(path):
            with suppress(ValueError):
                yield from_json(Verdict, row)
