"""The projection onto a large vocabulary in a separate process, chunked or whole: seconds and memory.   JOB.json on stdin."""

import json
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from clawctl.trainers.local.head import token_logprobs
from scripts.benchmarks.train_trl import grown_bytes, matmul_flops, watch_memory


def whole_logprobs(hidden_ND: Tensor, head: nn.Linear, ids_N: Tensor, temperature_N: Tensor) -> Tensor:
    """The usual implementation: all logits, then their softmax."""
    logits_NV = head(hidden_ND).float() / temperature_N[:, None]
    return -nn.functional.cross_entropy(logits_NV, ids_N, reduction="none")


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    device = torch.device(job.get("device", "cpu"))
    tokens, vocabulary, width = job["tokens"], job["vocabulary"], job["width"]
    torch.manual_seed(0)
    head = nn.Linear(width, vocabulary, bias=False).to(device)
    hidden = torch.randn(tokens, width, device=device, requires_grad=True)
    ids, temperature = torch.randint(vocabulary, (tokens,), device=device), torch.ones(tokens, device=device)
    project = token_logprobs if job["chunked"] else whole_logprobs
    peak = matmul_flops(job["dtype"], device)
    before, seconds = watch_memory(device), []
    for _ in range(job["repeats"]):
        head.weight.grad = hidden.grad = None
        begin = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=job["dtype"] == "bfloat16"):
            logprobs = project(hidden, head, ids, temperature)
        logprobs.sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return {
        "seconds": seconds,
        "grown_bytes": grown_bytes(before, device),
        "matmul_flops": peak,
        "flops": 6.0 * tokens * vocabulary * width,
        "sum": float(logprobs.detach().sum()),
    }


def main() -> None:
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    print(json.dumps(run_job(job)))


if __name__ == "__main__":
    main()
