"""Samples many answers in parallel from a model in this process, with the logprob of each token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

END = "<|im_end|>"
MAX_TOKENS = 96  # per answer; the longest kind has about 60


@dataclass(frozen=True, slots=True)
class Drawn:
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    text: str
    ended: bool


@torch.inference_mode()
def draw(model: Any, tokenizer: Any, conversations: Sequence[list[dict[str, Any]]], seed: int, at_once: int = 64) -> list[Drawn]:
    """Sample an answer to each conversation at temperature 1.

    The seed determines a separate random number for each position, so that two versions of a model answer differently only where
    their probabilities differ.
    """
    prompts = [tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) for messages in conversations]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in prompts]
    made: list[Drawn | None] = [None] * len(ids)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for first in range(0, len(order), at_once):
        some = order[first : first + at_once]
        answers = _draw([ids[i] for i in some], [seed * 1_000_003 + i for i in some], model, tokenizer)
        for i, answer in zip(some, answers, strict=True):
            made[i] = answer
    return [drawn for drawn in made if drawn is not None]


def _draw(prompts: list[list[int]], seeds: list[int], model: Any, tokenizer: Any) -> list[Drawn]:
    end = tokenizer.convert_tokens_to_ids(END)
    longest = max(map(len, prompts))
    tokens = torch.tensor([[end] * (longest - len(p)) + p for p in prompts])
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    chance = torch.stack([torch.rand(MAX_TOKENS, generator=torch.Generator().manual_seed(seed)) for seed in seeds], 1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    drawn: list[list[int]] = [[] for _ in prompts]
    scores: list[list[float]] = [[] for _ in prompts]
    open_rows = list(range(len(prompts)))
    out = model(input_ids=tokens, attention_mask=seen, position_ids=positions, use_cache=True, logits_to_keep=1)
    for step in range(MAX_TOKENS):
        logprobs = out.logits[:, -1].float().log_softmax(-1)
        sums = logprobs.exp().double().cumsum(-1)
        picked = torch.searchsorted(sums, (chance[step].double() * sums[:, -1])[:, None]).squeeze(1).clamp(max=sums.shape[1] - 1)
        values = logprobs.gather(1, picked[:, None]).squeeze(1).tolist()
        for row, (token, value) in enumerate(zip(picked.tolist(), values, strict=True)):
            if row in open_rows:
                drawn[row].append(token)
                scores[row].append(value)
                assert math.isfinite(value)
        open_rows = [row for row in open_rows if drawn[row][-1] != end]
        if not open_rows:
            break
        seen = torch.cat((seen, torch.ones(len(prompts), 1, dtype=seen.dtype)), 1)
        out = model(
            input_ids=picked[:, None], attention_mask=seen, position_ids=seen.sum(1, keepdim=True) - 1,
            past_key_values=out.past_key_values, use_cache=True,
        )  # fmt: skip
    return [
        Drawn(prompt, ids, values, tokenizer.decode(ids[:-1] if ids[-1] == end else ids), ids[-1] == end)
        for prompt, ids, values in zip(prompts, drawn, scores, strict=True)
    ]
