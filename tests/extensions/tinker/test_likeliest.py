"""Methods over the policy's likeliest tokens at a service. The service's arithmetic is worked out with one matrix of logits."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.tinker.scores import score_turns
from clawctl.extensions.tinker.sdk import RemoteAdapter, Service
from clawctl.extensions.tinker.sequences import TokenSequence
from clawctl.extensions.tinker.trainer import ServiceTrainer
from clawctl.train.sample import Batch, Sample
from clawctl.train.spending import CANARY_TOKENS, usage_of
from clawctl.trainers.local.objective import LikeliestLogprobs, TurnLogprobs, objective_of
from clawctl.trainers.local.scores import overlap

WORDS = 12
SAMPLES = [
    Sample("a", "s", "k", [1, 2], [3, 4, 5], [-2.0, -2.5, -2.2], 1.0, 0, 1.0, [6, 1, 2]),
    Sample("b", "s", "k", [7], [8, 9], [-2.4, -2.1], 1.0, 0, -1.0, None),
    Sample("c", "s", "k", [2, 2], [10, 11], [-2.6, -2.0], 1.0, 0, -1.0, [5, 2, 2], other_prompts=((4, 4, 2, 2),)),
]


class MatrixClient:
    """A model whose next token depends on the current token and on the first token: logits[first, current]."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.logits = torch.randn((WORDS, WORDS, WORDS), generator=draw).requires_grad_()
        self.sent: list[TokenSequence] = []

    def rows(self, sequence: TokenSequence) -> torch.Tensor:
        """Logprobs [T, WORDS] at the completion's positions."""
        return self.logits[sequence.ids[0], sequence.ids[sequence.start - 1 : -1]].log_softmax(-1)

    def scored(self, sequence: TokenSequence) -> torch.Tensor:
        targets = torch.tensor(sequence.inputs()["target_tokens"][sequence.start - 1 :])
        return self.rows(sequence).gather(1, targets[:, None])[:, 0]

    def logprobs(self, sequences: list[TokenSequence]) -> list[list[float]]:
        return [self.scored(sequence).tolist() for sequence in sequences]

    def likeliest(self, sequences: list[TokenSequence], k: int) -> list[list[list[int]]]:
        return [self.rows(sequence).topk(k).indices.tolist() for sequence in sequences]

    def backward(self, sequences: list[TokenSequence], logprobs: Any, slopes: Any) -> None:
        self.sent = sequences
        for sequence, values, slope in zip(sequences, logprobs, slopes, strict=True):
            now = self.scored(sequence)
            assert now.tolist() == pytest.approx(values)
            (-(now - torch.tensor(values)).exp() * torch.tensor(slope)).sum().backward()

    def update(self, *_: Any) -> None:
        return None


def recipe(**train: Any) -> Recipe:
    service = {"backend": "tinker", "send_conversations": True, "lora": {"rank": 2}, "turn_bound": None, "max_mismatch": 1e9}
    return Recipe.model_validate({"train": {**service, **train}, "gate": None})


def exact_gradient(client: MatrixClient, chosen: Recipe, batch: Batch, k: int) -> torch.Tensor:
    """The gradient of the local trainer's loss, through all logprobs."""
    turns = []
    for sample in batch.samples:
        plain = TokenSequence([*sample.prompt_ids, *sample.completion_ids], len(sample.prompt_ids))
        now_T, rows = client.scored(plain), client.rows(plain)
        turn = TurnLogprobs(sample, now_T, now_T.detach(), torch.tensor(sample.logprobs))
        if sample.teacher_prompt_ids is not None:
            ids = rows.detach().topk(k).indices
            prompts = [sample.teacher_prompt_ids, *sample.other_prompts]
            taught = [client.rows(TokenSequence([*p, *sample.completion_ids], len(p))).detach() for p in prompts]
            shared = torch.stack([overlap(ids, row.topk(k).indices) for row in taught])
            teacher = torch.stack([row.gather(1, ids) for row in taught])
            turn = replace(turn, tops=LikeliestLogprobs(rows.gather(1, ids), rows.gather(1, ids).detach(), teacher, shared, ids))
        turns.append(turn)
    from clawctl.train.measures import Measures

    (gradient,) = torch.autograd.grad(objective_of(chosen.train, batch).loss(turns, Measures(), {}), client.logits)
    return gradient


