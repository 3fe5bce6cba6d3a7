"""`clawctl calibrate --ratings` judges what people rated, and not what the model practised."""

from clawctl.extensions.judge_lab.cases import rated_turns
from clawctl.run.directory import RunDir
from tests.train.fixtures import model_path, run, sampler
from tests.train.test_practised_turns import practised, publish
from tests.train.tiny import Sampler

__all__ = ["model_path", "run", "sampler"]


def test_practice_is_no_rating_of_a_person(run: RunDir, sampler: Sampler) -> None:
    publish(run, "a", [practised(sampler, kind, kind) for kind in ("told", "alone", "elsewhere")])
    assert rated_turns(run) == []
