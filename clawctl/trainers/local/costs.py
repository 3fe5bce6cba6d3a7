"""What training costs: the operations of a step, and the memory, which is estimated before anything is loaded.

`Cost` counts the model's matrix products as in appendix B of PaLM (arXiv 2204.02311): two operations per weight and token forward,
four more backward. Attention counts the pairs of tokens where one sees the other, and the head the scored tokens. The recomputation
of gradient checkpointing does not count, because it is not progress. Divided by the device's peak, this is MFU.

`torch.utils.flop_counter.FlopCounterMode` is no replacement: it counts recomputation and masked pairs too (2 % more in a step of
a model with 5 M weights), and its dispatch takes as long as a small step itself (0.61 s without it, 1.34 s with it).

`estimate` adds the bytes on the fullest device. P: all weights. T: the trained weights. E: bytes of a number in
the forward pass (4, or 2 in bfloat16). R: the number of ranks if weights are sharded, else 1.

    weights      all trained: 4 P / R, and E P more for bfloat16 copies during a pass (not if sharded)
                 adapter: E P / R + 4 T / R; quantised 1 or 0.55 instead of E, except outside of blocks and in experts
                 sharded: two gathered layers and everything outside of layers, in E; with offload nothing else
    gradients    4 T / R; twice that if several ranks each have all of them; none with offload
    optimizer    8 T / R; none with offload
    activations  for each token of a microbatch KEPT E times the inputs and outputs of the linear layers of all blocks and of the
                 experts that compute it;
                 with checkpointing only of the widest block, once more for its gradients, and the input of each block
    logits       the current piece, twice; 4 bytes for each weight of a trained head, whose gradient is accumulated;
                 with a custom loss those of all tokens, six times, and once more for version 0's
    teacher      version 0 as a second model: 4 P / R; an average: 4 T

KEPT is measured: transformers' norms, rotations and activations keep additional copies, fewer of them if linear layers add their
adapter in place (layers.use_fused_lora; on an H200, 4B at 8,000 and 16,000 tokens). Not counted: the attention weights of
tries that the CPU keeps, at most attention.KEPT_BYTES per layer.
"""

import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.train.measures import Measures
from clawctl.trainers.local.batches import Microbatch
from clawctl.trainers.local.head import LOGITS_AT_ONCE
from clawctl.trainers.local.ranks import layers_of
from clawctl.trainers.local.trees import Branch
from clawctl.vision.tower import language_of

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


def experts_of(module: nn.Module) -> list[nn.Parameter]:
    """The weights of experts: [experts, outputs, inputs]. Transformers keeps those of a layer in one tensor, which is no linear
    layer: no adapter trains it, and bitsandbytes does not quantise it."""
    return [weight for name, weight in module.named_parameters() if "experts." in name and weight.ndim == 3]


def _active_share(causal: Any, experts: Sequence[nn.Parameter]) -> float:
    """The share of the experts that compute a token."""
    config = causal.config.get_text_config()
    chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_topk", None)
    return min(1.0, chosen / len(experts[0])) if experts and chosen else 1.0


def cost_of(causal: Any) -> Cost:
    """The cost of a model. Of a mixture of experts, those that are active for a token count."""
    config = causal.config.get_text_config()
    head, experts = causal.get_output_embeddings(), experts_of(causal)
    weights = {True: 0, False: 0}
    for module in causal.modules():
        if isinstance(module, nn.Linear) and module is not head:
            weights[module.weight.requires_grad] += module.weight.numel()
    for weight in experts:
        weights[weight.requires_grad] += int(_active_share(causal, experts) * weight.numel())
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


