"""Reads a shard of turns with its verdicts piece by piece. Only a few columns are read of turns that a step cannot use."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.run.directory import RunDir
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import UnreadableShard, read_pieces, read_verdicts

FEW = ("turn_id", "user", "source", "trainable", "untrainable_reason", "policy_name")


@dataclass(frozen=True, slots=True)
class JudgedPiece:
    """A row group of turns."""

    passed: list[dict[str, Any]]  # the columns FEW of turns that were not wanted
    turns: Iterator[tuple[Turn, Verdict | None]]  # wanted turns with their verdicts


class UnreadableHalf(Exception):
    """One of the two files of a shard cannot be read."""

    def __init__(self, path: Path, reason: UnreadableShard) -> None:
        super().__init__(str(reason))
        self.path = path


def judged_pieces(run: RunDir, stem: str, is_wanted: Callable[[dict[str, Any]], bool]) -> Iterator[JudgedPiece]:
    """Yield the pieces of a shard, decoded one at a time. `is_wanted` receives the columns FEW of each row.

    Raises UnreadableHalf before the first turn of a damaged piece.
    """
    turns_path, verdicts_path = (folder / f"{stem}.parquet" for folder in (run.trajectories, run.verdicts))
    path = turns_path
    try:
        for piece in read_pieces(turns_path):
            rows = piece.rows("turns", FEW)
            indices = [index for index, row in enumerate(rows) if is_wanted(row)]
            wanted = {rows[index]["turn_id"] for index in indices}
            turns = piece.turns(indices) if indices else iter(())
            path = verdicts_path
            verdicts = {verdict.turn_id: verdict for verdict in read_verdicts(path, wanted)} if indices else {}
            path = turns_path
            passed = [row for row in rows if row["turn_id"] not in wanted]
            yield JudgedPiece(passed, ((turn, verdicts.get(turn.turn_id)) for turn in turns))
    except UnreadableShard as error:
        raise UnreadableHalf(path, error) from error
