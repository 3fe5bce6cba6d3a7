"""The counter of the million-turn case counts each row once, whichever shards contain it."""

from dataclasses import replace

from clawctl.collect.merging import merge_shards
from clawctl.run.directory import RunDir, open_run
from clawctl.run.rows import Turn
from clawctl.run.shards import write_turns
from scripts.benchmarks.chaos_million import Tally
from tests.run.test_shards import TURN


def turns(*numbers: int) -> list[Turn]:
    """Every fourth is the last of its session and not trainable."""
    last = {"trainable": False, "untrainable_reason": "no next state", "next_state": None}
    return [replace(TURN, turn_id=f"t{number}", **({} if number % 4 else last)) for number in numbers]


def merged(run: RunDir, *stems: str) -> None:
    parts = [run.trajectories / f"{stem}.parquet" for stem in stems]
    merge_shards("turns", parts, run.trajectories / f"{stems[0]}-merged.parquet")
    for part in parts:
        part.unlink()


def test_a_merged_shard_of_which_some_parts_were_seen_adds_only_the_others(tmp_path) -> None:
    run = open_run(tmp_path / "run")
    tally = Tally(run, 8)
    write_turns(run.trajectories / "1.parquet", turns(1, 2, 3))
    tally.poll()
    write_turns(run.trajectories / "2.parquet", turns(4, 5))
    merged(run, "1", "2")
    tally.poll()
    assert (tally.seen, tally.trainable, tally.lost(), tally.doubled()) == (5, 4, 3, 0)


def test_a_turn_with_two_rows_is_doubled_in_parts_and_when_they_are_merged(tmp_path) -> None:
    run = open_run(tmp_path / "run")
    early, late = Tally(run, 3), Tally(run, 3)
    write_turns(run.trajectories / "1.parquet", turns(1, 2))
    write_turns(run.trajectories / "2.parquet", turns(2, 3))
    early.poll()
    merged(run, "1", "2")
    for tally in (early, late):
        tally.poll()
        assert (tally.seen, tally.trainable, tally.lost(), tally.doubled()) == (3, 3, 0, 1)
