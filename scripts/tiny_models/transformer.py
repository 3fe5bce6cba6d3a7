"""The Qwen3 architecture for training on a CPU: packed rows, a document mask, and logits only at positions with a loss.

Parameter names are those of `Qwen3ForCausalLM`, so that transformers and vLLM can load `state_dict()`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the model; `config_json` turns it into a transformers configuration."""

    vocab: int = 2048
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 768
    rope_theta: float = 10000.0
    context: int = 65536


class Norm(nn.Module):
    """RMSNorm in float32."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-6) * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves convention. x [B, H, T, D]; cos, sin [B, 1, T, D/2]."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm, self.k_norm = Norm(s.head_dim), Norm(s.head_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        rows, length, _ = x.shape
        s = self.s
        q = self.q_norm(self.q_proj(x).view(rows, length, s.heads, s.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(rows, length, s.kv_heads, s.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, s.kv_heads, s.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))
        return out


class Mlp(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.mlp, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.mlp, bias=False)
        self.down_proj = nn.Linear(s.mlp, s.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden), Norm(s.hidden)
        self.self_attn, self.mlp = Attention(s), Mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = Norm(s.hidden)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states [B, T, hidden] of ids [B, T] at positions [B, T]; mask [B, 1, T, T] is True where attention is allowed."""
        half = self.s.head_dim // 2
        speed = self.s.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = positions[:, None, :, None].float() * speed
        cos, sin = angle.cos(), angle.sin()
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        out: Tensor = self.norm(x)
        return out


class Transformer(nn.Module):
    """`model.*` as in Qwen3ForCausalLM; the output head is the embedding (tied)."""

    def __init__(self, s: Shape):
        super().__init__()
        self.model = Body(s)
        for name, weight in self.named_parameters():
            _initialise(name, weight)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)


def _initialise(name: str, weight: Tensor) -> None:
    """Initialise small embeddings, unit-scale inputs, and blocks that start as the identity. Norm weights stay 1."""
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        nn.init.zeros_(weight)
    elif "embed" in name:
        nn.init.normal_(weight, std=0.02)
    elif weight.ndim == 2:
        nn.init.normal_(weight, std=0.8 * weight.shape[1] ** -0.5)


def config_json(s: Shape, eos: int, pad: int) -> dict[str, object]:
    """Return the config.json for transformers and vLLM."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "hidden_size": s.hidden,
        "initializer_range": 0.02,
        "intermediate_size": s.mlp,
        "max_position_embeddings": s.context,
        "max_window_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_hidden_layers": s.layers,
        "num_key_value_heads": s.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": s.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": s.vocab,
    }
