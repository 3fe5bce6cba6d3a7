"""Recipe keys of other systems and their equivalents in clawctl: OpenClaw-RL, slime, verl, TRL, prime-rl, ART.

A key is looked up by its last two parts (`rollout.temperature`), else by its last part (`learning_rate`), because other systems
nest the same names in different sections. `clawctl recipe convert` and the suggestions for mistyped keys use the table `keys.yaml`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from clawctl.config.explaining import Equivalent

Settings = dict[str, Any]  # dotted keys of clawctl and their values


@dataclass(frozen=True, slots=True)
class OurKey(Equivalent):
    """The equivalent of a foreign key."""

    # Converts the value; may return other settings or another key; None: the value has no equivalent
    change: Callable[[Any], "Settings | OurKey | None"] | None = None


def _clip(value: Any) -> Settings:
    return {"train.off_policy": "ppo_clip", "train.clip_low": value, "train.clip_high": value}


def _trackers(value: Any) -> Settings | None:
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list):
        return None
    if "all" in named or not set(map(str, named)) <= {"wandb", "tensorboard", "trackio", "none", "console", "file"}:
        return None
    return {"train.trackers": [name for name in named if name in ("wandb", "tensorboard", "trackio")]}


def _gpus(key: str, value: Any) -> Settings | OurKey:
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",")]
    if isinstance(value, list):
        return {key: value}
    return OurKey(dropped=f"clawctl takes GPU numbers, not a count: `{key}: [0, 1]`", near=key)


_CHANGES: dict[str, Callable[[Any], Settings | OurKey | None]] = {
    "clip": _clip,
    "trackers": _trackers,
    "train_gpus": partial(_gpus, "train.gpus"),
    "serve_gpus": partial(_gpus, "serve.gpus"),
}


def _chosen(key: str, values: Mapping[Any, Any], others: str | None, value: Any) -> Settings | OurKey | None:
    """The settings for a value that has another name elsewhere, by the entry's `values`."""
    chosen = {str(name).lower(): meant for name, meant in values.items()}.get(str(value).lower().replace("-", "_"))
    if chosen is None:
        return {key: value} if others == "kept" else None
    if isinstance(chosen, dict):
        return OurKey(**chosen) if "dropped" in chosen else chosen
    return {key: chosen}


def _equivalent(entry: dict[str, Any]) -> OurKey:
    """The equivalent in one entry of the table, which may have a name in `change`, or `values`."""
    values, others, change = (entry.pop(name, None) for name in ("values", "others", "change"))
    if values is not None:
        return OurKey(entry["key"], change=partial(_chosen, entry["key"], values, others))
    return OurKey(change=None if change is None else _CHANGES[change], **entry)


def _read_keys(table: Path) -> dict[str, OurKey]:
    keys: dict[str, OurKey] = {}
    for entry in yaml.safe_load(table.read_text("utf-8")):
        names = entry.pop("names").split()
        keys |= dict.fromkeys(names, _equivalent(entry))
    return keys


KEYS = _read_keys(Path(__file__).parent / "keys.yaml")

# Top-level sections of other systems' recipes that clawctl's recipes do not have.
SECTIONS = frozenset(
    (
        "training", "rollout", "evaluation", "trainer", "algorithm", "actor_rollout_ref", "actor", "critic", "reward_model",
        "reward", "prm", "rl", "lora", "peft", "data", "dataset", "env", "environment", "server", "optimizer", "optim", "logging",
        "wandb", "distributed", "orchestrator", "inference", "sampling", "generation", "teacher", "distillation",
    )
)  # fmt: skip


def find_elsewhere(parts: Sequence[str]) -> OurKey | None:
    """Return the equivalent of the foreign key with these parts, or None if the key is unknown."""
    names = [part.lower().replace("-", "_") for part in parts]
    return KEYS.get(".".join(names[-2:])) or KEYS.get(names[-1])


def find_similar(name: str) -> OurKey | None:
    """Return the equivalent of the foreign key that is spelled like `name`."""
    names = get_close_matches(name, [name for name in KEYS if len(name) > 4], n=1, cutoff=0.85)
    return KEYS[names[0]] if names else None


def is_from_elsewhere(data: Mapping[Any, Any], strange: Sequence[str]) -> bool:
    """Whether a recipe is written for another system: it has a foreign section, or foreign settings at the top level."""
    flat = [key for key in strange if not isinstance(data.get(key), dict) and find_elsewhere([key])]
    return any(key.lower() in SECTIONS and isinstance(data.get(key), dict) for key in strange) or len(flat) > 1
