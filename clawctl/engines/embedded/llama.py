"""Decoders of Llama's kind (Llama, Mistral, Qwen2, Qwen3), as functions over fused matrices instead of modules.

On a CPU everything is computed in float32. Transformers' `generate` takes 98 ms for a token of SmolLM2-135M, on a core that
multiplies its float32 matrices in 44 ms. Here a matrix is held in 16 bits if that loses nothing, which is so for models that were
published in 16 bits. One stream then reads half as many bytes. `kernels.py` multiplies matrices of bfloat16 numbers where it can.
FBGEMM multiplies others, 4 to 64 rows 1.4 to 4 times as fast as in float32.

On a GPU matrices and keys have the dtype of the weights. Norms, rotations and the sums between layers are float32.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from clawctl.engines.embedded.adapters import Adapted, Linear, Lot, Slots, joined, mixed
from clawctl.engines.embedded.kernels import PairedMatrix, can_pair, compiled

_KINDS = {"llama", "mistral", "qwen2", "qwen3"}
_ROPES = {"default", "linear", "llama3", "yarn"}  # their frequencies do not depend on the length of the sequence
_LOST = 2.0**-25  # largest error of a float16 below its normal range; it disappears in the rounding of a float32 sum
_LARGEST = float(torch.finfo(torch.float16).max)
_READERS = 2  # threads that read and pack matrices
# Products that FBGEMM adds up in one number. With more, rounding errors exceed those of other kernels. Those of the head are errors
# of logits, and those of `down` are the largest of a layer.
_SUMMED, _SUMMED_FINELY = 384, 192
_PACKED_INPUTS = 512  # FBGEMM keeps room for so many inputs of each part
_WIDENED = 1 << 20  # numbers of a matrix in place that are in float32 at once
_SCORED_ROWS = 64  # rows of logits that are in memory at once while ids are scored
Attend = Callable[[int, Tensor], Tensor]


def _fits_float16(weight_OI: Tensor) -> bool:
    """Whether float16 holds these numbers with errors of at most `_LOST`. Of 16 bits, only those beyond its range are lost."""
    if weight_OI.dtype in (torch.bfloat16, torch.float16):
        return bool(weight_OI.abs().max() <= _LARGEST)
    return bool((weight_OI.half() - weight_OI).abs_().max() <= _LOST)


class Matrix:
    """A linear layer: [T, I] to [T, O]."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, summed: int = _SUMMED) -> None:
        if weight_OI.device.type != "cpu":
            self._weight_OI, self._bias_O, self._packed = weight_OI, bias_O, list[Any]()
            return
        is_packed = "fbgemm" in torch.backends.quantized.supported_engines and _fits_float16(weight_OI)
        weight_OI = weight_OI.float()
        self._weight_OI, self._bias_O, self._packed = weight_OI, bias_O, list[Any]()
        parts = -(-weight_OI.shape[1] // summed)
        self._width = -(-weight_OI.shape[1] // parts)
        if is_packed:
            pack = torch.ops.quantized.linear_prepack_fp16
            self._packed = [
                pack(part.contiguous(), None if i else bias_O) for i, part in enumerate(weight_OI.split(self._width, 1))
            ]
            del self._weight_OI

    def __call__(self, rows_TI: Tensor) -> Tensor:
        if not self._packed:
            return linear(rows_TI.to(self._weight_OI.dtype), self._weight_OI, self._bias_O)
        parts = zip(rows_TI.split(self._width, 1), self._packed, strict=True)
        products: list[Tensor] = [torch.ops.quantized.linear_dynamic_fp16(rows, packed) for rows, packed in parts]
        for product in products[1:]:
            products[0].add_(product)
        return products[0]


def packed_bytes(name: str, outputs: int, inputs: int) -> int:
    """Memory of a packed matrix, by transformers' name."""
    summed = _SUMMED_FINELY if name.endswith(("down_proj", "lm_head")) else _SUMMED
    return 2 * outputs * _PACKED_INPUTS * -(-inputs // summed)


class MatrixInPlace:
    """A linear layer over weights [O, I] that stay as the model's files have them, so that other processes can compute on the same
    memory. On a CPU 16 bits are widened in pieces for each product. `order_O` sorts the outputs of all weights."""

    def __init__(self, weights: Sequence[Tensor], bias_O: Tensor | None = None, order_O: Tensor | None = None) -> None:
        is_cpu = weights[0].device.type == "cpu"
        self._pieces = [
            piece for weight in weights for piece in (weight.split(_WIDENED // weight.shape[1] or 1) if is_cpu else [weight])
        ]
        self._computed = torch.float32 if is_cpu else weights[0].dtype
        self._bias_O, self._order_O = bias_O, order_O

    def __call__(self, rows_TI: Tensor) -> Tensor:
        rows_TI = rows_TI.to(self._computed)
        products = [linear(rows_TI, piece.to(self._computed)) for piece in self._pieces]
        out_TO = products[0] if len(products) == 1 else torch.cat(products, 1)
        if self._order_O is not None:
            out_TO = out_TO.index_select(1, self._order_O)
        return out_TO if self._bias_O is None else out_TO.add_(self._bias_O)


class Layer(NamedTuple):
    input_norm: Tensor
    qkv: Linear
    head_norms: tuple[Tensor, Tensor] | None  # of queries and keys (Qwen3)
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


# The matrices of a layer, and the names of their parts in transformers' models.
_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def is_llama(config: Mapping[str, Any]) -> bool:
    """Whether `Llama` computes models with this config.json."""
    rope = _rope(config)
    return (
        config.get("model_type") in _KINDS
        and config.get("hidden_act", "silu") == "silu"
        and rope.get("rope_type", rope.get("type", "default")) in _ROPES
        and rope.get("partial_rotary_factor", 1) == config.get("partial_rotary_factor", 1) == 1
        and (config.get("sliding_window") is None or config.get("use_sliding_window") is False)
        and set(config.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and "quantization_config" not in config
    )


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _frequencies(config: Mapping[str, Any], width: int) -> tuple[Tensor, float]:
    """The angles per position, and the factor of queries and keys."""
    rope = _rope(config)
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        base = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
        return 1.0 / base ** (torch.arange(0, width, 2).float() / width), 1.0
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    full_config = AutoConfig.for_model(**config)
    frequencies_F, factor = ROPE_INIT_FUNCTIONS[full_config.rope_parameters["rope_type"]](full_config, torch.device("cpu"))
    return frequencies_F, factor


class Llama:
    """A model on the device of its weights. `tensors`: the weights by transformers' names. `adapters`: how many may be loaded at
    the same time and share products. `in_place`: keep no other form of the weights. Raises KeyError if one is missing."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], adapters: int = 0, in_place: bool = False) -> None:
        self.vocabulary, self.layer_count = int(config["vocab_size"]), int(config["num_hidden_layers"])
        self.in_place: dict[str, Tensor] = {}  # weights on a GPU that another process may compute with, by transformers' names
        self.loan: Any = None  # keeps them lent
        self._base: Llama | None = None
        self._slots = Slots(adapters)
        self.max_positions = int(config["max_position_embeddings"])
        self.heads = int(config["num_attention_heads"])
        self.groups = int(config.get("num_key_value_heads") or self.heads)
        self.width = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        self._eps = float(config.get("rms_norm_eps", 1e-6))
        self._embeddings_VD = tensors["model.embed_tokens.weight"]
        self.dtype, self.device = self._embeddings_VD.dtype, self._embeddings_VD.device  # of the weights
        self.computed = torch.float32 if self.device.type == "cpu" else self.dtype  # dtype of products, keys and values
        frequencies_F, self._factor = _frequencies(config, self.width)
        self._frequencies_F = frequencies_F.to(self.device)
        # Pairs that are rotated together lie side by side, so that a rotation is one complex product.
        self._pairs = torch.arange(self.width, device=self.device).view(2, -1).t().flatten()
        names = [part for parts in _PARTS.values() for part in parts]
        self._rows = {name: len(tensors[f"model.layers.0.{name}.weight"]) for name in names}
        self._norm_D = tensors["model.norm.weight"].float()
        self._multiply = compiled() if self.device.type == "cpu" and not in_place else None
        head_VD = self._embeddings_VD if config.get("tie_word_embeddings") else tensors["lm_head.weight"]
        with ThreadPoolExecutor(_READERS) as threads:
            head = threads.submit(self._matrix, head_VD, None, _SUMMED_FINELY, in_place)
            prefixes = [f"model.layers.{i}." for i in range(self.layer_count)]
            self._layers = list(threads.map(lambda prefix: self._layer(tensors, prefix, in_place), prefixes))
            self._head = head.result()
        if in_place and self.device.type != "cpu":
            self.in_place |= {"model.embed_tokens.weight": self._embeddings_VD}
            self.in_place |= {} if config.get("tie_word_embeddings") else {"lm_head.weight": head_VD}

    def _layer(self, tensors: Mapping[str, Tensor], prefix: str, in_place: bool) -> Layer:
        def matrix(field: str) -> Linear:
            parts = _PARTS[field]
            weights = [tensors[f"{prefix}{part}.weight"] for part in parts]
            biases = [
                self._paired(part, tensors[name].to(self.computed)) for part in parts if (name := f"{prefix}{part}.bias") in tensors
            ]
            bias_O = torch.cat(biases) if biases else None
            if in_place:
                lengths = list(map(len, weights))
                rows = torch.arange(sum(lengths), device=self.device).split(lengths)
                order_O = torch.cat([self._paired(part, rows_O) for part, rows_O in zip(parts, rows, strict=True)])
                if self.device.type != "cpu":  # one product for all parts, which are views of its matrix
                    joined_OI = torch.cat(weights) if len(weights) > 1 else weights[0]
                    views = zip(parts, joined_OI.split(lengths), strict=True)
                    self.in_place |= {f"{prefix}{part}.weight": view for part, view in views}
                    weights = [joined_OI]
                return MatrixInPlace(weights, bias_O, order_O if field == "qkv" else None)
            paired = [self._paired(part, weight) for part, weight in zip(parts, weights, strict=True)]
            return self._matrix(torch.cat(paired), bias_O, _SUMMED_FINELY if field == "down" else _SUMMED)

        names = [f"{prefix}self_attn.{head}_norm.weight" for head in "qk"]
        head_norms = [tensors[name].float()[self._pairs] for name in names if name in tensors]
        return Layer(
            tensors[f"{prefix}input_layernorm.weight"].float(),
            matrix("qkv"),
            (head_norms[0], head_norms[1]) if head_norms else None,
            matrix("output"),
            tensors[f"{prefix}post_attention_layernorm.weight"].float(),
            matrix("gate_up"),
            matrix("down"),
        )

    def _matrix(self, weight_OI: Tensor, bias_O: Tensor | None, summed: int, in_place: bool = False) -> Linear:
        if in_place:
            return MatrixInPlace([weight_OI], bias_O)
        if self._multiply is not None and can_pair(weight_OI):
            return PairedMatrix(self._multiply, weight_OI, bias_O)
        return Matrix(weight_OI, bias_O, summed)

    def _paired(self, part: str, rows: Tensor) -> Tensor:
        if not part.endswith(("q_proj", "k_proj")):
            return rows
        paired: Tensor = rows.unflatten(0, (-1, self.width))[:, self._pairs].flatten(0, 1)
        return paired

    def adapted(self, lora: Mapping[str, tuple[Tensor, Tensor]]) -> "Llama":
        """This model with an adapter; both share their matrices. `lora`: A [R, I] and scaled B [O, R] by the names of linear layers
        without `model.`. Raises KeyError if one is no layer of this model."""
        given, made = dict(lora), copy(self)
        made._base = self  # it is in memory anyway, so it can be shared again
        slot = self._slots.take(made)
        made._layers = [self._adapted_layer(i, layer, given, slot) for i, layer in enumerate(self._layers)]
        if given:
            raise KeyError(next(iter(given)))
        return made

    def _adapted_layer(self, i: int, layer: Layer, lora: dict[str, tuple[Tensor, Tensor]], slot: int | None) -> Layer:
        changed: dict[str, Any] = {}
        for field, parts in _PARTS.items():
            pairs = [lora.pop(f"layers.{i}.{part}", None) for part in parts]
            if any(pairs):
                ordered = [
                    pair and (pair[0], self._paired(part, pair[1].to(self.device))) for part, pair in zip(parts, pairs, strict=True)
                ]
                like = torch.empty(0, dtype=self.computed, device=self.device)
                adapter = joined(ordered, [self._rows[part] for part in parts], like)
                changed[field] = self._slots.adapted((i, field), slot, getattr(layer, field), adapter)
        return layer._replace(**changed)

    @property
    def base(self) -> "Llama":
        """The model whose matrices this one shares, or itself."""
        return self._base or self

    def with_rows(self, runs: Sequence[tuple["Llama", int, int]]) -> "Llama":
        """The base model for a step whose rows belong to several of its adapters: for each run of rows, the model, the first row
        and the one after the last."""
        lots: dict[Any, Lot | None] = {}

        def layer_with_rows(i: int, layer: Layer) -> Layer:
            changed: dict[str, Any] = {}
            for field in _PARTS:
                linears = [(start, stop, getattr(model._layers[i], field)) for model, start, stop in runs]
                adapted = [run for run in linears if isinstance(run[2], Adapted)]
                if adapted:
                    changed[field] = mixed(getattr(layer, field), adapted, self._slots.stacks.get((i, field)), lots)
            return layer._replace(**changed)

        made = copy(self.base)
        made._base = self.base
        made._layers = [layer_with_rows(i, layer) for i, layer in enumerate(self.base._layers)]
        return made

    def fits(self, other: "Llama") -> bool:
        """Whether both have the same shapes."""
        return (self.layer_count, self.vocabulary, self._rows) == (other.layer_count, other.vocabulary, other._rows)

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """The last states of T tokens of any sequences: [T, D]. `attend(layer, qkv_THD)` returns the mixed values of H heads, [T,
        H * D]; it gets the queries, keys and values of all heads one after another."""
        x_TD = embedding(ids_T, self._embeddings_VD).float()
        size, turned = x_TD.shape[-1:], self.heads + self.groups
        angles_TF = positions_T.float().unsqueeze(1) * self._frequencies_F
        turns_T1F = torch.polar(torch.full_like(angles_TF, self._factor), angles_TF).unsqueeze(1)  # complex64
        for i, layer in enumerate(self._layers):
            qkv_THD = layer.qkv(rms_norm(x_TD, size, layer.input_norm, self._eps)).float().unflatten(1, (-1, self.width))
            if layer.head_norms is not None:
                for heads, norm in ((slice(self.heads), 0), (slice(self.heads, turned), 1)):
                    qkv_THD[:, heads] = rms_norm(qkv_THD[:, heads], (self.width,), layer.head_norms[norm], self._eps)
            torch.view_as_complex(qkv_THD[:, :turned].unflatten(2, (-1, 2))).mul_(turns_T1F)
            x_TD = x_TD.add_(layer.output(attend(i, qkv_THD.to(self.computed))))
            gate_up_T2I = layer.gate_up(rms_norm(x_TD, size, layer.mlp_norm, self._eps))
            gate_TI, up_TI = gate_up_T2I.chunk(2, -1)
            x_TD = x_TD.add_(layer.down(silu(gate_TI).mul_(up_TI)))
        return x_TD

    def logits(self, states_ND: Tensor) -> Tensor:
        """The logits after these states: float32, [N, V]."""
        return self._head(rms_norm(states_ND, states_ND.shape[-1:], self._norm_D, self._eps)).float()

    @torch.inference_mode()
    def score(self, ids: Sequence[int], first: int = 1) -> list[float]:
        """Logprobs of `ids[first:]`, each given all preceding ids."""
        ids_T = torch.tensor(ids, device=self.device)

        def attend(_: int, qkv_THD: Tensor) -> Tensor:
            q, k, v = qkv_THD.transpose(0, 1).split((self.heads, self.groups, self.groups))
            return attention(q, k, v, causal=True)

        states_ND = self.forward(ids_T[:-1], torch.arange(len(ids) - 1, device=self.device), attend)[first - 1 :]
        scored: list[float] = []
        for states, targets in zip(states_ND.split(_SCORED_ROWS), ids_T[first:].split(_SCORED_ROWS), strict=True):
            logits = self.logits(states)
            chosen = logits.gather(1, targets.unsqueeze(1))[:, 0].double()
            scored += (chosen - logits.double().logsumexp(-1)).tolist()  # in float32 the sum of a large vocabulary is off by 1e-5
        return scored


def attention(q_HTD: Tensor, k_GKD: Tensor, v_GKD: Tensor, causal: bool, mask_TK: Tensor | None = None) -> Tensor:
    """The mixed values of one sequence: [T, H * D]. Heads that share a key head are not copied."""
    groups = len(k_GKD)
    q = q_HTD.unflatten(0, (groups, -1))  # [G, H / G, T, D]
    k, v = (part.unsqueeze(1).expand(-1, q.shape[1], -1, -1) for part in (k_GKD, v_GKD))
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask_TK, is_causal=causal)
    return mixed.flatten(0, 1).transpose(0, 1).flatten(1)
