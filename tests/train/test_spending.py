"""The cost of training at a service."""

from pathlib import Path

import pytest

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.train.sample import Batch, Sample
from clawctl.train.spending import CANARY_TOKENS, Spending

PRICE = {"prefill": 1.0, "train": 10.0}


def config(**service: object) -> TrainConfig:
    given = {"backend": {"kind": "tinker", "url": "https://gpu.example", **service}, "send_conversations": True}
    return TrainConfig.model_validate(given)


def batch() -> Batch:
    """10 tokens of a turn, and 14 with its hint."""
    hinted = list(range(11))
    return Batch(1, [Sample("a", "s", "k", list(range(7)), [1, 2, 3], [-0.1] * 3, 1.0, 0, 1.0, hinted)])


def test_a_step_costs_the_tokens_that_the_service_reads_and_trains(tmp_path: Path) -> None:
    spending = Spending(open_run(tmp_path / "run", create=True), config(price=PRICE))
    assert spending.pay(batch()) == pytest.approx((10 + 14 + CANARY_TOKENS) * 1e-6 + 10 * 10e-6)


def test_a_limit_holds_across_restarts_and_counts_steps_that_were_killed(tmp_path: Path) -> None:
    run, limited = open_run(tmp_path / "run", create=True), config(price=PRICE, limit=0.0004)
    for _ in range(2):
        Spending(run, limited).pay(batch())
    with pytest.raises(ClawError, match=r"would cost about 0\.000164, and 0\.000328 of the limit of 0\.0004 is spent"):
        Spending(run, limited).pay(batch())
    assert Spending(run, limited).total == pytest.approx(0.000328)


def test_training_on_this_machine_costs_nothing(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", create=True)
    assert Spending(run, TrainConfig()).pay(batch()) is None
    assert not run.spending.exists()
