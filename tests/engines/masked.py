"""The reference logprobs of structured answers."""

from typing import Any

import numpy as np
import torch

from clawctl.run.allowed_tokens import unpack


def masked_logprobs(model: Any, line: dict[str, Any]) -> list[float]:
    """By a plain forward pass, with what could not be drawn left out."""
    allowed, prompt = unpack(line["allowed"]), line["prompt_ids"]
    ids = torch.tensor([prompt + line["completion_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / line["temperature"]
    for row, index in zip(logits, allowed.which, strict=True):
        if index >= 0:
            bits = np.unpackbits(np.frombuffer(allowed.sets[index], np.uint8), bitorder="little", count=len(row))
            row[torch.from_numpy(bits == 0)] = float("-inf")
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()
