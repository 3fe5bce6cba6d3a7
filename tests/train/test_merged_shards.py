"""Collect merges shards while a feed has read their parts."""

import pyarrow.parquet as pq

from clawctl.collect.merging import PIECE_BYTES, merge_shards
from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir
from clawctl.train.feed import Feed
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from tests.train.feeding import feed_counts, ids_of, make_feed, rate
from tests.train.tiny import Sampler, publish_shard, publish_turns, texts_of


def merge(run: RunDir, stems: list[str], piece_bytes: int = PIECE_BYTES) -> str:
    merged = f"{stems[0]}-merged"
    for folder, kind in ((run.verdicts, "verdicts"), (run.trajectories, "turns")):
        merge_shards(kind, [folder / f"{stem}.parquet" for stem in stems], folder / f"{merged}.parquet", piece_bytes)
        for stem in stems:
            (folder / f"{stem}.parquet").unlink()
    return merged


def test_the_rows_of_a_merged_shard_are_known_and_cause_no_warning(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 0.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    feed.mark_done(ids_of(feed.next_batch(0)), "trained")
    merged = merge(run, ["1", "2"])
    assert feed.next_batch(1) is None
    assert feed_counts(run)["refused"] == {"neutral": 1}
    rate(run, "y", 1.0)  # its row is found where it lies now
    (sample,) = feed.next_batch(1).samples
    assert (sample.turn_id, sample.stem, sample.reward) == ("y", merged, 1.0)


def test_a_merged_shard_with_a_part_that_was_never_read_gives_its_rows_and_no_other(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler)
    feed.next_batch(0)
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 1.0, None)])
    merge(run, ["1", "2"])
    feed.next_batch(0)
    assert sorted(turn.sample.turn_id for turn in feed.queue.waiting) == ["x", "y"]
    assert feed_counts(run)["refused"] == {}


def test_a_shard_that_is_merged_between_listing_and_reading_is_not_damaged(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 1.0, None)])
    feed = make_feed(run, sampler)
    part = run.trajectories / "1.parquet"
    content = part.read_bytes()
    part.unlink()  # collect removes the turns of a merged part before its verdicts
    feed._add_shard("1", 0.0)
    part.write_bytes(content)
    merge(run, ["1", "2"])
    feed.next_batch(0)
    assert sorted(turn.sample.turn_id for turn in feed.queue.waiting) == ["x", "y"]
    assert feed_counts(run)["unreadable_shards"] == 0


def test_turns_that_no_batch_needs_yet_stay_on_disk_and_come_in_order(run: RunDir, sampler: Sampler) -> None:
    for stem in "abcd":
        publish_turns(run, sampler, 3, stem)
    settings = TrainConfig.model_validate({"batch_turns": 3})
    feed = Feed(TurnQueue(run, settings, Model(texts_of(sampler), adapter=True, exact=True), {}), read_ahead=5)
    trained = []
    for waiting in (6, 6, 6, 3):  # two batches, however small `read_ahead` is
        batch = feed.next_batch(0)
        assert feed_counts(run)["waiting"] == waiting
        trained += ids_of(batch)
        feed.mark_done(ids_of(batch), "trained")
    assert trained == [f"{stem}{i:02d}" for stem in "abcd" for i in range(3)]
    assert feed_counts(run)["used"] == 12
    assert feed.next_batch(0) is None


def test_a_stale_backlog_does_not_hide_newer_turns(run: RunDir, sampler: Sampler) -> None:
    for stem in "abc":
        publish_turns(run, sampler, 4, stem)
    publish_turns(run, sampler, 2, "d", policy_version=9, policy_version_end=9)
    settings = TrainConfig.model_validate({"batch_turns": 2, "max_staleness": 8})
    feed = Feed(TurnQueue(run, settings, Model(texts_of(sampler), adapter=True, exact=True), {}), read_ahead=4)
    assert ids_of(feed.next_batch(9)) == ["d00", "d01"]
    assert feed_counts(run)["refused"] == {"stale": 12}


