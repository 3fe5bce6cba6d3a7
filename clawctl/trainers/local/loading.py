"""Loads the parts of a policy: the base model in its dtype, its adapter, and its tokenizer's files."""

import functools
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clawctl.architectures import loading
from clawctl.config import LoraConfig, Recipe
from clawctl.errors import ClawError
from clawctl.lent_weights import Loan, borrow, loan_file
from clawctl.run.model_files import model_file
from clawctl.run.policies import check_harmless
from clawctl.trainers.local.layers import widen_when_used
from clawctl.trainers.local.ranks import Ranks, is_sharded
from clawctl.vision.reader import is_vision_model
from clawctl.vision.tower import language_of, model_class

_TOWER = r"(.*\.)?visual\..*"  # layers of a vision tower, which are not trained unless a recipe names them


def load_causal(path: str, device: torch.device, dtype: torch.dtype, quantize: str | None = None) -> Any:
    """A complete causal language model in evaluation mode. Raises ClawError if it cannot be loaded."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # it builds a plan for each length of a sequence
    settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa", "trust_remote_code": False}
    if quantize is not None:
        settings |= {"quantization_config": _quantization(quantize, device), "device_map": {"": device}}
    with loading(path):
        module: Any = model_class(path).from_pretrained(path, **settings)
    return (module if quantize else module.to(device)).eval()


def load_frozen(recipe: Recipe, ranks: Ranks, device: torch.device, files: torch.dtype | None) -> tuple[Any, Loan | None]:
    """The base model of an adapter, and the loan of its weights. `files`: dtype of the model's files. Raises ClawError if it cannot
    be loaded."""
    path, config, lora = recipe.model_path, recipe.train, recipe.train.lora
    assert lora is not None
    if shares_files(recipe, ranks.device.type) and not is_sharded(config, ranks) and _are_of(path, files):
        module = load_causal(path, device, files or torch.float32)
        widen_when_used(module)
        return module, None
    dtype = torch.bfloat16 if config.local.dtype == "bfloat16" else torch.float32
    if borrows(recipe, ranks.device.type) and not is_sharded(config, ranks):
        loan = borrow(loan_file(path, device), device)
        return put_lent(load_causal(path, torch.device("cpu"), dtype), loan.weights).to(device), loan
    return load_causal(path, device, dtype, lora.quantize), None


def borrows(recipe: Recipe, device: str) -> bool:
    """Whether an adapter's base model is the one that the embedded engine computes with on the same GPU."""
    config, serve = recipe.train, recipe.serve
    is_plain = config.lora is not None and config.lora.quantize is None and config.local.dtype == "bfloat16"
    is_served = serve.engine == "transformers" and serve.upstream is None and not is_vision_model(recipe.model_path)
    return recipe.model.one_copy == "always" and device == "cuda" and is_plain and is_served


def put_lent(module: Any, weights: Mapping[str, Tensor]) -> Any:
    """The model with these weights in place of its own. Raises ClawError if they differ in more than their numbers."""
    for name, parameter in module.named_parameters():
        if (weight := weights.get(name)) is not None:
            if (weight.shape, weight.dtype) != (parameter.shape, parameter.dtype):
                kinds = f"{weight.dtype} {list(weight.shape)}, and the trainer's is {parameter.dtype} {list(parameter.shape)}"
                raise ClawError(f"the server's {name} is {kinds}", "set model.one_copy to auto", 2)
            parameter.data = weight
    return module


def shares_files(recipe: Recipe, device: str) -> bool:
    """Whether an adapter's base model stays in the memory of the model's files, which the system keeps once for all processes, if
    they have 16 bits. The other cases need another dtype, or another device."""
    config = recipe.train
    is_plain = config.lora is not None and config.lora.quantize is None and config.local.dtype == "float32"
    return recipe.model.one_copy != "never" and device == "cpu" and is_plain and not is_vision_model(recipe.model_path)


