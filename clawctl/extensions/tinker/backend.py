"""The backends `tinker` and `fireworks`, and the recipes that they refuse at the start. Importing this module imports no torch and
no SDK."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from clawctl.config import Recipe
from clawctl.config.environment import without_telemetry
from clawctl.config.methods import Distributions
from clawctl.config.train import AtService
from clawctl.errors import ClawError
from clawctl.memory import PROCESS, Needs
from clawctl.train.advantages import likeliest
from clawctl.trainers import Trainer

if TYPE_CHECKING:
    from clawctl.extensions.tinker.sdk import Service


class ServiceBackend:
    """A `TrainingBackend` with one local process; the service computes."""

    def __init__(self, kind: str, packages: Sequence[str], connect: "Callable[[Recipe], Service]") -> None:
        """`kind` is the name in `train.backend` and of clawctl's extra; `packages` are those of the SDK."""
        self.kind, self.packages, self.connect = kind, packages, connect

    def estimate(self, recipe: Recipe, gpus: str | None, processes: int | None) -> list[str]:
        check(recipe)
        price = recipe.train.service.price
        if price is None:
            return ["Nothing is computed on this machine.", "Set train.service.price to see what a step costs."]
        hints, k = recipe.train.uses_hints, likeliest(recipe.train) or 0
        reads, trains = (1, 1) if not hints else (2 * (1 + k) + (1 if k else 0), 1 + k)
        cost = (price.prefill * reads + price.train * trains) * recipe.train.batch_turns / 1e3
        how = "once" if reads == 1 else f"{reads} times, some of them with its hint"
        return [
            "Nothing is computed on this machine.",
            f"Each turn of a step is read {how}, and trained {'once' if trains == 1 else f'{trains} times'}.",
            f"A step of {recipe.train.batch_turns} turns costs about {cost:.4g} for each 1,000 tokens of a turn, with its prompt.",
        ]

    def needs(self, recipe: Recipe, gpus: int) -> Needs:
        return Needs(host={"process": PROCESS})

    def spread(self, recipe: Recipe, gpus: str | None, processes: int | None, arguments: Sequence[str]) -> None:
        if gpus is not None or processes is not None or recipe.train.gpus is not None:
            raise ClawError(f"--backend {self.kind} uses no GPU of this machine", "leave out --gpus, --processes and train.gpus", 2)

    @contextmanager
    def open(
        self, recipe: Recipe, prepare: Callable[[], None], between_layers: Callable[[], None] | None = None
    ) -> Iterator[Trainer | None]:
        check(recipe)
        if any(find_spec(package) is None for package in self.packages):
            raise ClawError(f"--backend {self.kind} needs its SDK", f"pip install 'clawctl[{self.kind}]'", 2)
        prepare()
        without_telemetry()
        from clawctl.extensions.tinker.trainer import ServiceTrainer

        yield ServiceTrainer(recipe, self.connect(recipe))


def _tinker(recipe: Recipe) -> "Service":
    from clawctl.extensions.tinker.sdk import Service

    return Service(recipe)


def _fireworks(recipe: Recipe) -> "Service":
    from clawctl.extensions.tinker.fireworks import FireworksService

    return FireworksService(recipe)


TINKER = ServiceBackend("tinker", ["tinker"], _tinker)
FIREWORKS = ServiceBackend("fireworks", ["fireworks", "pyqwest"], _fireworks)  # the SDK imports pyqwest with the first session


def check(recipe: Recipe) -> None:
    """Raises ClawError (exit code 2) for a recipe that a service cannot carry out exactly."""
    config, lora = recipe.train, recipe.train.lora
    backend, method, fireworks = config.backend.kind, config.method.kind, config.backend.kind == "fireworks"
    address = config.service.url or "the service"
    if not (isinstance(config.backend, AtService) and config.backend.send_conversations):
        raise ClawError(
            f"--backend {backend} sends conversations to {address}, and train.send_conversations is not set",
            "read `clawctl docs privacy`, then set train.send_conversations: true",
            2,
        )
    refused = {
        "all weights: it trains adapters": lora is None,
        f"train.method {method} over the likeliest tokens: its SDK advises against its sampler's logprobs": fireworks
        and likeliest(config),
        f"train.teacher base with train.method {method}: it scores the base model on the sampled tokens only": likeliest(config)
        and config.teacher == "base",
        "train.custom_loss, which needs logits": config.custom_loss is not None,
        "train.lr auto, which changes weights directly": config.lr == "auto",
        "train.base_pull, which changes weights directly": bool(config.base_pull),
        "train.kl_budget, which needs logits": config.kl_budget is not None,
        "train.guidance, which needs logits": isinstance(config.method, Distributions) and config.method.guidance != 1,
        "train.teacher ema: the average of earlier weights is not on the service": config.uses_hints and config.teacher == "ema",
        "dropout: set train.lora.dropout: 0": lora is not None and lora.dropout > 0,
        "train.lora.rslora": lora is not None and lora.rslora,
        "train.teacher base: its SDK advises against its logprobs": fireworks and config.uses_hints and config.teacher == "base",
        "train.lora.alpha that is not a whole number": fireworks and lora is not None and not lora.alpha.is_integer(),
        "train.lora.quantize": lora is not None and lora.quantize is not None,
    }
    for what, is_set in refused.items():
        if is_set:
            fix = "set train.lora.rank" if lora is None else "change the recipe (`clawctl docs backends`), or use --backend local"
            raise ClawError(f"--backend {backend} cannot train {what}", fix, 2)