def test_a_rating_of_a_turn_that_was_trained_or_whose_shard_was_deleted_changes_nothing(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "1", [(sampler.turn("x", tokens=3), 1.0, None)])
    publish_shard(run, "2", [(sampler.turn("y", tokens=3), 0.0, None), (sampler.turn("z", tokens=3), 0.0, None)])
    feed = make_feed(run, sampler, batch_turns=1)
    feed.mark_done(ids_of(feed.next_batch(0)), "trained")
    for folder in (run.trajectories, run.verdicts):
        (folder / "2.parquet").unlink()
    assert feed.next_batch(1) is None
    for turn_id in "xyz":
        rate(run, turn_id, 1.0)
    assert feed.next_batch(1) is None
    assert feed_counts(run)["used"] == 1
    assert feed_counts(run)["refused"] == {"neutral": 2}


def waiting_while_trained(feed: Feed) -> tuple[list[str], int]:
    """The turns of consecutive batches, and the largest number of waiting turns."""
    trained: list[str] = []
    most = 0
    while batch := feed.next_batch(0):
        most = max(most, len(feed.queue.waiting))
        trained += ids_of(batch)
        feed.mark_done(ids_of(batch), "trained")
    return trained, most


def publish_backlog(run: RunDir, sampler: Sampler, last: str = "d") -> list[str]:
    """An unread merged shard of twelve trainable turns, one per piece, and a later shard."""
    for stem in "abc":
        publish_turns(run, sampler, 4, stem)
    merge(run, ["a", "b", "c"], piece_bytes=1)
    publish_turns(run, sampler, 2, last)
    return [f"{stem}{i:02d}" for stem in "abc" for i in range(4)] + [f"{last}{i:02d}" for i in range(2)]


def test_a_damaged_piece_costs_the_rows_after_it_and_nothing_is_trained_twice(run: RunDir, sampler: Sampler) -> None:
    names = publish_backlog(run, sampler)
    path = run.trajectories / "a-merged.parquet"
    column = pq.ParquetFile(path).metadata.row_group(6).column(14)
    assert column.path_in_schema.startswith("prompt_ids")
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    feed = make_feed(run, sampler, batch_turns=2)
    assert waiting_while_trained(feed)[0] == names[:6] + names[12:]
    assert feed_counts(run)["unreadable_shards"] == 1
    assert not path.exists()
    publish_turns(run, sampler, 4, "b")  # collect publishes again what was in it
    assert waiting_while_trained(feed)[0] == names[6:8]


def test_an_intake_that_lags_takes_in_no_more_of_a_merged_shard_than_the_next_batches_need(run: RunDir, sampler: Sampler) -> None:
    names = publish_backlog(run, sampler)
    settings = TrainConfig.model_validate({"batch_turns": 2})
    feed = Feed(TurnQueue(run, settings, Model(texts_of(sampler), adapter=True, exact=True), {}), read_ahead=5)
    assert waiting_while_trained(feed) == (names, 6)  # four and the two of the last shard
    assert feed_counts(run)["refused"] == {}
    assert feed.next_batch(0) is None


def test_of_turns_that_no_step_can_use_no_more_than_a_few_columns_are_read(run: RunDir, sampler: Sampler) -> None:
    used = dict.fromkeys(publish_backlog(run, sampler)[:12], "trained")
    side = {"trainable": False, "untrainable_reason": "side turn"}
    publish_turns(run, sampler, 2, "e", **side)
    for name, column in (("a-merged", 14), ("e", 14)):  # unread pieces may be damaged without an error
        path = run.trajectories / f"{name}.parquet"
        chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
        data = bytearray(path.read_bytes())
        data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
        path.write_bytes(data)
    feed = make_feed(run, sampler, used, batch_turns=2)
    assert waiting_while_trained(feed)[0] == ["d00", "d01"]
    assert feed_counts(run)["refused"] == {"untrainable": 2}
    assert feed_counts(run)["unreadable_shards"] == 0


def test_a_turn_without_a_reaction_that_was_rated_before_it_is_read_is_trained(run: RunDir, sampler: Sampler) -> None:
    lone = {"trainable": False, "untrainable_reason": "no next state", "next_state": None}
    publish_turns(run, sampler, 2, "a", **lone)
    rate(run, "a01", 1.0)
    feed = make_feed(run, sampler, batch_turns=1)
    assert ids_of(feed.next_batch(0)) == ["a01"]
    assert feed_counts(run)["refused"] == {"untrainable": 1}
