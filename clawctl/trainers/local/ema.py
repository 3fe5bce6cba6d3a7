"""The teacher `ema`: a slow average of the policy's own weights."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = "teacher.safetensors"


class Average:
    """w += (policy - w) * (1 - decay) after each step, over the trained weights; in a LoRA run, over the adapter only."""

    def __init__(self, trained: list[tuple[str, nn.Parameter]], decay: float) -> None:
        self.trained, self.decay = trained, decay
        self.weights: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in trained}

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        for name, parameter in self.trained:
            self.weights[name].lerp_(parameter, 1 - self.decay)

    @contextlib.contextmanager
    def worn(self) -> Iterator[None]:
        """Within this context the policy has the average's weights. It must not be open while a gradient is recorded."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self.trained:
            parameter.data, self.weights[name] = self.weights[name], parameter.data

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file({name: weight.contiguous() for name, weight in self.weights.items()}, folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Continue from a checkpoint. If it had another teacher, the average stays at the policy's own weights."""
        from safetensors.torch import load_file

        if (folder / FILE).exists():
            for name, weight in load_file(folder / FILE).items():
                self.weights[name].copy_(weight)
