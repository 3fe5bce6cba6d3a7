"""One vLLM server for all of its tests."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.named_models import TEXT_MODEL
from tests.serve.served import Server


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It takes half a minute to start: one for all."""
    from vllm_served import STARTS_S, engine  # it looks whether there is a vLLM

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # or vLLM overrules `engine` on a CPU
    lora = engine("--enable-lora", "--max-lora-rank", "16", "--max-loras", "2", "--max-cpu-loras", "6")
    sections = {"policies": {"per": "key", "loaded": 2}, "train": {"lora": {"rank": 4}}}
    folder = tmp_path_factory.mktemp("vllm") / "run"
    with Server(folder, TEXT_MODEL, patience_s=STARTS_S, splice=True, sections=sections, **lora) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(TEXT_MODEL, dtype=torch.float32).eval()
