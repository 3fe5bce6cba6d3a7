"""What clawctl says about the keys (`keys.yaml`) and options (`options.yaml`) of other systems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clawctl.config.explaining import Explainer, Option
from clawctl.extensions.migrate.keys import OurKey, find_elsewhere, find_similar, is_from_elsewhere


def _option(entry: Any) -> Option:
    """The option in one entry of the table, which is a name or a mapping."""
    match entry:
        case str():
            return Option(lambda value: (entry, value), f"use {entry}")
        case {"option": name}:
            return Option(lambda value: ("--option", f"{name}={value}"), f"use --option {name}=VALUE")
        case {"recipe": key}:
            return Option(lambda value: None, f"set {key} in the recipe")
        case {"words": words, "instead": instead}:
            return Option(lambda value: words, instead, takes_value=False, unless=tuple(entry.get("unless", ())))
        case {"values": values, "instead": instead}:
            return Option(values.get, instead)
        case _:
            return Option(lambda value: None, entry["instead"], entry.get("takes_value", True))


_TABLE = yaml.safe_load((Path(__file__).parent / "options.yaml").read_text("utf-8"))
OPTIONS = {command: {name: _option(entry) for name, entry in options.items()} for command, options in _TABLE["commands"].items()}


class OtherSystems(Explainer):
    """OpenClaw-RL, slime, verl, TRL, prime-rl and ART."""

    def key(self, parts: Sequence[str], similar: bool = False) -> OurKey | None:
        return find_similar(parts[-1]) if similar else find_elsewhere(parts)

    def cure(self, path: Path | None, data: Mapping[Any, Any], strange: Sequence[str]) -> str | None:
        return f"convert it: clawctl recipe convert {path} --out NEW.yaml" if is_from_elsewhere(data, strange) else None

    def options(self, command: str) -> Mapping[str, Option]:
        return OPTIONS.get(command, {})


OTHER_SYSTEMS = OtherSystems()
