"""Merges small shards that no stage needs. `clawctl/run/retention.py` deletes shards by age and size.

A merged shard has the stem of its first part with the suffix `-merged`, so it keeps its position in the order. Its verdicts are
published before its turns, and its parts are removed after both. If a worker is killed in between, the next upkeep completes the
removal, because the merged shard's metadata names its parts.

In a bucket each host merges the shards of its own collect worker, of which there is one: no two workers ever merge the same shard.
"""

import logging
from dataclasses import dataclass, field

import pyarrow as pa

from clawctl.collect.merging import merge_shards
from clawctl.collect.read_position import ReadPosition
from clawctl.collect.stems import is_of
from clawctl.config import Recipe
from clawctl.run.directory import RunDir, is_published, published, remove
from clawctl.run.finished_shards import SUFFIX, FinishedShards
from clawctl.run.shards import UnreadableShard, merged_from
from clawctl.run.storage import Storage, storage_of

log = logging.getLogger(__name__)

IMPORTED = "0" * 20  # imported turns are in no captures
MERGE_BYTES = 32 << 20  # approximate size of a merged shard on disk
_DAY_NS = 86400 * 10**9


@dataclass(slots=True)
class Upkeep:
    """Maintains the shards of a run. Only its one collect worker calls it."""

    run: RunDir
    recipe: Recipe
    _finished: FinishedShards = field(init=False)
    _storage: Storage = field(init=False)
    _is_complete: bool = False  # whether the parts of all merged shards are removed

    def __post_init__(self) -> None:
        self._finished, self._storage = FinishedShards(self.run, self.recipe), storage_of(self.run.root)

    def work(self, position: ReadPosition) -> None:
        """Finish an interrupted merge, then merge. Raises OSError if the disk fails; the next call resumes."""
        if self._storage.pending_removals():
            return  # a merge would write what the start of the next worker removes
        self._finish()
        self._finished.poll()
        stems = [path.stem for path in published(self.run.trajectories, ".parquet") if path.stem <= position.shards_after]
        self._merge([stem for stem in stems if self._is_mergeable(stem) and self._finished.has(stem)])
        pa.default_memory_pool().release_unused()  # otherwise the pool keeps a merge's memory until the next merge

    # ---- merging ---------------------------------------------------------------------------------------------------------

    def _merge(self, finished: list[str]) -> None:
        group: list[str] = []
        size = 0
        for stem in finished:
            if group and self._must_stay_apart(group[0], stem):
                self._merge_group(group)
                group, size = [], 0
            group.append(stem)
            size += self.run.turn_shard(stem).stat().st_size
            if size >= MERGE_BYTES:
                self._merge_group(group)
                group, size = [], 0
        if len(group) >= self.recipe.collect.merge_shards:
            self._merge_group(group)

    def _is_mergeable(self, stem: str) -> bool:
        return not stem.endswith(SUFFIX) and not stem.startswith(IMPORTED) and is_of(self._storage.host, stem)

    def _must_stay_apart(self, first: str, stem: str) -> bool:
        """Whether two shards must not be merged. With an age limit, a merged file covers one day, because its youngest row decides
        its age.
        """
        return self.recipe.privacy.max_age_days is not None and int(first[:20]) // _DAY_NS != int(stem[:20]) // _DAY_NS

    def _merge_group(self, stems: list[str]) -> None:
        if len(stems) < 2:
            return
        target, self._is_complete = f"{stems[0]}{SUFFIX}", False
        try:
            merge_shards("verdicts", [self.run.verdict_shard(stem) for stem in stems], self.run.verdict_shard(target))
            merge_shards("turns", [self.run.turn_shard(stem) for stem in stems], self.run.turn_shard(target))
        except UnreadableShard as error:
            log.warning("cannot merge shards: %s", error)
            self._remove([target])
            self._finished.forget(stems)  # read again later; a reader of the shard quarantines it
            return
        if self._storage.pending_removals():  # made while this worker was paused for longer than its lease
            self._remove([target])
            return
        self._finish_one(target)
        self._is_complete = True
        log.info("merged %d shards into one", len(stems))

    def _remove(self, stems: list[str]) -> None:
        """Remove turns first: verdicts without turns are ignored, but turns without verdicts would be judged again."""
        for path in (*map(self.run.turn_shard, stems), *map(self.run.verdict_shard, stems)):
            remove(path)
        self._finished.forget(stems)

    def _finish(self) -> None:
        """Complete what killed workers left: merges, and verdicts of a judge that published them after its shard was merged."""
        verdicts = {path.stem for path in published(self.run.verdicts, ".parquet")}
        if self._is_complete and verdicts <= {path.stem for path in published(self.run.trajectories, ".parquet")}:
            return
        for stem in sorted(stem for stem in verdicts if stem.endswith(SUFFIX) and is_of(self._storage.host, stem)):
            self._finish_one(stem)
        self._is_complete = True

    def _finish_one(self, target: str) -> None:
        """Remove the parts of a merged shard, or the shard itself if its turns and verdicts are not of the same parts: in a bucket
        the result of an earlier try, whose answer was lost, is kept in place of a new one.
        """
        turns, verdicts = self.run.turn_shard(target), self.run.verdict_shard(target)
        if not is_published(turns):
            return self._remove([target])
        try:
            parts = merged_from(turns)
            if merged_from(verdicts) != parts and all(self.run.turn_shard(stem).exists() for stem in parts):
                return self._remove([target])
        except UnreadableShard as error:
            return log.warning("a merged shard cannot be read: %s", error)
        self._remove([stem for stem in parts if self.run.verdict_shard(stem).exists()])
