"""The teacher reads a key's earlier hints above the hint for this turn."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from clawctl.config import TrainConfig
from clawctl.run.complaints import MAX_TURNS
from clawctl.run.directory import RunDir
from clawctl.run.hint_places import with_hint
from clawctl.run.rows import Turn
from clawctl.run.shards import UNKNOWN
from clawctl.train.admission import Admission
from clawctl.trainers.texts import TokenizerTexts
from tests.train.feeding import make_feed
from tests.train.tiny import Sampler, publish_shard, texts_of, verdict

TOOL = [{"role": "tool", "content": "no such file"}]


def asked(sampler: Sampler, name: str, at: float, **changes: Any) -> Turn:
    return replace(sampler.turn(name, tokens=3, seed=int(at)), created_at=at, user="anna", **changes)


def teacher_reads(sampler: Sampler, feed: Any, turn_id: str) -> str:
    """The text after the question in the teacher's prompt."""
    batch = feed.next_batch(0)
    assert batch is not None
    (sample,) = [sample for sample in batch.samples if sample.turn_id == turn_id]
    text = str(sampler.tokenizer.decode(sample.teacher_prompt_ids))
    return text.split("[user's hint / instruction]\n")[1].split("<|im_end|>")[0]


def test_the_teacher_reads_the_newest_earlier_hints_of_the_same_key(run: RunDir, sampler: Sampler) -> None:
    """Not those of other keys, of later turns, of tools, nor the same words twice."""
    publish_shard(
        run,
        "a",
        [
            (asked(sampler, "one", 1), -1.0, "too old to be read"),
            (asked(sampler, "two", 2), -1.0, "write plain"),
            (asked(sampler, "three", 3), -1.0, "say hello"),
            (asked(sampler, "four", 4), -1.0, "write plain"),
            (asked(sampler, "five", 5, next_state=TOOL), -1.0, "the file has another name"),
            (replace(asked(sampler, "bert", 6), user="bert"), -1.0, "another key's wish"),
            (asked(sampler, "late", 9), -1.0, "said later"),
            (asked(sampler, "turn", 7), -1.0, "no bold"),
        ],
    )
    feed = make_feed(run, sampler, batch_turns=8, method="opd", earlier_hints=2)
    assert teacher_reads(sampler, feed, "turn") == "Earlier: say hello\nEarlier: write plain\nno bold"


def test_a_hint_is_used_alone_unless_the_recipe_adds_earlier_ones(run: RunDir, sampler: Sampler) -> None:
    publish_shard(run, "a", [(asked(sampler, f"t{n}", n), -1.0, f"hint {n}") for n in (1, 2)])
    assert teacher_reads(sampler, make_feed(run, sampler, batch_turns=2, method="opd"), "t2") == "hint 2"


