"""The embedded engine meets the requirements for every engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import (
    control,
    keeps_requests_while_it_is_halted,
    refuses_ids_that_cannot_be_scored,
    score,
    scores_given_ids_by_the_version_that_is_named,
    unloads_a_version_that_is_not_in_use,
)
from transformers import AutoModelForCausalLM

from clawctl.run.keys import add_key
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from tests.serve.served import Server, perturbed
from tests.waiting import until


@pytest.fixture(scope="module")
def trained(model_path: Path) -> Any:
    return perturbed(model_path, 1)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, model_path: Path, trained: Any) -> Iterator[Server]:
    """Version 0 is live; version 1 is published."""
    with Server(tmp_path_factory.mktemp("contract") / "run", model_path) as running:
        policy = Policy(1, 0, 1, "combine", "full", str(model_path), [], None, {}, 0.0)
        publish_policy(running.run, policy, trained.save_pretrained)
        yield running
        assert running.stop() == 0, running.log.read_text()


def test_it_scores_given_ids_by_the_version_that_is_named(embedded: Server, model_path: Path, trained: Any) -> None:
    base = AutoModelForCausalLM.from_pretrained(model_path).eval()
    models = {"tiny": base, "tiny@0": base, "tiny@1": trained}
    scores_given_ids_by_the_version_that_is_named(embedded, models, {"tiny": 0, "tiny@0": 0, "tiny@1": 1})


def test_it_refuses_ids_that_cannot_be_scored(embedded: Server) -> None:
    refuses_ids_that_cannot_be_scored(embedded, 4096)
    assert score(embedded, ids=[3, 100_000]).status_code == 400


def test_only_the_runs_own_key_may_score(embedded: Server) -> None:
    anna = add_key(embedded.run, "anna")
    until(lambda: score(embedded, key=anna).status_code != 401)
    assert score(embedded, key=anna).status_code == 403
    assert control(embedded, "pause", key=anna).status_code == 403


@pytest.mark.parametrize(("halt", "go_on"), [("pause", "resume"), ("sleep", "wake")])
def test_it_keeps_requests_while_it_is_halted(embedded: Server, halt: str, go_on: str) -> None:
    keeps_requests_while_it_is_halted(embedded, halt, go_on, {"logit_bias": {"2": -100}})  # <|im_end|>


def test_it_unloads_a_version_that_is_not_in_use(embedded: Server) -> None:
    unloads_a_version_that_is_not_in_use(embedded, 1)
    assert control(embedded, "unload", version="x").status_code == 400


def test_a_version_that_is_promoted_during_a_pause_goes_live_after_it(embedded: Server) -> None:
    control(embedded, "pause")
    move_live(embedded.run, 1)
    with pytest.raises(AssertionError):
        until(lambda: embedded.health()["live"] == 1, 2.0)
    control(embedded, "resume")
    until(lambda: embedded.health()["live"] == 1)
    move_live(embedded.run, 0)
    until(lambda: embedded.health()["live"] == 0)
