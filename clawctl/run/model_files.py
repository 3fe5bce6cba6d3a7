"""Identifies the model that sampled the turns of a shard, from its files and without loading it."""

import hashlib
from pathlib import Path
from typing import Any

import orjson

from clawctl.run.shards import Origin
from clawctl.run.tokenizer_files import tokenizer_fingerprint

_SAMPLED_BYTES = 512  # of each tensor: another training moves some of them, and to read all would take minutes
_HEADER = 8  # bytes with the header length of a safetensors file


def origin_of(name: str, model: str) -> Origin:
    """What is known of `model`, called `name` by the recipe; nothing of one that is not on this machine."""
    folder = _folder(model)
    known = (_architecture(folder), _weights(folder)) if folder is not None else (None, None)
    return Origin(name, tokenizer_fingerprint(model), *known)


def _folder(model: str) -> Path | None:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _architecture(folder: Path) -> str | None:
    """The size of the model, from keys that every config has. Models that differ in it are different models."""
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
        text = config.get("text_config", config)
        layers, width, heads = (int(text[name]) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return f"{layers} layers of {width} in {heads} heads"


def _weights(folder: Path) -> str | None:
    """16 hexadecimal digits from names, types, shapes and some bytes of all tensors. Equal weights give equal digits, in any number
    of files. None if there are no safetensors."""
    try:
        parts = sorted(part for file in folder.glob("*.safetensors") for part in _tensors(file))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16] if parts else None


def _tensors(path: Path) -> list[bytes]:
    found = []
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER), "little")
        header: dict[str, Any] = orjson.loads(file.read(min(length, path.stat().st_size)))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            file.seek(_HEADER + length + start)
            sampled = file.read(min(end - start, _SAMPLED_BYTES))
            found.append(orjson.dumps([name, tensor["dtype"], tensor["shape"]]) + sampled)
    return found
