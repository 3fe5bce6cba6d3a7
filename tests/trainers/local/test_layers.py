"""The layers that the trainer replaces: norms, linear layers with an adapter, and the last layer of a trie.

They are compared with numbers worked by hand and with the models' own layers.
"""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from clawctl.trainers.local.batches import make_microbatch
from clawctl.trainers.local.layers import LoraLinear, use_fast_norms, use_fused_lora
from clawctl.trainers.local.model import load_policy, load_reference
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trees import make_branch
from tests.train.tiny import make_recipe, make_tokenizer
from tests.trainers.local.test_tree_laws import CPU, check_same, policy_of


def is_ours(module: Any) -> bool:
    return "forward" in vars(module)


def test_a_norm_is_as_worked_by_hand() -> None:
    norm = LlamaRMSNorm(2, eps=0.5)
    norm.weight.data = torch.tensor([1.0, 2.0])
    use_fast_norms(norm)
    assert is_ours(norm)
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    y = norm(x)
    root = math.sqrt(13.0)  # (9 + 16) / 2 + 0.5
    torch.testing.assert_close(y, torch.tensor([[3 / root, 8 / root]]))
    y[0, 0].backward()
    # of x0 / root: 1 / root - x0 x / (2 root³); the weight's is x0 / root
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([[1 / root - 9 / (2 * root**3), -12 / (2 * root**3)]]))
    torch.testing.assert_close(norm.weight.grad, torch.tensor([3 / root, 0.0]))


@pytest.mark.parametrize("made", [LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize(("types", "tolerance"), [((torch.float32, torch.float32), 1e-5), ((torch.bfloat16, torch.float32), 0.02),
                                                  ((torch.bfloat16, torch.bfloat16), 0.02)])  # fmt: skip
def test_the_fast_norms_equal_the_models_own_in_every_type(
    made: Any, types: tuple[torch.dtype, torch.dtype], tolerance: float
) -> None:
    torch.manual_seed(0)
    theirs = made(16, eps=1e-6).to(types[1])
    theirs.weight.data.uniform_(0.5, 1.5)
    ours = copy.deepcopy(theirs)
    use_fast_norms(ours)
    assert is_ours(ours)
    x = torch.randn(1, 5, 3, 16, dtype=types[0], requires_grad=True)
    wanted = torch.randn(1, 5, 3, 16)
    results = []
    for norm in (theirs, ours):
        y = norm(x)
        results.append((y, *torch.autograd.grad((y.float() * wanted).sum(), (x, norm.weight))))
    for mine, expected in zip(results[1], results[0], strict=True):
        assert mine.dtype == expected.dtype
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


def test_a_frozen_weight_gets_no_gradient_and_passes_the_incoming_one_on() -> None:
    norm = Qwen3RMSNorm(4).requires_grad_(False)
    use_fast_norms(norm)
    x = torch.randn(3, 4, requires_grad=True)
    norm(x).sum().backward()
    assert norm.weight.grad is None
    assert x.grad is not None


def test_norms_that_compute_something_else_stay_as_they_are() -> None:
    class OddRMSNorm(LlamaRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    odd = nn.ModuleList([GemmaRMSNorm(4), OddRMSNorm(4), nn.RMSNorm(4), nn.LayerNorm(4)])
    use_fast_norms(odd)
    assert not any(is_ours(norm) for norm in odd)


def test_the_gradients_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    x, a, b = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 5), (2, 5), (4, 2)))
    weight, bias = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(LoraLinear.apply(x, weight, bias, a, b, 0.7), x @ weight.T + bias + 0.7 * (x @ a.T) @ b.T)
    assert torch.autograd.gradcheck(lambda x, a, b: LoraLinear.apply(x, weight, bias, a, b, 0.7), (x, a, b))