def _are_of(path: str, dtype: torch.dtype | None) -> bool:
    """Whether a model's files are safetensors with all weights in one dtype of 16 bits."""
    from safetensors import safe_open

    config = model_file(path, "config.json")
    kinds = set[str]()
    for file in [] if config is None else config.parent.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            kinds |= {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118 - it is no dict
    return kinds == {"BF16" if dtype == torch.bfloat16 else "F16"} and dtype in (torch.bfloat16, torch.float16)


def _quantization(kind: str, device: torch.device) -> Any:
    """transformers' settings for a frozen base model in 4 or 8 bits. Raises ClawError if it is not possible."""
    if (settings := QUANTISERS.get(device.type)) is None:
        raise ClawError("train.lora.quantize needs a CUDA device, but there is none", "remove it, or train on a GPU", 2)
    return settings(kind)


def _bitsandbytes(kind: str) -> Any:
    """QLoRA, arXiv 2305.14314."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ClawError("train.lora.quantize needs bitsandbytes", "pip install 'clawctl[quantize]', or remove it", 2)
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
    )


QUANTISERS: dict[str, Callable[[str], Any]] = {"cuda": _bitsandbytes}  # by device type


@contextmanager
def in_float32(module: Any) -> Iterator[None]:
    """Within this context, each layer computes in float32 and holds its weights in float32 only meanwhile."""
    kept: dict[Any, list[Tensor]] = {}

    def widen(layer: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        kept[layer] = [weight.data for weight in layer.parameters()]
        layer.float()
        return tuple(value.float() if torch.is_tensor(value) and value.is_floating_point() else value for value in inputs)

    with ExitStack() as hooks:
        for layer in module.modules():
            parameter = next(layer.parameters(recurse=False), None)
            if parameter is not None and parameter.dtype != torch.float32:
                hooks.callback(layer.register_forward_pre_hook(widen).remove)
                hooks.callback(layer.register_forward_hook(functools.partial(_narrow, kept), always_call=True).remove)
        yield


def _narrow(kept: dict[Any, list[Tensor]], layer: Any, inputs: Any, output: Any) -> None:
    """Put the weights back as they were: others may compute with the same memory."""
    for weight, data in zip(layer.parameters(), kept.pop(layer), strict=True):
        weight.data = data


def load_config(path: str) -> Any:
    from transformers import AutoConfig

    with loading(path):
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


def publish_dtype_of(wanted: str, files: torch.dtype | None) -> torch.dtype:
    return (files or torch.float32) if wanted == "auto" else torch.float32 if wanted == "float32" else torch.bfloat16


def adapted(module: Any, lora: LoraConfig, checkpoint: Path | None, seed: int) -> Any:
    from peft import LoraConfig as PeftLora
    from peft import PeftModel, get_peft_model

    if checkpoint is not None:
        return PeftModel.from_pretrained(module, str(checkpoint), is_trainable=True).eval()
    torch.manual_seed(seed)  # every rank draws the same initial weights
    alpha: Any = int(lora.alpha) if lora.alpha.is_integer() else lora.alpha  # readers of peft files expect an integer
    targets: Any = lora.targets if lora.targets == "all-linear" else list(lora.targets)
    config = PeftLora(
        r=lora.rank,
        lora_alpha=alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        use_rslora=lora.rslora,
        task_type="CAUSAL_LM",
        exclude_modules=_TOWER if targets == "all-linear" and language_of(module) is not module else None,
    )
    try:
        return get_peft_model(module, config).eval()
    except ValueError as error:
        problem = f"train.lora.targets {lora.targets} do not match the model: {str(error).splitlines()[0]}"
        raise ClawError(problem, "name linear layers of the model, such as q_proj", 2) from error


def tokenizer_files_of(path: str) -> dict[str, bytes]:
    """The base model's own files, byte for byte, if they are in a folder; otherwise the files that the tokenizer saves."""
    names = ("*token*.json", "vocab.*", "merges.txt", "chat_template*", "*.model", "*processor_config.json")
    if Path(path).is_dir():
        return {file.name: file.read_bytes() for pattern in names for file in sorted(Path(path).glob(pattern))}
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        AutoTokenizer.from_pretrained(path, trust_remote_code=False).save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """The weights of a published adapter by the names of `PolicyModel.trained`. Raises ClawError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        check_harmless(folder)
        saved = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ClawError(f"the adapter in {folder} cannot be read: {error}", "restore it from a copy") from error
    return {name.replace(".weight", ".default.weight"): weight for name, weight in saved.items()}
