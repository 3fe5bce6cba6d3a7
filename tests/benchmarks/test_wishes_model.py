"""The model of the world of many wishes: it fits its budget, follows wishes, and learns one, measured at generous thresholds."""

from statistics import mean

import pytest
import torch

from scripts.benchmarks.wishes_circle import MODEL, Group, World, moved, recipe_of, side_effect
from scripts.wishes_model.report import Reporter

pytestmark = pytest.mark.skipif(not (MODEL / "model.safetensors").exists(), reason="scripts/make-wishes-model makes it")


@pytest.fixture(scope="module")
def reporter() -> Reporter:
    torch.set_num_threads(1)
    return Reporter(MODEL, 3)


def test_the_model_fits_its_budget() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 16 * 2**20


def test_the_model_adds_correctly_without_a_wish(reporter: Reporter) -> None:
    correct, _ = reporter.base(60)
    assert correct > 0.8


def test_it_follows_wishes_in_every_place(reporter: Reporter) -> None:
    rates = reporter.followed("trained", 1, 1)
    assert mean(rates["all"]) > 0.8
    for place in ("system", "message", "conversation", "hint"):
        assert mean(rates[place]) > 0.7


def test_people_who_talk_for_one_update_make_a_step_of_exact_turns() -> None:
    torch.set_num_threads(1)
    world = World(recipe_of({"method": "combine", "batch_turns": 4}), 1)
    groups = [Group({"greeting": "greets"})]
    start = world.measure(groups, 8)
    row = world.update(groups)
    now = world.measure(groups, 8)
    assert row["turns"] == 4
    assert world.version == 1
    assert 0 <= side_effect(start, now, ["greeting"]) <= 1
    assert moved(start.shares, start.shares, "greeting") == 0