def test_layers_compute_what_peft_computes_under_autocast() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    plain: Any = inject_adapter_in_model(
        LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False), nn.Sequential(nn.Linear(32, 48).bfloat16())
    )
    for parameter in (plain[0].lora_A["default"].weight, plain[0].lora_B["default"].weight):
        parameter.data = parameter.data.float()  # as in `get_peft_model`
    fused: Any = copy.deepcopy(plain)
    use_fused_lora(fused)
    x = torch.randn(7, 32).bfloat16()
    results = []
    for model in (plain, fused):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()
        results.append((y.float(), [p.grad for p in model.parameters() if p.grad is not None]))
    (y, gradients), (fused_y, fused_gradients) = results
    torch.testing.assert_close(fused_y, y, rtol=2e-2, atol=2e-2)
    assert [gradient.dtype for gradient in fused_gradients] == [torch.float32] * 2
    for gradient, other in zip(fused_gradients, gradients, strict=True):
        assert (gradient - other).norm() < 0.02 * other.norm()


def test_float32_layers_differ_from_peft_by_rounding_and_with_the_adapter_off_they_are_peft_s_own() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    plain: Any = inject_adapter_in_model(
        LoraConfig(r=4, target_modules=["0"], init_lora_weights=False), nn.Sequential(nn.Linear(8, 8))
    )
    model: Any = copy.deepcopy(plain)
    use_fused_lora(model)
    x = torch.randn(3, 8)
    results = []
    for layers in (plain, model):
        y = layers(x)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in layers.parameters() if p.grad is not None)])
    assert len(results[0]) == 3
    torch.testing.assert_close(results[1], results[0])
    model[0].enable_adapters(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x), model[0].base_layer(x))


TURNS = [
    make_branch([5, 6, 7, 8], [9, 10], 1.0),
    make_branch([5, 6, 7, 8], [9, 10], 0.7),  # the same tokens asked twice
    make_branch([5, 6, 7, 8, 9, 10, 3], [4, 4, 5], 1.3),
    make_branch([5, 6, 2], [7], 1.0),
]
TOKENS, ASKED = 4 + 2 + 1 + 3 + 2, [3, 4, 6, 7, 8, 10]  # 5 6 7 8 | 9 10 | 3 | 4 4 5, and behind 5 6: 2 | 7


def tiny(folder: Path, family: str) -> Path:
    """Random weights of one architecture."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256, initializer_range=0.2, sliding_window=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"])
def test_the_last_layer_computes_only_requested_tokens_if_that_is_known_to_be_exact(tmp_path: Path, family: str) -> None:
    policy = policy_of(tiny(tmp_path, family))
    assert policy.merge == "tree"
    assert check_same(policy, TURNS, "tree") == TOKENS
    batch = make_microbatch(TURNS, "tree", CPU)
    assert batch.visible is not None
    assert batch.visible.queries_M.tolist() == ASKED
    seen = policy.causal.model(input_ids=batch.ids_BT, position_ids=batch.positions_BT, tree=batch.visible, use_cache=False)
    assert seen.last_hidden_state.shape[:2] == (1, TOKENS if family == "olmo2" else len(ASKED))  # olmo2 norms behind, not before


@pytest.mark.parametrize("merge", ["tree", "none"])
def test_version_0_beside_the_policy_goes_the_same_way_and_makes_the_same_states(tmp_path: Path, merge: str) -> None:
    recipe = make_recipe(tiny(tmp_path, "qwen3"), merge=merge)
    ranks = Ranks(0, 1, CPU)
    policy = load_policy(recipe, ranks)
    reference = load_reference(recipe, policy, ranks)
    batch = make_microbatch(TURNS, policy.merge, CPU)
    with torch.no_grad():
        torch.testing.assert_close(policy.hidden(batch, reference), policy.hidden(batch), atol=0, rtol=0)
        policy.causal.model.embed_tokens.weight.add_(1)
        assert not torch.equal(policy.hidden(batch, reference), policy.hidden(batch))
    ours, its = (
        {name for name, module in causal.named_modules() if "forward" in vars(module)} for causal in (policy.causal, reference)
    )
    assert ours == its
    assert "model.norm" in its
    assert ("model.layers.1" in its) == (merge == "tree")
