"""The formulas, against numbers worked by hand."""

import math

import pytest
import torch
from torch import nn

from clawctl.train.losses import token_logprobs

LN2, LN3 = math.log(2), math.log(3)


def a_head(weight: list[list[float]]) -> nn.Linear:
    head = nn.Linear(len(weight[0]), len(weight), bias=False)
    head.weight.data = torch.tensor(weight)
    return head


def test_the_logprob_of_a_token_comes_from_the_position_before_it_at_the_sampler_temperature() -> None:
    # hidden states are the logits themselves (identity head); vocabulary of 2
    head = a_head([[1.0, 0.0], [0.0, 1.0]])
    hidden = torch.tensor([[[LN3, 0.0], [0.0, 2 * LN2], [9.0, 9.0]], [[0.0, 2 * LN3], [5.0, 5.0], [7.0, 7.0]]])
    ids = torch.tensor([[0, 0, 1], [1, 1, 0]])
    where = torch.tensor([[False, True, True], [False, True, False]])
    found = token_logprobs(hidden, head, ids, where, torch.tensor([1.0, 2.0]))
    # row 0, token 1 (=0): softmax(ln 3, 0) = 3/4, 1/4 -> ln(3/4); token 2 (=1): softmax(0, ln 4) = 1/5, 4/5 -> ln(4/5)
    # row 1, token 1 (=1): logits (0, 2 ln 3) at temperature 2 are (0, ln 3) -> ln(3/4)
    torch.testing.assert_close(found, torch.tensor([math.log(3 / 4), math.log(4 / 5), math.log(3 / 4)]))


def test_the_first_token_of_a_sequence_has_no_logprob() -> None:
    with pytest.raises(ValueError, match="first token"):
        token_logprobs(torch.zeros(1, 2, 2), a_head([[1.0, 0.0]]), torch.zeros(1, 2).long(), torch.ones(1, 2).bool(), torch.ones(1))


def test_projecting_in_pieces_changes_neither_logprobs_nor_gradients() -> None:
    torch.manual_seed(0)
    vocabulary, tokens = 50, 25
    head = nn.Linear(4, vocabulary, bias=False)
    hidden = torch.randn(1, tokens + 1, 4, requires_grad=True)
    ids, where = torch.randint(vocabulary, (1, tokens + 1)), torch.ones(1, tokens + 1).bool()
    where[:, 0] = False
    found = token_logprobs(hidden, head, ids, where, torch.tensor([0.5]), at_once=500)  # 10, 10 and 5 tokens
    found.sum().backward()
    gradient, weight_gradient = hidden.grad, head.weight.grad
    hidden.grad = head.weight.grad = None
    whole = (head(hidden[0, :-1]) / 0.5).log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    whole.sum().backward()
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(gradient, hidden.grad)
    torch.testing.assert_close(weight_gradient, head.weight.grad)
    with torch.no_grad():
        torch.testing.assert_close(token_logprobs(hidden, head, ids, where, torch.tensor([0.5]), at_once=500), whole)
