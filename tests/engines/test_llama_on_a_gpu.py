"""The embedded model computes on the device of its weights. Tensors without data stand for those of a GPU."""

import pytest
import torch
from torch import Tensor

from clawctl.engines.embedded.blocks import KvBlock, attend, prompt_part
from clawctl.engines.embedded.frames import Sampling
from clawctl.engines.embedded.llama import Llama
from clawctl.engines.embedded.steering import Steering, draw, truncated

DEVICE = "meta"
CONFIG = {
    "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
EACH_LAYER = {
    "input_layernorm": (64,), "post_attention_layernorm": (64,), "self_attn.q_norm": (16,), "self_attn.k_norm": (16,),
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
}  # fmt: skip
ADAPTED = {"layers.0.self_attn.q_proj": (64, 64), "layers.1.mlp.down_proj": (64, 96)}


def weights(device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in EACH_LAYER.items()}
    shapes |= {"embed_tokens": (512, 64), "norm": (64,)}
    return {f"model.{name}.weight": torch.randn(shape, device=device).mul_(0.1).to(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("in_place", [False, True])
def test_a_step_mixes_no_devices(in_place: bool) -> None:
    model = Llama(CONFIG, weights(DEVICE, torch.bfloat16), in_place=in_place)
    lora = {name: (torch.zeros(4, inner), torch.zeros(outer, 4)) for name, (outer, inner) in ADAPTED.items()}  # read from a file
    for version in (model, model.adapted(lora)):
        parts, block = list[object](), KvBlock(version, 4, 128)
        assert {(kv.device.type, kv.dtype) for kv in block.kv} == {(DEVICE, torch.bfloat16)}
        ids_T, positions_T = torch.tensor([[1, 2, 3], [4, 5, 6]]).to(DEVICE)
        part = prompt_part(version, _holding(block, 4), 0, 3)
        parts.append(part)
        states_TD = version.forward(ids_T, positions_T, attend(version, [part]))
        logits_NV = version.logits(states_TD[-1:])
        assert (logits_NV.device.type, logits_NV.dtype) == (DEVICE, torch.float32)
        uniform_B = torch.rand(1, dtype=torch.float64, device=DEVICE)
        draw(truncated(logits_NV, [5], [0.9]), uniform_B)


def test_weights_that_another_process_may_use_are_parts_of_the_matrices_that_the_model_computes_with() -> None:
    model = Llama(CONFIG, weights(DEVICE, torch.bfloat16), in_place=True)
    assert {name for name in weights(DEVICE, torch.bfloat16) if not name.endswith("norm.weight")} == model.in_place.keys()
    for i, layer in enumerate(model._layers):
        for matrix, parts in (
            (layer.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            (layer.down, ("mlp.down_proj",)),
        ):
            [joined] = matrix._pieces  # type: ignore[attr-defined]
            views = [model.in_place[f"model.layers.{i}.{part}.weight"] for part in parts]
            assert sum(len(view) for view in views) == len(joined)
            assert all(view is joined or view._base is joined for view in views)
    assert Llama(CONFIG, weights("cpu", torch.bfloat16), in_place=True).in_place == {}  # there the files are shared


def test_settings_of_a_request_mix_no_devices() -> None:
    sampling = Sampling(0.7, 0.9, 5, 8, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5)
    steering = Steering(512)
    steering.register("a", [1, 2], sampling)
    steering.begin(["a"])
    logits_BV = torch.zeros(1, 512, device=DEVICE)
    assert steering.with_min_p(steering.adjusted(logits_BV)).device.type == DEVICE


class _Row:
    """What a part needs to know of a request."""

    def __init__(self, cached: int) -> None:
        self.cached = cached


def _holding(block: KvBlock, cached: int) -> KvBlock:
    block.requests.append(_Row(cached))  # type: ignore[arg-type]
    return block
