"""Converts a recipe of another system, completely or not at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from clawctl.config.recipe import Recipe, known_keys, read_yaml, set_nested
from clawctl.config.section import key_at
from clawctl.config.train import TrainConfig, kinds_with
from clawctl.errors import ClawError
from clawctl.extensions.migrate.keys import OurKey, Settings, find_elsewhere

_FIX = "remove it from the file, or write the recipe yourself: docs/reference/recipes.md"
_COMBINED_KEYS = ("train.batch_turns", "train.betas")  # keys that combine several keys of other systems
_A_LORA = ("use_lora", "use_peft", "enabled", "enable")


@dataclass(frozen=True, slots=True)
class ConvertedKey:
    """The result for one key of the file."""

    old: str  # the dotted key in the file
    value: Any
    fate: Literal["converted", "same default", "dropped", "unknown"]
    new: str  # "train.lr: 1e-06", or the reason why there is no equivalent


def convert(path: Path) -> tuple[Recipe, str, list[ConvertedKey]]:
    """Return the converted recipe, its YAML, and the result for each key of the file `path`.

    Raises ClawError (exit code 2) if the file is not a mapping or is a recipe of clawctl. Raises `NotConverted`, with the results,
    if a key or a value is unknown.
    """
    data = read_yaml(path)
    written = list(_flat(data))
    if not written:
        raise ClawError(f"recipe {path} contains no settings", "pass a recipe of another system", 2)
    if {"turns", "messages"} & data.keys():
        raise ClawError(f"{path} is a conversation, not a recipe", f"`clawctl import {path}` turns it into a shard", 2)
    if all(".".join(parts) in known_keys(Recipe) for parts, _ in written):
        raise ClawError(f"recipe {path} is already a recipe of clawctl", "use it as it is", 2)
    settings: Settings = {}
    lines: list[ConvertedKey] = []
    with_lora = not any(parts[-1] in _A_LORA and "lora" in ".".join(parts) and value is False for parts, value in written)
    for parts, value in written:
        lines.append(_line(parts, value, written, settings, with_lora))
    if any(parts[-1] in _A_LORA and "lora" in ".".join(parts) and value is True for parts, value in written):
        settings.setdefault("train.lora.rank", Recipe.model_validate({"train": {"lora": {}}}).train.lora.rank)  # type: ignore[union-attr]
    lines = _with_values(lines, settings)
    if any(line.fate == "unknown" for line in lines):
        raise NotConverted(path, lines)
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        set_nested(nested, key.split("."), value)
    try:
        recipe = Recipe.model_validate(nested)
    except ValidationError as error:  # incompatible keys
        first = error.errors()[0]
        raise ClawError(f"recipe {path}: {key_at(first['loc'])}: {first['msg']}", _FIX, 2) from error
    shown = {key: _at(recipe.model_dump(mode="json"), key) for key in settings}
    text: dict[str, Any] = {}
    for key, value in shown.items():
        set_nested(text, key.split("."), value)
    header = f"# Converted from {path.name} by `clawctl recipe convert`. Keys that are missing here have their defaults.\n"
    return recipe, header + str(yaml.safe_dump(text, sort_keys=False, allow_unicode=True)), lines


class NotConverted(ClawError):
    """A recipe that cannot be converted. `lines` lists every key."""

    def __init__(self, path: Path, lines: list[ConvertedKey]) -> None:
        unknown = [line.old for line in lines if line.fate == "unknown"]
        super().__init__(f"recipe {path} cannot be converted: unknown {', '.join(unknown)}", _FIX, 2)
        self.lines = lines


def _flat(data: Any, parts: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every leaf with its path. A list is a leaf."""
    for key, value in data.items():
        path = (*parts, str(key))
        if isinstance(value, dict):
            yield from _flat(value, path)
        else:
            yield path, value


def _line(
    parts: tuple[str, ...], value: Any, written: list[tuple[tuple[str, ...], Any]], settings: Settings, with_lora: bool
) -> ConvertedKey:
    """Return the result for one key. If the key has an equivalent, its setting is added to `settings`."""
    old = ".".join(parts)
    ours = _equivalent(parts, written)
    if value is None and (ours is None or ours.dropped is None):
        return ConvertedKey(old, value, "dropped", "it has no value in the file")
    if ours is None:
        return ConvertedKey(old, value, "unknown", "clawctl has no equivalent key")
    if ours.change is not None:
        changed = ours.change(value)
        if changed is None:
            return ConvertedKey(old, value, "unknown", f"{ours.key} has no equivalent of {value!r}")
        if isinstance(changed, OurKey):
            ours = changed
        else:
            for key, new in changed.items():
                settings[key] = new
            return ConvertedKey(old, value, "converted", ", ".join(changed))
    if ours.dropped is not None:
        return ConvertedKey(old, value, "dropped", ours.dropped)
    assert ours.key is not None
    if ours.key.startswith("train.lora.") and not with_lora:
        return ConvertedKey(old, value, "dropped", "the file disables LoRA")
    if ours.key in _COMBINED_KEYS:
        return _combined(ours.key, old, value, written, settings)
    if ours.key in settings and settings[ours.key] != value and parts[-1] not in ("clip_ratio_low", "clip_ratio_high"):
        earlier_value = settings[ours.key]
        if ours.key not in ("train.clip_low", "train.clip_high"):
            return ConvertedKey(old, value, "unknown", f"another key already sets {ours.key} to {earlier_value!r}")
    settings[ours.key] = value
    return ConvertedKey(old, value, "converted", ours.key)