def test_hints_and_complaints_of_turns_that_a_step_used_are_known_after_a_restart(
    run: RunDir, sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that cron starts for each step reads the used turns' hints, and notices that complaints rose."""
    calm = [asked(sampler, f"calm{n}", n) for n in range(60)]
    publish_shard(run, "a", [(turn, 1.0, None) for turn in calm])
    publish_shard(run, "b", [(asked(sampler, "used", 70), -1.0, "say hello")])
    publish_shard(run, "c", [(asked(sampler, f"angry{n}", 100 + n), -1.0, "no bold") for n in range(14)])
    used = {turn.turn_id: "trained" for turn in calm} | {"used": "trained"}
    feed = make_feed(run, sampler, used, batch_turns=14, method="opd", earlier_hints=4)
    with caplog.at_level(logging.WARNING):
        batch = feed.next_batch(0)
    assert "what people want has changed since" in caplog.text
    assert batch is not None
    assert "Earlier: say hello" in str(sampler.tokenizer.decode(batch.samples[0].teacher_prompt_ids))


def test_a_restart_recalls_the_newest_used_turns_and_reads_no_others(run: RunDir, sampler: Sampler) -> None:
    original = asked(sampler, "one", 0)
    used = [replace(original, turn_id=f"used{n}", created_at=float(n)) for n in range(MAX_TURNS + 2)]
    hints = {0: "too old", 1: "as old", 2: "say hello", MAX_TURNS + 1: "no bold"}
    publish_shard(run, "a", [(turn, 1.0, hints.get(n)) for n, turn in enumerate(used[:300])])
    publish_shard(run, "b", [(turn, 1.0, hints.get(n)) for n, turn in enumerate(used[300:], 300)])
    publish_shard(run, "c", [(asked(sampler, "turn", 9999), -1.0, "write plain")])
    fates = {turn.turn_id: "trained" for turn in used}
    feed = make_feed(run, sampler, fates, batch_turns=1, method="opd", earlier_hints=8)
    assert teacher_reads(sampler, feed, "turn") == "Earlier: say hello\nEarlier: no bold\nwrite plain"


def test_praised_turns_are_taught_by_earlier_hints_if_the_recipe_enables_it(run: RunDir, sampler: Sampler) -> None:
    publish_shard(
        run,
        "a",
        [
            (asked(sampler, "t0", 0), 1.0, None),
            (asked(sampler, "t1", 1), -1.0, "say hello"),
            (asked(sampler, "t2", 2), -1.0, "no bold"),
            (replace(asked(sampler, "t3", 3), user="bert"), 1.0, None),
            (asked(sampler, "t4", 4), -1.0, None),
            (asked(sampler, "t5", 5), 1.0, None),
        ],
    )
    settings: dict[str, Any] = {"method": "combine", "earlier_hints": 8, "batch_turns": 6}
    feed = make_feed(run, sampler, teach_praised=True, **settings)
    batch = feed.next_batch(0)
    assert batch is not None
    taught = {s.turn_id for s in batch.samples if s.teacher_prompt_ids is not None}
    assert taught == {"t1", "t2", "t5"}  # t4 was not praised, and t0 and t3 follow no hint of their key
    assert teacher_reads(sampler, make_feed(run, sampler, teach_praised=True, **settings), "t5") == "Earlier: say hello\nno bold"
    batch = make_feed(run, sampler, **settings).next_batch(0)
    assert batch is not None
    assert {s.turn_id for s in batch.samples if s.teacher_prompt_ids is not None} == {"t1", "t2"}


def test_teaching_praised_turns_without_earlier_hints_is_refused() -> None:
    with pytest.raises(ValueError, match="teach_praised has no effect without earlier_hints"):
        TrainConfig(method="combine", teach_praised=True)


def test_hints_from_before_a_change_of_wishes_are_dropped(run: RunDir, sampler: Sampler) -> None:
    publish_shard(
        run, "a", [(asked(sampler, f"calm{n}", n), 1.0, None) for n in range(60)] + [(asked(sampler, "old", 30), -1.0, "say hello")]
    )
    feed = make_feed(run, sampler, batch_turns=2, method="opd", earlier_hints=4)
    feed.next_batch(0)
    publish_shard(run, "b", [(asked(sampler, f"angry{n}", 100 + n), -1.0, "no bold") for n in range(14)])
    feed.next_batch(0)
    publish_shard(run, "c", [(asked(sampler, "turn", 200), -1.0, "write plain")])
    feed.next_batch(0)
    (sample,) = [turn.sample for turn in feed.queue.waiting if turn.sample.turn_id == "turn"]
    read = str(sampler.tokenizer.decode(sample.teacher_prompt_ids))
    assert "Earlier: no bold" in read
    assert "say hello" not in read


def test_the_oldest_hints_give_way_where_the_context_has_no_room(sampler: Sampler) -> None:
    turn = asked(sampler, "turn", 1)
    texts = texts_of(sampler)
    alone = texts.prompt_of(turn, with_hint(turn.messages, "Earlier: short\nno bold"))
    assert alone is not None
    small = TokenizerTexts(texts.tokenizer, texts.vocabulary, len(alone) + len(turn.completion_ids or []))
    admission = Admission(TrainConfig.model_validate({"method": "opd"}), small, UNKNOWN)
    sample = admission.sample("a", turn, verdict(turn, -1.0, "no bold"), UNKNOWN, 0, ["write plain sentences " * 20, "short"])
    assert sample.teacher_prompt_ids == alone
