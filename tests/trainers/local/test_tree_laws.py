"""Merging changes nothing: logprobs, losses and gradients equal those of one sequence per turn, up to float32 rounding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clawctl.trainers.local.batches import Merge, make_microbatch, share_out
from clawctl.trainers.local.model import PolicyModel, load_policy
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trees import Branch, make_branch
from tests.named_models import TEXT_MODEL
from tests.train.tiny import make_recipe, make_tokenizer
from tests.trainers.local.test_trees import branches

CPU = torch.device("cpu")
RECORDINGS = Path(__file__).parents[2] / "recordings"
CLIENTS = ["langchain", "mini-swe-agent", "openclaw-compaction", "openclaw-local-default"]
ROUNDING = 8 * torch.finfo(torch.float32).eps
LORA: dict[str, Any] = {"rank": 4}


def policy_of(path: Path, lora: dict[str, Any] | None = None, **train: Any) -> PolicyModel:
    policy = load_policy(make_recipe(path, lora=lora, **train), Ranks(0, 1, CPU))
    torch.manual_seed(1)
    for name, parameter in policy.module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)  # at its first value, zero, an adapter does nothing and its A learns nothing
    return policy


def computed(
    policy: PolicyModel, branches: list[Branch], merge: Merge, tokens: int = 10_000
) -> tuple[Tensor, dict[str, Tensor], int]:
    """Logprobs branch by branch, the gradient of a weighted sum of them, and how many tokens that took."""
    policy.module.zero_grad()
    logprobs: dict[int, Tensor] = {}
    count = 0
    for group in share_out(branches, merge, tokens).groups:
        batch = make_microbatch([branches[index] for index in group], merge, CPU)
        pieces = policy.logprobs(batch).split(batch.lengths)
        loss = sum(
            (piece * torch.linspace(-1, 2, len(piece)) * (1 + index)).sum() for index, piece in zip(group, pieces, strict=True)
        )
        assert isinstance(loss, Tensor)
        loss.backward()
        logprobs.update({index: piece.detach() for index, piece in zip(group, pieces, strict=True)})
        count += batch.tokens
    gradients = {name: p.grad.clone() for name, p in policy.trained() if p.grad is not None}
    assert gradients.keys() == {name for name, _ in policy.trained()}
    return torch.cat([logprobs[index] for index in range(len(branches))]), gradients, count


def check_same(policy: PolicyModel, branches: list[Branch], merge: Merge, tokens: int = 10_000) -> int:
    """The law; returns how many tokens were computed."""
    expected, expected_gradients, _ = computed(policy, branches, "none")
    logprobs, gradients, count = computed(policy, branches, merge, tokens)
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=2e-5)
    # A gradient that cancels to zero, such as a query's where all keys are equal, has the rounding of the larger numbers it was
    # computed from. So rounding is bounded by the largest gradient of the whole model.
    rounding = ROUNDING * max(float(gradient.abs().max()) for gradient in expected_gradients.values())
    for name, gradient in gradients.items():
        size = float(expected_gradients[name].abs().max())
        torch.testing.assert_close(gradient, expected_gradients[name], atol=rounding + 2e-5 * size, rtol=1e-4)
    return count


@pytest.fixture(scope="module", params=[None, LORA], ids=["full", "lora"])
def policy(request: pytest.FixtureRequest, model_path: Path) -> PolicyModel:
    return policy_of(model_path, request.param)


CANCELS = [Branch(np.array(ids), 1, 0.5) for ids in ([1, 0], [0, 0], [1, 1, 1])]  # a query's gradient comes to zero


@settings(max_examples=25, deadline=None)
@example(branches=CANCELS, tokens=10_000)
@example(branches=CANCELS, tokens=12)
@given(branches=branches(), tokens=st.sampled_from([10_000, 12]))
def test_random_tries_compute_the_same_as_their_sequences(policy: PolicyModel, branches: list[Branch], tokens: int) -> None:
    check_same(policy, branches, "tree", tokens)
    check_same(policy, branches, "prefix", tokens)


def test_tries_of_several_blocks_compute_the_same_as_their_sequences(policy: PolicyModel) -> None:
    generator = torch.Generator().manual_seed(0)

    def some(count: int) -> list[int]:
        return torch.randint(3, 300, (count,), generator=generator).tolist()

    stem = some(300)
    long = [make_branch(stem[:cut], some(150), 0.7) for cut in (40, 130, 300)] + [make_branch(stem + some(3), some(5), 1.3)]
    assert check_same(policy, long, "tree") == 300 + 3 * 150 + 8


def test_the_same_completion_of_two_turns_is_computed_once_and_counts_twice(policy: PolicyModel) -> None:
    turn = make_branch([5, 6, 7], [8, 9], 1.0)
    assert check_same(policy, [turn, turn], "tree") == 5


@pytest.fixture(scope="module")
def demo_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with the tokenizer of `crafts`."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("demo-vocabulary")
    tokenizer = AutoTokenizer.from_pretrained(TEXT_MODEL)
    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=1024, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=65536, initializer_range=0.1,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )
    ).save_pretrained(folder)  # fmt: skip
    tokenizer.save_pretrained(folder)
    return folder


def recorded_turns(policy: PolicyModel, client: str, thinks: bool) -> list[Branch]:
    """Each chat request of a recording as a turn: rendered as it was asked, answered as it was answered, first with a thought."""
    calls = [json.loads(path.read_text()) for path in sorted((RECORDINGS / client).glob("*_chat_completions.json"))]
    branches = []
    for number, call in enumerate(calls):
        messages = [{**m, "content": shortened(m.get("content"))} for m in call["request"]["messages"]]
        messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        prompt = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        thought = f"<think>\nWhat did request {number} ask?\n</think>\n\n" if thinks else ""
        said = thought + said_in(call["response"])[:200] + "<|im_end|>"
        branches.append(make_branch(list(prompt), policy.tokenizer(said, add_special_tokens=False)["input_ids"], 1.0))
    return branches


def shortened(content: Any) -> str:
    """The first words of a message, whether it is text or parts."""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])
    return text[:300]


def said_in(response: str) -> str:
    """The words of a chat completion as it was recorded, whole or as a stream."""
    if response.startswith("{"):
        return json.loads(response)["choices"][0]["message"].get("content") or ""
    chunks = [json.loads(line[6:]) for line in response.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "think-stripped"])
@pytest.mark.parametrize("client", CLIENTS)
def test_recorded_sessions_compute_the_same_as_their_turns(
    demo_vocabulary: Path, client: str, thinks: bool, lora: dict[str, Any] | None
) -> None:
    policy = policy_of(demo_vocabulary, lora)
    turns = recorded_turns(policy, client, thinks)
    count = check_same(policy, turns, "tree")
    assert count < 0.8 * sum(len(turn.ids) for turn in turns)


def agent_session(tokenizer: Any) -> list[Branch]:
    """Two questions with tool calls, thoughts stripped from the history; one answer regenerated, one question repeated."""
    tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    opening = [{"role": "system", "content": "You help with homework."}, {"role": "user", "content": "What is 2 + 3?"}]
    called = [*opening, {"role": "assistant", "content": "", "reasoning_content": "I add.", "tool_calls": [call]}]
    returned = [*called, {"role": "tool", "content": "5"}]
    answered = [*returned, {"role": "assistant", "content": "It is 5.", "reasoning_content": "Now I know."}]
    turns = [
        (
            opening,
            '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>',
        ),
        (returned, "<think>\nNow I know.\n</think>\n\nIt is 5.<|im_end|>"),
        (returned, "<think>\nNow I know.\n</think>\n\nFive!<|im_end|>"),  # the same request again
        ([*answered, {"role": "user", "content": "And 3 + 4?"}], "<think>\nI add.\n</think>\n\n7<|im_end|>"),
        ([*answered, {"role": "user", "content": "Thank you."}], "You are welcome.<|im_end|>"),  # a fork
    ]
    branches = []
    for messages, said in turns:
        prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
        branches.append(make_branch(list(prompt), tokenizer(said, add_special_tokens=False)["input_ids"], 0.8))
    return branches


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("tokens", [10_000, 250])
def test_a_session_with_tools_thoughts_a_regeneration_and_a_fork_computes_the_same_as_its_turns(
    demo_vocabulary: Path, lora: dict[str, Any] | None, tokens: int
) -> None:
    policy = policy_of(demo_vocabulary, lora)
    turns = agent_session(policy.tokenizer)
    # the answer occurs twice: as sampled, after its reasoning, and in the following history, without it
    assert check_same(policy, turns, "tree", tokens) < sum(len(turn.ids) for turn in turns) * (0.45 if tokens > 1000 else 1.0)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointed_layers_see_the_same_trie_when_they_are_computed_again(model_path: Path, checkpointing: bool) -> None:
    policy = policy_of(model_path)
    if checkpointing:
        policy.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        policy.module.train()
    check_same(policy, [make_branch([5, 6, 7], [8, 9], 1.0), make_branch([5, 6, 8], [8, 9], 1.0)], "tree")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of an architecture that mixes linear attention with full attention."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    folder = tmp_path_factory.mktemp("hybrid")
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
        linear_num_value_heads=2, initializer_range=0.2, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"], tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3_5ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_an_architecture_that_is_not_pure_attention_merges_exact_prefixes_and_nothing_else(hybrid: Path) -> None:
    policy = policy_of(hybrid)
    assert policy.merge == "prefix"
    chain = [make_branch([5, 6], [7, 8], 1.0), make_branch([5, 6, 7, 8, 9], [10, 11], 0.7), make_branch([5, 6, 3], [4], 1.0)]
    assert check_same(policy, chain, "prefix") == 7 + 4


def test_pure_attention_is_merged_into_tries_unless_the_recipe_disables_it(model_path: Path) -> None:
    assert policy_of(model_path).merge == "tree"
    assert policy_of(model_path, merge="none").merge == "none"