def _equivalent(parts: tuple[str, ...], written: list[tuple[tuple[str, ...], Any]]) -> OurKey | None:
    """Return the equivalent of a foreign key, or clawctl's own key if the path is the same. None if the key is unknown."""
    path = ".".join(parts)
    # `model.name` elsewhere names the model itself, unless a path is given as well
    if parts[-2:] == ("model", "name"):
        others = [
            keys for keys, _ in written if keys != parts and (equivalent := find_elsewhere(keys)) and equivalent.key == "model.path"
        ]
        names_path = any(keys[-2:] == ("model", "path") for keys, _ in written)
        return OurKey("model.name" if others or names_path else "model.path")
    if path in known_keys(Recipe):
        return OurKey(path)
    last_two = ".".join(parts[-2:])
    return find_elsewhere(parts) or (OurKey(last_two) if last_two in known_keys(Recipe) else None)


def _combined(key: str, old: str, value: Any, written: list[tuple[tuple[str, ...], Any]], settings: Settings) -> ConvertedKey:
    """Convert the batch size or AdamW's betas, which other systems split into several keys."""
    names = {
        parts[-1].lower(): given_value
        for parts, given_value in written
        if ".".join(parts) == old or _equivalent(parts, written) == OurKey(key)
    }
    if key == "train.betas":
        given = names.get("betas", names.get("adam_betas"))
        first, second = names.get("adam_beta1", names.get("beta1", 0.9)), names.get("adam_beta2", names.get("beta2", 0.999))
        settings[key] = given if given is not None else [first, second]
        return ConvertedKey(old, value, "converted", key)
    accumulated = [given_value for name, given_value in names.items() if "accum" in name]
    sizes = {name: given_value for name, given_value in names.items() if "accum" not in name}
    whole = [sizes[name] for name in ("global_batch_size", "train_batch_size", "rollout_batch_size") if name in sizes]
    try:
        if whole:
            if len({int(given_value) for given_value in whole}) > 1:
                return ConvertedKey(old, value, "unknown", f"{key} would have several values: {', '.join(map(str, whole))}")
            settings[key], note = int(whole[0]), key
        elif sizes:
            size, times = int(next(iter(sizes.values()))), int(accumulated[0]) if accumulated else 1
            settings[key], note = size * times, key if times == 1 else f"{key} ({size} x {times}, the whole step)"
        else:
            return ConvertedKey(old, value, "dropped", "`train.tokens_per_microbatch` sets the microbatches")
    except (TypeError, ValueError, OverflowError):
        return ConvertedKey(old, value, "unknown", f"{key} must be a whole number")
    if "accum" in old.lower() and whole:
        return ConvertedKey(old, value, "dropped", "`train.tokens_per_microbatch` sets the microbatches")
    return ConvertedKey(old, value, "converted", note)


def _with_values(lines: list[ConvertedKey], settings: Settings) -> list[ConvertedKey]:
    """Return the lines with their values: `unknown` if a value is not allowed, `same default` if it equals clawctl's default."""
    lines = [_checked_method(line, settings) for line in lines]
    wrong: dict[str, str] = {}
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        set_nested(nested, key.split("."), value)
    try:
        values = Recipe.model_validate(nested).model_dump(mode="json")
    except ValidationError as error:
        for problem in error.errors():
            wrong.setdefault(key_at([part for part in problem["loc"] if not isinstance(part, int)]), problem["msg"])
        values = nested
    defaults = Recipe.model_validate({"train": {"lora": {}}}).model_dump(mode="json")
    defaults["train"] = {name: field.default for name, field in TrainConfig.recipe_keys().items()} | defaults["train"]
    checked = []
    for line in lines:
        keys = [part.split(" (")[0] for part in line.new.split(", ") if part.split(" (")[0] in settings]
        if line.fate != "converted" or not keys:
            checked.append(line)
            continue
        if bad := next((key for key in keys if key in wrong), None):
            checked.append(ConvertedKey(line.old, line.value, "unknown", f"{bad}: {wrong[bad]}"))
            continue
        new = ", ".join(f"{key}: {_at(values, key)}" for key in keys)
        note = line.new[line.new.index(" (") :] if " (" in line.new else ""
        same = all(_at(values, key) == _at(defaults, key) for key in keys)
        checked.append(ConvertedKey(line.old, line.value, "same default" if same else "converted", new + note))
    return checked


def _checked_method(line: ConvertedKey, settings: Settings) -> ConvertedKey:
    """Return the line, or the reason why its setting has no effect with the method. That setting is then removed from
    `settings`.
    """
    method = settings.get("train.method", TrainConfig().method.kind)
    methods = kinds_with(line.new.removeprefix("train."), "method")
    if line.new not in settings or method in methods or not methods:
        return line
    del settings[line.new]
    return ConvertedKey(line.old, line.value, "dropped", f"it has no effect with train.method {method}")


def _at(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data
