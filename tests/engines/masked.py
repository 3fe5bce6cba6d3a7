"""The reference logprobs of structured answers."""

from typing import Any

import numpy as np
import torch

from clawctl.run.allowed_tokens import unpack


def hide(logits_TV: torch.Tensor, line: dict[str, Any]) -> torch.Tensor:
    """Set the logits of tokens that could not be drawn to -inf, in place."""
    if line["allowed"] is not None:
        allowed = unpack(line["allowed"])
        for row, index in zip(logits_TV, allowed.which, strict=True):
            if index >= 0:
                bits = np.unpackbits(np.frombuffer(allowed.sets[index], np.uint8), bitorder="little", count=len(row))
                row[torch.from_numpy(bits == 0)] = float("-inf")
    return logits_TV


def masked_logprobs(model: Any, line: dict[str, Any]) -> list[float]:
    """By a plain forward pass."""
    prompt = line["prompt_ids"]
    ids = torch.tensor([prompt + line["completion_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / line["temperature"]
    logprobs: list[float] = hide(logits, line).log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()
    return logprobs
