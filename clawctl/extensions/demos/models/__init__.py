"""The folders of the tiny models. Each has a card, README.md."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def demo() -> Path:
    return _FOLDER / "demo"


def crafts() -> Path:
    return _FOLDER / "crafts"


def pages() -> Path:
    return _FOLDER / "pages"


def screens() -> Path:
    return _FOLDER / "screens"


def wishes() -> Path:
    return _FOLDER / "wishes"
