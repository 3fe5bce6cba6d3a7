"""Shards that everybody is done with: small ones are merged, old ones are deleted.

A shard is done with when it has its verdicts and each turn that the trainer could use is in the ledger or too stale to be used. A
merged shard carries the stem of its first part and the suffix `-merged`, so it keeps its place in the order; its verdicts are
published before its turns, its parts are removed after both. Killed in between, the next upkeep removes what is left: the names of
the parts stand in the merged shard's metadata.
"""

import logging
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from clawctl.collect.position import Position
from clawctl.config import Recipe
from clawctl.lines import whole_end
from clawctl.policies import list_versions
from clawctl.run_dir import RunDir, published
from clawctl.shards import UnreadableShard, merge_shards, merged_from, read_columns

log = logging.getLogger(__name__)

SUFFIX = "-merged"
IMPORTED = "0" * 20  # imported turns are in no captures
MERGE_BYTES = 32 << 20  # a merged shard is about so large, on disk
MERGE_SHARDS = 32  # fewer small shards are left alone
IDLE_S = 7 * 86400.0  # a capture file of another host that nobody wrote to for so long has no writer any more
_WRITER = re.compile(r"^(?P<name>(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+)-(?P<number>\d+)$")


@dataclass(slots=True)
class Upkeep:
    """What collect knows of the shards of its run. Called by the one collect worker only."""

    run: RunDir
    recipe: Recipe
    _done: set[str] = field(default_factory=set)
    _ledger: dict[str, set[str]] = field(default_factory=dict)  # turns in the ledger by stem, of stems that are not done
    _entered: set[str] = field(default_factory=set)  # ledger files that were read

    def work(self, position: Position, now: float) -> None:
        """Finish what was begun, merge, delete. Raises OSError where the disk refuses; the next call goes on."""
        self._finish()
        self._read_ledger()
        stems = [path.stem for path in published(self.run.trajectories, ".parquet") if path.stem <= position.shards_after]
        done = [stem for stem in stems if self._is_done(stem)]
        self._merge(done)
        settings = self.recipe.collect
        if settings.max_age is not None or settings.max_bytes is not None:
            self._retire(position, now)

    # ---- what is done with -----------------------------------------------------------------------------------------------

    def _is_done(self, stem: str) -> bool:
        if stem in self._done or stem.endswith(SUFFIX):
            return True
        try:
            wanted = self._wanted(stem)
        except (FileNotFoundError, UnreadableShard):
            return False  # not judged yet, or for the judge to put aside
        newest = max(list_versions(self.run), default=0)
        stale = newest - self.recipe.train.max_staleness
        used = self._ledger.get(stem, set())
        if any(turn_id not in used and version >= stale for turn_id, version in wanted.items()):
            return False
        self._done.add(stem)
        self._ledger.pop(stem, None)
        return True

    def _wanted(self, stem: str) -> dict[str, int]:
        """The turns of a judged shard that the trainer could use, with the version that sampled them."""
        verdicts_path = self.run.verdicts / f"{stem}.parquet"
        if not verdicts_path.exists():
            raise FileNotFoundError(stem)
        turns = read_columns(self.run.trajectories / f"{stem}.parquet", "turns", ("turn_id", "trainable", "policy_version"))
        verdicts = read_columns(verdicts_path, "verdicts", ("turn_id", "reward", "hint"))
        useful = {row["turn_id"] for row in verdicts if row["reward"] or row["hint"]}
        return {row["turn_id"]: row["policy_version"] for row in turns if row["trainable"] and row["turn_id"] in useful}

    def _read_ledger(self) -> None:
        folder = self.run.train / "ledger"
        for path in published(folder, ".json") if folder.exists() else []:
            if path.name not in self._entered:
                self._entered.add(path.name)
                for stem, turn_ids in orjson.loads(path.read_bytes())["turns"].items():
                    if stem not in self._done:
                        self._ledger.setdefault(stem, set()).update(turn_ids)

    # ---- merging ---------------------------------------------------------------------------------------------------------

    def _merge(self, done: list[str]) -> None:
        group: list[str] = []
        size = 0
        for stem in [stem for stem in done if not stem.endswith(SUFFIX) and not stem.startswith(IMPORTED)]:
            group.append(stem)
            size += (self.run.trajectories / f"{stem}.parquet").stat().st_size
            if size >= MERGE_BYTES:
                self._merge_group(group)
                group, size = [], 0
        if len(group) >= MERGE_SHARDS:
            self._merge_group(group)

    def _merge_group(self, stems: list[str]) -> None:
        if len(stems) < 2:
            return
        target = f"{stems[0]}{SUFFIX}.parquet"
        halves = [(self.run.verdicts, "verdicts", ()), (self.run.trajectories, "turns", ("session_id", "turn_index", "created_at"))]
        try:
            for folder, kind, order in halves:
                merge_shards(kind, [folder / f"{stem}.parquet" for stem in stems], folder / target, order)
        except UnreadableShard as error:
            log.warning("shards are not merged: %s", error)
            (self.run.verdicts / target).unlink(missing_ok=True)
            self._done.difference_update(stems)  # looked at again, and put aside by whoever reads it
            return
        self._remove(stems)
        log.info("%d shards merged into one", len(stems))

    def _remove(self, stems: list[str]) -> None:
        """The turns go first: verdicts without turns are nobody's business, turns without verdicts would be judged again."""
        for folder in (self.run.trajectories, self.run.verdicts):
            for stem in stems:
                (folder / f"{stem}.parquet").unlink(missing_ok=True)
        self._done.difference_update(stems)

    def _finish(self) -> None:
        """What a killed worker left: parts of a merged shard, and merged verdicts whose turns were never published."""
        for path in published(self.run.verdicts, ".parquet"):
            if not path.stem.endswith(SUFFIX):
                continue
            turns = self.run.trajectories / path.name
            try:
                if turns.exists():
                    self._remove([stem for stem in merged_from(turns) if (self.run.verdicts / f"{stem}.parquet").exists()])
                else:
                    path.unlink()
            except UnreadableShard as error:
                log.warning("a merged shard cannot be read: %s", error)

    # ---- deleting --------------------------------------------------------------------------------------------------------

    def _retire(self, position: Position, now: float) -> None:
        """Delete what is too old, then the oldest until the rest fits."""
        settings = self.recipe.collect
        total = sum(path.stat().st_size for folder in _folders(self.run) for path in folder.iterdir() if path.is_file())
        for born, stem, files in sorted(self._captures(position, now) + self._shards(position), key=lambda found: found[0]):
            too_old = settings.max_age is not None and now - born > settings.max_age
            too_much = settings.max_bytes is not None and total > settings.max_bytes
            if not too_old and not too_much:
                return
            if stem is not None:
                try:
                    newest = max(row["created_at"] for row in read_columns(files[0], "turns", ("created_at",)))
                except (FileNotFoundError, UnreadableShard):
                    continue
                if newest >= min(position.oldest_open, now - settings.session_timeout_s):
                    continue  # something as old is still open
                if not stem.startswith(IMPORTED):
                    position.give_up(newest)  # kept before the rows go: what is read again never brings them back
            for path in files:
                total -= path.stat().st_size if path.exists() else 0
                path.unlink(missing_ok=True)
            self._done.discard(stem or "")

    def _shards(self, position: Position) -> list[tuple[float, str | None, list[Path]]]:
        """(when it was published, stem, files) of the shards that may be deleted."""
        found: list[tuple[float, str | None, list[Path]]] = []
        for path in published(self.run.trajectories, ".parquet"):
            verdicts = self.run.verdicts / path.name
            told = self.recipe.collect.drop_untrained and verdicts.exists()
            if path.stem <= position.shards_after and (told or self._is_done(path.stem)):
                found.append((int(path.stem[:20]) / 1e9 or path.stat().st_mtime, path.stem, [path, verdicts]))
        return found

    def _captures(self, position: Position, now: float) -> list[tuple[float, str | None, list[Path]]]:
        """Capture files that were read to the end, whose turns are all published, and which nobody writes to any more."""
        files = published(self.run.captures, ".jsonl")
        writers = {path: _WRITER.match(path.stem) for path in files}
        newest: dict[str, int] = {}
        for writer in (writer for writer in writers.values() if writer is not None):
            newest[writer["name"]] = max(int(writer["number"]), newest.get(writer["name"], 0))
        found: list[tuple[float, str | None, list[Path]]] = []
        for path, by in writers.items():
            stat = path.stat()
            rotated = by is not None and int(by["number"]) < newest[by["name"]]
            if position.done.get(path.name) == whole_end(path) and (rotated or _left(by, now - stat.st_mtime)):
                found.append((stat.st_mtime, None, [path]))
        return found


def _left(writer: re.Match[str] | None, idle_s: float) -> bool:
    """Whether the process that wrote the last file of its name is gone."""
    if writer is None or writer["host"] != socket.gethostname():
        return idle_s > IDLE_S
    try:
        os.kill(int(writer["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _folders(run: RunDir) -> tuple[Path, Path, Path]:
    return run.captures, run.trajectories, run.verdicts
