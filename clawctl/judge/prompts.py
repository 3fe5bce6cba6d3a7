"""The judge's prompts, and the parser of its answers.

One call asks for both halves of hindsight. Did the next state accept the answer (the binary signal of OpenClaw-RL, arXiv
2603.10165)? Which hint would have helped the assistant before it answered? Unlike in that paper, the judge also sees the user's
request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml

from clawctl.judge.fences import fenced
from clawctl.judge.shares import ScoreShare
from clawctl.run.rows import from_json

PROMPT_VERSION = "1"
MAX_WORDS, LONGEST_WORD = 8, 40  # of a condition

_TEXTS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "prompts.yaml").read_text("utf-8"))
SYSTEM, HINT_SYSTEM, COMPARE_SYSTEM, FORESEE_SYSTEM = (_TEXTS[name] for name in ("vote", "hint", "compare", "foresee"))
VOTE_SCHEMA, KIND_SCHEMA = _TEXTS["vote_form"], _TEXTS["kind_form"]
NOTHING_CAME_BACK = "(nothing came back)"
# Used for a turn with a hint: what the person's reply means for later requests (`clawctl.judge.notes`).
KIND_SYSTEM = (Path(__file__).parent / "kinds.txt").read_text("utf-8").strip()

_REASONING_ENDS = re.compile(r"</think(?:ing)?>|\[/THINK\]|<\|channel\|>final<\|message\|>")
_REASONING_OPEN = re.compile(r"(?:<think(?:ing)?>|\[THINK\]|<\|channel\|>(?:analysis|commentary)).*\Z", re.DOTALL)
_HINT = re.compile(r"\[HINT_START\](.*?)\[HINT_END\]", re.DOTALL)
_UNFINISHED_HINT = re.compile(r"\[HINT_START\].*\Z", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_CODE_FENCE = re.compile(r"\A```(?:json)?\s*|\s*```\Z")
_CHOICES = re.compile(r"\\boxed\{[1A]\},?\s+\\boxed\{(?:-1|B)\},?\s+or\s+\\boxed\{0\}")  # a repetition of the prompt's last line
_SCORES = {"1": 1, "+1": 1, "-1": -1, "0": 0}
_LETTERS = {"A": "A", "B": "B", "0": "0"}
_OWN_WORDS = frozenset(
    line.strip() for text in (SYSTEM, HINT_SYSTEM, KIND_SYSTEM, COMPARE_SYSTEM, FORESEE_SYSTEM) for line in text.splitlines()
)


@dataclass(frozen=True, slots=True)
class Vote:
    """One answer of the judge. A failed vote has the score None, because the answer contains no valid score."""

    score: int | None  # 1, 0, -1
    hint: str | None  # "Write plain sentences, without bold or numbered steps."
    share: ScoreShare | None = None  # of each score, if the answer begins with one and the endpoint gives probabilities


@dataclass(frozen=True, slots=True)
class ReplyKind:
    """What a person's reply means for later requests, as the judge answered."""

    quote: str  # "kannst du bitte Deutsch reden"
    kind: Literal["standing", "condition", "fact", "correction", "once", "retraction", "none"]
    sentence: str  # "Answer in German."; empty except for standing, condition and fact
    when: str  # "the request is about code"; empty except for condition
    words: tuple[str, ...]  # ("code", "script"); empty except for condition
    number: int  # of the note that it ends; 0: none

    def __post_init__(self) -> None:
        is_note, is_condition = self.kind in ("standing", "condition", "fact"), self.kind == "condition"
        if is_note != bool(self.sentence.strip()) or is_condition != bool(self.when.strip()) or is_condition != bool(self.words):
            raise ValueError(f"the fields do not belong to the kind {self.kind}")
        if len(self.words) > MAX_WORDS or any(not word.strip() or len(word) > LONGEST_WORD for word in self.words):
            raise ValueError("words are one to eight words")
        if self.number < 0:
            raise ValueError("a number is that of a note, or 0")


def judge_messages(request: str, answer: str, next_state: str | None, role: str, fence: str, earlier: str = "") -> list[dict]:
    """The chat messages of one judge call.

    `role` is the author of `next_state`: "user", "tool" or "environment". `earlier` is the history before the request, cut to the
    recipe's limit, or empty. The system message never changes, so that engines with a prefix cache compute it once.
    """
    return _asked(SYSTEM, request, answer, next_state, role, fence, earlier)


