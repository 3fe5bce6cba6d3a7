"""What each method makes of a turn, by hand."""

from dataclasses import replace

import pytest
import torch

from clawctl.config import TrainConfig
from clawctl.train.advantages import Scores, terms_of
from clawctl.train.advantages.binary import MEMORY, Baselines
from clawctl.train.sample import Sample

TURN = Sample("t", "a", "homework", [1, 2], [3, 4, 5], [-1.0, -2.0, -3.0], 1.0, 0, -1.0, [1, 2, 9])
SCORES = Scores(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-0.5, -2.5, -9.0]), 0.25)


def test_binary_gives_each_token_the_reward_less_the_baseline() -> None:
    (term,) = terms_of(TrainConfig(method="binary"))
    assert term.advantages(TURN, SCORES).tolist() == [-1.25, -1.25, -1.25]
    assert term.trains(TURN)
    assert not term.trains(replace(TURN, reward=None))


def test_opd_gives_each_token_the_clamped_gap_to_the_teacher() -> None:
    (term,) = terms_of(TrainConfig(method="opd", gap_clip=2.0))
    assert term.advantages(TURN, SCORES).tolist() == [0.5, -0.5, -2.0]  # the last gap is -6
    assert not term.trains(replace(TURN, teacher_prompt_ids=None))


def test_a_teacher_that_speaks_of_fewer_tokens_is_an_error_and_never_padded() -> None:
    (term,) = terms_of(TrainConfig(method="opd"))
    with pytest.raises(RuntimeError, match="must match"):
        term.advantages(TURN, replace(SCORES, teacher_T=torch.tensor([-0.5, -2.5])))


def test_combine_has_both_terms_with_their_own_weights() -> None:
    binary, opd = terms_of(TrainConfig(method="combine", weight_binary=0.5, weight_opd=2.0))
    assert (binary.name, binary.weight, opd.name, opd.weight) == ("binary", 0.5, "opd", 2.0)
    assert binary.trains(TURN)
    assert opd.trains(TURN)  # a corrected answer is pushed away from and shown what was wrong with it


def test_a_baseline_is_the_mean_of_the_turns_before_and_forgets_slowly() -> None:
    baselines = Baselines()
    good, bad, other = replace(TURN, reward=1.0), replace(TURN, reward=-1.0), replace(TURN, reward=1.0, kind="chat")
    assert baselines.of("homework") == 0.0
    baselines.learn([good, bad, good, good, other, replace(TURN, reward=None)])
    assert baselines.of("homework") == pytest.approx(0.5)  # (1 - 1 + 1 + 1) / 4
    assert baselines.of("chat") == 1.0
    baselines.kept["homework"] = (0.5, 1000)
    baselines.learn([bad])
    assert baselines.of("homework") == pytest.approx(0.5 - 1.5 / MEMORY)


def test_a_sample_refuses_what_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match="2 logprobs"):
        replace(TURN, logprobs=[-1.0, -1.0])
    with pytest.raises(ValueError, match="neither a reward nor a hint"):
        replace(TURN, reward=None, teacher_prompt_ids=None)
