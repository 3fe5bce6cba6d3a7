"""Keeps adapters off the base model's rows in vLLM 0.32 on a CPU. The patch corrects results, so no recipe disables it.

vLLM treats the "no adapter" index of a row, -1, as the last element of a list. Next to a request for an adapter, a request for the
base model would be computed with the adapter in the last slot. With this patch such rows stay zero.
"""

from collections.abc import Callable
from typing import Any


def zero_base_rows() -> None:
    """Apply the patch. Called in a worker process before the worker is created."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = _with_zero_base_rows(lora_ops.bgmv_shrink)


def _with_zero_base_rows(shrink: Callable[..., None]) -> Callable[..., None]:
    """`shrink` [tokens, width] → [tokens, rank], with 0 in the rows whose adapter is -1."""

    def masked(inputs: Any, weights: Any, output: Any, adapters: Any, scaling: float = 1.0) -> None:
        shrink(inputs, weights, output, adapters, scaling)
        output.masked_fill_((adapters < 0)[:, None], 0.0)

    return masked
