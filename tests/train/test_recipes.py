"""Each shipped recipe trains where it states that it does."""

from pathlib import Path

import pytest
import torch

from clawctl.config import load_recipe
from clawctl.trainers.local.estimate import forecast
from clawctl.trainers.local.ranks import Ranks

ROOT = Path(__file__).parent.parent.parent
SIZED = sorted(path for path in (ROOT / "recipes").glob("qwen*.yaml"))


@pytest.mark.parametrize("path", SIZED, ids=lambda path: path.stem)
def test_a_recipe_fits_the_cards_that_it_is_for(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.train.gpus is not None
    assert recipe.train.device_memory_gb is not None
    found = forecast(recipe, Ranks(0, len(recipe.train.gpus), torch.device("cuda")))
    print(f"{path.stem}: {found.estimate.total / 2**30:.1f} GiB", *found.lines(), sep="\n")
    assert found.fits, found.lines()
    card = float(path.stem.rpartition("-")[2].rpartition("x")[2].removesuffix("gb"))
    shared = set(recipe.train.gpus) & set(recipe.serve.gpus or [])
    arguments = dict(zip(recipe.serve.engine_args[::2], recipe.serve.engine_args[1::2], strict=True))
    served = float(arguments.get("--gpu-memory-utilization", 0.9)) * card
    assert recipe.train.device_memory_gb + (served if shared else 0) <= card
    tensor_parallel = int(arguments.get("--tensor-parallel-size", 1))
    assert served > 2 * found.parameters / 2**30 / tensor_parallel  # bfloat16 weights, and room for a cache
    assert tensor_parallel == len(recipe.serve.gpus or [])


def test_the_table_of_recipes_names_them_all_with_their_estimates() -> None:
    rows = [line for line in (ROOT / "recipes" / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = {row.split("`")[1]: row for row in rows}
    assert named.keys() == {path.name for path in (ROOT / "recipes").glob("*.yaml")}
    for path in SIZED:
        recipe = load_recipe(path)
        found = forecast(recipe, Ranks(0, len(recipe.train.gpus or [0]), torch.device("cuda")))
        assert f"{found.estimate.total / 2**30:.0f} GiB" in named[path.name], named[path.name]
        assert recipe.train.method in named[path.name]
