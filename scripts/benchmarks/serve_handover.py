"""How long all weights of a 0.6B model take from a trainer's memory to vLLM, through the policy's folder. Case `hand-over`.

The model has Qwen3-0.6B's dimensions and random numbers in bfloat16. `publish_s` is the trainer's part: files, checksums, fsync and
rename. `swap_s` is serve's part, from the move of LIVE until the version serves: checks of the files, the pause in which vLLM reads
them, and the canary. A transfer from memory to memory would save at most `write_s` (safetensors alone, a part of `publish_s`) and
`read_s` (from the page cache into tensors, a part of `pause_s`). vLLM's own `load_weights` comes after either.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import torch

from clawctl.config import Recipe
from clawctl.run.directory import open_run
from clawctl.run.gguf import model_folder
from clawctl.run.policies import publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks.serve_matrix import go_live
from scripts.benchmarks.serve_swap import CANARY_IDS, logprobs_of
from scripts.benchmarks.streams import KEY, clawctl, has_vllm
from scripts.benchmarks.table import Row

CASE = "hand-over"
_SIZES: dict[str, Any] = {  # Qwen3-0.6B
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
_VERSIONS = (1, 2)


def run(quick: bool) -> list[Row]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as name:
        folder, model = Path(name), _random_model()
        base = folder / "model"
        shutil.copytree(model_folder("crafts"), base, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
        model.save_pretrained(base)
        arguments = ["--max-model-len", "1024", "--enforce-eager"]
        serve = {"engine": "vllm", "engine_python": os.environ.get("CLAWCTL_VLLM_PYTHON"), "engine_args": arguments, "threads": 1}
        recipe = {"model": {"path": str(base), "dtype": "bfloat16"}, "serve": {**serve, "api_key": KEY, "port": 0}}
        if not has_vllm(CASE, Recipe.model_validate(recipe)):
            return []
        with clawctl(folder, recipe) as (url, root):
            return _measure(model, url, root, 2 if quick else 6)


def _random_model() -> Any:
    from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

    tiny = AutoConfig.from_pretrained(model_folder("crafts"))
    tokens = {name: getattr(tiny, name) for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**_SIZES, **tokens, max_position_embeddings=4096))
    return model.to(torch.bfloat16).eval()


def _measure(model: Any, url: str, root: Path, swaps: int) -> list[Row]:
    run, published, waits, pauses = open_run(root), [], [], []
    for version in _VERSIONS:
        with torch.no_grad():
            model.model.norm.weight.mul_(1.1)  # another policy
        canary = {"prompt_ids": CANARY_IDS, "logprobs": [[None, *logprobs_of(model, ids[:1], ids[1:])] for ids in CANARY_IDS]}
        began = time.monotonic()
        publish_policy(run, Policy(version, 0, version, "combine", "full", "x", [], canary, {}, time.time()), model.save_pretrained)
        published.append(time.monotonic() - began)
    for number in range(swaps):
        waits.append(go_live(url + "/v1", run, _VERSIONS[number % 2]))
        pauses.append(httpx.get(f"{url}/health").json()["swaps"][-1]["pause_ms"] / 1000)
    file = run.version_folder(1) / "model.safetensors"
    return [
        Row(CASE, "bytes", file.stat().st_size, "bytes"),
        Row(CASE, "publish_s", statistics.median(published), "s"),
        Row(CASE, "write_s", _timed(lambda: model.save_pretrained(root.parent / "again")), "s"),
        Row(CASE, "swap_s", statistics.median(waits), "s"),
        Row(CASE, "pause_s", statistics.median(pauses), "s"),
        Row(CASE, "read_s", _timed(lambda: _read(file)), "s"),
        Row(CASE, "swaps", swaps, "swaps"),
    ]


def _read(file: Path) -> None:
    from safetensors.torch import load_file

    for tensor in load_file(file).values():
        tensor.clone()


def _timed(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
