"""Random weights at the sizes of real models, and what a case of `scripts/bench gpu` gets."""

import functools
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401 - imported while another case still runs

from clawctl.architectures import KNOWN
from clawctl.run.gguf import model_folder

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "vocab_size": 2048}  # fmt: skip
NAMES = {"0.6b": "Qwen/Qwen3-0.6B", "4b": "Qwen/Qwen3-4B"}
SPOKEN = 1024  # size of the vocabulary of `crafts`


@dataclass(frozen=True, slots=True)
class Bench:
    """The surroundings of a case."""

    folder: Path  # shared by all cases
    tiny: bool  # tiny shapes, for a rehearsal
    add: Callable[[str, float | None, str], None]  # a row: metric, value, unit

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def tokens(self, count: int) -> int:
        """A number of tokens; a sixty-fourth of it in a rehearsal."""
        return max(64, count // 64) if self.tiny else count

    def model(self, size: str, vocabulary: int | None = None, spread: float | None = None) -> Path:
        """A folder with random bfloat16 weights, made once, and the tokenizer of `crafts`. `vocabulary`: its size, if not the
        real one.
        `spread`: the standard deviation of the embeddings; the larger, the more certain the model."""
        path = self.folder / "-".join(["model", size, *(str(part) for part in (vocabulary, spread) if part is not None)])
        if not (path / "config.json").exists():
            dimensions = json.loads(KNOWN.read_text())[NAMES[size]] | (TINY if self.tiny else {})
            began = time.perf_counter()
            make_model(path, dimensions | ({} if vocabulary is None else {"vocab_size": vocabulary}), self.device, spread)
            print(f"{path.name}: made in {time.perf_counter() - began:.1f} s", flush=True)
        return path


def load_case(function: str) -> Callable[[Bench], None]:
    module, _, name = function.partition(".")
    loaded: Callable[[Bench], None] = getattr(importlib.import_module(f"scripts.benchmarks.{module}"), name)
    return loaded


def make_model(folder: Path, dimensions: dict[str, Any], device: torch.device, spread: float | None = None) -> Path:
    """Save random bfloat16 weights with these dimensions, and the tokenizer of `crafts`."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(model_folder("crafts"))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    settings = {name: value for name, value in dimensions.items() if name != "model_type"}
    torch.manual_seed(0)
    with device:
        model: Any = Qwen3ForCausalLM._from_config(Qwen3Config(**settings, **ends), dtype=torch.bfloat16)
    if spread is not None:
        with torch.no_grad():
            model.get_input_embeddings().weight.normal_(0, spread)
    part = folder.with_name(f"{folder.name}.part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.replace(folder)
    return folder


@functools.cache
def card_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def settle(device: torch.device) -> None:
    """Wait for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Return memory of dropped tensors to the device."""
    import gc

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
