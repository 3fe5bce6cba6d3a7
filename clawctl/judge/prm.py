"""A process reward model as the judge: sequence classification of request, answer and next state."""

import asyncio
import logging
import math
import re
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from clawctl.config import JudgeConfig
from clawctl.control_tokens import control_texts
from clawctl.errors import ClawError
from clawctl.judge.fences import neutral, new_fence
from clawctl.judge.protocol import Evidence, Opinion
from clawctl.judge.view import TurnView, view_turn

log = logging.getLogger(__name__)

_CURE = "use a directory or a Hugging Face model with both, such as one that Trainer saved"
_TRIAL = TurnView("2+2?", "4", "Thanks.", "user", "")


class PRMJudge:
    """Scores waiting turns in batches of `judge.prm_batch`, in a separate thread.

    The model's labels are ordered by their names, or else as given, from worst to best. The score is the mean of the labels on a
    line from -1 to 1. A single label gives tanh of half its logit, that is 2p - 1; a regression value is mapped from
    `judge.prm_range`. Scores of ± `judge.prm_threshold` or beyond become rewards of 1 or -1, all others become 0.
    """

    def __init__(self, path: str, settings: JudgeConfig) -> None:
        """Raises ClawError (exit code 2) if `path` is not a sequence-classification model with its tokenizer.

        Also raises it if the model returns no finite score for a trial turn.
        """
        if Path(path).is_file() or (Path(path).is_absolute() and not Path(path).is_dir()):
            raise ClawError(f"judge.prm: there is no folder {path}", _CURE, 2)
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False)
            if not any("SequenceClassification" in name or "RewardModel" in name for name in config.architectures or []):
                raise ValueError(f"its config names {config.architectures or 'no architecture'}")
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, truncation_side="left", trust_remote_code=False)
            self._control = control_texts(self._tokenizer)
            self._model: Any = AutoModelForSequenceClassification.from_pretrained(path, trust_remote_code=False).eval()
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ClawError(f"{path} is not a sequence-classification model with a tokenizer: {error}", _CURE, 2) from error
        if torch.cuda.is_available():
            self._model.to("cuda")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._order, self._range = _scale(config, path, settings)
        self.name = f"{path} sequence classification"
        self._settings = settings
        self._longest = min(getattr(config, "max_position_embeddings", None) or 2**16, self._tokenizer.model_max_length)
        self._waiting: list[tuple[TurnView, asyncio.Future[float]]] = []
        self._working: asyncio.Task[None] | None = None
        if not math.isfinite(self.scores([_TRIAL])[0]):
            if self._range is not None:
                raise ClawError(
                    f"{path} returned a score outside judge.prm_range", "set judge.prm_range to its true worst and best score", 2
                )
            raise ClawError(f"{path} returned a score that is not a number", "train or download it again", 2)

    def doubt(self) -> None:
        return None

    async def judge(self, turn: Evidence) -> Opinion:
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((view_turn(turn, self._settings.history_chars), future))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        score = await future
        if not math.isfinite(score):
            return Opinion(self.name, None, (None,), reason="no valid vote")
        vote = 0 if abs(score) < self._settings.prm_threshold else 1 if score > 0 else -1
        return Opinion(self.name, float(vote), (vote,))

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()

    async def _work(self) -> None:
        await asyncio.sleep(0)  # lets all turns that are judged concurrently join the queue
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._settings.prm_batch], self._waiting[self._settings.prm_batch :]
                try:
                    scores = await asyncio.to_thread(self.scores, [view for view, _ in batch])
                except Exception as error:  # noqa: BLE001 - any error ends the worker where the scores are awaited
                    self._give_up([*batch, *self._waiting], error)
                    return
                for (_, future), score in zip(batch, scores, strict=True):
                    if not future.done():
                        future.set_result(score)
        finally:
            self._working = None

    def _give_up(self, waiting: list[tuple[TurnView, asyncio.Future[float]]], error: Exception) -> None:
        self._waiting = []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: one exception ends the worker, the others need no report

    def scores(self, views: list[TurnView]) -> list[float]:
        """One score per view, from -1 to 1. Raises ClawError if the model cannot process the views."""
        try:
            return self._scores(views)
        except (RuntimeError, IndexError, ValueError, TypeError, TemplateError) as error:
            problem = str(error).partition("\n")[0][:200]
            cure = "check that model, tokenizer and chat template match; if memory is short, lower judge.prm_batch"
            raise ClawError(f"the {self.name} model cannot score a turn: {problem}", cure, 2) from error

    def _scores(self, views: list[TurnView]) -> list[float]:
        texts = [self._text(view) for view in views]
        inputs = self._tokenizer(
            texts, return_tensors="pt", padding=True, truncation=True, max_length=self._longest,
            add_special_tokens=not self._tokenizer.chat_template,
        ).to(self._model.device)  # fmt: skip
        with torch.inference_mode():
            logits = self._model(**inputs).logits.float()  # [B, labels]
        if self._range is not None:
            return in_range(logits[:, 0].tolist(), self._range)
        return mean_label(logits[:, self._order].cpu())

    def _text(self, view: TurnView) -> str:
        """The view in the model's chat template, or else as paragraphs. The tokenizer keeps the end of a text that is too long."""
        fence = new_fence()
        request = f"{view.earlier}\n\n{view.request}" if view.earlier else view.request
        next_state = view.next_state or "(nothing came back)"
        messages = [("user", request), ("assistant", view.answer), ("user", next_state)]
        chat = [{"role": role, "content": self._control.broken(neutral(text, fence))} for role, text in messages]
        if self._tokenizer.chat_template:
            return str(self._tokenizer.apply_chat_template(chat, tokenize=False))
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in chat)


