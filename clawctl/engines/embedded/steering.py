"""Draws tokens, with the sampling settings of each request. Settings cost nothing while no request uses them.

As in vLLM, logit_bias, penalties and a grammar's mask apply before the temperature, and min_p after it. Sampling and the reported
most likely tokens use the result. Another process computes a grammar's next mask while the model computes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch

from clawctl.engines import CannotFollow
from clawctl.engines.embedded.frames import Sampling
from clawctl.engines.structured.grammars import Bits, Grammar

_COLDEST = 1e-6  # a temperature that leaves only the most likely token
_SPAN = 256  # tokens whose probabilities are added up before one of them is drawn


def penalised(
    logits_BV: torch.Tensor,
    seen_BV: torch.Tensor,
    counts_BV: torch.Tensor,
    repetition_B: torch.Tensor,
    presence_B: torch.Tensor,
    frequency_B: torch.Tensor,
) -> torch.Tensor:
    """Logits after penalties. `seen` tokens (in prompt or answer) are made less likely by a factor (CTRL,
    https://arxiv.org/abs/1909.05858, §4.1). `counts` (in the answer) apply OpenAI's two terms,
    https://platform.openai.com/docs/advanced-usage."""
    factor_B1 = repetition_B.unsqueeze(1)
    repeated_BV = torch.where(logits_BV > 0, logits_BV / factor_B1, logits_BV * factor_B1)
    logits_BV = torch.where(seen_BV, repeated_BV, logits_BV)
    return logits_BV - frequency_B.unsqueeze(1) * counts_BV - presence_B.unsqueeze(1) * (counts_BV > 0)


def above_min_p(logits_BV: torch.Tensor, min_p_B: torch.Tensor) -> torch.Tensor:
    """The scores without tokens that are less likely than `min_p` times the most likely one."""
    minimum_B1 = logits_BV.amax(-1, keepdim=True) + min_p_B.log().unsqueeze(1)
    return logits_BV.masked_fill(logits_BV < minimum_B1, float("-inf"))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends only on the seed and the token's position in its answer."""
    digest = blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)


def truncated(logits_BV: torch.Tensor, top_k_B: Sequence[int], top_p_B: Sequence[float]) -> torch.Tensor:
    """The scores of the `top_k` most likely tokens (0: all), and of these the most likely ones until their sum reaches `top_p`."""
    ordered_BV, order_BV = logits_BV.sort(descending=True)
    device = logits_BV.device
    top_k_B1 = torch.tensor(top_k_B, device=device).unsqueeze(1)
    top_p_B1 = torch.tensor(top_p_B, dtype=torch.float32, device=device).unsqueeze(1)
    ordered_BV.masked_fill_((top_k_B1 > 0) & (torch.arange(logits_BV.shape[1], device=device) >= top_k_B1), float("-inf"))
    shares_BV = ordered_BV.softmax(-1)
    ordered_BV.masked_fill_((top_p_B1 < 1) & (shares_BV.cumsum(-1) - shares_BV >= top_p_B1), float("-inf"))
    return torch.empty_like(logits_BV).scatter_(1, order_BV, ordered_BV)


