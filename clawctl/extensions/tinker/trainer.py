"""The trainer that uses a service with Tinker's protocol.

A step is three calls. `forward` returns the policy's logprobs of the turns, and with hinted prompts those of the teacher
(`scores.py`). The loss of the method and its derivative are computed here, by the formulas of the local trainer. `forward_backward`
sends the derivatives, and `optim_step` applies AdamW.

`publish` saves the service's state, including the optimizer, before the loop commits the step. A trainer that was killed resumes
from the state of the last committed step, on a new model of the service. Later computation is lost, so no turn counts twice.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.tinker.adapter import files_of
from clawctl.extensions.tinker.scores import ScoredTurn, score_turns
from clawctl.extensions.tinker.sdk import RemoteAdapter, Service
from clawctl.extensions.tinker.sequences import TokenSequence, scale_of
from clawctl.train.advantages import likeliest
from clawctl.train.advantages.off_policy import correction_of
from clawctl.train.agreement import mismatched_turns
from clawctl.train.measures import Measures, StepFacts, StepResult, step_row
from clawctl.train.sample import Batch
from clawctl.trainers import Model
from clawctl.trainers.local.influence import bound_of, weight_of
from clawctl.trainers.local.loading import load_config
from clawctl.trainers.local.model import CANARY_PROMPTS
from clawctl.trainers.local.objective import Objective, objective_of
from clawctl.trainers.local.training import learning_rate
from clawctl.trainers.texts import TokenizerTexts

log = logging.getLogger("clawctl.train")

POINTER = "service.json"  # in a policy: the service's path of its state


@dataclass(slots=True)
class ServiceSnapshot:
    """A version as the service saved it: the state to resume from, and the downloaded adapter."""

    canary: dict[str, Any]
    files: dict[str, bytes]  # files of the policy's folder
    repeatable: bool = True

    def save(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / "policy" / name).write_bytes(content)


class ServiceTrainer:
    """A `Trainer` that computes at a service."""

    def __init__(self, recipe: Recipe, service: Service) -> None:
        self.recipe, self.service = recipe, service
        self.settings = recipe.train.service
        self._client: RemoteAdapter | None = None
        self._tokenizer: Any = None

    @property
    def client(self) -> RemoteAdapter:
        assert self._client is not None, "resume comes first"
        return self._client

    def resume(self, version: int, checkpoint: Path | None, weights: Path | None) -> Model:
        from transformers import AutoTokenizer

        policy = checkpoint / "policy" if checkpoint is not None else weights
        if policy is None:
            self._client = self.service.create(self.recipe)
            files_of(self.client.download("start"), self._lora, self.recipe.model_path)  # reports a problem before money is spent
        else:
            self._client = self.service.restore(_state_of(policy), with_optimizer=checkpoint is not None)
        self._tokenizer = AutoTokenizer.from_pretrained(self.recipe.model_path, trust_remote_code=False)
        if (k := likeliest(self.recipe.train)) is not None:  # reports a problem before the first step
            self.client.likeliest([TokenSequence(self._canary_prompts()[0], 1)], k)
        config = load_config(self.recipe.model_path).get_text_config()
        lengths = [n for n in (getattr(config, "max_position_embeddings", None), self.service.context) if n is not None]
        log.info("training %s at %s from version %d with %s", self.recipe.model.path, self.service.name, version, self._method)
        texts = TokenizerTexts(self._tokenizer, int(config.vocab_size), min(lengths, default=None))
        return Model(texts, adapter=True, exact=False, plain=True)

    def step(self, batch: Batch) -> StepResult:
        config, measures = self.recipe.train, Measures()
        scores = score_turns(self.service, self.client, batch.samples, config, measures)
        batch = replace(batch, samples=[turn.logprobs.sample for turn in scores.turns])
        objective = objective_of(config, batch)
        with measures.clock("loss"):
            slopes = self._slopes(objective, scores.turns, measures)
        problem, broken, wrong_model = None, tuple(name for name, turn in measures.turns.items() if not turn.finite), False
        if not all(math.isfinite(loss) for loss in measures.losses.values()):
            problem = "loss is not finite"
        else:
            broken, wrong_model = mismatched_turns(measures, batch, config.max_mismatch)
            problem = "logprobs disagree with the model" if broken else None
        if problem is not None:
            return StepResult(None, problem=problem, broken=broken, wrong_model=wrong_model)
        lr = learning_rate(config, batch.depth or batch.step)
        sent = [row for turn, turn_slopes in zip(scores.turns, slopes, strict=True) for row in _rows(turn, turn_slopes)]
        with measures.clock("backward"):
            self.client.backward(
                [sequence for sequence, _, _ in sent],
                [values.tolist() for _, values, _ in sent],
                [(slope * scale_of(sequence, len(sent), self.settings.loss)).tolist() for sequence, _, slope in sent],
            )
        with measures.clock("optimizer"):
            norm = self.client.update(config, lr, self.settings.loss)
        measures.computed_tokens = sum(len(sequence.ids) for sequence in (*scores.read, *(sequence for sequence, _, _ in sent)))
        measures.sequence_tokens = measures.computed_tokens
        weights = {term.name: term.weight for term in objective.terms}
        method, correction = config.method.kind, asdict(correction_of(config))
        facts = StepFacts(method, weights, objective.counts, norm, lr, None, config.clip_grad, correction)
        return StepResult(step_row(measures, batch, facts), measures.turns, facts)

    def _slopes(self, objective: Objective, turns: Sequence[ScoredTurn], measures: Measures) -> list[list[Tensor]]:
        """-dL/dlogp of each turn's leaves, after the bound of a turn's influence."""
        leaves = [leaf for turn in turns for leaf in turn.leaves]
        loss = objective.loss([turn.logprobs for turn in turns], measures, {})
        grads = iter(torch.autograd.grad(loss, leaves, allow_unused=True))
        slopes = [[_slope(leaf, next(grads)) for leaf in turn.leaves] for turn in turns]
        sizes = [sum(map(size_of, turn_slopes, turn.leaves)) for turn_slopes, turn in zip(slopes, turns, strict=True)]
        bound = bound_of(sizes, objective.config.turn_bound)
        for index, (turn, size) in enumerate(zip(turns, sizes, strict=True)):
            weight = weight_of(size, bound)
            measures.turns[turn.logprobs.sample.turn_id].bounded = weight
            slopes[index] = [slope * weight for slope in slopes[index]]
        return slopes

    def publish(self, version: int, scratch: Path) -> ServiceSnapshot:
        name = f"clawctl-{version}"
        state = self.client.save_state(name)
        files = files_of(self.client.download(name), self._lora, self.recipe.model_path)
        pointer = {"service": self.service.name, "base_model": self.service.base_model, "state": state}
        files[POINTER] = orjson.dumps(pointer, option=orjson.OPT_INDENT_2)
        return ServiceSnapshot(self._canary(), files)

    def idle(self) -> None:
        """No action: the SDK keeps its session alive by itself."""

    def _canary(self) -> dict[str, Any]:
        prompts = self._canary_prompts()
        values = self.client.logprobs([TokenSequence(ids, 1) for ids in prompts])
        return {"prompt_ids": prompts, "logprobs": [[None, *logprobs] for logprobs in values]}

    def _canary_prompts(self) -> list[list[int]]:
        return [self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in CANARY_PROMPTS]

    @property
    def _lora(self) -> Any:
        return self.recipe.train.lora

    @property
    def _method(self) -> str:
        return self.recipe.train.method.kind


def size_of(slope_T: Tensor, logprobs_T: Tensor) -> float:
    """An estimate of a turn's gradient size: sum over tokens of |dL/dlogp| (1 - p), the gradient with respect to the token's own
    logit. A service returns no gradient of a single turn."""
    return float((slope_T.abs() * (1 - logprobs_T.detach().exp())).sum())


def _slope(leaf: Tensor, grad: Tensor | None) -> Tensor:
    return torch.zeros_like(leaf) if grad is None else -grad


def _rows(turn: ScoredTurn, slopes: Sequence[Tensor]) -> list[tuple[TokenSequence, Tensor, Tensor]]:
    """The sequences of a turn, each with its logprobs [T] and slopes [T]."""
    values = [column for leaf in turn.leaves for column in leaf.detach().reshape(len(leaf), -1).unbind(1)]
    columns = [column for slope in slopes for column in slope.reshape(len(slope), -1).unbind(1)]
    return list(zip(turn.sequences, values, columns, strict=True))


def _state_of(policy: Path) -> str:
    """The service's path of a version's state. Raises ClawError."""
    try:
        return str(orjson.loads((policy / POINTER).read_bytes())["state"])
    except (OSError, ValueError, KeyError) as error:
        raise ClawError(
            f"{policy} was not trained by a service, or its {POINTER} is damaged: {error}",
            "a service cannot load an adapter from this machine: continue with --backend local, or start a new run with --run",
            2,
        ) from error
