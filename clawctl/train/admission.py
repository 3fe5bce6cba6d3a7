"""Decides which judged turns a step can use, and in which form."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from clawctl.config import TrainConfig
from clawctl.config.methods import Both, Hints, Hybrid
from clawctl.cut_calls import CUT_CALL, has_cut_call
from clawctl.run.allowed_tokens import Allowed, unpack
from clawctl.run.hint_places import PUBLISHED, after_reply, with_hint, without_hint
from clawctl.run.images import read_image
from clawctl.run.reward import PRACTICE, Worth, worth
from clawctl.run.rows import HintPlace, Message, NotesShown, Turn, Verdict, is_by_teacher
from clawctl.run.shards import Origin
from clawctl.train.agreement import differs, model_difference
from clawctl.train.earlier_hints import below
from clawctl.train.sample import Sample
from clawctl.trainers import Texts, Unrenderable
from clawctl.vision.header import size_in_header
from clawctl.vision.reader import ImageReader

log = logging.getLogger("clawctl.train")

UNTRAINABLE = "untrainable"
MISSING_IMAGE = "an image is missing"


class TurnRefused(Exception):
    """This turn is not trained. The message is the reason, which is counted."""


@dataclass(slots=True)
class Admission:
    """The admission rules for one model."""

    config: TrainConfig
    texts: Texts  # of the trained model
    origin: Origin  # the known facts about the trained model
    plain: bool = False  # the trainer computes logprobs at temperature 1 over the whole vocabulary only
    reader: ImageReader | None = None  # how the trained model reads images; None: it reads none
    images: Path | None = None  # the folder of the run's images
    hint_place: Callable[[], HintPlace] = lambda: PUBLISHED  # where the teacher reads a hint
    lost_hints: Counter[str] = field(default_factory=Counter)  # hints lost by turns that are trained with their reward only
    _checked_origins: set[Origin] = field(default_factory=set)

    def check_origin(self, origin: Origin) -> None:
        """Log a warning once for each sampling model whether it differs, or may differ, from the trained model."""
        if origin in self._checked_origins:
            return
        self._checked_origins.add(origin)
        if (warning := model_difference(origin, self.origin)) is not None:
            log.warning("%s", warning)

    def sample(
        self, stem: str, turn: Turn, verdict: Verdict | None, origin: Origin, version: int, earlier: Sequence[str] = ()
    ) -> Sample:
        """Return the turn in the form that the trainer uses, for a policy at `version`. Raises TurnRefused.

        The teacher also reads the `earlier` hints.
        """
        if not turn.judged:
            raise TurnRefused(UNTRAINABLE)
        imported = not turn.trainable
        if has_cut_call(turn.tools, turn.response, turn.finish_reason, turn.completion_ids, self.texts.decode):
            raise TurnRefused(CUT_CALL)  # an older collect published it as trainable
        if imported:
            try:
                turn = self.texts.render(turn)
            except Unrenderable as error:
                raise TurnRefused("cannot be rendered") from error
        elif differs(origin.tokenizer, self.origin.tokenizer):
            raise TurnRefused("ids of another tokenizer")
        elif differs(origin.architecture, self.origin.architecture):
            raise TurnRefused("sampled by another model")
        if verdict is None:
            raise TurnRefused("no verdict")
        if (episode := turn.episode or {}).get("hint") is not None:
            return self._practised(stem, turn, str(episode["hint"]), episode.get("hint_place"), version)
        hints, earned = self._hints(verdict), worth_of(turn, verdict)
        notes, is_bad = turn.notes, (earned.value or 0) < 0
        if notes is not None:  # what holds now, in place of what was said earlier
            turn, earlier = _as_seen(turn, notes), notes.get("learned", ())
        reply = self._reply(turn) if (earned.value or 0) <= 0 else None
        if self.config.hints.teach_praised and earlier and not hints and (earned.value or 0) > 0:
            hints, earlier = [earlier[-1]], earlier[:-1]
        is_taught = bool(hints) or reply is not None
        if notes is not None and not is_taught and self.config.uses_hints and not self.config.uses_rewards and not is_bad:
            return self._noted(stem, turn, notes, version)
        reward = self._reward(turn, earned, verdict, is_taught)
        self._check_numbers(turn)
        self._check_images(turn)
        prompts = self._teacher_prompts(turn, hints, earlier, reply)
        if prompts and isinstance(method := self.config.method, Both) and not method.reward_with_hint:
            reward = None
        if is_taught and not prompts:
            if reward is None:
                raise TurnRefused("teacher prompt does not match")
            self.lost_hints["teacher prompt does not match"] += 1
        kind = kind_of(turn)
        assert turn.prompt_ids is not None
        assert turn.completion_ids is not None
        sampled_by = version if turn.policy_version is None else turn.policy_version
        return Sample(
            turn.turn_id, stem, kind, list(turn.prompt_ids), list(turn.completion_ids),
            None if turn.logprobs is None else list(turn.logprobs), turn.temperature, sampled_by, reward,
            prompts[0] if prompts else None, turn.policy_version_end,
            other_prompts=tuple(map(tuple, prompts[1:])), session_id=turn.session_id, imported=imported,
            allowed=self._allowed(turn), worth=earned.text, images=tuple(turn.images or ()),
            rescored=turn.hides_secrets,
        )  # fmt: skip

    def _practised(self, stem: str, turn: Turn, hint: str, hint_place: HintPlace | None, version: int) -> Sample:
        """Return a turn that was played with a hint. The teacher always reads it, and the policy never does.

        If the turn was asked with the hint (at `hint_place`), the teacher sampled it. The policy's logprobs are those of the same
        answer after the prompt without the hint, as for imported text. If there is nothing to read (""), the teacher reads the
        policy's prompt: the turn, which version 0 sampled, keeps the policy near it. Raises TurnRefused.
        """
        if not self.config.uses_hints:
            raise TurnRefused(PRACTICE)
        recorded = list(turn.prompt_ids or [])
        policy = recorded if hint_place is None else self._without(turn, hint, hint_place)
        teacher = self._teacher_prompt(turn, turn.messages, hint, ()) if hint and hint_place is None else recorded
        return self._distilled(stem, turn, policy, teacher, is_by_teacher(turn.episode), version)

    def _noted(self, stem: str, turn: Turn, notes: NotesShown, version: int) -> Sample:
        """Return an answer to notes, which teaches the policy to do without them. The teacher also reads those that were learned:
        they are not forgotten while others are. Raises TurnRefused."""
        shown, recorded = notes["text"], list(turn.prompt_ids or [])
        learned = "\n".join(notes.get("learned", ()))
        policy = self._without(turn, shown, notes["place"]) if shown else recorded
        teacher = self._teacher_prompt(turn, turn.messages, learned, ()) if learned else recorded
        return self._distilled(stem, turn, policy, teacher, bool(shown), version)

    def _without(self, turn: Turn, hint: str, hint_place: HintPlace) -> list[int] | None:
        plain = without_hint(turn.messages, hint, hint_place)
        return None if plain is None else self.texts.prompt_of(turn, plain)

    def _distilled(
        self, stem: str, turn: Turn, policy: list[int] | None, teacher: list[int] | None, by_teacher: bool, version: int
    ) -> Sample:
        """Return a turn that is distilled without a reward. `by_teacher`: it was sampled with another prompt than the policy's."""
        self._check_numbers(turn)
        self._check_images(turn)
        if policy is None or teacher is None:
            raise TurnRefused("teacher prompt does not match")
        sampled_by = version if by_teacher or turn.policy_version is None else turn.policy_version
        return Sample(
            turn.turn_id, stem, kind_of(turn), policy, list(turn.completion_ids or []),
            None if by_teacher or turn.logprobs is None else list(turn.logprobs), turn.temperature, sampled_by, None, teacher,
            None if by_teacher else turn.policy_version_end, session_id=turn.session_id, imported=by_teacher,
            allowed=self._allowed(turn), worth=PRACTICE, images=tuple(turn.images or ()),
            rescored=turn.hides_secrets and not by_teacher,
        )  # fmt: skip

    def _hints(self, verdict: Verdict) -> list[str]:
        """Return the hints for the method's teachers: all different ones, shortest first, if the method selects among them."""
        method = self.config.method
        if not isinstance(method, Hints):
            return []
        if not isinstance(method, Hybrid):
            return [verdict.hint] if verdict.hint else []
        result = dict.fromkeys(hint.strip() for hint in (*verdict.hints, verdict.hint or "") if hint.strip())
        return sorted(result, key=len)[: method.hint_candidates]

    def _reply(self, turn: Turn) -> list[Message] | None:
        """Return the messages of a prompt that goes on with the person's reply, if the teacher is to read it."""
        if not self.config.uses_hints or self.config.hints.hint == "judge":
            return None
        return after_reply(turn.messages, turn.response, turn.next_state)

    def _teacher_prompts(
        self, turn: Turn, hints: Sequence[str], earlier: Sequence[str], reply: list[Message] | None
    ) -> list[list[int]]:
        """Return a prompt for each hint, or with the reply alone."""
        if reply is not None and (self.config.hints.hint == "reply" or not hints):
            hints = [""]
        prompts = (self._teacher_prompt(turn, turn.messages if reply is None else reply, hint, earlier) for hint in hints)
        return [ids for ids in prompts if ids is not None]

    def _teacher_prompt(self, turn: Turn, messages: Sequence[Message], hint: str, earlier: Sequence[str]) -> list[int] | None:
        """Return the turn's prompt, changed to `messages` with a hint, and with as many of the earlier hints as fit into the
        context."""
        if not messages:
            return None
        for first in range(len(earlier) + 1):
            text = below(earlier[first:], hint).strip()
            ids = self.texts.prompt_of(turn, with_hint(messages, text, self.hint_place()) if text else messages)
            if ids is None or not _shows_images(turn, ids):
                return None
            if self.texts.context is None or len(ids) + len(turn.completion_ids or []) <= self.texts.context:
                return ids
        return ids

    def _reward(self, turn: Turn, earned: Worth, verdict: Verdict, hinted: bool) -> float | None:
        """Return the reward, or None if the method trains the turn without one. Raises TurnRefused if there is nothing to train."""
        if earned.problem is not None:
            raise TurnRefused(earned.problem)
        if not self.config.uses_rewards:
            if not hinted:
                raise TurnRefused("no hint")
            return None
        if self.config.credit == "group" and turn.group_id is None:
            if not hinted:
                raise TurnRefused("in no group")
            return None
        reward = earned.value if earned.counts(self.config.credit != "reward") else None
        if reward is None and not hinted:
            raise TurnRefused("no reward" if verdict.hint else "neutral")
        return reward

    def _allowed(self, turn: Turn) -> Allowed | None:
        """Return the allowed tokens of a structured answer. Raises TurnRefused if they do not match this answer and model."""
        if turn.allowed is None:
            return None
        try:
            allowed = unpack(turn.allowed)
        except ValueError as error:
            raise TurnRefused("the sets of allowed tokens cannot be read") from error
        if allowed.vocabulary != self.texts.vocabulary:
            raise TurnRefused("the sets of allowed tokens are of another vocabulary")
        if not allowed.admits(turn.completion_ids or []):
            raise TurnRefused("a sampled token is not among the allowed ones")
        return allowed

    def _check_images(self, turn: Turn) -> None:
        """Raises TurnRefused if the trainer would process other images than the engine did."""
        if not turn.images:
            return
        if self.reader is None or self.images is None:
            raise TurnRefused("images, which this trainer does not read")
        ids = list(turn.prompt_ids or [])
        for image in turn.images:
            origin = slice(image["start"], image["start"] + image["tokens"])
            if ids[origin] != [self.reader.placeholder] * image["tokens"]:
                raise TurnRefused("an image is not at its recorded position")
            try:
                size = size_in_header(read_image(self.images, image["sha256"]))
                tokens = None if size is None else self.reader.tokens(*size)
            except FileNotFoundError as error:
                raise TurnRefused(MISSING_IMAGE) from error
            except (OSError, ValueError) as error:
                raise TurnRefused("an image is damaged") from error
            if tokens != image["tokens"]:
                raise TurnRefused("an image has another size for this model")

    def _check_numbers(self, turn: Turn) -> None:
        """Raises TurnRefused if the ids or logprobs do not belong to the distribution that the trainer computes."""
        prompt, completion, logprobs = turn.prompt_ids or [], turn.completion_ids or [], turn.logprobs or []
        if turn.temperature <= 0:
            raise TurnRefused("greedy")
        if turn.top_p < 1 or turn.top_k > 0:
            raise TurnRefused("sampled with top-p or top-k")
        if self.plain and turn.temperature != 1:
            raise TurnRefused("not sampled at temperature 1, which this backend needs")
        if self.plain and turn.allowed is not None:
            raise TurnRefused("a structured answer, which this backend cannot train")
        if any(not 0 <= token < self.texts.vocabulary for token in (*prompt, *completion)):
            raise TurnRefused("ids outside the vocabulary")
        if self.texts.context is not None and len(prompt) + len(completion) > self.texts.context:
            raise TurnRefused("longer than the model's context")
        if any(value is None or not math.isfinite(value) or value > 1e-3 for value in logprobs):
            raise TurnRefused("a logprob is missing or invalid")


def _as_seen(turn: Turn, notes: NotesShown) -> Turn:
    """Return the turn with the messages that the model saw."""
    return replace(turn, messages=with_hint(turn.messages, notes["text"], notes["place"])) if notes["text"] else turn


def _shows_images(turn: Turn, ids: list[int]) -> bool:
    """Whether another prompt has the turn's images at the same positions."""
    last = max((image["start"] + image["tokens"] for image in turn.images or ()), default=0)
    return ids[:last] == list(turn.prompt_ids or [])[:last]


def worth_of(turn: Turn, verdict: Verdict | None) -> Worth:
    """Return the worth of a turn under its verdict. `turn.feedback` must be the newest rating."""
    judge, reward = (None, None) if verdict is None else (verdict.judge, verdict.reward)
    return worth(turn.feedback, turn.outcome_reward, judge, reward, turn.step_reward)


def kind_of(turn: Turn) -> str:
    """Return the kind of task for a turn's baseline: "homework" for "homework-17".

    Each key has its own kinds, so that no user affects another user's baseline.
    """
    kind = (turn.task_id or "").split("/")[0].split("-")[0]
    return kind if turn.user == "default" else f"{quote(turn.user, safe='')}/{kind}"