def draw(scores_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens at which the cumulative probability exceeds `uniform`, and their logprobs. Equal to `drawn(softmax(scores))` up
    to rounding, but it adds up the probabilities of spans of tokens first, and then only those within a span."""
    span = math.gcd(scores_BV.shape[1], _SPAN)
    # Not `exp`, which takes ten times as long where it underflows, as nearly everywhere at a temperature of 0.
    shares_BSN = scores_BV.softmax(-1).unflatten(1, (-1, span))
    sums_BS = shares_BSN.sum(-1)
    spans_B = drawn(sums_BS, uniform_B)
    before_BS = sums_BS.double().cumsum(-1)
    total_B, rows_B = before_BS[:, -1], torch.arange(len(scores_BV), device=scores_BV.device)
    inside_BN = shares_BSN[rows_B, spans_B]
    missing_B = uniform_B * total_B - (before_BS - sums_BS)[rows_B, spans_B]
    within_B = drawn(inside_BN, (missing_B / sums_BS[rows_B, spans_B]).clamp_(0, 1))
    return spans_B * span + within_B, (inside_BN[rows_B, within_B].double() / total_B).log().float()


def drawn(probabilities_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The tokens at which the cumulative share of a sum exceeds `uniform`. Never a token with a share of 0."""
    summed_BV = probabilities_BV.double().cumsum(-1)
    ids_B = torch.searchsorted(summed_BV, uniform_B.unsqueeze(1) * summed_BV[:, -1:], right=True)[:, 0]
    last_B = probabilities_BV.shape[1] - 1 - (probabilities_BV > 0).int().flip(-1).argmax(-1)
    return torch.minimum(ids_B, last_B)  # the product may be rounded up to the total


def likeliest(logits_BV: torch.Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Ids and logprobs, most likely first, without tokens of probability 0."""
    values, ids = logits_BV.log_softmax(-1).topk(min(count, logits_BV.shape[1]))
    pairs = (zip(row, with_tops, strict=True) for row, with_tops in zip(ids.tolist(), values.tolist(), strict=True))
    return [[(token, logprob) for token, logprob in row if logprob > float("-inf")] for row in pairs]


def steers(sampling: Sampling) -> bool:
    """Whether a request needs steering."""
    return bool(sampling.logit_bias or sampling.min_p or _penalises(sampling) or sampling.top_logprobs) or sampling.seed is not None


def _penalises(sampling: Sampling) -> bool:
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)


@dataclass(slots=True)
class Steered:
    """One running request. Only the engine thread updates its counts. `tops` gets an entry before its token is delivered."""

    sampling: Sampling
    bias_V: torch.Tensor | None
    seen_V: torch.Tensor | None
    counts_V: torch.Tensor | None
    eos_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    failed: str | None = None  # why the grammar cannot continue
    position: int = 0  # number of tokens sampled so far
    tops: list[list[tuple[int, float]]] = field(default_factory=list)

    def mask(self) -> Bits | None:
        """The allowed tokens; None if any is allowed. If the grammar fails, the answer ends."""
        if self.grammar is None or self.failed is not None:
            return None
        try:
            return self.grammar.mask()
        except CannotFollow as problem:
            self.failed = str(problem)
            return None

    def record(self, token: int) -> None:
        self.position += 1
        if self.grammar is not None and self.failed is None:
            try:
                self.grammar.advance(token, token in self.eos_ids)
            except CannotFollow as problem:
                self.failed = str(problem)
        if self.seen_V is not None and self.counts_V is not None:
            self.seen_V[token] = True
            self.counts_V[token] += 1


class Steering:
    """The rows of the next step that belong to steered requests, for one engine.

    Tensors of floats name their dtype: the default one changes for all threads while transformers loads a model in one of them.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._requests: dict[str, Steered] = {}
        self._rows: list[tuple[int, Steered]] = []

    def register(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: Sampling,
        grammar: Grammar | None = None,
        eos_ids: frozenset[int] = frozenset(),
    ) -> Steered:
        penalises = _penalises(sampling)
        seen_V = torch.zeros(self._vocabulary, dtype=torch.bool) if penalises else None
        if seen_V is not None:
            seen_V[torch.tensor(prompt_ids)] = True
        counts_V = torch.zeros(self._vocabulary, dtype=torch.float32) if penalises else None
        bias_V = _bias(sampling.logit_bias, self._vocabulary)
        steered = self._requests[request_id] = Steered(sampling, bias_V, seen_V, counts_V, eos_ids, grammar)
        return steered

    def forget(self, request_id: str) -> None:
        steered = self._requests.pop(request_id, None)
        if steered is not None and steered.grammar is not None:
            steered.grammar.close()

    def begin(self, request_ids: list[str]) -> None:
        """Set the rows of the next step."""
        rows = ((row, self._requests.get(request_id)) for row, request_id in enumerate(request_ids))
        self._rows = [(row, steered) for row, steered in rows if steered is not None]

    @property
    def idle(self) -> bool:
        return not self._requests and not self._rows

    def adjusted(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """The logits after bias, penalties and grammar masks. Applied before the temperature."""
        for row, steered in self._rows:
            if steered.bias_V is not None:
                logits_BV[row] += steered.bias_V.to(logits_BV.device)
        some = [(row, steered) for row, steered in self._rows if steered.counts_V is not None]
        if some:
            rows, settings = [row for row, _ in some], [steered.sampling for _, steered in some]
            seen_BV = torch.stack([steered.seen_V for _, steered in some if steered.seen_V is not None])
            counts_BV = torch.stack([steered.counts_V for _, steered in some if steered.counts_V is not None])
            weights = torch.tensor(
                [[setting.repetition_penalty, setting.presence_penalty, setting.frequency_penalty] for setting in settings],
                dtype=torch.float32,
            )
            device = logits_BV.device
            logits_BV[rows] = penalised(logits_BV[rows], seen_BV.to(device), counts_BV.to(device), *weights.to(device).unbind(1))
        for row, steered in self._rows:
            if (mask := steered.mask()) is not None:
                bits_V = np.unpackbits(mask, count=self._vocabulary, bitorder="little")
                logits_BV[row].masked_fill_(torch.from_numpy(bits_V).to(logits_BV.device) == 0, float("-inf"))
        return logits_BV

    def with_min_p(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """The logits after min_p. Applied after the temperature."""
        some = [(row, steered.sampling.min_p) for row, steered in self._rows if steered.sampling.min_p]
        if some:
            rows = [row for row, _ in some]
            min_p_B = torch.tensor([min_p for _, min_p in some], dtype=torch.float32, device=logits_BV.device)
            logits_BV[rows] = above_min_p(logits_BV[rows], min_p_B)
        return logits_BV

    def sample(
        self, request_ids: list[str], settings: Sequence[Sampling], logits_BV: torch.Tensor
    ) -> tuple[list[int], list[float]]:
        """Draw a token for each request of a step. Returns their ids, and their logprobs under the distribution that they
        were drawn from. Overwrites the logits."""
        if not self.idle:
            self.begin(request_ids)
            logits_BV = self.adjusted(logits_BV)
        if any(setting.temperature != 1 for setting in settings):
            temperatures = [[max(setting.temperature, _COLDEST)] for setting in settings]
            logits_BV.div_(torch.tensor(temperatures, dtype=torch.float32, device=logits_BV.device))
        logits_BV = self.with_min_p(logits_BV)
        if any(setting.top_k or setting.top_p < 1 for setting in settings):
            logits_BV = truncated(logits_BV, [setting.top_k for setting in settings], [setting.top_p for setting in settings])
        ids_B, logprobs_B = self.choose(logits_BV)
        return ids_B.tolist(), logprobs_B.tolist()

    def choose(self, scores_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the tokens of the step, record them for their requests, and return them with their logprobs."""
        uniform_B = torch.rand(len(scores_BV), dtype=torch.float64)
        for row, steered in self._rows:
            if steered.sampling.seed is not None:
                uniform_B[row] = uniform(steered.sampling.seed, steered.position)
        ids_B, logprobs_B = draw(scores_BV, uniform_B.to(scores_BV.device))
        ids = ids_B.tolist() if self._rows else []
        with_tops = [(row, steered) for row, steered in self._rows if steered.sampling.top_logprobs]
        if with_tops:
            count = max(steered.sampling.top_logprobs for _, steered in with_tops)
            for (_, steered), top in zip(with_tops, likeliest(scores_BV[[row for row, _ in with_tops]], count), strict=True):
                steered.tops.append(top[: steered.sampling.top_logprobs])
        for row, steered in self._rows:
            steered.record(ids[row])
        return ids_B, logprobs_B


def _bias(logit_bias: Mapping[int, float], vocabulary: int) -> torch.Tensor | None:
    if not logit_bias:
        return None
    bias_V = torch.zeros(vocabulary, dtype=torch.float32)
    bias_V[torch.tensor(list(logit_bias))] = torch.tensor(list(logit_bias.values()), dtype=torch.float32)
    return bias_V
