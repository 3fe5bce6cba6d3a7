"""The chunked projection, against whole logits and numbers worked by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from clawctl.trainers.local.head import token_logprobs, top_tokens

LN2, LN3 = math.log(2), math.log(3)
TOKENS, WIDTH, VOCABULARY = 25, 6, 50


def a_head(weight: list[list[float]]) -> nn.Linear:
    head = nn.Linear(len(weight[0]), len(weight), bias=False)
    head.weight.data = torch.tensor(weight)
    return head


class Wrapped(nn.Module):
    """A head that is not a plain linear layer, as an adapter makes it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden) * 2.0


def test_a_state_gives_the_logprob_of_the_next_token_at_the_sampler_temperature() -> None:
    # hidden states are the logits themselves (identity head); vocabulary of 2
    head = a_head([[1.0, 0.0], [0.0, 1.0]])
    hidden = torch.tensor([[LN3, 0.0], [0.0, 2 * LN2], [0.0, 2 * LN3]])
    logprobs = token_logprobs(hidden, head, torch.tensor([0, 1, 1]), torch.tensor([1.0, 1.0, 2.0]))
    # softmax(ln 3, 0) = 3/4, 1/4; softmax(0, ln 4) = 1/5, 4/5; (0, 2 ln 3) at temperature 2 is (0, ln 3): 1/4, 3/4
    torch.testing.assert_close(logprobs, torch.tensor([math.log(3 / 4), math.log(4 / 5), math.log(3 / 4)]))
    ids, values = top_tokens(hidden, head, torch.tensor([1.0, 1.0, 2.0]), k=2)
    assert ids.tolist() == [[0, 1], [1, 0], [1, 0]]
    torch.testing.assert_close(values.exp(), torch.tensor([[3 / 4, 1 / 4], [4 / 5, 1 / 5], [3 / 4, 1 / 4]]))


@pytest.mark.parametrize("shape", [(TOKENS,), (TOKENS, 3)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("wrap", [False, True])
def test_projecting_in_pieces_changes_neither_logprobs_nor_gradients(shape: tuple[int, ...], bias: bool, wrap: bool) -> None:
    torch.manual_seed(0)
    inner = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    head: nn.Module = Wrapped(inner) if wrap else inner
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    ids, temperature, weights = torch.randint(VOCABULARY, shape), torch.rand(TOKENS) + 0.5, torch.randn(shape)
    logprobs = token_logprobs(hidden, head, ids, temperature, at_once=500)  # 10, 10 and 5 tokens
    leaves = [hidden, *inner.parameters()]
    gradients = torch.autograd.grad((logprobs * weights).sum(), leaves)
    whole = (head(hidden) / temperature[:, None]).log_softmax(-1).gather(1, ids.reshape(TOKENS, -1)).reshape(shape)
    torch.testing.assert_close(logprobs, whole)
    for ours, expected in zip(gradients, torch.autograd.grad((whole * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(ours, expected)
    with torch.no_grad():
        torch.testing.assert_close(token_logprobs(hidden, head, ids, temperature, at_once=500), whole)


def test_a_head_that_is_not_trained_gets_no_gradient_and_passes_the_hidden_states_theirs() -> None:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False).requires_grad_(False)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    token_logprobs(hidden, head, torch.randint(VOCABULARY, (TOKENS,)), torch.ones(TOKENS), at_once=500).sum().backward()
    assert hidden.grad is not None
    assert head.weight.grad is None


def test_under_autocast_the_projection_is_in_bfloat16_and_its_sums_are_not() -> None:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    hidden, ids = torch.randn(TOKENS, WIDTH, requires_grad=True), torch.randint(VOCABULARY, (TOKENS,))
    with torch.autocast("cpu", torch.bfloat16):
        logprobs = token_logprobs(hidden, head, ids, torch.ones(TOKENS), at_once=100)
        logits = head(hidden).float()
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, ids[:, None]).squeeze(1))
    logprobs.sum().backward()
    (expected,) = torch.autograd.grad(head(hidden).log_softmax(-1).gather(1, ids[:, None]).sum(), [head.weight])
    assert head.weight.grad is not None
    assert head.weight.grad.dtype == torch.float32
    torch.testing.assert_close(head.weight.grad, expected, atol=0.05, rtol=0.05)


def test_no_more_logits_than_allowed_are_ever_alive() -> None:
    alive = []

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            alive.extend(t.numel() for t in (result if isinstance(result, tuple | list) else [result]) if isinstance(t, Tensor))
            return result

    head = nn.Linear(WIDTH, 5000, bias=False)
    hidden = torch.randn(200, WIDTH, requires_grad=True)
    with Watching():
        token_logprobs(hidden, head, torch.randint(5000, (200,)), torch.ones(200), at_once=50_000).sum().backward()
    assert max(alive) == 50_000  # 10 tokens by 5,000; the weight has 30,000
