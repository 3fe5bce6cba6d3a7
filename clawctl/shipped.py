"""Files that come with clawctl beside its code: docs, recipes, and the plugin for OpenClaw."""

import sysconfig
from pathlib import Path

from clawctl.errors import ClawError

_CHECKOUT = Path(__file__).parents[1]


def shipped(name: str, checkout: Path = _CHECKOUT, prefix: Path | None = None) -> Path:
    """A folder such as `docs`, in a checkout, or in an installation with that prefix. Raises ClawError."""
    installed = (prefix or Path(sysconfig.get_path("data"))) / "share" / "clawctl"
    folder = (checkout if (checkout / "pyproject.toml").is_file() else installed) / name
    if folder.is_dir():
        return folder.resolve()
    raise ClawError(f"{name} is missing in this installation of clawctl", "reinstall clawctl")


def names_in(folder: Path, suffix: str) -> list[str]:
    """Names of the files in a shipped folder, without their suffix: `gate`, `guide/one-turn`."""
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob(f"*{suffix}"))


def find_file(named: Path) -> Path:
    """`named`, or the shipped file of that name: `docs/labelled-turns.jsonl`. Raises ClawError if that folder is missing."""
    if named.exists() or named.parts[:1] not in (("docs",), ("recipes",)):
        return named
    return shipped(named.parts[0]).joinpath(*named.parts[1:])


def find_recipe(named: Path) -> Path:
    """`named`, or the shipped recipe of that name: `default`, `smollm2`. Raises ClawError."""
    if named.is_file() or named.suffix or len(named.parts) > 1:
        return named
    path = shipped("recipes") / f"{named}.yaml"
    if not path.is_file():
        names = ", ".join(names_in(shipped("recipes"), ".yaml"))
        raise ClawError(f"there is no recipe {named}", f"name a file, or one of {names}", 2)
    return path
