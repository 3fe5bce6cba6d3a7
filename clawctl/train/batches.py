"""How the sequences of a step are cut into microbatches, shared out to ranks, and laid into tensors.

One sequence a turn. Sequences of like length lie together and are padded on the right: under causal attention no token sees what
stands after it, so padding needs no mask and changes no number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Microbatch:
    """B sequences of at most T tokens."""

    ids_BT: Tensor
    where_BT: Tensor  # bool: the tokens whose logprob is asked, row by row the completion's
    temperature_B: Tensor
    lengths: list[int]  # completion tokens of each row: cuts a [N] stream back into turns


def cut(lengths: Sequence[int], tokens: int, parts: int = 1) -> list[list[int]]:
    """Indices of `lengths` in groups, longest first: a padded group holds at most `tokens`, or a single longer sequence.

    Makes at least `parts` groups where there are so many sequences, of like size, so that no rank is idle.
    """
    budget = min(tokens, max(1, -(-sum(lengths) // parts)))
    most_rows = max(1, len(lengths) // parts)
    groups: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            groups.append([])
            room = min(most_rows, max(1, budget // max(1, lengths[index])))
        groups[-1].append(index)
        room -= 1
    return groups


def share(groups: list[list[int]], rank: int, world: int) -> list[list[int]]:
    """The groups of one rank: every world-th, so that long and short ones are dealt out alike."""
    return groups[rank::world]


def pad(prompts: list[list[int]], completions: list[list[int]], temperatures: list[float], device: torch.device) -> Microbatch:
    """Lay sequences into tensors. Padding is token 0, behind the end, where nothing looks."""
    lengths = [len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)]
    ids_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    where_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids_BT[row, : lengths[row]] = torch.tensor(prompt + completion)
        where_BT[row, len(prompt) : lengths[row]] = True
    temperature_B = torch.tensor(temperatures, dtype=torch.float32)
    return Microbatch(ids_BT.to(device), where_BT.to(device), temperature_B.to(device), [len(c) for c in completions])