KEPT, KEPT_FUSED = 1.5, 1.25
OWN_LOGITS = 6  # measured with a custom loss that takes one log-softmax: its logits, their log-softmax twice, gradients
QUANTISED = {None: None, "int8": 1.0, "nf4": 0.55}  # bytes per weight, including scales


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of an architecture that determine memory, with or without an adapter."""

    weights: int  # without the adapter's
    trained: int
    block_weights: int  # of the largest block
    outer_weights: int  # outside of blocks: embeddings, head, last norm
    blocks: int
    hidden: int
    vocabulary: int
    width: int  # input and output features of the linear layers of all blocks, and of the experts that are active for a token
    block_width: int  # of the widest block
    cost: Cost
    experts: int = 0  # weights of experts


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the fullest device."""

    weights: int
    gradients: int
    optimizer: int
    teacher: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def certain(self) -> int:
        """The part that a smaller microbatch cannot reduce."""
        return self.weights + self.gradients + self.optimizer + self.teacher


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a model over devices."""

    ranks: int
    sharded: bool
    offload: bool  # move the kept part to host memory


def shape_of(causal: Any, config: TrainConfig) -> Shape:
    """The shape of a model without storage (device meta), as `config` trains it. Raises ClawError (exit code 2) if no layer
    gets an adapter."""
    blocks, head = layers_of(language_of(causal)), causal.get_output_embeddings()
    linear = {module: name for name, module in causal.named_modules() if isinstance(module, nn.Linear) and module is not head}
    experts = experts_of(causal)
    active = _active_share(causal, experts)
    matrices = sum(module.weight.numel() for module in linear) + int(active * sum(weight.numel() for weight in experts))
    lora = config.lora
    weights = sum(parameter.numel() for parameter in causal.parameters())
    if lora is None:
        trained = weights
    else:
        meant = [m for m, name in linear.items() if lora.targets == "all-linear" or name.rpartition(".")[2] in lora.targets]
        if not meant:
            names = sorted({name.rpartition(".")[2] for name in linear.values()})
            raise ClawError("train.lora.targets names no linear layer of this model", f"choose from {', '.join(names)}", 2)
        trained = lora.rank * sum(module.in_features + module.out_features for module in meant)
    widths = [
        sum(m.in_features + m.out_features for m in block.modules() if isinstance(m, nn.Linear))
        + round(active * sum(len(weight) * sum(weight.shape[1:]) for weight in experts_of(block)))
        for block in blocks
    ]
    block_weights = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    text = causal.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * len(blocks)
    attention = kinds.count("full_attention") * text.num_attention_heads * size
    frozen, learning = (0, matrices) if lora is None else (matrices, trained)
    cost = Cost(frozen, learning, head.weight.numel(), lora is None, attention)
    return Shape(
        weights, trained, max(block_weights), weights - sum(block_weights), len(blocks), text.hidden_size,
        head.weight.shape[0], sum(widths), max(widths), cost,
        sum(weight.numel() for weight in experts),
    )  # fmt: skip


def estimate(shape: Shape, config: TrainConfig, spread: Spread) -> MemoryEstimate:
    """The estimate according to the table in this module's docstring."""
    e = 2 if config.local.dtype == "bfloat16" else 4
    parts = spread.ranks if spread.sharded else 1
    kept = 0 if spread.offload else 1
    learns = config.lora is None
    kept_here = _kept_weights(shape, config, e) / parts
    if spread.sharded:
        weights = kept * kept_here + e * (2 * shape.block_weights + shape.outer_weights)
    else:
        weights = kept_here + (e * shape.trained if e < 4 else 0)
    gradients = kept * 4 * shape.trained / parts
    if spread.ranks > 1 and not spread.sharded:
        gradients *= 2
    if spread.sharded and learns:
        gradients += 4 * (shape.block_weights + shape.outer_weights)
    return MemoryEstimate(
        weights=int(weights),
        gradients=int(gradients),
        optimizer=int(kept * 8 * shape.trained / parts),
        teacher=_teacher(shape, config, parts, kept),
        activations=_activations(shape, config, e),
        logits=_logits(shape, config),
    )


def _kept_weights(shape: Shape, config: TrainConfig, e: int) -> float:
    """Bytes of the weights of a model and its adapter. Weights outside of blocks and experts are not quantised."""
    if config.lora is None:
        return 4.0 * shape.weights
    in_blocks = QUANTISED[config.lora.quantize] or e
    whole = shape.outer_weights + shape.experts
    return in_blocks * (shape.weights - whole) + e * whole + 4 * shape.trained


def _teacher(shape: Shape, config: TrainConfig, parts: int, kept: int) -> int:
    if config.needs_second_model:
        return kept * 4 * shape.weights // parts
    return 4 * shape.trained if config.teacher == "ema" and config.uses_hints else 0


def _activations(shape: Shape, config: TrainConfig, e: int) -> int:
    share = config.local.gradient_checkpointing
    fused = config.lora is not None and config.lora.quantize is None and config.local.dtype == "bfloat16"
    kept = (1 - share) * (KEPT_FUSED if fused else KEPT) * shape.width
    again = 2 * KEPT * shape.block_width if share else 0  # what is kept is used up before layers are computed again
    a_token = e * max(kept, again) + share * 4 * shape.hidden * shape.blocks
    return int(config.local.tokens_per_microbatch * a_token)


def _logits(shape: Shape, config: TrainConfig) -> int:
    whole = config.local.tokens_per_microbatch * shape.vocabulary
    copies, alive = 2, min(LOGITS_AT_ONCE, whole)
    if config.custom_loss is not None:
        copies, alive = OWN_LOGITS + 1, whole
    return copies * 4 * alive + (4 * shape.vocabulary * shape.hidden if config.lora is None else 0)


def seconds_a_microbatch(shape: Shape, config: TrainConfig, flops_a_second: float) -> float:
    """An upper bound in seconds: all tokens of a full microbatch in one sequence, all of them scored."""
    tokens = config.local.tokens_per_microbatch
    work = shape.cost.forward_backward(tokens, tokens * (tokens + 1) // 2, tokens)
    work += config.local.gradient_checkpointing * shape.cost.forward(tokens, tokens * (tokens + 1) // 2, 0)
    return work / flops_a_second


def peak_memory(device: torch.device) -> int:
    """Peak bytes: of tensors on a GPU since the process started, elsewhere of the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
