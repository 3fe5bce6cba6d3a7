"""The peer in a separate process and environment: TRL's GRPO trainer does whole steps on the same turns.

JOB.json on stdin, result on stdout. TRL's own training loop (`trainer.train()`) runs forward, loss, backward, clipping and AdamW.
There is no generation, because the completions are given. The script imports nothing from clawctl, so any environment with TRL
works.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

_SMALL, _SLOW = 256, 5e9  # the size of a small product; operations per second without a kernel


def matmul_flops(dtype: str, device: torch.device, size: int = 2048) -> float:
    """Return the operations per second of the fastest of several square matrix products.

    A processor without a kernel for the type takes minutes for a large product, so its speed is that of a small one.
    """
    if size > _SMALL and (slow := matmul_flops(dtype, device, _SMALL)) < _SLOW:
        return slow
    a = torch.randn(size, size, device=device).to(torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2.0 * size**3 / best


def watch_memory(device: torch.device) -> int:
    """Reset the peak memory use. Returns the bytes in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def grown_bytes(before: int, device: torch.device) -> int:
    """Return the bytes by which the peak memory use since `watch_memory` exceeds `before`."""
    highest = int(torch.cuda.max_memory_allocated()) if device.type == "cuda" else status_bytes("VmHWM")
    return highest - before


def status_bytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def padded(turns: list[Any], pad: int) -> dict[str, Any]:
    """Return the output format of TRL's generation: prompts padded on the left, completions on the right."""
    longest = [max(len(turn[part]) for turn in turns) for part in (0, 1)]
    prompts = [[pad] * (longest[0] - len(prompt)) + prompt for prompt, _ in turns]
    prompt_mask = [[0] * (longest[0] - len(prompt)) + [1] * len(prompt) for prompt, _ in turns]
    completions = [said + [pad] * (longest[1] - len(said)) for _, said in turns]
    completion_mask = [[1] * len(said) + [0] * (longest[1] - len(said)) for _, said in turns]
    return {
        "prompt_ids": torch.tensor(prompts),
        "prompt_mask": torch.tensor(prompt_mask),
        "completion_ids": torch.tensor(completions),
        "completion_mask": torch.tensor(completion_mask),
        "advantages": torch.tensor([1.0 if i % 2 else -1.0 for i in range(len(turns))]),
        "num_items_in_batch": torch.tensor(sum(len(said) for _, said in turns)),
    }


def make_trainer(job: dict[str, Any], folder: str, clock: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    turns, rows = job["turns"], job["rows"]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])

    class Given(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            return padded(turns, tokenizer.pad_token_id)

    settings = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=rows, gradient_accumulation_steps=len(turns) // rows,
        num_generations=len(turns), max_completion_length=max(len(said) for _, said in turns), max_steps=job["repeats"] + 1,
        learning_rate=1e-6, bf16=job["dtype"] == "bfloat16", gradient_checkpointing=job["checkpointing"], use_cpu=True, beta=0.0,
        report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    return Given(
        model=model, reward_funcs=lambda completions, **kwargs: [0.0] * len(completions), args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * len(turns)}), processing_class=tokenizer, callbacks=[clock],
    )  # fmt: skip


def main() -> None:
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.begin = 0.0
            self.seconds: list[float] = []

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.seconds.append(time.perf_counter() - self.begin)

    clock, cpu = Clock(), torch.device("cpu")
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        trainer = make_trainer(job, folder, clock)
        before = watch_memory(cpu)
        trainer.train()
    import trl

    print(json.dumps({"seconds": clock.seconds[1:], "grown_bytes": grown_bytes(before, cpu), "version": trl.__version__}))


if __name__ == "__main__":
    main()
