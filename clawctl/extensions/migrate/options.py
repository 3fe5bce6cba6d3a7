"""Options of other systems, which are translated, or refused with a hint at clawctl's equivalent: `options.yaml`."""

from pathlib import Path
from typing import Any

import yaml

from clawctl.config.explaining import Option


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
