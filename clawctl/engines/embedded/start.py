"""Starts the embedded engine: first the process that holds the models, which takes longest, then this process's side of it."""

from clawctl.config import Recipe
from clawctl.engines import Engine
from clawctl.engines.embedded.process import ModelProcess
from clawctl.run.directory import RunDir


def start(run: RunDir, recipe: Recipe, process: type[ModelProcess] = ModelProcess) -> Engine:
    """Start the process and wait until it has loaded version 0. Raises ClawError."""
    models = process(run, recipe)
    try:
        from clawctl.engines.embedded.engine import Embedded
        from clawctl.serve.prompt import load_tokenizer

        tokenizer = load_tokenizer(recipe.model_path)
        models.wait()
    except BaseException:
        models.stop()
        raise
    return Embedded(recipe, tokenizer, models)
