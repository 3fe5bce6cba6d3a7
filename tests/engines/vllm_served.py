"""A real vLLM as a server's child: its start, its published versions and the reference logprobs."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from clawctl.cut_calls import CUT_CALL
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import DEFAULT_POLICY, Policy
from tests.named_models import TEXT_MODEL
from tests.serve.served import Server, logprobs_of, until

PYTHON = os.environ.get("CLAWCTL_VLLM_PYTHON", sys.executable)
STARTS_S = 300.0
SWAPS_S = 120.0
CANARY_IDS = [[3, 4, 5, 6], [7, 8, 9]]
EXACT = 1e-4  # of a logprob: rounding of float32 in another order


def has_vllm() -> bool:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([PYTHON, "-c", find], check=False).returncode == 0


NEEDS_VLLM = pytest.mark.skipif(
    not has_vllm(), reason=f"vLLM is not installed for {PYTHON}; CLAWCTL_VLLM_PYTHON names another Python"
)


def engine(*arguments: str) -> dict[str, Any]:
    """Settings of `serve`. The core and its worker are one process, as on a single GPU: a third less to import."""
    common = ["--max-model-len", "4096", "--enforce-eager", "--distributed-executor-backend", "uni"]
    return {"engine": "vllm", "engine_python": PYTHON, "engine_args": [*common, *arguments]}


def last(server: Server) -> dict[str, Any]:
    return server.captured()[-1]


def assert_exact(model: Any, line: dict[str, Any]) -> None:
    assert line["untrainable_reason"] in (None, CUT_CALL)  # the model samples a tool call now and then, and the limit cuts it
    assert_logprobs(model, line)


def assert_logprobs(model: Any, line: dict[str, Any]) -> None:
    expected = logprobs_of(model, line["prompt_ids"], line["completion_ids"], line["temperature"])
    assert line["logprobs"] == pytest.approx(expected, abs=EXACT)


def publish(server: Server, version: int, kind: str, model: Any, canary_of: Any = None, name: str = DEFAULT_POLICY) -> None:
    """Publish `version` of the policy `name`; its canary is that of `canary_of`, by default its own."""
    logprobs = [[0.0, *logprobs_of(canary_of or model, ids[:1], ids[1:])] for ids in CANARY_IDS]
    canary = {"prompt_ids": CANARY_IDS, "logprobs": logprobs}
    policy = Policy(version, 0, version, "combine", kind, str(TEXT_MODEL), [], canary, {}, 0.0)
    publish_policy(server.run.of(name), policy, model.save_pretrained)


def go_live(server: Server, version: int) -> None:
    """Returns when it is live. Fails at once if it is refused."""
    move_live(server.run, version)

    def settled() -> bool:
        health = server.health()
        refused = health["last_swap_error"] or ""
        assert not refused.startswith(f"version {version} "), refused
        return bool(health["live"] == version)

    until(settled, SWAPS_S)


def refused(server: Server, version: int) -> str:
    """Why it did not go live."""
    move_live(server.run, version)
    until(lambda: f"version {version} " in (server.health()["last_swap_error"] or ""), SWAPS_S)
    return str(server.health()["last_swap_error"])


def adapted(seed: int) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(TEXT_MODEL, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return get_peft_model(model, config).eval()
