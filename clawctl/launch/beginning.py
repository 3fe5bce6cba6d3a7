"""`clawctl init`: a recipe of one's own from three answers, with settings that fit this box or a named card."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.config import Recipe, load_recipe
from clawctl.config.editing import with_value
from clawctl.errors import ClawError
from clawctl.launch.estimating import box_for
from clawctl.launch.fitting import fit, fitted
from clawctl.memory import GB
from clawctl.run.directory import publish_bytes
from clawctl.shipped import find_recipe

_LARGE = 40 * GB  # a card on which nothing has to be given up for a model of 4 billion weights


@dataclass(frozen=True, slots=True)
class Answers:
    agent: str  # "openclaw", or the name of any other client
    model: str  # a Hugging Face name, a folder, or a model that clawctl makes
    judge: str | None  # the URL of an OpenAI-compatible server; None: version 0 of the model


def write_recipe(path: Path, answers: Answers, card: str | None) -> list[str]:
    """Write the recipe. Returns the chosen settings and the next commands, as lines. Raises ClawError (exit code 2)."""
    if path.exists():
        raise ClawError(f"{path} exists already", "choose another name: clawctl init NAME.yaml", 2)
    box = box_for(load_recipe(find_recipe(Path("default"))), card)
    origin = find_recipe(Path("default" if box.free else "smollm2"))
    text = with_value(origin.read_text(), "model.path", answers.model, "of clawctl init")
    text = with_value(text, "name", path.stem, "of clawctl init")
    if answers.judge is not None:
        text = with_value(text, "judge.endpoint", answers.judge, "of clawctl init")
    if box.free and min(box.free.values()) >= _LARGE:
        text = with_value(text, "train.lora.quantize", None, "this card is large enough")
        text = with_value(text, "train.tokens_per_microbatch", 16384, "this card is large enough")
        text = with_value(text, "serve.kv_cache_tokens", 131072, "of all running conversations together")
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.yaml"
        draft.write_text(text)
        changes, plan = fit(lambda settings: _loaded(draft, settings), box)
    publish_bytes(path, fitted(text, changes).encode())
    lines = [f"wrote {path}, from {origin.stem}", *plan.lines()]
    lines += [f"{change.key}: {change.value}  # {change.reason}" for change in changes]
    run = f"runs/{path.stem}"
    connect = (
        f"clawctl openclaw-setup --run {run}" if answers.agent == "openclaw" else f"clawctl keys add {answers.agent} --run {run}"
    )
    return [
        *lines,
        "",
        f"clawctl doctor --recipe {path}",
        f"clawctl up {path} --run {run}",
        connect,
        f"clawctl inspect health --run {run}",
    ]


def _loaded(path: Path, settings: dict[str, Any]) -> Recipe:
    return load_recipe(path, settings)
