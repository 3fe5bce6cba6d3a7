"""Which hints are hints, and which one the teacher is given."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clawctl.judge.prompts import HINT_SYSTEM, SYSTEM, Vote

_PROMPT = " ".join(f"{SYSTEM} {HINT_SYSTEM}".casefold().split())
_ECHO_WORDS = 8  # so many words in a row from our prompt are an echo of it
_TO_THE_JUDGE = re.compile(
    r"\\\s?boxed|\[ ?/?HINT|<\s?\||\bthe judge\b|\bfenced? blocks?\b|"
    r"\b(?:score|rate|vote)s?\b[^.]{0,30}(?<![\d.])[-+]?[01]\b(?!\.?\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HintRules:
    min_chars: int = 10
    max_chars: int = 600
    answer: str = ""  # what the turn answered: a hint that lies in it whole says nothing new


def hint_candidates(votes: Sequence[Vote], reward: float | None, rules: HintRules) -> list[str]:
    """Hints of the votes that agree with the verdict, each once, the chosen one first; none without a verdict.

    Two hints are the same if they differ in case, spaces or punctuation only. Chosen is what most votes say; among equals the
    shortest. OpenClaw-RL takes the longest hint of any single positive vote. A vote that lost is a judge that misread the turn,
    so its hint is not used; and among hints that passed the filter a longer one more often rambles, repeats the turn, or gives
    the answer away, all of which the teacher would copy. The others stay as candidates for the trainer.
    """
    if reward is None:
        return []
    spoken = [" ".join(vote.hint.split()) for vote in votes if vote.hint and vote.score == reward]
    counts: dict[str, int] = {}
    words: dict[str, str] = {}
    for hint in spoken:
        if why_not(hint, rules) is None:
            same = _key(hint)
            words.setdefault(same, hint)
            counts[same] = counts.get(same, 0) + 1
    return [words[same] for same in sorted(counts, key=lambda same: (-counts[same], len(words[same]), same))]


def why_not(hint: str, rules: HintRules) -> str | None:
    """Why a text is no hint, or None if it is one."""
    if len(hint) < rules.min_chars:
        return "too short"
    if len(hint) > rules.max_chars:
        return "too long"
    if _TO_THE_JUDGE.search(hint):
        return "speaks of the verdict"
    if _echoes_the_prompt(hint):
        return "echo of the judge's prompt"
    if _key(hint) and f" {_key(hint)} " in f" {_key(rules.answer)} ":
        return "repeats the answer"
    return None


def _key(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _echoes_the_prompt(hint: str) -> bool:
    words = hint.casefold().split()
    rows = [words[at : at + _ECHO_WORDS] for at in range(max(1, len(words) - _ECHO_WORDS + 1))]
    return len(words) >= _ECHO_WORDS and any(" ".join(row) in _PROMPT for row in rows)