@pytest.mark.parametrize(
    "train", [{"method": "opd_topk", "topk": 3}, {"method": "combine", "topk": 2}, {"method": "hybrid", "topk": 4}]
)
def test_the_service_computes_the_gradient_of_the_local_trainers_loss(train: dict[str, Any]) -> None:
    chosen, client = recipe(**train), MatrixClient()
    samples = [s for s in SAMPLES if s.teacher_prompt_ids is not None] if train["method"] == "opd_topk" else SAMPLES
    if train["method"] != "hybrid":
        samples = [replace(sample, other_prompts=()) for sample in samples]
    batch = Batch(1, samples, parent=0)
    wanted = exact_gradient(client, chosen, batch, train["topk"])
    trainer = ServiceTrainer(chosen, cast(Service, None))
    trainer._client = cast(RemoteAdapter, client)
    assert trainer.step(batch).problem is None
    assert client.logits.grad is not None
    torch.testing.assert_close(client.logits.grad, wanted, atol=1e-6, rtol=1e-4)
    hinted = sum(sample.teacher_prompt_ids is not None for sample in samples)
    assert len(client.sent) == len(samples) + train["topk"] * hinted


def test_the_estimate_of_the_cost_counts_the_tokens_that_are_sent() -> None:
    from clawctl.train.measures import Measures

    chosen, client, batch = recipe(method="hybrid", topk=4), MatrixClient(), Batch(1, SAMPLES, parent=0)
    scores = score_turns(cast(Service, None), cast(RemoteAdapter, client), SAMPLES, chosen.train, Measures())
    usage = usage_of(batch, chosen.train)
    assert usage.prefill == sum(len(sequence.ids) for sequence in scores.read) + CANARY_TOKENS
    assert usage.train == sum(len(sequence.ids) for turn in scores.turns for sequence in turn.sequences)


class Sampler:
    """A sampler's answer in the form of the SDK, or of a server that ignores `topk_prompt_logprobs`."""

    def __init__(self, answer: list[list[tuple[int, float]] | None] | None) -> None:
        self.topk_prompt_logprobs = answer

    def save_weights_and_get_sampling_client(self) -> "Sampler":
        return self

    def sample(self, **_: Any) -> "Sampler":
        return self

    def result(self) -> "Sampler":
        return self


def named_by(answer: list[list[tuple[int, float]] | None] | None) -> list[list[list[int]]]:
    from types import SimpleNamespace

    sdk = SimpleNamespace(SamplingParams=dict, ModelInput=SimpleNamespace(from_ints=list))
    service = SimpleNamespace(name="Tinker", sdk=sdk, call=lambda what, work: work())
    return RemoteAdapter(cast(Service, service), Sampler(answer)).likeliest([TokenSequence([1, 2, 3], 1)], 2)


def test_the_likeliest_tokens_come_from_the_sampler_most_likely_first() -> None:
    rows = [None, [(4, -3.0), (5, -0.5), (2, -1.0)], [(7, -0.1), (3, -9.0)]]
    assert named_by(rows) == [[[5, 2], [7, 3]]]


@pytest.mark.parametrize(
    "answer", [None, [None, [(4, -1.0), (5, -2.0)]], [None, [(4, -1.0), (0, -99999.0)], [(4, -1.0), (5, -2.0)]]]
)
def test_a_service_that_does_not_name_the_likeliest_tokens_is_refused(answer: Any) -> None:
    with pytest.raises(ClawError, match="does not name the 2 likeliest tokens"):
        named_by(answer)
