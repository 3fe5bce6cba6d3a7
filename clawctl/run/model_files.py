"""Identifies the model that sampled the turns of a shard, and its tokenizer, from their files and without loading them."""

import hashlib
import time
from pathlib import Path
from typing import Any

import orjson

from clawctl.run.shards import Origin

_RETRY_S = 60.0  # seconds; the model may be downloaded meanwhile
_TOKENIZER_PARTS = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")  # files of tokenizers without a tokenizer.json
_SAMPLED_BYTES = 512  # per tensor: another training run changes some of them, and reading all bytes would take minutes
_HEADER = 8  # bytes with the header length of a safetensors file


def origin_of(name: str, model: str) -> Origin:
    """Identify `model`, which the recipe calls `name`. If the model is not on this machine, its fields are None."""
    folder = _folder(model)
    fingerprints = (_architecture(folder), _weights(folder)) if folder is not None else (None, None)
    return Origin(name, tokenizer_fingerprint(model), *fingerprints)


def _folder(model: str) -> Path | None:
    config = model_file(model, "config.json")
    return Path(model) if Path(model).is_dir() else config and config.parent


def _architecture(folder: Path) -> str | None:
    """Return the size of the model from keys that every config has, or None. Models of different sizes are different models."""
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
        text = config.get("text_config", config)
        layers, width, attention_heads = (int(text[name]) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return f"{layers} layers of {width} in {attention_heads} heads"


def _weights(folder: Path) -> str | None:
    """Return 16 hex digits computed from names, types, shapes and some bytes of all tensors. None if there are no safetensors.

    Equal weights give equal digits, in any number of files.
    """
    try:
        parts = sorted(part for file in folder.glob("*.safetensors") for part in _tensors(file))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16] if parts else None


def _tensors(path: Path) -> list[bytes]:
    tensors = []
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER), "little")
        header: dict[str, Any] = orjson.loads(file.read(min(length, path.stat().st_size)))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            file.seek(_HEADER + length + start)
            sampled = file.read(min(end - start, _SAMPLED_BYTES))
            tensors.append(orjson.dumps([name, tensor["dtype"], tensor["shape"]]) + sampled)
    return tensors


def tokenizer_fingerprint(model: str) -> str | None:
    """Return 16 hex digits that identify the meaning of the ids. None if `model` has no tokenizer files on this machine.

    Equal vocabularies give equal digits, whatever their file layout.
    """
    tokenizer_file = model_file(model)
    if tokenizer_file is not None:
        try:
            content = orjson.loads(tokenizer_file.read_bytes())
            meaning = {"model": content["model"], "added_tokens": content.get("added_tokens")}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        return _digest(orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS))
    parts = [file.read_bytes() for name in _TOKENIZER_PARTS if (file := model_file(model, name)) is not None]
    return _digest(b"\0".join(parts)) if parts else None


class IdReader:
    """Decodes token ids with the `tokenizer.json` of `model`. Without that file it returns an empty text and checks again later."""

    def __init__(self, model: str) -> None:
        self._model, self._tried_at = model, float("-inf")
        self._tokenizer: Any = None
        self._load()

    def __call__(self, ids: list[int]) -> str:
        tokenizer = self._load()
        usable = [] if tokenizer is None else [number for number in ids if 0 <= number < 1 << 32]
        return str(tokenizer.decode(usable, skip_special_tokens=False)) if usable else ""

    def placeholder(self, length: int) -> list[int] | None:
        """So many ids, which read as " redacted" again and again. None: there is no tokenizer."""
        tokenizer = self._load()
        unit = [] if tokenizer is None else tokenizer.encode(" redacted", add_special_tokens=False).ids
        return (unit * (length // len(unit) + 1))[:length] if unit else None

    def _load(self) -> Any:
        if self._tokenizer is None and time.monotonic() - self._tried_at >= _RETRY_S:
            self._tried_at = time.monotonic()
            path = model_file(self._model)
            if path is not None:
                from tokenizers import Tokenizer

                self._tokenizer = Tokenizer.from_file(str(path))
        return self._tokenizer


def model_file(model: str, name: str = "tokenizer.json") -> Path | None:
    """Return a file of a model, in its folder or in the download cache, or None if it is not on this machine."""
    folder = Path(model)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, name)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
