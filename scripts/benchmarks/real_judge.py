"""A part of `scripts/bench real`: a model that cannot judge is refused as the judge, and a judge that is right is not."""

import asyncio
from pathlib import Path
from typing import Any

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clawctl.config import load_recipe
from clawctl.judge.fitness import planted_turns
from clawctl.judge.worker import check_judge
from clawctl.run.directory import open_run
from clawctl.run.fitness import Fitness
from scripts.asgi import serving
from scripts.benchmarks.circle import running
from scripts.benchmarks.table import Row

MAX_TOKENS = 128  # of a vote; the pretrained model gives no valid one in 4096 either


def unfit_judge_refused(folder: Path, model: str = "smollm2") -> list[Row]:
    """The rows of `model` as the judge of its own run on the embedded engine, and of a judge that scores turns as people do."""
    settings = {"model": {"path": model, "name": "own", "dtype": "float32"}, "serve": {"port": 0}, "up": {"stages": ["serve"]}}
    recipe = _written(folder / "own.yaml", {**settings, "judge": {"max_tokens": MAX_TOKENS, "timeout_s": 600}})
    with running(folder / "own", recipe):
        rows = _rows(f"{Path(model).stem} as its own judge", _checked(folder / "own", recipe))
    with serving(Starlette(routes=[Route("/v1/chat/completions", _answer, methods=["POST"])])) as url:
        recipe = _written(folder / "rules.yaml", {"judge": {"endpoint": f"{url}/v1", "model": "rules", "api_key": "k"}})
        open_run(folder / "rules")
        return rows + _rows("a judge that is right", _checked(folder / "rules", recipe))


def _written(path: Path, settings: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(settings))
    return path


def _checked(root: Path, recipe: Path) -> Fitness:
    fitness = asyncio.run(check_judge(open_run(root, create=False), load_recipe(recipe)))
    assert fitness is not None  # a chat model is checked by default
    return fitness


def _rows(case: str, fitness: Fitness) -> list[Row]:
    return [
        Row(case, "unfit_judge_refused", float(not fitness.fit), "yes or no"),
        Row(case, "planted_turns_right", fitness.right, f"of {fitness.of}"),
        Row(case, "planted_turns_without_vote", fitness.without_vote, f"of {fitness.of}"),
    ]


async def _answer(request: Request) -> JSONResponse:
    """The vote of a person on the planted turn in the prompt."""
    text = (await request.json())["messages"][-1]["content"]
    score = next(score for turn, score in planted_turns() if str(turn.messages[0]["content"]) in text)
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": f"\\boxed{{{score}}}"}}]})
