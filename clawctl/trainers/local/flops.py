"""The floating-point operations of a step, and the device's peak in the same time (MFU).

Counts the model's matrix products as in appendix B of PaLM (arXiv 2204.02311): two operations per weight and token forward, four
more backward. Attention counts the pairs of tokens where one sees the other, and the head the scored tokens. The recomputation of
gradient checkpointing does not count, because it is not progress.

`torch.utils.flop_counter.FlopCounterMode` is no replacement: it counts recomputation and masked pairs too (2 % more in a step of
a model with 5 M weights), and its dispatch takes as long as a small step itself (0.61 s without it, 1.34 s with it).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from clawctl.train.measures import Measures
from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.trees import Branch

# Dense bfloat16 teraflops by the name that CUDA reports (vendors' data sheets, without sparsity).
PEAK_TFLOPS = {
    "B200": 2250.0, "H200": 989.4, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.4, "A100": 312.0, "L40S": 362.0, "L40": 181.0,
    "A40": 149.7, "A10G": 70.0, "A10": 125.0, "L4": 121.0, "RTX 5090": 209.5, "RTX 4090": 165.2, "RTX 3090": 71.0, "T4": 65.0,
}  # fmt: skip

SIDE = 768  # side of the square matrices that measure a CPU's speed: a few hundredths of a second


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one architecture."""

    frozen_weights: int  # weights of matrices in layers that are not trained
    trained_weights: int  # weights of matrices that are trained
    head_weights: int
    head_learns: bool
    attention: int  # layers * heads * head size

    def forward(self, tokens: int, pairs: int, scored: int) -> float:
        """Operations of a forward pass. `pairs`: pairs of tokens where one sees the other. `scored`: tokens whose logprob is
        computed."""
        layers = 2.0 * (self.frozen_weights + self.trained_weights) * tokens
        return layers + 2.0 * self.head_weights * scored + 4.0 * self.attention * pairs

    def forward_backward(self, tokens: int, pairs: int, scored: int) -> float:
        """Operations of a forward and a backward pass. Backward costs as much as forward for the gradients of activations, and the
        same again for those of trained weights. Attention needs twice its forward operations in backward, because both operands are
        activations."""
        of_weights = 2.0 * self.trained_weights * tokens + (2.0 * self.head_weights * scored if self.head_learns else 0.0)
        return 2 * self.forward(tokens, pairs, scored) + of_weights + 4.0 * self.attention * pairs


def cost_of(causal: Any) -> Cost | None:
    """The cost of a model; None for a mixture of experts, because the number of weights does not show how many are active per
    token."""
    config = causal.config.get_text_config()
    if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        return None
    head = causal.get_output_embeddings()
    weights = {True: 0, False: 0}
    for module in causal.modules():
        if isinstance(module, nn.Linear) and module is not head:
            weights[module.weight.requires_grad] += module.weight.numel()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = int(config.num_hidden_layers) * heads * size
    return Cost(weights[False], weights[True], head.weight.numel(), bool(head.weight.requires_grad), attention)


def count_pass(
    measures: Measures, cost: Cost | None, batch: Microbatch, branches: Sequence[Branch], backward: bool = False
) -> None:
    """Count the computation of a pass."""
    measures.computed_tokens += batch.tokens
    measures.sequence_tokens += sum(len(branch.ids) for branch in branches)
    if cost is not None:
        count = cost.forward_backward if backward else cost.forward
        measures.flops += count(batch.tokens, pairs_of(batch, branches), len(batch.targets_N))


def pairs_of(batch: Microbatch, branches: Sequence[Branch]) -> int:
    """Number of token pairs where one sees the other: each token sees itself and all its ancestors."""
    if batch.positions_BT is not None:
        return int(batch.positions_BT.sum()) + batch.positions_BT.numel()
    return sum(len(branch.ids) * (len(branch.ids) + 1) // 2 for branch in branches)


def peak_flops(device_name: str | None, tflops: float | None) -> float | None:
    """Peak operations per second of a device: from the recipe, else from a table of known GPUs. None if unknown."""
    if tflops is not None:
        return tflops * 1e12
    result = next((peak for name, peak in PEAK_TFLOPS.items() if device_name and name in device_name), None)
    return result and result * 1e12


def measured_flops(dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product on this CPU, with PyTorch's threads: the best of three."""
    left, right = (torch.ones(SIDE, SIDE, dtype=dtype) for _ in range(2))
    best = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - begin)
    return 2.0 * SIDE**3 / best
