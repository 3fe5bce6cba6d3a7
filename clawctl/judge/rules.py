"""Rules that decide where a model need not be asked: ratings, an environment's score, exit codes, test verdicts, thumbs.

Rules are data, tried in order; the verdict names the one that decided. What they read is what the tool's own harness says: the
exit code as a field of a JSON result or among its first or last lines, the summary line of a test runner. A line of that kind that
the answer itself holds (a command that prints "5 passed") decides nothing, and neither does a tool's result beside which a person
speaks: that is asked about.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from clawctl.config import JudgeConfig
from clawctl.judge.evidence import Evidence
from clawctl.judge.opinion import Opinion
from clawctl.judge.view import view_turn
from clawctl.reward import OUTCOME, RATING, worth
from clawctl.types import Message

RULES_VERSION = "1"
_EDGE_LINES = 3  # a verdict stands within so many lines of a result's beginning or end
_LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` must match a whole line of a result, at the place where a harness writes it; group 1, if there is one, counts."""

    name: str
    speaker: Literal["tool", "user"]
    pattern: re.Pattern[str]
    score: int | None  # None: group 1 is a number, 0 is good and everything else bad


def _rule(name: str, pattern: str, score: int | None, speaker: Literal["tool", "user"] = "tool") -> Rule:
    return Rule(name, speaker, re.compile(pattern, re.IGNORECASE), score)


RULES = (
    _rule("exit code", r"\W{0,3}(?:exited with )?(?:exit|return) ?(?:code|status)(?: is)?[:= ]+(-?\d+)\W{0,3}", None),
    _rule("exit code", r"\W{0,3}(?:process|command) (?:exited|finished) with (?:exit )?(?:code|status)[:= ]+(-?\d+)\W{0,3}", None),
    _rule("pytest", r"=*\s*(?:.*\b)?[1-9]\d* (?:failed|errors?)\b.*\bin [\d.:]+ ?s\b.*", -1),
    _rule("pytest", r"=*\s*\d+ passed(?:, \d+ (?:skipped|warnings?|xfailed|deselected))* in [\d.]+ ?s\b.*", 1),
    _rule("unittest", r"FAILED \((?:failures|errors)=\d+.*\)", -1),
    _rule("cargo test", r"test result: FAILED\..*", -1),
    _rule("cargo test", r"test result: ok\. \d+ passed; 0 failed;.*", 1),
    _rule("jest", r"Tests:\s+(?:.*, )?[1-9]\d* failed,.*", -1),
    _rule("jest", r"Tests:\s+\d+ passed, \d+ total", 1),
    _rule("go test", r"FAIL\t\S+\t[\d.]+s", -1),
    _rule("go test", r"ok  ?\t\S+\t(?:[\d.]+s|\(cached\)).*", 1),
    _rule("thumbs", r"(?:\U0001F44D[\U0001F3FB-\U0001F3FF]?|:\+1:|:thumbsup:)+", 1, "user"),
    _rule("thumbs", r"(?:\U0001F44E[\U0001F3FB-\U0001F3FF]?|:-1:|:thumbsdown:)+", -1, "user"),
)  # fmt: skip
_EXIT_KEYS = ("exit_code", "exitCode", "returncode", "return_code", "exit_status")


def rated(turn: Evidence, settings: JudgeConfig) -> Opinion | None:
    """What a person or an environment said outright, so that neither rules nor a judge are asked."""
    said = worth(turn.feedback, turn.outcome_reward)
    if said.by == "rating":
        return Opinion(RATING, said.value, reason=said.problem)
    if said.by == "outcome" and settings.outcome == "decides":
        return Opinion(OUTCOME, said.value, reason=said.problem)
    return None


def ruled(turn: Evidence) -> Opinion | None:
    """What the rules say of a turn; None where none decides or they contradict one another."""
    came_back = turn.next_state or []
    speakers = {message.get("role") for message in came_back}
    if speakers == {"tool"}:
        own_lines = set(map(str.strip, _spoken(turn)))
        found = [_of_tool(message, own_lines) for message in came_back]
    elif speakers == {"user"} and len(came_back) == 1:
        found = [_of_user(came_back[0])]
    else:
        return None
    decided = [pair for pair in found if pair is not None]
    failed = [pair for pair in decided if pair[1] < 0]
    if not decided or (not failed and len(decided) < len(found)):
        return None  # one failed call makes the turn bad; good are only all of them together
    name, score = failed[0] if failed else decided[0]
    return Opinion(f"rules {RULES_VERSION}: {name}", float(score))


def _of_tool(message: Message, own_lines: set[str]) -> tuple[str, int] | None:
    """The rule that decides on one tool result, and its score."""
    if message.get("is_error") is True:
        return "error flag", -1
    text = _text(message)
    code = _exit_code(text)
    if code is not None:
        return "exit code", 1 if code == 0 else -1
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    edges = lines if len(lines) <= 2 * _EDGE_LINES else lines[:_EDGE_LINES] + lines[-_EDGE_LINES:]
    edges = [line for line in edges if len(line) <= _LONGEST_LINE and not any(line in own for own in own_lines)]
    found = [
        (rule.name, _score(rule, match))
        for rule in RULES
        if rule.speaker == "tool"
        for match in map(rule.pattern.fullmatch, edges)
        if match
    ]
    return found[0] if len({score for _, score in found}) == 1 else None


def _of_user(message: Message) -> tuple[str, int] | None:
    text = "".join(_text(message).split())
    for rule in (rule for rule in RULES if rule.speaker == "user"):
        match = rule.pattern.fullmatch(text)
        if match:
            return rule.name, _score(rule, match)
    return None


def _score(rule: Rule, match: re.Match[str]) -> int:
    if rule.score is not None:
        return rule.score
    return 1 if int(match.group(1)) == 0 else -1


def _exit_code(text: str) -> int | None:
    """Of a result that is one JSON object with an exit code."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    code = next((found[key] for key in _EXIT_KEYS if key in found), None) if isinstance(found, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _spoken(turn: Evidence) -> Sequence[str]:
    """The lines of the answer, its tool calls among them, as they would be printed."""
    return view_turn(turn, 0).answer.replace("\\n", "\n").replace('\\"', '"').splitlines()


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")
