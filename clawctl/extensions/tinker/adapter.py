"""Converts the adapter files that a service saved to a peft folder that any engine loads."""

import io
import math
import re
import tarfile
from typing import Any

import orjson

from clawctl.config import LoraConfig
from clawctl.errors import ClawError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<side>[AB])\.weight")
_CURE = "use a service whose checkpoints are peft adapters"


def files_of(members: dict[str, bytes], lora: LoraConfig, base_model: str) -> dict[str, bytes]:
    """The two files of a peft adapter, completed and checked against the recipe. Raises ClawError.

    The service's configuration may lack `target_modules` (SkyRL leaves it null); it is taken from the names of the tensors.
    """
    if missing := {CONFIG, WEIGHTS} - members.keys():
        raise ClawError(f"the downloaded adapter lacks {', '.join(sorted(missing))}", _CURE)
    config: dict[str, Any] = orjson.loads(members[CONFIG])
    modules = _modules(members[WEIGHTS], lora.rank)
    trained = (config.get("r"), float(config.get("lora_alpha") or math.nan), bool(config.get("use_rslora")))
    if trained != (lora.rank, lora.alpha, False):
        adapter = f"rank {trained[0]} and alpha {trained[1]:g}"
        raise ClawError(
            f"the service trains an adapter with {adapter}, but the recipe has rank {lora.rank} and alpha {lora.alpha:g}",
            f"set train.lora.rank: {trained[0]} and train.lora.alpha: {trained[1]:g}",
            2,
        )
    targets = sorted({module.rpartition(".")[2] for module in modules})
    expected = sorted(lora.targets) if isinstance(lora.targets, list) else targets
    if targets != expected:
        raise ClawError(
            f"the service trains {', '.join(targets)}, but train.lora.targets is {', '.join(expected)}",
            f"set train.lora.targets: [{', '.join(targets)}]",
            2,
        )
    completed = {**config, "target_modules": targets, "base_model_name_or_path": base_model, "task_type": "CAUSAL_LM"}
    completed |= {"peft_type": "LORA", "inference_mode": True, "bias": "none"}
    return {CONFIG: orjson.dumps(completed, option=orjson.OPT_INDENT_2), WEIGHTS: members[WEIGHTS]}


def members_of(archive: bytes) -> dict[str, bytes]:
    """The regular files of a tar archive, by the last part of their name. Nothing is extracted to disk. Raises ClawError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            files = [member for member in tar.getmembers() if member.isfile()]
            read = {member.name.rpartition("/")[2]: tar.extractfile(member) for member in files}
            return {name: file.read() for name, file in read.items() if file is not None}
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ClawError(f"the downloaded adapter is not a tar archive: {error}", _CURE) from error


def _modules(weights: bytes, rank: int) -> set[str]:
    """The modules that have both matrices. Raises ClawError for other tensors, another rank, or a value that is not finite."""
    from safetensors import SafetensorError
    from safetensors.torch import load  # numpy has no bfloat16

    try:
        tensors = load(weights)
    except SafetensorError as error:
        raise ClawError(f"the downloaded adapter cannot be read: {error}", _CURE) from error
    sides: dict[str, set[str]] = {}
    for name, value in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or value.ndim != 2:
            raise ClawError(f"the downloaded adapter has a tensor that peft does not know: {name}", _CURE)
        if value.shape[0 if match["side"] == "A" else 1] != rank:
            raise ClawError(f"the downloaded adapter has another rank than {rank}: {name} is {tuple(value.shape)}", _CURE)
        if not math.isfinite(float(value.float().abs().sum())):
            raise ClawError(f"the downloaded adapter has values that are not finite in {name}", "lower train.lr")
        sides.setdefault(match["module"], set()).add(match["side"])
    if not sides or any(side != {"A", "B"} for side in sides.values()):
        raise ClawError("the downloaded adapter lacks a matrix of a module", _CURE)
    return set(sides)
