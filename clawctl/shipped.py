"""Files that come with clawctl beside its code: docs, recipes, and the plugin for OpenClaw."""

import sysconfig
from pathlib import Path

from clawctl.errors import ClawError


def shipped(name: str) -> Path:
    """A folder such as `docs`, in a checkout or in an installation. Raises ClawError."""
    checkout, installed = Path(__file__).parents[1], Path(sysconfig.get_path("data")) / "share" / "clawctl"
    folder = (checkout if (checkout / "pyproject.toml").is_file() else installed) / name
    if folder.is_dir():
        return folder.resolve()
    raise ClawError(f"{name} is missing in this installation of clawctl", "reinstall clawctl")


def shipped_names(name: str, suffix: str) -> list[str]:
    """Names of the files in a shipped folder, without their suffix: `gate`, `guide/one-turn`."""
    return sorted(file.relative_to(shipped(name)).with_suffix("").as_posix() for file in shipped(name).rglob(f"*{suffix}"))


def find_recipe(named: Path) -> Path:
    """`named`, or the shipped recipe of that name: `default`, `smollm2`. Raises ClawError."""
    if named.is_file() or named.suffix or len(named.parts) > 1:
        return named
    path = shipped("recipes") / f"{named}.yaml"
    if not path.is_file():
        names = ", ".join(shipped_names("recipes", ".yaml"))
        raise ClawError(f"there is no recipe {named}", f"name a file, or one of {names}", 2)
    return path
