"""The model of the screens: its demonstrations and pixels are those of the environment, and it fits its budget."""

import asyncio
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from clawctl.extensions.worlds.gui.actions import SYSTEM_PICTURE, Action, action_in
from clawctl.extensions.worlds.gui.browser import find_chromium
from clawctl.extensions.worlds.gui.page import open_page
from clawctl.extensions.worlds.gui.sites import SPOT_CELL, SPOT_COLUMNS, SPOT_ROWS, DrawnSite, draw_site
from clawctl.vision.reader import image_reader
from scripts.benchmarks.circle import ROOT
from scripts.screens_model.corpus import CHOICES, boxes_of, documents
from scripts.screens_model.report import found_share, load
from scripts.screens_model.train import Pixels
from tests.extensions.worlds.test_gui import needs_browser

FOLDER = ROOT / "scripts/benchmarks/models/screens"
made = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason="scripts/make-screens-model makes it")


@made
@needs_browser
def test_the_pixels_of_training_are_those_of_a_screenshot() -> None:
    task, reader = draw_site("spot", 6), image_reader(str(FOLDER))
    assert reader is not None

    async def screenshot() -> bytes:
        async with open_page(find_chromium(), DrawnSite(task), (SPOT_CELL * SPOT_COLUMNS, SPOT_CELL * SPOT_ROWS)) as page:
            return await page.screenshot()

    seen, drawn = reader.picture(asyncio.run(screenshot())), Pixels(reader).picture(boxes_of(task))
    assert (seen.rows, seen.columns) == (drawn.rows, drawn.columns) == (SPOT_ROWS, SPOT_COLUMNS)
    assert np.array_equal(seen.pixels, drawn.pixels)


def test_about_one_demonstration_in_five_clicks_the_named_box() -> None:
    right = Counter[bool]()
    for doc in islice(documents(3, 8000), 8000):
        if doc.system:
            colours = {colour: cell for cell, colour in doc.boxes.items()}
            cell = colours[doc.question.split()[3]]
            x, y = SPOT_CELL * (cell % SPOT_COLUMNS) + 16, SPOT_CELL * (cell // SPOT_COLUMNS) + 16
            action = action_in(doc.answer)
            assert action is not None
            right[action == Action("click_at", x, down=y)] += 1
    share = right[True] / right.total()
    assert abs(share - CHOICES["right"]) < 0.04
    assert share < 0.25


def test_demonstrations_begin_as_the_environment_does() -> None:
    demonstrations = [doc for doc in documents(0, 40) if doc.system]
    assert demonstrations
    assert {doc.system for doc in demonstrations} == {SYSTEM_PICTURE}
    assert all(doc.question.startswith("Task: Click the ") for doc in demonstrations)


@made
def test_the_model_finds_the_boxes_of_held_out_pages() -> None:
    model, rows = load(FOLDER)
    assert found_share(model, rows, [draw_site("spot", 2 * number + 1) for number in range(40)]) > 0.9


@made
def test_the_model_fits_its_budget_and_has_a_card() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 16 * 2**20
    assert "pass@8" in (FOLDER / "README.md").read_text()
