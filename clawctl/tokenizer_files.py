"""Which tokenizer made the ids of a shard: a fingerprint of its files, without loading it."""

import hashlib
from pathlib import Path

import orjson

_LOOSE = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")  # of tokenizers that have no tokenizer.json


def tokenizer_fingerprint(model: str) -> str | None:
    """16 hexadecimal digits that tell which id means what: equal for equal vocabularies, however their files are laid out.
    None where `model` has no tokenizer files on this machine."""
    whole = tokenizer_file(model)
    if whole is not None:
        try:
            content = orjson.loads(whole.read_bytes())
            meaning = {"model": content["model"], "added_tokens": content.get("added_tokens")}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        return _digest(orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS))
    loose = [file.read_bytes() for name in _LOOSE if (file := _file(model, name)) is not None]
    return _digest(b"\0".join(loose)) if loose else None


def tokenizer_file(model: str) -> Path | None:
    """The tokenizer.json of `model`, if it is on this machine."""
    return _file(model, "tokenizer.json")


def _file(model: str, name: str) -> Path | None:
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
