"""The trainer on this machine: torch, transformers and peft, in one process or in several ranks.

Only rank 0 runs the loop. It sends each of its calls to the other ranks, which make the same call at the same time (`follow`).
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.memory import return_freed_heap
from clawctl.run.directory import link
from clawctl.train.measures import StepResult
from clawctl.train.sample import Batch
from clawctl.trainers import Model
from clawctl.trainers.local.costs import cost_of
from clawctl.trainers.local.layers import call_between_layers
from clawctl.trainers.local.loading import load_config, read_adapter
from clawctl.trainers.local.model import PolicyModel, load_policy, load_reference
from clawctl.trainers.local.objective import load_custom_loss
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.step import train_step
from clawctl.trainers.local.training import (
    OPTIMIZER_FILE,
    Average,
    Training,
    load_optimizer,
    make_optimizer,
    move_into,
    optimizer_step,
    parts_step,
    put_adapter,
    read_parts,
    save_optimizer,
    train_half,
    write_parts,
)
from clawctl.trainers.texts import TokenizerTexts

log = logging.getLogger("clawctl.train")

_END = "end"


@dataclass(slots=True)
class LocalSnapshot:
    """The weights of a version in memory. With sharded weights, master weights and optimizer are parts on disk, which are moved.

    `recent` is a checkpoint whose optimizer state is recent enough (`train.optimizer_every`): it is linked instead of written.
    """

    canary: dict[str, Any]
    weights: dict[str, Tensor]
    training: Training
    version: int
    parts: Path | None
    recent: Path | None

    @property
    def repeatable(self) -> bool:
        return self.parts is None

    def save(self, folder: Path) -> None:
        policy = self.training.policy
        policy.save(folder / "policy", self.weights)
        if self.parts is not None:
            move_into(folder, self.parts)
        elif self.recent is not None:
            link(self.recent / OPTIMIZER_FILE, folder / OPTIMIZER_FILE)
        else:
            save_optimizer(self.training.optimizer, folder, self.version)
        policy.save_master(folder)
        if self.training.average is not None:
            self.training.average.save(folder)


class LocalTrainer:
    """A `Trainer`. With several ranks each method is called on rank 0 and runs on all."""

    def __init__(
        self, recipe: Recipe, ranks: Ranks, between_layers: Callable[[], None] | None = None, longest_tokens: int | None = None
    ) -> None:
        self.recipe, self.ranks, self._between_layers, self._longest_tokens = recipe, ranks, between_layers, longest_tokens
        self._training: Training | None = None
        self._version = 0  # of the weights
        self._fresh: dict[str, Tensor] | None = None  # the untrained adapter, unless `policies.per` is `shared`
        self._half: tuple[int, Path | None] | None = None  # of `train_half`
        self._calling = False  # the other ranks are executing the same call

    @property
    def training(self) -> Training:
        assert self._training is not None, "resume comes first"
        return self._training

    def resume(self, version: int, checkpoint: Path | None, weights: Path | None) -> Model:
        self._on_all_ranks("_load", checkpoint, weights)
        self._version = version
        policy, config = self.training.policy, self.recipe.train
        log.info("training %s from version %d with %s", self.recipe.model.path, version, config.method.kind)
        exact = policy.autocast is None and policy.publish_dtype == torch.float32
        texts = TokenizerTexts(policy.tokenizer, policy.vocabulary, policy.context)
        images = None if policy.images is None else policy.images.reader
        return Model(texts, policy.adapter, exact, images=images, longest_tokens=self._longest_tokens)

    def train_half(self, half: int, shared: Path | None) -> None:
        self._on_all_ranks("_train_half", half, shared)

    def step(self, batch: Batch) -> StepResult:
        result: StepResult = self._on_all_ranks("_step", batch)
        return result

    def publish(self, version: int, scratch: Path) -> LocalSnapshot:
        recent, self._version = self._recent_optimizer(version, scratch.with_name(str(self._version))), version
        if self.training.policy.shard_ranks is None:
            return self._snapshot(version, scratch, recent)  # rank 0 has everything
        snapshot: LocalSnapshot = self._on_all_ranks("_snapshot", version, scratch, recent)
        return snapshot

    def _recent_optimizer(self, version: int, parent: Path) -> Path | None:
        """The checkpoint of the parent, if its optimizer state need not be written anew."""
        every = self.recipe.train.local.optimizer_every
        if every == 1:
            return None
        sharded = self.training.policy.shard_ranks is not None
        written = parts_step(parent, self.ranks.world) if sharded else optimizer_step(parent)
        return parent if written is not None and version - written < every else None

    def idle(self) -> None:
        self.ranks.broadcast(None)

    # ---- on every rank ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Make the calls of rank 0 until it ends."""
        while (call := self.ranks.broadcast(None)) != _END:
            if isinstance(call, int):
                raise SystemExit(call)
            if call is not None:
                name, arguments = call
                getattr(self, name)(*arguments)

    @contextmanager
    def as_leader(self) -> Iterator["LocalTrainer"]:
        """Within this context, this rank makes calls. At its end the other ranks exit, with the exit code of a ClawError if there
        was one. After any other error they detect that this process is gone."""
        try:
            yield self
        except ClawError as error:
            if not self._calling:
                self.ranks.broadcast(error.exit_code)
            raise
        self.ranks.broadcast(_END)

    def _on_all_ranks(self, name: str, *arguments: Any) -> Any:
        self.ranks.broadcast((name, arguments))
        self._calling = True
        result = getattr(self, name)(*arguments)
        self._calling = False
        return result

    def _train_half(self, half: int, shared: Path | None) -> None:
        self._half = half, shared

    def _load(self, checkpoint: Path | None, weights: Path | None) -> None:
        self._load_whole(checkpoint, weights)
        if self._half is not None:
            train_half(self.training, *self._half)

    def _load_whole(self, checkpoint: Path | None, weights: Path | None) -> None:
        source = checkpoint / "policy" if checkpoint is not None else weights
        if self.recipe.policies.per_person and self._training is not None and self._training.policy.shard_ranks is None:
            policy = self._training.policy
            adapter = self._fresh if source is None else read_adapter(source)
            if adapter is not None:
                self._training = None
                put_adapter(policy, adapter)
                self._training = load_training(self.recipe, self.ranks, checkpoint, weights, policy)
                return
        self._training = None
        gc.collect()  # there may be no memory for two models
        self._training = load_training(self.recipe, self.ranks, checkpoint, weights)
        return_freed_heap()
        if self._between_layers is not None:
            for model in filter(None, (self._training.policy.causal, self._training.reference)):
                call_between_layers(model, self._between_layers, self.ranks.device)
        if source is None and self.recipe.policies.per_person:
            self._fresh = {name: weight.detach().clone() for name, weight in self._training.policy.trained()}

    def _step(self, batch: Batch) -> StepResult:
        result = train_step(self.training, batch)
        self._check_loan()
        return result

    def _check_loan(self) -> None:
        if (loan := self.training.policy.loan) is not None:
            loan.check()

    def _snapshot(self, version: int, scratch: Path, recent: Path | None) -> LocalSnapshot:
        training = self.training
        canary, weights = training.policy.canary(), training.policy.published()
        self._check_loan()
        sharded = training.policy.shard_ranks is not None
        if sharded:
            write_parts(scratch, self.ranks, training.policy, training.optimizer, version, recent)
        return LocalSnapshot(canary, weights, training, version, scratch if sharded else None, recent)


