"""The last layer of a trie, reduced to the tokens whose states are needed, because no later layer attends to the others."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from clawctl.trainers.local.attention import Visible
from clawctl.trainers.local.sharding import layers_of

# Blocks that compute exactly x + attention(norm(x)), then x + mlp(norm(x)).
KNOWN = {f"{family}DecoderLayer" for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")}


def keep_asked_states(causal: Any) -> None:
    """Patch the model so that its last states for a tree are only those of `tree.asked_M`. Models with unknown blocks stay
    unchanged."""
    last = layers_of(causal)[-1]
    if type(last).__name__ in KNOWN:
        last.forward = functools.partial(_forward, last, last.forward)


def _forward(
    layer: Any, whole: Callable[..., Tensor], hidden_BTD: Tensor, *, tree: Visible | None = None, **settings: Any
) -> Tensor:
    if tree is None:
        return whole(hidden_BTD, **settings)
    attended_BTD, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_BTD), tree=tree, **settings)
    hidden_BMD = (hidden_BTD + attended_BTD).index_select(1, tree.queries_M)
    made: Tensor = hidden_BMD + layer.mlp(layer.post_attention_layernorm(hidden_BMD))
    return made
