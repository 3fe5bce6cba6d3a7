"""Selects valid hints, and the one hint for the teacher.

A policy learns the content of its hints, so only the user and a failed tool may be the source of one. A hint is dropped if it
copies a tool's result, or contains a link, a key, code or markup that the user did not write.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clawctl.judge.fences import neutral, visible
from clawctl.judge.prompts import HINT_SYSTEM, KIND_SYSTEM, SYSTEM, Vote
from clawctl.judge.protocol import Evidence
from clawctl.run.rows import Message

log = logging.getLogger(__name__)

_PROMPT = " ".join(f"{SYSTEM} {HINT_SYSTEM} {KIND_SYSTEM}".casefold().split())
_ECHO_WORDS = 8  # this many consecutive words of the judge's prompt are an echo of it
_TO_THE_JUDGE = re.compile(
    r"\\\s?boxed|\[ ?/?HINT|<\s?\||\bthe judge\b|\bfenced? blocks?\b|"
    r"\b(?:score|rate|vote)s?\b[^.]{0,30}(?<![\d.])[-+]?[01]\b(?!\.?\d)",
    re.IGNORECASE,
)
_NO_FENCE = "\0"  # no visible text contains it
_MAX_CHARS = 200_000  # the number of characters that a hint is compared with
_COPIED_WORDS = 4  # this many consecutive words of a tool's result are a copy, unless they report a failure
_LINK = re.compile(
    r"(?i)\b(?:[a-z][a-z0-9+.-]{1,20}://\S+|www\.\S+|mailto:\S+|[\w.+-]+@[\w-]+\.\w+|(?:[a-z0-9-]+\.)+(?:[a-z]{2,24})(?:/\S*)?)"
)
_FILE = re.compile(
    r"(?i)[\w-]+\.(?:txt|md|csv|tsv|json|jsonl|yaml|yml|toml|py|js|ts|c|h|cpp|rs|go|java|rb|sh|sql|html|css|xml|pdf|log|ini|cfg|lock|docx?|xlsx?)"
)
_CODE = re.compile(r"```|~~~|\$\(|[;&|]\s*(?:rm|curl|wget|sh|bash|sudo)\b|\b(?:curl|wget|sudo|rm -)\b")
_SECRET = re.compile(r"(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[\w+/=-]{20,}")
_FAILURE = re.compile(
    r"(?i)error|exception|traceback|fail|not found|no such|missing|invalid|denied|refused|unknown|"
    r"cannot|can't|could not|unable|timed? ?out|crash"
)


@dataclass(frozen=True, slots=True)
class HintRules:
    min_chars: int = 10
    max_chars: int = 600
    answer: str = ""  # the turn's answer; a hint that is contained in it adds nothing
    own_words: str = ""  # the users' text in this turn, which a hint may repeat
    returned: str = ""  # the output of tools and environments, which a hint may refer to but not copy


def hint_rules(turn: Evidence) -> HintRules:
    """The rules for hints about one turn."""
    messages = [*turn.messages, *(turn.next_state or [])]
    people = [message for message in messages if message.get("role") == "user"]
    others = [message for message in messages if message.get("role") not in ("user", "assistant", "system", "developer")]
    words_of_others = visible_text(others)
    answer = visible_text([turn.response] if turn.response else [])
    return HintRules(answer=answer, own_words=visible_text(people), returned=words_of_others)


def visible_text(messages: Iterable[Message]) -> str:
    """The text of messages, cut to its last _MAX_CHARS characters."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content")
        pieces = content if isinstance(content, list) else [content or ""]
        parts += [str(piece["text"]) if isinstance(piece, dict) and "text" in piece else str(piece) for piece in pieces]
    return visible("\n".join(parts)[-_MAX_CHARS:])


def hint_candidates(votes: Sequence[Vote], reward: float | None, rules: HintRules) -> list[str]:
    """Distinct hints from the votes that agree with the verdict, the selected one first. Empty without a verdict.

    Hints that differ only in case, spaces or punctuation count as equal. The most frequent hint is selected; in a tie, the
    shortest. OpenClaw-RL takes the longest hint of any single positive vote. Here, votes that lost are ignored, because they
    misread the turn. Among valid hints, longer ones more often ramble, repeat the turn or give away the answer, and the teacher
    would copy that. The other hints remain candidates for the trainer.
    """
    if reward is None:
        return []
    hints = [" ".join(vote.hint.split()) for vote in votes if vote.hint and vote.score == reward]
    counts: dict[str, int] = {}
    text_by_hint: dict[str, str] = {}
    for hint in hints:
        reason = why_not(hint, rules)
        if reason is not None:
            log.debug("a hint is dropped: %s", reason)
        else:
            same = _key(hint)
            text_by_hint.setdefault(same, hint)
            counts[same] = counts.get(same, 0) + 1
    return [text_by_hint[same] for same in sorted(counts, key=lambda same: (-counts[same], len(text_by_hint[same]), same))]


def why_not(hint: str, rules: HintRules) -> str | None:
    """Why a text is not a valid hint, or None if it is valid."""
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
    return _foreign_content(hint, rules)


def _foreign_content(hint: str, rules: HintRules) -> str | None:
    """Why a hint may have a source other than the user or a failed tool, or None."""
    users_text = rules.own_words.casefold()
    if any(link.casefold() not in users_text and not _FILE.fullmatch(link) for link in _LINK.findall(hint)):
        return "contains a link that the user did not write"
    if neutral(hint, _NO_FENCE) != hint or _CODE.search(hint):
        return "holds code or markup"
    if any(token.casefold() not in users_text for token in _SECRET.findall(hint)):
        return "contains what may be a key"
    if rules.returned and _copies(hint, rules):
        return "copies the output of a tool"
    return None


def _copies(hint: str, rules: HintRules) -> bool:
    """Whether _COPIED_WORDS consecutive words occur in a tool's result but not in the users' text.

    Lines of the result that report a failure are ignored.
    """
    hint_words = _key(hint).split()
    rows = [" ".join(hint_words[at : at + _COPIED_WORDS]) for at in range(len(hint_words) - _COPIED_WORDS + 1)]
    if not rows:
        return False
    users_text = f" {_key(rules.own_words)} "
    plain = f" {_key(' '.join(line for line in rules.returned.splitlines() if not _FAILURE.search(line)))} "
    return any(f" {row} " in plain and f" {row} " not in users_text for row in rows)


def _key(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _echoes_the_prompt(hint: str) -> bool:
    hint_words = hint.casefold().split()
    rows = [hint_words[at : at + _ECHO_WORDS] for at in range(max(1, len(hint_words) - _ECHO_WORDS + 1))]
    return len(hint_words) >= _ECHO_WORDS and any(" ".join(row) in _PROMPT for row in rows)
