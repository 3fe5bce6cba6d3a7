"""Reads the lists of words, which are data: a heading in brackets, then words."""

import re
from functools import cache
from importlib.resources import files


@cache
def table(name: str) -> dict[str, str]:
    """Return the lists of a file by their headings."""
    parts = re.split(r"(?m)^\[([A-Za-z ]+)\]$", files(__package__).joinpath(name).read_text("utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))