def mean_label(logits: torch.Tensor) -> list[float]:
    """The mean of the labels on a line from -1 to 1. logits: [B, labels]. A single label is the logit of "good"."""
    if logits.shape[1] == 1:
        return [float(score) for score in torch.tanh(logits[:, 0] / 2)]
    return [float(score) for score in logits.softmax(-1) @ torch.linspace(-1, 1, logits.shape[1])]


def in_range(scores: list[float], ends: tuple[float, float]) -> list[float]:
    """Scores mapped from their range to -1 … 1. NaN for scores that are outside of the range by more than rounding."""
    low, high = ends
    slack = 1e-3 * (high - low)
    within = [low - slack <= score <= high + slack for score in scores]
    return [
        min(max(2 * (score - low) / (high - low) - 1, -1.0), 1.0) if fits else math.nan
        for score, fits in zip(scores, within, strict=True)
    ]


_WORST = frozenset(
    ("bad", "negative", "neg", "incorrect", "wrong", "no", "false", "rejected", "unhelpful", "unsafe", "fail", "failed", "-")
)
_BEST = frozenset(
    ("good", "positive", "pos", "correct", "right", "yes", "true", "chosen", "helpful", "safe", "pass", "passed", "+")
)
_MIDDLE = frozenset(("neutral", "mixed", "unclear", "none"))


def _scale(config: Any, path: str, settings: JudgeConfig) -> tuple[list[int], tuple[float, float] | None]:
    """The indices of the labels from worst to best, and the range if the single label is a score.

    Raises ClawError (exit code 2) if the order or range cannot be determined from the model's config.
    """
    labels = [str(config.id2label[index]) for index in sorted(config.id2label)]
    kind = getattr(config, "problem_type", None)
    if kind == "multi_label_classification" and len(labels) > 1:
        raise ClawError(f"{path} returns {len(labels)} independent scores", "use a model with one scale", 2)
    if len(labels) == 1:
        if settings.prm_range is None and kind == "regression":
            problem = f"{path} returns a score on its own scale (problem_type: regression), not a logit"
            raise ClawError(problem, "set its worst and best score: judge.prm_range: [0, 1]", 2)
        return [0], settings.prm_range
    if settings.prm_range is not None:
        raise ClawError(
            f"judge.prm_range is set, but {path} has {len(labels)} labels", "remove it, because labels are ordered already", 2
        )
    ranks = [_rank(label) for label in labels]
    ranked = [rank for rank in ranks if rank is not None]
    if not ranked:
        log.warning("assuming that the labels of %s are ordered from worst to best: %s", path, ", ".join(labels))
        return list(range(len(labels))), None
    if len(set(ranked)) < len(labels):
        raise ClawError(f"it is not clear which label of {path} is the best: {', '.join(labels)}", "rename them in id2label", 2)
    return sorted(range(len(labels)), key=lambda index: ranks[index] or 0), None


def _rank(label: str) -> int | None:
    """The rank of a label by its name, or None if the name does not define one."""
    parts = re.findall(r"-?\d+|[a-z]+|[+-]", label.lower())
    numbers = [int(word) for word in parts if word.lstrip("-").isdigit()]
    if len(numbers) == 1:
        return numbers[0]
    ranks = {rank for rank, names in ((-1, _WORST), (0, _MIDDLE), (1, _BEST)) if names & set(parts)}
    if "not" in parts or len(ranks) != 1:
        return None
    return ranks.pop()
