"""The folders of the tiny models. Each has a card, README.md."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def crafts() -> Path:
    return _FOLDER / "crafts"
