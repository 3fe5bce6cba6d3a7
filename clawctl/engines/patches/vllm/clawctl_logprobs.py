"""Sums the vocabulary of vLLM 0.32's log-probabilities on a CPU without the error of PyTorch's log_softmax. The patch corrects
results, so no recipe disables it.

`log_softmax` in float32 adds up 49,152 numbers one after another and is off by 1.3e-5 on average. `logsumexp` adds them in pairs.
"""

from typing import Any


def sum_exactly() -> None:
    """Apply the patch. Called in a worker process before the worker is created."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.sampler import Sampler

    if current_platform.is_cpu():
        Sampler.compute_logprobs = staticmethod(_logprobs)


def _logprobs(logits: Any) -> Any:
    logits = logits.float()
    return logits - logits.logsumexp(-1, keepdim=True)
