"""Case `gpu-4b`: random weights at Qwen3-4B's dimensions on one card, LoRA rank 16 at 16k tokens and all weights at 8k.

The weights are random, because speed does not depend on them and no download is needed. The session's trie fills the microbatch.
Most of it is a system prompt, as with agents.
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clawctl.errors import ClawError
from clawctl.extensions.demos import models
from clawctl.trainers.local.flops import peak_flops
from scripts.benchmarks.table import Row
from scripts.benchmarks.train_process import worker
from scripts.benchmarks.train_turns import Turn, make_session

QWEN3_4B = {
    "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960, "tie_word_embeddings": True,
}  # fmt: skip
TURN = 150  # approximate number of tokens that a turn adds to a trie


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # "lora-r16@16k"
    tokens: int  # approximate size of the trie
    lora: dict[str, Any] | None


SETTINGS = (Setting("lora-r16@16k", 16_384, {"rank": 16}), Setting("full@8k", 8192, None))


def gpu_rows(options: argparse.Namespace) -> list[Row]:
    """Measure all settings. Raises ClawError if there is no CUDA device."""
    if not torch.cuda.is_available():
        raise ClawError("gpu-4b needs a CUDA device and there is none", "run it on a machine that has one", 2)
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        model = make_model(Path(folder), QWEN3_4B)
        return [row for setting in SETTINGS for row in setting_rows(setting, model, options, "cuda")]


def setting_rows(setting: Setting, model: Path, options: argparse.Namespace, device: str) -> list[Row]:
    """Measure tokens per second, MFU, memory and the speed-up over one sequence per turn for one setting."""
    turns = session_of(setting.tokens, int(torch.iinfo(torch.int16).max))
    job = {
        "model": str(model), "dtype": "bfloat16", "threads": options.threads, "repeats": options.repeats, "turns": turns,
        "device": device, "lora": setting.lora, "tokens_per_microbatch": 2 * setting.tokens,
    }  # fmt: skip
    tree, alone = (worker("train_ours", {**job, "merge": merge}) for merge in ("tree", "none"))
    seconds = statistics.median(tree["seconds"])
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    peak = peak_flops(name, None) or tree["matmul_flops"]
    case = f"gpu-4b {setting.name} ({name})"
    return [
        Row(case, "tokens_per_s", tree["tokens"] / seconds, "tokens/s"),
        Row(case, "mfu", tree["flops"] / seconds / peak, "share"),
        Row(case, "matmul_peak_share", tree["flops"] / seconds / tree["matmul_flops"], "share"),
        Row(case, "peak_memory", tree["grown_bytes"] / 2**30, "GiB above the loaded model"),
        Row(case, "turns_per_s", len(turns) / seconds, "turns/s"),
        Row(case, "turns_per_s_ratio_per_turn", statistics.median(alone["seconds"]) / seconds, "×"),
        Row(case, "tree_saving", tree["saving"], "×"),
    ]


def session_of(tokens: int, vocabulary: int) -> list[Turn]:
    """Make a session whose trie has about `tokens` tokens. The system prompt is five eighths of them."""
    system = tokens * 5 // 8
    return make_session(max(2, (tokens - system) // TURN), system, vocabulary)


def make_model(folder: Path, dimensions: dict[str, Any]) -> Path:
    """Save random bfloat16 weights with these dimensions, and the demo model's tokenizer."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(models.demo())
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = Qwen3ForCausalLM(Qwen3Config(**dimensions, **ends))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
