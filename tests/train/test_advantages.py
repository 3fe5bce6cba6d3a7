"""The advantages of each method, by hand."""

import math
from dataclasses import replace

import pytest
import torch

from clawctl.config import TrainConfig
from clawctl.train.advantages import Divergence, likeliest, terms_of
from clawctl.train.advantages.baselines import MEMORY, Baselines
from clawctl.train.advantages.gae import session_credits
from clawctl.train.advantages.grpo import TurnReward, group_credits
from clawctl.train.sample import Batch, Sample
from clawctl.trainers.local.objective import LikeliestLogprobs, chosen_hints, divergence, token_advantages

TURN = Sample("t", "a", "homework", [1, 2], [3, 4, 5], [-1.0, -2.0, -3.0], 1.0, 0, -1.0, [1, 2, 9])
POLICY, TEACHER = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-0.5, -2.5, -9.0])
BATCH = Batch(1, [TURN], baselines={"t": 0.25})


def test_binary_gives_each_token_the_reward_less_the_baseline() -> None:
    (term,) = terms_of(TrainConfig(method="binary"))
    assert token_advantages(term, POLICY, None, BATCH.advantage(TURN)).tolist() == [-1.25, -1.25, -1.25]
    assert term.trains(TURN)
    assert not term.trains(replace(TURN, reward=None))


def test_opd_gives_each_token_the_clamped_gap_to_the_teacher() -> None:
    (term,) = terms_of(TrainConfig(method="opd", gap_clip=2.0))
    assert token_advantages(term, POLICY, TEACHER, None).tolist() == [0.5, -0.5, -2.0]  # the last gap is -6
    assert not term.trains(replace(TURN, teacher_prompt_ids=None))


def test_teacher_logprobs_for_fewer_tokens_are_an_error_and_never_padded() -> None:
    (term,) = terms_of(TrainConfig(method="opd"))
    with pytest.raises(RuntimeError, match="must match"):
        token_advantages(term, POLICY, TEACHER[:2], None)


def test_combine_has_both_terms_with_their_own_weights() -> None:
    binary, opd = terms_of(TrainConfig(method="combine", weight_binary=0.5, weight_opd=2.0))
    assert (binary.name, binary.weight, opd.name, opd.weight) == ("binary", 0.5, "opd", 2.0)
    assert binary.trains(TURN)
    assert opd.trains(TURN)  # a corrected answer is pushed away from and shown what was wrong with it


def test_a_baseline_is_the_decaying_mean_of_earlier_turns() -> None:
    baselines = Baselines()
    good, bad, other = replace(TURN, reward=1.0), replace(TURN, reward=-1.0), replace(TURN, reward=1.0, kind="chat")
    assert baselines.of("homework") == 0.0
    baselines.update([good, bad, good, good, other, replace(TURN, reward=None)])
    assert baselines.of("homework") == pytest.approx(0.5)  # (1 - 1 + 1 + 1) / 4
    assert baselines.of("chat") == 1.0
    baselines.means["homework"] = (0.5, 1000)
    baselines.update([bad])
    assert baselines.of("homework") == pytest.approx(0.5 - 1.5 / MEMORY)


def test_a_sample_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="2 logprobs"):
        replace(TURN, logprobs=[-1.0, -1.0])
    with pytest.raises(ValueError, match="neither a reward nor a hint"):
        replace(TURN, reward=None, teacher_prompt_ids=None)


def earned(turn_id: str, episode: str, index: int, reward: float | None, parent: str | None = None) -> TurnReward:
    return TurnReward(turn_id, episode, parent, index, reward)


GROUP = [
    earned("a0", "a", 0, 1.0), earned("a1", "a", 1, 3.0),  # 2 on average
    earned("b0", "b", 0, 0.0),
    earned("c0", "c", 0, 1.0), earned("c1", "c", 1, None),  # 1: an unknown reward is not a reward of 0
]  # fmt: skip


def test_grpo_compares_the_mean_reward_of_an_episode_with_its_group() -> None:
    # episodes earned 2, 0, 1: mean 1, population variance 2/3
    assert group_credits(GROUP, std=False, step_wise=False) == {"a0": 1.0, "a1": 1.0, "b0": -1.0, "c0": 0.0}
    credits = group_credits(GROUP, std=True, step_wise=False)
    assert credits["a0"] == credits["a1"] == pytest.approx(1.5**0.5, rel=1e-5)
    assert credits["b0"] == pytest.approx(-(1.5**0.5), rel=1e-5)


def test_step_wise_compares_turns_at_one_place_and_leaves_a_lonely_one_its_reward() -> None:
    # place 0: 1, 0, 1, mean 2/3, std sqrt(2)/3; place 1: a1 alone with a known reward
    credits = group_credits(GROUP, std=True, step_wise=True)
    assert credits["a0"] == credits["c0"] == pytest.approx(0.5**0.5, rel=1e-5)
    assert credits["b0"] == pytest.approx(-(2**0.5), rel=1e-5)
    assert credits["a1"] == 3.0
    assert "c1" not in credits


def test_a_group_that_all_earned_the_same_or_that_has_one_episode_teaches_nothing() -> None:
    same = [earned("a", "a", 0, 1.0), earned("b", "b", 0, 1.0)]
    assert group_credits(same, std=True, step_wise=False) == group_credits(same, std=True, step_wise=True) == {}
    assert group_credits(GROUP[:2], std=True, step_wise=False) == {}


