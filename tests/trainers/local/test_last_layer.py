"""The last layer computes requested tokens only, in every architecture that allows it, without changing a number."""

from pathlib import Path

import pytest
import torch

from clawctl.trainers.local.batches import make_microbatch
from clawctl.trainers.local.model import load_policy, load_reference
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trees import make_branch
from tests.train.tiny import make_recipe, make_tokenizer
from tests.trainers.local.test_tree_laws import CPU, check_same, policy_of

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
    own, its = (
        {name for name, module in causal.named_modules() if "forward" in vars(module)} for causal in (policy.causal, reference)
    )
    assert own == its
    assert "model.norm" in its
    assert ("model.layers.1" in its) == (merge == "tree")
