"""Identifies the tokenizer of a shard by a fingerprint of its files, without loading it, and decodes ids."""

import hashlib
import time
from pathlib import Path
from typing import Any

import orjson

_AGAIN_S = 60.0  # a model may be downloaded meanwhile
_LOOSE = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")  # of tokenizers that have no tokenizer.json


def tokenizer_fingerprint(model: str) -> str | None:
    """16 hexadecimal digits that identify the meaning of the ids. Equal vocabularies give equal digits, whatever their file layout.
    None if `model` has no tokenizer files on this machine."""
    whole = tokenizer_file(model)
    if whole is not None:
        try:
            content = orjson.loads(whole.read_bytes())
            meaning = {"model": content["model"], "added_tokens": content.get("added_tokens")}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        return _digest(orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS))
    loose = [file.read_bytes() for name in _LOOSE if (file := tokenizer_file(model, name)) is not None]
    return _digest(b"\0".join(loose)) if loose else None


class IdReader:
    """Decodes token ids with the `tokenizer.json` of `model`. Without the file it returns nothing and checks again later."""

    def __init__(self, model: str) -> None:
        self._model, self._tried_at = model, float("-inf")
        self._tokenizer: Any = None
        self._load()

    def __call__(self, ids: list[int]) -> str:
        tokenizer = self._load()
        known = [] if tokenizer is None else [number for number in ids if 0 <= number < 1 << 32]
        return str(tokenizer.decode(known, skip_special_tokens=False)) if known else ""

    def _load(self) -> Any:
        if self._tokenizer is None and time.monotonic() - self._tried_at >= _AGAIN_S:
            self._tried_at = time.monotonic()
            path = tokenizer_file(self._model)
            if path is not None:
                from tokenizers import Tokenizer

                self._tokenizer = Tokenizer.from_file(str(path))
        return self._tokenizer


def tokenizer_file(model: str, name: str = "tokenizer.json") -> Path | None:
    """A file of a model, in its folder or in the download cache; None if it is not on this machine."""
    folder = Path(model)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, name)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
