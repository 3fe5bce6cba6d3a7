"""No key dominates training: shares of keys, identical turns, groups per key."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.inspect.health import read_health
from clawctl.run.directory import RunDir
from clawctl.run.rows import Turn
from clawctl.train.admission import kind_of
from clawctl.train.advantages.baselines import MAX_KINDS, Baselines
from clawctl.train.feed import Feed
from clawctl.train.forming import MAX_IDLE, Forming
from clawctl.train.identical import MAX_MARKS, TrainedMarks, marks_of
from clawctl.train.ledger import read_ledger
from tests.train.feeding import feed_counts, ids_of, make_feed
from tests.train.test_forming import episodes
from tests.train.tiny import Sampler, publish_shard
from tests.trainers.local.test_methods_in_a_step import train


def turns_of(sampler: Sampler, key: str, count: int, **changes: Any) -> list[Turn]:
    """Turns that differ, at the price of one."""
    like = sampler.turn("x", tokens=3)
    asks = [[{"role": "user", "content": f"{key} asks for {chr(97 + n // 26)}{chr(97 + n % 26)}"}] for n in range(count)]
    return [
        replace(like, turn_id=f"{key}{n:03d}", session_id=f"{key}/{n}", user=key, messages=ask, prompt_ids=[5 + n, 6, 7], **changes)
        for n, ask in enumerate(asks)
    ]


def publish(run: RunDir, stem: str, turns: list[Turn]) -> None:
    publish_shard(run, stem, [(turn, 1.0, None) for turn in turns])


def keys_of(batch: Any) -> Counter[str]:
    return Counter(name[:-3] for name in ids_of(batch))


def trained_steps(feed: Feed, most: int = 100) -> list[Counter[str]]:
    """Steps until there are too few turns, as the loop makes them: the turns of each key."""
    steps: list[Counter[str]] = []
    while len(steps) < most and (batch := feed.next_batch(len(steps))) is not None:
        steps.append(keys_of(batch))
        feed.mark_done(ids_of(batch), "trained")
    return steps


def test_a_busy_key_fills_only_the_share_that_others_leave(run: RunDir, sampler: Sampler) -> None:
    publish(run, "a", turns_of(sampler, "loud", 40))
    publish(run, "b", [*turns_of(sampler, "anna", 6), *turns_of(sampler, "ben", 1)])
    steps = trained_steps(make_feed(run, sampler, batch_turns=8))
    assert steps[0] == {"loud": 4, "anna": 3, "ben": 1} or steps[0] == {"loud": 3, "anna": 4, "ben": 1}
    assert sum(step["anna"] for step in steps[:2]) == 6
    assert steps[2] == {"loud": 8}


def test_without_fair_keys_turns_come_in_the_order_of_their_shards(run: RunDir, sampler: Sampler) -> None:
    publish(run, "a", turns_of(sampler, "loud", 8))
    publish(run, "b", turns_of(sampler, "anna", 2))
    assert trained_steps(make_feed(run, sampler, batch_turns=4, fair_keys=False))[0] == {"loud": 4}


@pytest.mark.parametrize("quiet", [1, 12])
def test_no_turn_of_a_key_goes_stale_because_another_key_is_busy(run: RunDir, sampler: Sampler, quiet: int) -> None:
    """Also where there are more keys than places in a step, and behind more of the loud one's shards than are read ahead."""
    for shard in range(5):
        loud = [
            replace(t, turn_id=f"loud{shard}{t.turn_id[-2:]}")
            for t in turns_of(sampler, "loud", 20, completion_ids=[9, 9, shard + 9])
        ]
        publish(run, f"a{shard}", loud)
    publish(run, "b", [turn for key in range(quiet) for turn in turns_of(sampler, f"quiet{key}-", 2)])
    settings: dict[str, Any] = {"batch_turns": 4, "max_staleness": 8}
    feed = make_feed(run, sampler, **settings)
    feed._read_ahead = 8
    steps = trained_steps(feed, 30)
    assert sum(count for step in steps for key, count in step.items() if key.startswith("quiet")) == 2 * quiet
    assert all(set(step) != {"loud"} for step in steps[: quiet // 2])


def test_a_lone_key_is_trained_as_if_nothing_were_shared(run: RunDir, sampler: Sampler) -> None:
    publish(run, "a", turns_of(sampler, "default", 9))
    names = [f"default{n:03d}" for n in range(9)]
    feed = make_feed(run, sampler, batch_turns=4)
    for first in (0, 4):
        batch = feed.next_batch(0)
        assert ids_of(batch) == names[first : first + 4]
        feed.mark_done(ids_of(batch), "trained")


def test_identical_turns_count_once_also_after_a_restart(run: RunDir, sampler: Sampler) -> None:
    """The same turn a dozen times, with another session header, other white space and other case."""
    (like,) = turns_of(sampler, "loud", 1)

    def copies(first: int, count: int) -> list[Turn]:
        asks = [f"{'  ' * n}loud ASKS\nfor aa" for n in range(first, first + count)]
        messages = [[{"role": "system", "content": f"session {n}"}, {"role": "user", "content": ask}] for n, ask in enumerate(asks)]
        return [
            replace(like, turn_id=f"loud{first + n:03d}", session_id=f"s{first + n}", messages=said, prompt_ids=[5, first + n])
            for n, said in enumerate(messages)
        ]

    publish(run, "a", copies(0, 12))
    feed = make_feed(run, sampler, batch_turns=1)
    batch = feed.next_batch(0)
    assert len(ids_of(batch)) == 1
    feed.mark_done(ids_of(batch), "trained")
    assert feed.next_batch(1) is None
    assert feed_counts(run)["refused"] == {"identical to another turn of its key": 11}
    assert Counter(read_ledger(run).values()) == {"skipped": 11}  # the loop records the trained turns
    publish(run, "b", copies(12, 3))
    again = make_feed(run, sampler, {**read_ledger(run), ids_of(batch)[0]: "trained"}, batch_turns=1)
    assert again.next_batch(1) is None
    publish(run, "c", [replace(turn, user="anna") for turn in copies(15, 1)])
    assert ids_of(again.next_batch(1)) == ["loud015"]  # another key's is its own


def test_a_turn_that_is_given_back_is_not_its_own_copy_and_its_copies_stay_skipped(run: RunDir, sampler: Sampler) -> None:
    """TurnRefused once, it is tried again, alone. TurnRefused twice, nothing that is identical is tried a third time."""
    (like,) = turns_of(sampler, "loud", 1)
    publish(run, "a", [like, replace(like, turn_id="loud001")])
    feed = make_feed(run, sampler, batch_turns=1)
    assert ids_of(feed.next_batch(0)) == ["loud000"]
    feed.mark_done(["loud000"], "trained")
    skipped = {"loud001": "skipped"}
    assert read_ledger(run) == skipped
    publish(run, "b", [replace(like, turn_id="loud002")])
    again = make_feed(run, sampler, skipped, batch_turns=1)  # the version of its step is dead: the ledger gives it back
    assert ids_of(again.next_batch(0)) == ["loud000"]
    again.mark_done(["loud000"], "trained")
    assert again.next_batch(1) is None
    publish(run, "c", [replace(like, turn_id="loud003")])
    last = make_feed(run, sampler, {**read_ledger(run), "loud000": "skipped"}, batch_turns=1)  # it is in two dead steps
    assert last.next_batch(0) is None
    assert read_ledger(run) == dict.fromkeys(("loud001", "loud002", "loud003"), "skipped")


def test_stale_turns_leave_no_mark(run: RunDir, sampler: Sampler) -> None:
    (like,) = turns_of(sampler, "loud", 1)
    publish(run, "a", [like])
    feed = make_feed(run, sampler, batch_turns=2, max_staleness=1)
    assert feed.next_batch(0) is None
    assert feed.next_batch(2) is None
    publish(run, "b", [replace(like, turn_id="loud001", policy_version=2)])
    feed.next_batch(2)
    assert [turn.sample.turn_id for turn in feed.queue.waiting] == ["loud001"]


def test_the_members_of_a_group_all_count_and_copies_of_a_group_do_not(run: RunDir, sampler: Sampler) -> None:
    (like,) = turns_of(sampler, "loud", 1, group_id="g1")
    other = replace(like, completion_ids=[8, 8, 8], turn_id="other", session_id="other")
    same = [replace(like, turn_id=f"same{n}", session_id=f"s{n}") for n in range(3)]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in same] + [(other, -1.0, None)])
    again = [
        replace(turn, turn_id=f"again-{turn.turn_id}", group_id="g2", session_id=f"again-{turn.session_id}")
        for turn in (*same, other)
    ]
    publish_shard(run, "b", [(turn, 1.0, None) for turn in again[:3]] + [(again[3], -1.0, None)])
    feed = make_feed(run, sampler, method="grpo", group_size=4, batch_turns=4)
    assert sorted(ids_of(feed.next_batch(0))) == ["other", "same0", "same1", "same2"]
    assert feed_counts(run)["refused"] == {"identical to another turn of its key": 4}