def hint_messages(request: str, answer: str, next_state: str | None, role: str, fence: str, earlier: str = "") -> list[dict]:
    """Like `judge_messages`, but requests only a hint."""
    return _asked(HINT_SYSTEM, request, answer, next_state, role, fence, earlier)


def kind_messages(blocks: list[tuple[str, str]], fence: str) -> list[dict]:
    """The chat messages that ask what a reply means. `blocks`: named texts of the turn, its hint and the person's notes."""
    return _with_blocks(KIND_SYSTEM, blocks, fence)


def compare_messages(blocks: list[tuple[str, str]], a: str, b: str, fence: str) -> list[dict]:
    """The chat messages that compare two answers. `blocks`: named texts of the request, the given answer and the next state."""
    return _with_blocks(COMPARE_SYSTEM, [*blocks, ("answer A", a), ("answer B", b)], fence)


def unseen_answer_messages(blocks: list[tuple[str, str]], answer: str, fence: str) -> list[dict]:
    """The chat messages that judge one answer that no user has seen."""
    return _with_blocks(FORESEE_SYSTEM, [*blocks, ("new answer", answer)], fence)


def _with_blocks(system: str, blocks: list[tuple[str, str]], fence: str) -> list[dict]:
    return [{"role": "system", "content": system}, {"role": "user", "content": fenced(blocks, fence)}]


def _asked(system: str, request: str, answer: str, next_state: str | None, role: str, fence: str, earlier: str) -> list[dict]:
    shown_next_state = next_state if next_state is not None else NOTHING_CAME_BACK
    blocks = [("earlier", earlier)] if earlier else []
    blocks += [("request", request), ("answer", answer), (f"came back from {role}", shown_next_state)]
    return _with_blocks(system, blocks, fence)


def read_vote_in_form(answer: Mapping[str, Any]) -> Vote:
    """The vote of an answer that was constrained to `VOTE_SCHEMA`."""
    score = answer.get("score")
    return Vote(score if type(score) is int and score in (1, 0, -1) else None, None)


def read_kind_in_form(answer: Any) -> ReplyKind | None:
    """The kind in a JSON object of the form `KIND_SCHEMA`. None if a field is missing, unknown or invalid."""
    if not isinstance(answer, dict) or set(answer) != set(KIND_SCHEMA["required"]):
        return None
    try:
        return from_json(ReplyKind, answer)
    except ValueError:
        return None


def read_kind(text: str, fence: str | None = None) -> ReplyKind | None:
    """The kind in an unconstrained answer: the judge's own text must be one JSON object, at most within a code fence."""
    try:
        return read_kind_in_form(orjson.loads(_CODE_FENCE.sub("", _final_text(text, fence).strip())))
    except ValueError:
        return None


def read_choice(text: str, fence: str | None = None) -> str | None:
    """The answer to `compare_messages`: the last valid "A", "B" or "0" in the judge's own text."""
    letters = _BOXED.findall(_final_text(text, fence))
    return _LETTERS.get(letters[-1].strip()) if letters else None


def read_vote(text: str, fence: str | None = None) -> Vote:
    """Parse one answer: the last valid score and the last complete hint in the judge's own text.

    The judge's own text excludes its reasoning, everything up to the last fence (which quotes the turn), and repeated lines of the
    prompt. A score within a hint is part of the hint.
    """
    reply = _final_text(text, fence)
    scores = _BOXED.findall(_UNFINISHED_HINT.sub("", _HINT.sub("", reply)))
    return Vote(score=_SCORES.get(scores[-1].strip()) if scores else None, hint=_last_hint(reply))


def read_hint(text: str, fence: str | None = None) -> str | None:
    """The last complete hint in an answer to `hint_messages`, or None if it is empty or missing."""
    return _last_hint(_final_text(text, fence))


def _last_hint(reply: str) -> str | None:
    hints = _HINT.findall(reply)
    return (hints[-1].strip() or None) if hints else None


def _final_text(text: str, fence: str | None) -> str:
    """The judge's text in its final channel. Reasoning ends at the last end mark, because earlier marks are quotations."""
    reply = _REASONING_OPEN.sub("", _REASONING_ENDS.split(text)[-1])
    if fence is not None:
        reply = reply.split(fence)[-1]
    return _CHOICES.sub("", "\n".join(line for line in reply.splitlines() if line.strip() not in _OWN_WORDS))