def test_step_wise_compares_nothing_if_one_episode_alone_has_rewards() -> None:
    assert group_credits([earned("a0", "a", 0, 1.0), earned("a1", "a", 1, -1.0)], std=True, step_wise=True) == {}


def test_turns_in_the_same_state_are_compared_by_their_returns() -> None:
    # both episodes begin in state X; a continues in Y and b in Z, and c returns to X. Outcomes 1, 0, 1.
    def at(turn_id: str, index: int, parent: str | None, outcome: float, state: bytes) -> TurnReward:
        return TurnReward(turn_id, turn_id[0], parent, index, outcome, outcome, state)

    turns = [
        at("a0", 0, None, 1.0, b"X"), at("a1", 1, "a0", 1.0, b"Y"), at("b0", 0, None, 0.0, b"X"), at("b1", 1, "b0", 0.0, b"Z"),
        at("c0", 0, None, 1.0, b"X"), at("c1", 1, "c0", 1.0, b"X"),
    ]  # fmt: skip
    # by episode, mean 2/3: a 1/3, b -2/3, c 1/3. Returns with gamma 0.5 in X: a0 0.5, b0 0, c0 0.5, c1 1; mean 0.5
    third = 1 / 3
    expected = {"a0": third, "a1": third, "b0": -2 * third - 0.5, "b1": -2 * third, "c0": third, "c1": third + 0.5}
    assert group_credits(turns, std=False, step_wise="state", gamma=0.5) == pytest.approx(expected)


def test_gae_hands_the_rewards_of_later_turns_back_along_the_session() -> None:
    chain = [earned("0", "s", 0, 0.0), earned("1", "s", 1, -1.0, "0"), earned("2", "s", 2, 1.0, "1")]
    # factor 0.9 · 0.5 = 0.45: A2 = 1, A1 = -1 + 0.45 = -0.55, A0 = 0.45 · -0.55
    assert session_credits(chain, 0.9, 0.5) == pytest.approx({"0": -0.2475, "1": -0.55, "2": 1.0})
    assert session_credits(chain, 1.0, 1.0) == {"2": 1.0}  # undiscounted, the others come to 0: nothing to learn


def test_gae_takes_the_mean_over_the_successors_of_a_turn_and_gives_an_unknown_one_nothing() -> None:
    tree = [
        earned("0", "s", 0, 0.5), earned("1", "s", 1, None, "0"), earned("2", "s", 2, 1.0, "1"), earned("1b", "s", 1, -1.0, "0"),
    ]  # fmt: skip
    # A2 = 1; through the unknown turn 0.5 · 1; A0 = 0.5 + 0.5 · mean(0.5, -1)
    assert session_credits(tree, 1.0, 0.5) == pytest.approx({"0": 0.375, "2": 1.0, "1b": -1.0})


def test_credit_takes_the_place_of_reward_and_baseline() -> None:
    (term,) = terms_of(TrainConfig(method="grpo"))
    assert term.name == "grpo"
    assert token_advantages(term, POLICY, TEACHER, BATCH.advantage(replace(TURN, credit=0.75))).tolist() == [0.75, 0.75, 0.75]


def test_hybrid_takes_the_hint_whose_teacher_overlaps_most_with_the_policy() -> None:
    overlap = torch.tensor([[4, 0, 1], [2, 3, 1], [2, 2, 2]])  # sums 5, 6, 6: of equals the first
    assert chosen_hints(overlap, "sequence").tolist() == [1, 1, 1]
    assert chosen_hints(overlap, "token").tolist() == [0, 1, 2]
    assert chosen_hints(overlap, "shortest").tolist() == [0, 0, 0]


def test_hybrid_learns_from_the_chosen_teacher_alone() -> None:
    config = TrainConfig(method="hybrid", weight_binary=0.5, weight_opd=2.0, gap_clip=1.0, hint_choice="token")
    reward, opd = terms_of(config)
    assert (reward.name, reward.weight, opd.name, opd.weight) == ("binary", 0.5, "opd", 2.0)
    before = torch.tensor([[0.5, 0.25], [0.5, 0.25]]).log()
    teachers = torch.tensor([[[0.5, 0.25], [0.01, 0.98]], [[0.9, 0.1], [0.5, 0.25]]]).log()
    policy = before.clone().requires_grad_()
    value = divergence(opd, LikeliestLogprobs(policy, before, teachers, torch.tensor([[2, 0], [0, 2]])))
    value.sum().backward()
    assert policy.grad is not None
    assert policy.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]  # hint 0 at the first position, hint 1 at the second: both agree


def test_opd_topk_has_a_differentiable_divergence_and_no_advantages() -> None:
    (term,) = terms_of(TrainConfig(method="opd_topk"))
    assert isinstance(term.signal, Divergence)
    policy, teacher = torch.tensor([[0.5, 0.25]]).log().requires_grad_(), torch.tensor([[[0.25, 0.25]]]).log()
    value = divergence(term, LikeliestLogprobs(policy, policy.detach(), teacher, torch.zeros(1, 1)))
    assert value.tolist() == pytest.approx([math.log(2) / 4], rel=1e-5)
    assert value.requires_grad
    assert (likeliest(TrainConfig(method="opd_topk")), likeliest(TrainConfig(method="hybrid"))) == (50, 4)
    assert (likeliest(TrainConfig(method="hybrid", topk=8)), likeliest(TrainConfig(method="combine"))) == (8, None)
