"""Loads a policy version into memory, and computes its logprobs of given ids."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from clawctl.config import Recipe
from clawctl.engines.weights import check_weights
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.policies import check_policy, read_policy
from clawctl.serve.canary import EXACT, ROUNDED
from clawctl.vision.reader import ImageReader
from clawctl.vision.tower import inputs_of, model_class

_LOADING = threading.Lock()  # transformers modifies module state while it loads; two concurrent loads tie weights incorrectly
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": "auto"}


def load_model(run: RunDir, recipe: Recipe, version: int) -> Any:
    """The model with the weights of `version`, in evaluation mode. Raises ClawError, OSError, ValueError, RuntimeError."""
    policy = read_policy(run, version)
    check_policy(run, version)
    folder = run.version_folder(version)
    if policy.kind != "base":
        check_weights(folder, Path(recipe.model_path))
    transformers_logging.disable_progress_bar()
    with _LOADING:
        if policy.kind == "full":
            return _read(str(folder), recipe)
        model = _read(recipe.model_path, recipe)
        if policy.kind == "adapter":
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, folder).merge_and_unload()
        return model.eval()


def _read(path: str, recipe: Recipe) -> Any:
    try:
        model = model_class(path).from_pretrained(
            path, dtype=_DTYPES[recipe.model.dtype], attn_implementation="sdpa", trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ClawError(f"the model in {path} cannot be loaded: {first}", "choose another one with --model", 2) from error
    if torch.cuda.is_available():
        model.to("cuda")
    ready: Any = model.eval()
    return ready


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """The weights of one version in memory, with their logprobs of given ids."""

    version: int
    model: Any

    @property
    def tolerance(self) -> float:
        return EXACT if self.model.dtype == torch.float32 else ROUNDED

    @torch.no_grad()
    def score(self, ids: Sequence[int], first: int = 1) -> list[float]:
        """Logprobs of `ids[first:]`, each given all preceding ids."""
        tokens = torch.tensor([list(ids)], device=self.model.device)
        count = len(ids) - first
        output = self.model(input_ids=tokens, use_cache=False, logits_to_keep=count + 1)
        return _chosen(output.logits[0, -count - 1 :], tokens[0, first:])

    @torch.no_grad()
    def score_image(self, reader: ImageReader, ids: Sequence[int], start: int, content: bytes) -> list[float]:
        """Logprobs of `ids[1:]`, for a prompt with an image that begins at index `start`. Raises UnreadableImage."""
        inputs = inputs_of(self.model, reader, ids, [(start, reader.picture(content))])
        return _chosen(self.model(**inputs, use_cache=False).logits[0], inputs["input_ids"][0, 1:])


def _chosen(logits: torch.Tensor, tokens: torch.Tensor) -> list[float]:
    """The logprob of each token, from the logits before it. The last row of logits belongs to no token."""
    chosen = logits[:-1].float().log_softmax(-1).gather(-1, tokens[:, None])
    return [float(value) for value in chosen[:, 0]]
