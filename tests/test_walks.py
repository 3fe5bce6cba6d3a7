"""`scripts/house --walks` counts the files that are called on a walk."""

from clawctl.shipped import find_recipe, shipped
from scripts.walks import PACKAGE, Walk


def test_a_walk_has_the_files_that_are_called_between_its_ends() -> None:
    with Walk(shipped.__code__, "is_dir") as walk:
        find_recipe(PACKAGE)
        assert walk.files == {}
        shipped("docs")
        find_recipe(PACKAGE)
    assert list(walk.files) == [PACKAGE / "shipped.py"]
