"""Which shards are merged and which are deleted. No turn is lost or duplicated."""

import os
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from made_exchanges import append
from test_collect_worker import recipe, rows_of, talk
from test_position import AGO, published_ids

from clawctl.collect.read_position import ReadPosition
from clawctl.collect.upkeep import Upkeep
from clawctl.collect.worker import collect
from clawctl.config import Recipe
from clawctl.run.directory import RunDir, open_run, publish_bytes, published
from clawctl.run.feedback import FeedbackFile
from clawctl.run.finished_shards import SUFFIX, FinishedShards
from clawctl.run.retention import expire
from clawctl.run.rows import Feedback, Verdict
from clawctl.run.shards import merged_from, read_turn_ids, read_turns, read_verdicts, write_turns, write_verdicts

DAY = 86400.0


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


def writer_file(run: RunDir, number: int = 0) -> Path:
    """A capture file of a process that is gone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    return run.captures / f"{socket.gethostname()}-{gone.pid}-0a1b2c3d-{number}.jsonl"


def publish_small_shards(run: RunDir, talks: int, **settings: object) -> list:
    """Publish `talks` finished conversations of two turns, one turn in each shard."""
    exchanges = [e for number in range(talks) for e in talk(2, f"talk {number}", at=time.time() - AGO + number)]
    append(writer_file(run), *exchanges)
    collect(run, recipe(shard_turns=1, **settings), once=True)
    return exchanges


def judge_all(run: RunDir, reward: float = 1.0) -> None:
    for path in published(run.trajectories, ".parquet"):
        if not (run.verdicts / path.name).exists():
            verdicts = [Verdict(turn_id, reward, [1], None, [], "j", None, 0.1) for turn_id in read_turn_ids(path)]
            write_verdicts(run.verdicts / path.name, verdicts)


def train_all(run: RunDir) -> None:
    turns = {path.stem: read_turn_ids(path) for path in published(run.trajectories, ".parquet")}
    (run.train / "ledger").mkdir(exist_ok=True)
    step = len(list((run.train / "ledger").iterdir())) + 1
    (run.train / "ledger" / f"{step}.json").write_bytes(
        orjson.dumps({"step": step, "outcome": "trained", "reason": None, "turns": turns})
    )


def keep_up(run: RunDir, **settings: object) -> None:
    """One upkeep, as a worker does it right after it has started."""
    collect(run, recipe(**settings), once=True)


def names(folder: Path) -> list[str]:
    return [path.name for path in published(folder, ".parquet")]


def test_small_shards_that_are_trained_are_merged_into_one_that_keeps_its_place(run) -> None:
    exchanges = publish_small_shards(run, talks=20)
    before, stems = {row.turn_id: row for row in rows_of(run)}, [path.stem for path in published(run.trajectories, ".parquet")]
    judge_all(run)
    train_all(run)
    keep_up(run)
    (merged,) = published(run.trajectories, ".parquet")
    assert merged.stem == f"{stems[0]}-merged"
    assert names(run.verdicts) == [merged.name]
    assert merged_from(merged) == stems
    assert {row.turn_id: row for row in read_turns(merged)} == before
    assert [(row.session_id, row.turn_index) for row in read_turns(merged)] == sorted(
        (r.session_id, r.turn_index) for r in before.values()
    )
    assert sorted(v.turn_id for v in read_verdicts(run.verdicts / merged.name)) == sorted(before)
    append(run.captures / "b-0.jsonl", *talk(2, "more", at=time.time() - AGO / 2))
    keep_up(run)
    assert len(published_ids(run)) == len(set(published_ids(run))) == len(exchanges) + 2


@pytest.mark.parametrize("state", ["not judged", "not trained", "few"])
def test_shards_that_are_in_use_or_few_are_not_merged(run, state) -> None:
    publish_small_shards(run, talks=3 if state == "few" else 20)
    before = names(run.trajectories)
    if state != "not judged":
        judge_all(run)
    if state == "few":
        train_all(run)
    keep_up(run)
    assert names(run.trajectories) == before


def test_turns_that_no_step_will_use_do_not_hold_a_shard(run) -> None:
    publish_small_shards(run, talks=20)
    judge_all(run, reward=0.0)  # neutral
    keep_up(run)
    assert len(names(run.trajectories)) == 1
    other = open_run(run.root.parent / "stale")
    publish_small_shards(other, talks=20)
    judge_all(other)
    for version in (0, 8):
        (other.policies / str(version)).mkdir()
        (other.policies / str(version) / "READY").touch()
        keep_up(other)
        assert len(names(other.trajectories)) == 40  # 8 versions behind is still fresh enough
    (other.policies / "9").mkdir()
    (other.policies / "9" / "READY").touch()
    keep_up(other)
    assert len(names(other.trajectories)) == 1


def test_killed_at_any_step_of_a_merge_the_next_upkeep_finishes_it(run, tmp_path) -> None:
    exchanges = publish_small_shards(run, talks=20)
    judge_all(run)
    train_all(run)
    parts = tmp_path / "parts"
    for folder in ("trajectories", "verdicts"):
        shutil.copytree(run.root / folder, parts / folder)
    keep_up(run)
    merged = names(run.trajectories)
    for left in (("trajectories", "verdicts"), ("verdicts",)):  # killed before parts were removed, and after their turns were
        for folder in left:
            for path in (parts / folder).iterdir():
                shutil.copy(path, run.root / folder / path.name)
        keep_up(run)
        assert (names(run.trajectories), names(run.verdicts)) == (merged, merged)
    (run.trajectories / merged[0]).unlink()  # killed after the verdicts alone were published
    for folder in ("trajectories", "verdicts"):
        for path in (parts / folder).iterdir():
            shutil.copy(path, run.root / folder / path.name)
    keep_up(run)
    assert (names(run.trajectories), names(run.verdicts)) == (merged, merged)
    assert published_ids(run) == sorted(e.exchange_id for e in exchanges)


def test_a_part_that_cannot_be_read_stops_the_merge_and_nothing_is_removed(run) -> None:
    publish_small_shards(run, talks=15)
    judge_all(run)
    train_all(run)
    keeper = Upkeep(run, recipe())
    keeper.work(ReadPosition(run))  # 30 shards are few, but known to be done with
    append(writer_file(run), *talk(2, "more", at=time.time() - AGO / 2))
    collect(run, recipe(shard_turns=1), once=True)
    judge_all(run)
    train_all(run)
    published(run.trajectories, ".parquet")[3].write_bytes(b"PAR1 no more")
    keeper.work(ReadPosition(run))
    assert len(names(run.trajectories)) == len(names(run.verdicts)) == 32


def test_ledger_entries_of_deleted_shards_are_not_kept_in_memory(run) -> None:
    publish_small_shards(run, talks=2)
    judge_all(run)
    train_all(run)
    done = FinishedShards(run, recipe())
    done.poll()
    assert sum(map(len, done._ledger.values())) == 4
    stems = [path.stem for path in published(run.trajectories, ".parquet")]
    for stem in stems[1:]:
        (run.trajectories / f"{stem}.parquet").unlink()
    done.poll()
    assert list(done._ledger) == stems[:1]
    assert done.has(stems[0])


@pytest.mark.parametrize(
    ("outcome", "rating", "done"),
    [(None, None, True), (1.0, None, False), (0.0, None, False), (1.0, 0.0, True), (None, 1.0, False), (None, 0.0, True)],
)
def test_a_shard_is_not_done_with_while_an_outcome_or_a_rating_can_train_its_turn(run, outcome, rating, done) -> None:
    """The judge found the turn neutral, or abstained."""
    publish_small_shards(run, talks=1)
    path = published(run.trajectories, ".parquet")[0]
    turns = [replace(turn, outcome_reward=outcome) for turn in read_turns(path)]
    path.unlink()
    write_turns(path, turns)
    judge_all(run, reward=0.0)
    for turn in turns if rating is not None else []:
        FeedbackFile(run.feedback).append(Feedback(f"f{turn.turn_id}", time.time(), turn.user, turn.turn_id, rating, None))
    finished = FinishedShards(run, recipe())
    finished.poll()
    assert finished.has(path.stem) is done


def test_a_shard_is_done_with_when_the_policy_that_sampled_its_turns_has_used_them(run) -> None:
    publish_small_shards(run, talks=1)
    path = published(run.trajectories, ".parquet")[0]
    turns = [replace(turn, policy_name="anna") for turn in read_turns(path)]
    path.unlink()
    write_turns(path, turns)
    judge_all(run)
    entry = {"step": 9, "outcome": "trained", "turns": {path.stem: [turn.turn_id for turn in turns]}}
    anna = open_run(run.root, policy="anna")
    finished = FinishedShards(run, recipe())
    finished.poll()
    assert not finished.has(path.stem)
    publish_bytes(anna.ledger_entry(9), orjson.dumps(entry))
    finished.poll()
    assert finished.has(path.stem)


# ---- `privacy.keep_untrained`: what the limits leave alone ------------------------------------------------------------------


def expired(run: RunDir, **privacy: object) -> list[str]:
    """The folders of the files that the limits delete."""
    gone = expire(run, Recipe.model_validate({"privacy": privacy}))
    return [path.parent.name for path in gone.files]


def age_all(run: RunDir, days: float) -> None:
    for path in [path for folder in (run.captures, run.trajectories, run.verdicts) for path in folder.iterdir()]:
        os.utime(path, (time.time() - days * DAY,) * 2)


def test_with_keep_untrained_only_data_that_no_stage_needs_expires(run) -> None:
    publish_small_shards(run, talks=1)
    keep = {"max_age_days": 1, "keep_untrained": True}
    age_all(run, 2)
    assert expired(run, **keep) == ["captures"]  # read to the end, and its two rows are published
    assert len(names(run.trajectories)) == 2  # not judged
    judge_all(run)
    age_all(run, 2)
    assert expired(run, **keep) == ["trajectories", "verdicts"]  # the second turn has no next state: no step will use it
    assert len(names(run.trajectories)) == 1
    train_all(run)
    assert expired(run, **keep) == ["trajectories", "verdicts"]
    assert expired(run, **keep) == []


def test_without_keep_untrained_data_that_is_not_judged_expires_too(run) -> None:
    publish_small_shards(run, talks=1)
    age_all(run, 2)
    assert sorted(expired(run, max_age_days=1)) == ["captures", "trajectories", "trajectories"]


def test_a_capture_that_is_not_read_to_its_end_stays_and_so_do_the_rows_that_came_of_it(run) -> None:
    publish_small_shards(run, talks=1)
    judge_all(run)
    train_all(run)
    capture = published(run.captures, ".jsonl")[0]
    append(capture, *talk(2, "more", at=time.time() - AGO / 2))
    assert expired(run, max_gb=1e-9, keep_untrained=True) == []
    collect(run, recipe(), once=True)
    assert expired(run, max_gb=1e-9, keep_untrained=True).count("trajectories") == 2


def test_merging_makes_no_row_younger_and_mixes_no_days_where_age_is_limited(run) -> None:
    publish_small_shards(run, talks=20)
    judge_all(run)
    train_all(run)
    for path in published(run.captures, ".jsonl"):
        path.unlink()
    older = published(run.trajectories, ".parquet")[:10]
    make_older(run, 2 * DAY, older)
    limited = Recipe.model_validate({"privacy": {"max_age_days": 1.5}})
    Upkeep(run, limited).work(ReadPosition(run))
    merged = [path for path in published(run.trajectories, ".parquet") if path.stem.endswith(SUFFIX)]
    assert [len(read_turn_ids(path)) for path in merged] == [10]
    gone = expire(run, limited).files  # the merged file was written a moment ago
    assert gone == [merged[0], run.verdicts / merged[0].name]


def make_older(run: RunDir, seconds: float, paths: list[Path]) -> None:
    """As if these shards had been published so long ago."""
    moved = {path.stem: f"{int(path.stem[:20]) - int(seconds * 1e9):020d}{path.stem[20:]}" for path in paths}
    for stem, older in moved.items():
        for folder in (run.trajectories, run.verdicts):
            os.rename(folder / f"{stem}.parquet", folder / f"{older}.parquet")
    for path in (run.train / "ledger").iterdir():
        entry = orjson.loads(path.read_bytes())
        entry["turns"] = {moved.get(stem, stem): turn_ids for stem, turn_ids in entry["turns"].items()}
        path.write_bytes(orjson.dumps(entry))
