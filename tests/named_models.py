"""Models that tests of the product use as fixtures, found by name as a recipe finds them."""

from pathlib import Path

from clawctl.run.gguf import model_folder

TEXT_MODEL = Path(model_folder("crafts"))
