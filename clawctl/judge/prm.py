"""A process reward model as judge: sequence classification over request, answer and what came back."""

import asyncio
import math
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from clawctl.config import JudgeConfig
from clawctl.control_tokens import control_texts
from clawctl.errors import ClawError
from clawctl.judge.evidence import Evidence
from clawctl.judge.fences import neutral, new_fence
from clawctl.judge.opinion import Opinion
from clawctl.judge.view import View, view_turn

_CURE = "name a directory or a Hugging Face model with both, such as one saved by Trainer"
_TRIAL = View("2+2?", "4", "Thanks.", "user", "")


class PRMJudge:
    """Scores what is waiting, `judge.prm_batch` turns at a time, in a thread of its own.

    The model's labels go from worst to best. The score is their mean on a line from -1 to 1 (one label: tanh of half its logit,
    that is 2p - 1); beyond ± `judge.prm_threshold` it is a reward of 1 or -1, else 0.
    """

    def __init__(self, path: str, settings: JudgeConfig) -> None:
        """Raises ClawError (exit code 2) where `path` is no sequence-classification model with its tokenizer, or gives no score."""
        if Path(path).is_file() or (Path(path).is_absolute() and not Path(path).is_dir()):
            raise ClawError(f"judge.prm: there is no folder {path}", _CURE, 2)
        try:
            found = AutoConfig.from_pretrained(path, trust_remote_code=False)
            if not any("SequenceClassification" in name or "RewardModel" in name for name in found.architectures or []):
                raise ValueError(f"its config names {found.architectures or 'no architecture'}")
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
        self.name = f"{path} sequence classification"
        self._settings = settings
        self._longest = min(getattr(found, "max_position_embeddings", None) or 2**16, self._tokenizer.model_max_length)
        self._waiting: list[tuple[View, asyncio.Future[float]]] = []
        self._working: asyncio.Task[None] | None = None
        if not math.isfinite(self.scores([_TRIAL])[0]):
            raise ClawError(f"{path} gives a score that is not a number", "train or download it again", 2)

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
        await asyncio.sleep(0)  # turns that are judged at the same time wait by now
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._settings.prm_batch], self._waiting[self._settings.prm_batch :]
                try:
                    scores = await asyncio.to_thread(self.scores, [seen for seen, _ in batch])
                except Exception as error:  # noqa: BLE001 - whatever it is, it ends the worker where the scores are awaited
                    self._give_up([*batch, *self._waiting], error)
                    return
                for (_, future), score in zip(batch, scores, strict=True):
                    if not future.done():
                        future.set_result(score)
        finally:
            self._working = None

    def _give_up(self, waiting: list[tuple[View, asyncio.Future[float]]], error: Exception) -> None:
        self._waiting = []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # one of them ends the worker: of the others nobody need be told

    def scores(self, views: list[View]) -> list[float]:
        """One score a view, from -1 to 1. Raises ClawError where the model cannot read them."""
        try:
            return self._scores(views)
        except (RuntimeError, IndexError, ValueError, TypeError, TemplateError) as error:
            told = str(error).partition("\n")[0][:200]
            cure = "model, tokenizer and chat template must belong together; where memory is short, lower judge.prm_batch"
            raise ClawError(f"the {self.name} model cannot score a turn: {told}", cure, 2) from error

    def _scores(self, views: list[View]) -> list[float]:
        texts = [self._text(seen) for seen in views]
        inputs = self._tokenizer(
            texts, return_tensors="pt", padding=True, truncation=True, max_length=self._longest,
            add_special_tokens=not self._tokenizer.chat_template,
        ).to(self._model.device)  # fmt: skip
        with torch.inference_mode():
            logits = self._model(**inputs).logits.float()  # [B, labels]
        return mean_label(logits.cpu())

    def _text(self, seen: View) -> str:
        """As the model's chat template writes it, else in paragraphs; the end is kept where it is too long."""
        fence = new_fence()
        request = f"{seen.earlier}\n\n{seen.request}" if seen.earlier else seen.request
        came_back = seen.next_state or "(nothing came back)"
        said = [("user", request), ("assistant", seen.answer), ("user", came_back)]
        chat = [{"role": role, "content": self._control.broken(neutral(text, fence))} for role, text in said]
        if self._tokenizer.chat_template:
            return str(self._tokenizer.apply_chat_template(chat, tokenize=False))
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in chat)


def mean_label(logits: torch.Tensor) -> list[float]:
    """Where the labels, laid out from -1 to 1, have their mean. logits: [B, labels]; one label is the logit of "good"."""
    if logits.shape[1] == 1:
        return [float(score) for score in torch.tanh(logits[:, 0] / 2)]
    return [float(score) for score in logits.softmax(-1) @ torch.linspace(-1, 1, logits.shape[1])]
