"""One random tiny model, and one server on it that the tests which only talk share; one vLLM for all tests of it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Server, build_model
from transformers import AutoModelForCausalLM

from clawctl.config import DEMO_MODEL
from scripts.asgi import serving
from scripts.rehearsal import Rehearsal


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return build_model(tmp_path_factory.mktemp("model"))


# The server changes the sampling of a client with this User-Agent, and of no other.
FORCED: dict[str, Any] = {"per_client": {"forced-": {"temperature": {"at_least": 0.7}, "ignore": "all"}}}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """One server that stays on version 0, shared by the tests that only talk to it."""
    with Server(tmp_path_factory.mktemp("shared") / "run", model_path, sampling=FORCED) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """A server in front of a scripted upstream that speaks as vLLM does."""
    with serving(Rehearsal().app()) as url:
        upstream = {"url": url, "kind": "vllm"}
        with Server(tmp_path_factory.mktemp("rehearsed") / "run", model_path, upstream=upstream, sampling=FORCED) as server:
            yield server
            assert server.stop() == 0, server.log.read_text()


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It takes half a minute to start: one for all."""
    from vllm_served import STARTS_S, engine  # it looks whether there is a vLLM

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    lora = engine("--enable-lora", "--max-lora-rank", "16", "--max-loras", "2", "--max-cpu-loras", "6")
    with Server(tmp_path_factory.mktemp("vllm") / "run", DEMO_MODEL, patience_s=STARTS_S, splice=True, **lora) as running:
        yield running
        assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