def load_training(
    recipe: Recipe, ranks: Ranks, checkpoint: Path | None = None, weights: Path | None = None, policy: PolicyModel | None = None
) -> Training:
    """The policy with its optimizer: from a checkpoint, from a published policy, or from the base model. `policy`: that policy, if
    it is loaded. Raises ClawError."""
    config, vocabulary = recipe.train, load_config(recipe.model_path).get_text_config().vocab_size
    ranks.run_on_leader(lambda: load_custom_loss(config, vocabulary) and None)  # reports a problem before weights are loaded
    custom = load_custom_loss(config, vocabulary)
    policy = policy or load_policy(recipe, ranks, checkpoint / "policy" if checkpoint is not None else weights)
    optimizer = make_optimizer(policy, config)
    if checkpoint is not None and not read_parts(checkpoint, policy, optimizer):
        load_optimizer(optimizer, checkpoint)
    others_need = config.model_copy(update={"custom_loss": None}).needs_second_model
    reads = custom is not None and custom.needs_reference and not policy.adapter
    reference = load_reference(recipe, policy, ranks) if others_need or reads else None
    average = Average(policy.trained(), config.hints.teacher_decay) if config.teacher == "ema" and config.uses_hints else None
    if average is not None and checkpoint is not None:
        average.load(checkpoint)
    return Training(policy, optimizer, config, ranks, reference, cost_of(policy.causal), custom, average)
