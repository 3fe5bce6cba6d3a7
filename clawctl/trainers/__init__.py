"""The trainer seam: `clawctl train` decides what is trained and when; a trainer computes.

The loop (`clawctl/train/loop.py`) selects the turns, computes their scalar advantages, keeps the ledger and publishes. It calls a
trainer for the rest, in this order:

    model = trainer.resume(version, checkpoint, weights)
    result = trainer.step(batch)             # new weights, or the reason why there are none
    snapshot = trainer.publish(version, scratch)  # then snapshot.save(folder), retried while the disk is full

To add a trainer, write a `TrainingBackend` and register it under a name: here, as `file.py:name`, or as an entry point of the group
`clawctl.trainers`. `train.backend` in the recipe selects it. A trainer on other machines receives the same batches: exact ids, the
sampler's logprobs, and for each turn its reward's advantage (`Batch.advantage`) and the prompt with its hint.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clawctl.config import Recipe
from clawctl.memory import Needs
from clawctl.registry import Registry
from clawctl.run.rows import Message, Turn
from clawctl.train.measures import StepResult
from clawctl.train.sample import Batch
from clawctl.vision.reader import ImageReader


class Texts(Protocol):
    """The tokens of the trained model, for turns that need more than their recorded ids."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int | None:
        """Context length in tokens; None: unknown."""

    def decode(self, ids: list[int]) -> str:
        """The text of ids. Ids outside the vocabulary are skipped."""

    def render(self, turn: Turn) -> Turn:
        """An imported turn with the ids of its prompt and of its answer. Raises Unrenderable."""

    def prompt_of(self, turn: Turn, messages: Sequence[Message]) -> list[int] | None:
        """The recorded prompt, changed to that of other messages; None if the chat template does not show where it changes."""


class Unrenderable(Exception):
    """The model's template does not reproduce the turn as the file contains it."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model that a trainer has loaded."""

    texts: Texts
    adapter: bool  # False: all weights are trained and published
    exact: bool  # float32 throughout: its logprobs differ from a float32 engine's by rounding only
    plain: bool = False  # it computes logprobs only at temperature 1 and over the whole vocabulary
    images: ImageReader | None = None  # reads images for the model; None: turns with images are refused
    longest_tokens: int | None = None  # of a turn that fits into memory; None: not known


class Snapshot(Protocol):
    """The weights of one version, ready to be saved."""

    canary: dict[str, Any]  # {"prompt_ids": [[…]], "logprobs": [[None, -1.2, …]]}: fixed prompts, scored with the published weights

    @property
    def repeatable(self) -> bool:
        """Whether `save` can be called again after a full disk."""

    def save(self, folder: Path) -> None:
        """Fill the existing folder `folder/policy/` with the files that an engine loads, and `folder` with those that `resume`
        needs."""


class Trainer(Protocol):
    """One policy in training."""

    def resume(self, version: int, checkpoint: Path | None, weights: Path | None) -> Model:
        """Load a version. `checkpoint` is the folder that its snapshot filled. Without one the optimizer starts fresh, from the
        published policy in `weights`, or from the base model if that is None too. Raises ClawError."""

    def step(self, batch: Batch) -> StepResult:
        """Make one optimizer step. If the result has no row, no weight has changed."""

    def publish(self, version: int, scratch: Path) -> Snapshot:
        """A snapshot of the current weights as `version`. The trainer may use the folder `scratch`, on the filesystem of
        checkpoints."""

    def idle(self) -> None:
        """Called about once a second while there is no batch, so that connections stay alive."""


class StackingTrainer(Trainer, Protocol):
    """A trainer of adapters that consist of two halves: the shared policy's, and a person's (`shared+` in `policies.per`)."""

    def train_half(self, half: int, shared: Path | None) -> None:
        """From the next `resume` on, change one half only. 0: the shared policy's. 1: a person's, on top of the shared version in
        the folder `shared`; None: on top of the base model."""


class TrainingBackend(Protocol):
    """One way to train; the registry contains these."""

    def estimate(self, recipe: Recipe, gpus: str | None, processes: int | None) -> list[str]:
        """The requirements of a step of the recipe, as lines for the user. Raises ClawError."""

    def needs(self, recipe: Recipe, gpus: int) -> Needs:
        """The memory that training takes on each of `gpus` GPUs of this machine, or in host memory if `gpus` is 0. Raises
        ClawError."""

    def spread(self, recipe: Recipe, gpus: str | None, processes: int | None, arguments: Sequence[str]) -> None:
        """Replace this process by several, if this backend or the user requires several. `arguments` are those of this command."""

    def open(
        self, recipe: Recipe, prepare: Callable[[], None], between_layers: Callable[[], None] | None
    ) -> AbstractContextManager[Trainer | None]:
        """A trainer; None in a process that only helped another one, which runs the loop. `prepare` is called once in the process
        that runs the loop, before anything is loaded. A trainer on a device that also serves calls `between_layers` between two
        layers, where it waits while a request runs. Raises ClawError."""


TRAINERS: Registry[TrainingBackend] = Registry("trainer", "clawctl.trainers", {"local": "clawctl.trainers.local.backend:BACKEND"})
