"""Which tests outside `tests/extensions` need an extension: what the product does with one cannot be tested without any."""

import pytest

from scripts.without import EXTENSIONS

ALL = ("bucket", "cluster", "judge_lab", "migrate", "secrets", "tinker", "worlds")  # the documents and house.toml speak of these


def needs(*names: str) -> pytest.MarkDecorator:
    missing = set(names) - set(EXTENSIONS)
    return pytest.mark.skipif(bool(missing), reason=f"without the extension {', '.join(sorted(missing))}")