def test_a_key_cannot_change_the_credit_of_another_by_using_its_group_id(run: RunDir, sampler: Sampler) -> None:
    annas = episodes(sampler, "a", "b", user="anna")
    loud = episodes(sampler, *(f"l{n}" for n in range(6)), user="loud")
    publish_shard(run, "1", [(turn, 1.0, None) for turn in loud])
    publish_shard(run, "2", [(annas[0], 1.0, None), (annas[1], -1.0, None)])
    feed = make_feed(run, sampler, method="grpo", group_size=2, batch_turns=2)
    batch = feed.next_batch(0)
    assert batch is not None
    assert {s.turn_id: s.credit for s in batch.samples} == {"a": pytest.approx(1.0, rel=1e-5), "b": pytest.approx(-1.0, rel=1e-5)}


def test_a_key_cannot_move_the_baseline_of_another_by_using_its_task_id(sampler: Sampler) -> None:
    mine, theirs = (replace(sampler.turn("x", tokens=2), task_id="homework-7", user=user) for user in ("anna", "a/b"))
    assert (kind_of(mine), kind_of(theirs)) == ("anna/homework", "a%2Fb/homework")
    assert kind_of(replace(mine, user="default")) == "homework"  # as older checkpoints have it


def test_a_key_that_names_ever_new_tasks_takes_no_baseline_from_another() -> None:
    from clawctl.train.sample import Sample

    like = Sample("a", "1", "anna/homework", [1], [2], [-0.5], 1.0, 0, 1.0, None)
    baselines = Baselines()
    baselines.update([like])
    baselines.update([replace(like, kind=f"loud/kind{n}") for n in range(2 * MAX_KINDS)])
    assert baselines.of("anna/homework") == 1.0
    assert len(baselines.means) == 1 + MAX_KINDS


