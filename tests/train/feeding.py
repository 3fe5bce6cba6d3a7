"""A feed on a run, and its counts."""

import time
from typing import Any

import orjson

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir
from clawctl.run.feedback import FeedbackFile
from clawctl.run.rows import Feedback
from clawctl.train.feed import Feed
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from tests.train.tiny import Sampler, texts_of


def make_feed(
    run: RunDir, sampler: Sampler, used: dict[str, str] | None = None, longest_tokens: int | None = None, **config: Any
) -> Feed:
    settings = TrainConfig.model_validate({"batch_turns": 4, "batch_wait_s": 60, "batch_min_turns": 2, **config})
    model = Model(texts_of(sampler), adapter=True, exact=True, longest_tokens=longest_tokens)
    return Feed(TurnQueue(run, settings, model, used or {}))


def ids_of(batch: Any) -> list[str]:
    return [sample.turn_id for sample in batch.samples]


def feed_counts(run: RunDir) -> dict[str, Any]:
    counts: dict[str, Any] = orjson.loads((run.train / "feed.json").read_bytes())
    return counts


def rate(run: RunDir, turn_id: str, rating: float, key: str = "default", comment: str | None = None) -> None:
    FeedbackFile(run.feedback).append(Feedback(f"f{time.time_ns()}", time.time(), key, turn_id, rating, comment))


def rewards_of(batch: Any) -> dict[str, float | None]:
    return {sample.turn_id: sample.reward for sample in batch.samples}
