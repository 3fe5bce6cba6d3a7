"""Pads the rows of linear layers on a CPU, so that only a few different kernels are compiled and cached.

In bfloat16 PyTorch uses oneDNN, which compiles a kernel for each number of rows. Each takes some milliseconds and half a megabyte,
in two caches of 1024 entries. Prompts have any length. Without padding a server grows by a gigabyte, and most first tokens wait for
a compilation. float32 uses MKL, which caches nothing.
"""

from typing import Any

import torch
from torch.nn.functional import linear, pad

_FINE = 256  # rows; up to here two sizes per doubling, above it multiples of _COARSE, because padding costs more there
_COARSE = 128


def padded_rows(rows: int) -> int:
    """The number of rows to compute for `rows`: one of 1, 2, 3, 4, 6, 8, 12, 16, …, 192, 256, 384, 512, 640, …"""
    if rows > _FINE:
        return -(-rows // _COARSE) * _COARSE
    doubled = 1 << (rows - 1).bit_length()
    between = doubled * 3 // 4
    return between if rows <= between else doubled


class PaddedLinear(torch.nn.Linear):
    """A linear layer that computes padded rows and drops the padding. Results are equal up to rounding."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows_RD = input.reshape(-1, self.in_features)
        rows = len(rows_RD)
        mixed_RE = linear(pad(rows_RD, (0, 0, 0, padded_rows(rows) - rows)), self.weight, self.bias)[:rows]
        return mixed_RE.reshape(*input.shape[:-1], self.out_features)


def pad_linears(model: Any) -> None:
    """Make the linear layers of a model compute padded rows, if each number of rows needs its own kernel."""
    if model.device.type != "cpu" or model.dtype == torch.float32:
        return
    for module in model.modules():
        if type(module) is torch.nn.Linear:  # subclasses may treat rows differently
            module.__class__ = PaddedLinear
