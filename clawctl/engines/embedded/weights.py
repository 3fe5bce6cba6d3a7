"""Loads a policy version into memory, and computes its logprobs of given ids."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from weakref import WeakValueDictionary

import orjson
import torch
from torch import Tensor

from clawctl.config import Recipe
from clawctl.engines.embedded.llama import Llama, is_llama
from clawctl.engines.patches.imports import complete_torch
from clawctl.engines.weights import check_weights
from clawctl.errors import ClawError
from clawctl.lent_weights import lend, loan_file
from clawctl.run.directory import RunDir
from clawctl.run.model_files import model_file
from clawctl.run.policies import check_policy, read_policy
from clawctl.serve.canary import EXACT, ROUNDED
from clawctl.vision.reader import ImageReader
from clawctl.vision.tower import inputs_of, model_class

_LOADING = threading.Lock()  # transformers modifies module state while it loads; two concurrent loads tie weights incorrectly
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": "auto"}
_UNUSUAL = {"use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "lora_bias"}
_LAYERS = "base_model.model.model."
_loaded: WeakValueDictionary[str, Llama] = WeakValueDictionary()  # by folder; versions share the base


def load_weights(run: RunDir, recipe: Recipe, version: int) -> "StagedWeights":
    """The weights of `version`. Raises ClawError, OSError, ValueError, RuntimeError."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # it builds a plan for each number of keys, which takes longer than a step
    policy = read_policy(run, version)
    check_policy(run, version)
    folder = run.version_folder(version)
    if policy.kind != "base":
        check_weights(folder, Path(recipe.model_path))
    with _LOADING:
        path = str(folder) if policy.kind == "full" else recipe.model_path
        llama = _read_llama(path, recipe) if recipe.serve.patches else None
        lora = _read_adapter(folder) if llama is not None and policy.kind == "adapter" else {}
        if llama is not None and lora is not None:
            model: Any = llama.adapted(lora) if lora else llama
        else:
            model = _read_module(path, recipe)
            if policy.kind == "adapter":
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, folder).merge_and_unload().eval()
            if llama is not None:
                model = Llama(model.config.to_dict(), model.state_dict())  # merged into the base: it shares nothing
        return StagedWeights(version, model, recipe.model.dtype == "float32" or model.dtype == torch.float32)


def eos_ids_of(path: str) -> frozenset[int]:
    """The ids that end an answer of the model in a folder or in the download cache."""
    for name in ("generation_config.json", "config.json"):
        file = model_file(path, name)
        eos = None if file is None else orjson.loads(file.read_bytes()).get("eos_token_id")
        if eos is not None:
            return frozenset([eos] if isinstance(eos, int) else eos)
    return frozenset()


def _read_llama(path: str, recipe: Recipe) -> Llama | None:
    """The model in a folder or in the download cache, if it is of Llama's kind and in safetensors."""
    config_file = model_file(path, "config.json")
    if config_file is None:
        return None
    folder = config_file.parent
    config, files = orjson.loads(config_file.read_bytes()), sorted(folder.glob("*.safetensors"))
    if not is_llama(config) or not files:
        return None
    if (model := _loaded.get(str(folder))) is None:
        try:
            tensors = _Moved(_read_tensors(files), _DTYPES[recipe.model.dtype])
            at_once = recipe.adapters_beside_live + 2  # the live one, and one that takes another's place
            model = _loaded[str(folder)] = Llama(config, tensors, at_once, recipe.model.one_copy == "always")
            if model.in_place:
                model.loan = lend(model.in_place, loan_file(path, model.device))
        except KeyError:  # saved with other names: transformers may know them
            return None
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreadable(path, error) from error
    return model


class _Moved(dict[str, Tensor]):
    """Tensors that are moved to the GPU, if there is one, and rounded when they are read, so that no more than one matrix is there
    twice. `dtype`: "auto" for their own."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: Any) -> None:
        super().__init__(tensors)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        # A CPU computes in float32 anyway, and holds in 16 bits what loses nothing by it.
        self._dtype = None if dtype == "auto" or (dtype == torch.float32 and self._device == "cpu") else dtype

    def __getitem__(self, name: str) -> Tensor:
        return super().__getitem__(name).to(self._device, self._dtype)


def _read_tensors(files: Sequence[Path]) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _read_adapter(folder: Path) -> dict[str, tuple[Tensor, Tensor]] | None:
    """The matrices A and scaled B of a LoRA adapter by the names of their layers. None if it has more than that."""
    config = orjson.loads((folder / "adapter_config.json").read_bytes())
    if any(config.get(key) for key in _UNUSUAL) or config.get("bias", "none") != "none" or config.get("peft_type") != "LORA":
        return None
    if config.get("init_lora_weights", True) not in (True, False, "gaussian"):  # others change the base as well
        return None
    tensors = dict(_read_tensors(sorted(folder.glob("*.safetensors"))))
    rank, lora = config["r"], dict[str, tuple[Tensor, Tensor]]()
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    for name in [name for name in tensors if name.startswith(_LAYERS) and name.endswith(".lora_A.weight")]:
        b_OR = tensors.pop(name.replace(".lora_A.", ".lora_B."), None)
        if b_OR is None:
            return None
        lora[name.removeprefix(_LAYERS).removesuffix(".lora_A.weight")] = tensors.pop(name).float(), b_OR.float() * scale
    return None if tensors else lora


def _read_module(path: str, recipe: Recipe) -> Any:
    complete_torch()
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        model = model_class(path).from_pretrained(
            path, dtype=_DTYPES[recipe.model.dtype], attn_implementation="sdpa", trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    except (UnpicklingError, EOFError) as error:  # whose text advises to run what the file contains
        problem = f"the model in {path} cannot be loaded: its .bin file is damaged, or not one that PyTorch wrote"
        raise ClawError(problem, "download the model again, best as safetensors", 2) from error
    if torch.cuda.is_available():
        model.to("cuda")
    return model.eval()


def _unreadable(path: str, error: Exception) -> ClawError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ClawError(f"the model in {path} cannot be loaded: {first}", "choose another one with --model", 2)


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """The weights of one version in memory, with their logprobs of given ids."""

    version: int
    model: Any  # a Llama, or a module of transformers
    exact: bool = True  # nothing was rounded to 16 bits

    @property
    def tolerance(self) -> float:
        return EXACT if self.exact else ROUNDED

    def fits(self, other: "StagedWeights") -> bool:
        """Whether the weights have the same names and shapes."""
        if isinstance(self.model, Llama) or isinstance(other.model, Llama):
            return isinstance(self.model, Llama) and isinstance(other.model, Llama) and self.model.fits(other.model)
        ours, theirs = self.model.state_dict(), other.model.state_dict()
        return ours.keys() == theirs.keys() and all(ours[name].shape == theirs[name].shape for name in ours)

    def score(self, ids: Sequence[int], first: int = 1) -> list[float]:
        """Logprobs of `ids[first:]`, each given all preceding ids."""
        return self.model.score(ids, first) if isinstance(self.model, Llama) else self._score(ids, first)

    @torch.no_grad()
    def _score(self, ids: Sequence[int], first: int) -> list[float]:
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