def test_a_key_with_ever_new_groups_makes_no_other_forget_its_own(sampler: Sampler) -> None:
    settings = make_settings(method="grpo", group_size=2)
    forming = Forming(settings, Counter())
    (turn,) = episodes(sampler, "a", user="anna")
    forming.add(turn, 1.0)
    for number in range(3 * MAX_IDLE):
        forming.add(replace(turn, turn_id=f"t{number}", group_id=f"g{number}", user="loud"), 1.0)
    assert "anna/g1" in forming._units
    assert len(forming._units) <= 2 * MAX_IDLE + 1


def make_settings(**changes: Any) -> Any:
    from clawctl.config import TrainConfig

    return TrainConfig.model_validate(changes)


def test_the_memory_of_trained_marks_is_bounded_and_a_torn_end_costs_nothing_else(tmp_path: Path) -> None:
    marks = TrainedMarks(tmp_path / "identical.bin")
    marks.add(((n, n + 1), f"t{n}") for n in range(0, 10_000, 2))
    with (tmp_path / "identical.bin").open("ab") as file:
        file.write(b"torn")
    again = TrainedMarks(tmp_path / "identical.bin")
    assert again.has((9_998, 1 << 40), "another")
    assert not again.has((9_998, 1 << 40), "t9998")  # its own: it may be trained again after a rollback
    assert not again.has((1 << 41, 1 << 40), "another")
    again.add([((3, 4), "x")])
    (tmp_path / "identical.bin").write_bytes(bytes(16 * (MAX_MARKS + 1)))
    TrainedMarks(tmp_path / "identical.bin")
    assert (tmp_path / "identical.bin").stat().st_size == 16 * MAX_MARKS // 2


def test_two_problems_that_differ_in_a_number_are_two(sampler: Sampler) -> None:
    first, second = (
        replace(sampler.turn("x", tokens=2), messages=[{"role": "user", "content": f"What is {n} + {9 - n}?"}], prompt_ids=[n])
        for n in (4, 5)
    )
    assert not set(marks_of(first, [4], [9])) & set(marks_of(second, [5], [9]))


def test_inspect_shows_each_keys_share_and_why_a_copy_is_not_trained(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    like = sampler.turn("x", tokens=3, user="loud")
    other = sampler.turn("y", tokens=3, user="anna", seed=1)
    waits = sampler.turn("z", tokens=3, user="anna", seed=2)
    publish_shard(run, "a", [(turn, 1.0, None) for turn in (like, replace(like, turn_id="copy", session_id="other"), other, waits)])
    train(run, model_path, batch_turns=2)
    health = read_health(run)
    assert health["keys"]["loud"] == {"trained": 1, "share": 0.5, "waiting": 0}
    assert health["keys"]["anna"] == {"trained": 1, "share": 0.5, "waiting": 1}
    assert health["not_trained"] == {"skipped: identical to another turn of its key": 1}
    (entry,) = (orjson.loads(path.read_bytes()) for path in (run.train / "ledger").glob("skipped-*.json"))
    assert entry["turns"]["a"] in (["copy"], ["x"])  # whichever came later
