"""Checks whether a version's weights can be served: finite numbers, in shapes that fit the base model.

An external engine must not discover a problem by itself. vLLM loads an adapter with wrong shapes and drops tensors that do not fit.
NaN that one adapter leaves in its cache damages other answers, including canaries of later versions. Only NumPy is needed, so a
gateway in front of an upstream loads no torch.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from clawctl.errors import ClawError

# All these bits are set in an infinite number or NaN.
_EXPONENTS = {"F64": ("<u8", 0x7FF0 << 48), "F32": ("<u4", 0x7F80 << 16), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
_AT_ONCE = 1 << 22  # numbers checked per step
_LAYER = re.compile(r".*?\.\d+\.")
_ADAPTER = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: list[int]
    start: int  # offsets of its bytes in the file
    end: int


def check_weights(folder: Path, base: Path) -> None:
    """Check a version's weights. `base`: folder of the base model. If it is not on this machine, shapes are not compared. Raises
    ClawError."""
    try:
        shapes = {
            name: tensor.shape for file in _files(base) for name, tensor in _tensors(file).items() if tensor.dtype in _EXPONENTS
        }
        given: set[str] = set()
        for file in _files(folder):
            for name, tensor in _tensors(file).items():
                _check_shape(name, tensor.shape, shapes)
                _check_numbers(file, name, tensor)
                given.add(name)
        _check_none_is_missing(given, shapes)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ClawError(f"the weights in {folder} cannot be read: {error}", "publish them again") from error


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _tensors(file: Path) -> dict[str, _Tensor]:
    """The tensors listed in the header of a safetensors file. https://github.com/huggingface/safetensors#format"""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not size or size > file.stat().st_size:
            raise ValueError(f"{file.name} is not a safetensors file")
        header = orjson.loads(stream.read(size))
    header.pop("__metadata__", None)
    entries = {name: (entry["dtype"], entry["shape"], *entry["data_offsets"]) for name, entry in header.items()}
    if 8 + size + max([0, *(end for *_, end in entries.values())]) > file.stat().st_size:
        raise ValueError(f"{file.name} is incomplete")
    return {name: _Tensor(dtype, shape, 8 + size + start, 8 + size + end) for name, (dtype, shape, start, end) in entries.items()}


def _check_shape(name: str, shape: list[int], shapes: dict[str, list[int]]) -> None:
    if match := _ADAPTER.fullmatch(name):
        fits = shapes.get(f"{match[1]}.weight")
        # A is [rank, in] and B is [out, rank] for a weight [out, in], or [in, out] in GPT-2's family.
        if fits is not None and len(fits) == 2 and shape[1 if match[2] == "A" else 0] not in fits:
            raise ClawError(f"{name} is {shape}, which does not match the base model's {fits}", "train it on this base model")
    elif (fits := shapes.get(name)) is not None and fits != shape:
        raise ClawError(f"{name} is {shape}, but the base model's is {fits}", "train it on this base model")


def _check_none_is_missing(given: set[str], shapes: dict[str, list[int]]) -> None:
    """Check layers that are partly present. Some models are saved without whole layers (for multi-token prediction or for images)
    or with other names. If a layer lacks a tensor, an engine would keep that tensor's old value."""
    if not given <= shapes.keys():
        return
    layers = {match[0] for name in given if (match := _LAYER.match(name))}
    for name, shape in shapes.items():
        match = _LAYER.match(name)
        if name not in given and match and match[0] in layers and name.endswith(".weight") and shape:
            raise ClawError(f"{name} is missing", "publish the weights again")


def _check_numbers(file: Path, name: str, tensor: _Tensor) -> None:
    if tensor.dtype not in _EXPONENTS or tensor.start == tensor.end:
        return
    kind, exponent = _EXPONENTS[tensor.dtype]
    count = (tensor.end - tensor.start) // np.dtype(kind).itemsize
    bits = np.memmap(file, np.dtype(kind), "r", tensor.start, (count,))
    for start in range(0, count, _AT_ONCE):
        if bool(((bits[start : start + _AT_ONCE] & exponent) == exponent).any()):
            raise ClawError(f"{name} contains infinite values or NaN", "train from an older version")
