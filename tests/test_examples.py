"""The files of examples/. Each is run by a test of its stage: grep for `examples`."""

from pathlib import Path

import pytest

from scripts.house import Module

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_listed_and_run_by_a_test(example: Path) -> None:
    assert Module(example).code_lines <= 40
    assert f"]({example.name})" in (ROOT / "examples" / "README.md").read_text()
    assert any(f'"{example.name}"' in path.read_text() or f"'{example.name}'" in path.read_text() for path in TESTS)


TESTS = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.name != "test_examples.py"]
