"""`clawctl up --estimate`: prints the plan of memory, and writes settings that fit into the recipe."""

from pathlib import Path
from typing import Any

from clawctl.config import Recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.launch.fitting import fit, fitted
from clawctl.launch.plan import gpus_of, plan_memory
from clawctl.memory import Box, box_at_hand, box_of
from clawctl.run.directory import publish_bytes
from clawctl.shipped import shipped


def show_plan(path: Path, card: str | None, fits: bool) -> None:
    """Print the plan for empty cards `card`, or for what is free here. With `fits`, change the recipe until it fits.

    Raises ClawError (exit code 2) if it does not."""

    def load(settings: dict[str, Any]) -> Recipe:
        return load_recipe(path, settings)

    box = box_for(load({}), card)
    if not fits:
        plan = plan_memory(load({}), box)
        print("\n".join(plan.lines()))
        return plan.check()
    changes, plan = fit(load, box)
    print("\n".join(plan.lines()))
    if not changes:
        return print(f"{path} fits as it is")
    written = write_fitted(path, fitted(path.read_text(), changes))
    for change in changes:
        print(f"{written}: {change.key}: {change.value}  # {change.reason}")


def box_for(recipe: Recipe, card: str | None) -> Box:
    return box_at_hand() if card is None else box_of(card, gpus_of(recipe))


def write_fitted(path: Path, text: str) -> Path:
    """Write the recipe; a shipped one into a new file in the current folder. Raises ClawError if that exists."""
    if path.resolve().parent == shipped("recipes"):
        path = Path(path.name)
        if path.exists():
            raise ClawError(f"{path} is in this folder already", f"pass it instead: clawctl up --estimate ./{path} --fit", 2)
    publish_bytes(path, text.encode())
    return path
