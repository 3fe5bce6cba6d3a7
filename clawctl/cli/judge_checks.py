"""What `clawctl doctor` finds out about a recipe's judge."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch
from clawctl.run.directory import RunDir, open_run
from clawctl.run.fitness import read_fitness

_PATIENCE_S = 5.0
_REFUSED = (401, 403)


def check_judge_lines(recipe: Recipe, folder: Path, again: bool) -> Iterator[tuple[str, bool]]:
    """A line for each server that judges, and one for the planted turns, each with whether the recipe cannot run like this.

    The planted turns are asked `again`, or if a server is named that never answered them in the run at `folder`."""
    from clawctl.judge.fitness import judge_identity

    settings, begun = recipe.judge, (folder / "run.json").exists()
    urls = list(dict.fromkeys(filter(None, (settings.endpoint, *settings.endpoints))))
    if settings.prm or settings.custom_rm or not settings.ask:
        return
    lines = [_server_line(recipe, url) for url in urls]
    yield from lines
    if all(is_bad for _, is_bad in lines) if lines else not begun:  # none to ask
        return
    recorded = read_fitness(open_run(folder, create=False)) if begun else None
    if recorded is not None and recorded.judge == judge_identity(recipe, _model(recipe)) and not again:
        yield f"judge: {recorded.line}", not recorded.fit
    elif not (again or urls):
        yield "judge: not checked; `clawctl doctor --judge` asks it twelve planted turns", False
    elif begun:
        yield _planted_line(open_run(folder, create=False), recipe)
    else:
        with tempfile.TemporaryDirectory() as empty:
            yield _planted_line(open_run(Path(empty) / "run", create=True), recipe)


def _model(recipe: Recipe) -> str:
    return recipe.judge.model or f"{recipe.model_name}@0"


def _server_line(recipe: Recipe, url: str) -> tuple[str, bool]:
    name = _model(recipe)
    try:
        answer = fetch("GET", f"{url.rstrip('/')}/models", key=recipe.judge.api_key, timeout_s=_PATIENCE_S)
    except RequestFailed as error:
        return f"judge: {url} does not answer ({error}); start it, or correct judge.endpoint", True
    if answer.status in _REFUSED:
        return f"judge: {url} refuses the key ({answer.status}); correct judge.api_key", True
    if answer.status >= 500:
        return f"judge: {url} answers {answer.status}; look at its log", True
    try:
        offered = [str(model["id"]) for model in orjson.loads(answer.body)["data"]] if answer.status == 200 else []
    except (ValueError, LookupError, TypeError):
        offered = []
    if offered and name not in offered:
        return f"judge: {url} does not offer {name}; set judge.model to one of {', '.join(offered[:5])}", True
    return f"judge: {url} answers", False


def _planted_line(run: RunDir, recipe: Recipe) -> tuple[str, bool]:
    from clawctl.judge.worker import check_judge

    try:
        fitness = asyncio.run(check_judge(run, recipe))
    except ClawError as error:
        return f"judge: {error.problem}; {error.fix}", True
    if fitness is None:
        return "judge: not checked, because it is a reward model or judge.fitness is skip", False
    return f"judge: {fitness.line}", not fitness.fit
