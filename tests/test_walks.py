"""`scripts/house --walks` counts the files that a value crosses."""

from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

from clawctl.errors import ClawError
from clawctl.run.names import is_name
from clawctl.shipped import find_recipe, shipped
from scripts.house import BUDGETS
from scripts.walks import PACKAGE, Walk, measured
from tests.forked import CONTEXT


def test_a_walk_has_the_files_that_are_called_between_its_ends() -> None:
    with Walk(shipped, find_recipe) as walk:
        find_recipe(PACKAGE)
        assert walk.called == {}
        shipped("docs")
        find_recipe(PACKAGE)
    assert list(walk.called) == [PACKAGE / "shipped.py"]
    assert walk.missed == []


def test_a_file_is_on_the_way_if_it_has_a_frame_at_a_hand_over() -> None:
    with Walk(shipped, ClawError.__init__) as walk, suppress(ClawError):
        shipped("docs")
        is_name("docs")  # returns before the next hand-over
        find_recipe(Path("absent"))
    names = [file.name for file in walk.called]
    assert (names, [file.name for file in walk.on_the_way]) == (
        ["shipped.py", "names.py", "errors.py"],
        ["shipped.py", "errors.py"],
    )


def test_a_walk_reports_a_hand_over_that_is_not_reached() -> None:
    with Walk(shipped, find_recipe) as walk:
        shipped("docs")
    assert walk.missed == ["find_recipe"]


def test_the_walks_keep_to_their_budgets() -> None:
    """`scripts/house --walks` lists the files."""
    with ProcessPoolExecutor(1, CONTEXT) as process:  # a profiler would follow the threads of other tests
        walks, budgets = process.submit(measured).result(), BUDGETS["walks"]
    assert walks.keys() == budgets.keys()
    above = [(name, measure) for name, files in walks.items() for measure, count in files.items() if count > budgets[name][measure]]
    assert above == []
