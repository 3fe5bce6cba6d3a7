"""Merges small shards that no stage needs. `clawctl/run/retention.py` deletes shards by age and size.

A merged shard has the stem of its first part with the suffix `-merged`, so it keeps its position in the order. Its verdicts are
published before its turns, and its parts are removed after both. If a worker is killed in between, the next upkeep completes the
removal, because the merged shard's metadata names its parts.
"""

import logging
from dataclasses import dataclass, field

import pyarrow as pa

from clawctl.collect.merging import merge_shards
from clawctl.collect.read_position import ReadPosition
from clawctl.config import Recipe
from clawctl.run.directory import RunDir, published
from clawctl.run.finished_shards import SUFFIX, FinishedShards
from clawctl.run.mounts import is_in_bucket
from clawctl.run.shards import UnreadableShard, merged_from

log = logging.getLogger(__name__)

IMPORTED = "0" * 20  # imported turns are in no captures
MERGE_BYTES = 32 << 20  # approximate size of a merged shard on disk
MERGE_SHARDS = 32  # fewer small shards are not merged
_DAY_NS = 86400 * 10**9


@dataclass(slots=True)
class Upkeep:
    """Maintains the shards of a run. Only its one collect worker calls it."""

    run: RunDir
    recipe: Recipe
    _finished: FinishedShards = field(init=False)

    def __post_init__(self) -> None:
        self._finished = FinishedShards(self.run, self.recipe)

    def work(self, position: ReadPosition) -> None:
        """Finish an interrupted merge, then merge. Raises OSError if the disk fails; the next call resumes."""
        if is_in_bucket(self.run.root):
            return  # the collect workers of several hosts would merge the same shards
        self._finish()
        self._finished.poll()
        stems = [path.stem for path in published(self.run.trajectories, ".parquet") if path.stem <= position.shards_after]
        self._merge([stem for stem in stems if self._finished.has(stem)])
        pa.default_memory_pool().release_unused()  # otherwise the pool keeps a merge's memory until the next merge

    # ---- merging ---------------------------------------------------------------------------------------------------------

    def _merge(self, finished: list[str]) -> None:
        group: list[str] = []
        size = 0
        for stem in [stem for stem in finished if not stem.endswith(SUFFIX) and not stem.startswith(IMPORTED)]:
            if group and self._must_stay_apart(group[0], stem):
                self._merge_group(group)
                group, size = [], 0
            group.append(stem)
            size += self.run.turn_shard(stem).stat().st_size
            if size >= MERGE_BYTES:
                self._merge_group(group)
                group, size = [], 0
        if len(group) >= MERGE_SHARDS:
            self._merge_group(group)

    def _must_stay_apart(self, first: str, stem: str) -> bool:
        """Whether two shards must not be merged. With an age limit, a merged file covers one day, because its youngest row decides
        its age.
        """
        return self.recipe.privacy.max_age_days is not None and int(first[:20]) // _DAY_NS != int(stem[:20]) // _DAY_NS

    def _merge_group(self, stems: list[str]) -> None:
        if len(stems) < 2:
            return
        target = f"{stems[0]}{SUFFIX}"
        try:
            merge_shards("verdicts", [self.run.verdict_shard(stem) for stem in stems], self.run.verdict_shard(target))
            merge_shards("turns", [self.run.turn_shard(stem) for stem in stems], self.run.turn_shard(target))
        except UnreadableShard as error:
            log.warning("cannot merge shards: %s", error)
            self.run.verdict_shard(target).unlink(missing_ok=True)
            self._finished.forget(stems)  # read again later; a reader of the shard quarantines it
            return
        self._remove(stems)
        log.info("merged %d shards into one", len(stems))

    def _remove(self, stems: list[str]) -> None:
        """Remove turns first: verdicts without turns are ignored, but turns without verdicts would be judged again."""
        for path in (*map(self.run.turn_shard, stems), *map(self.run.verdict_shard, stems)):
            path.unlink(missing_ok=True)
        self._finished.forget(stems)

    def _finish(self) -> None:
        """Remove the rest of a killed worker's merge: parts of a merged shard, and merged verdicts without published turns."""
        for path in published(self.run.verdicts, ".parquet"):
            if not path.stem.endswith(SUFFIX):
                continue
            turns = self.run.turn_shard(path.stem)
            try:
                if turns.exists():
                    self._remove([stem for stem in merged_from(turns) if self.run.verdict_shard(stem).exists()])
                else:
                    path.unlink()
            except UnreadableShard as error:
                log.warning("a merged shard cannot be read: %s", error)
