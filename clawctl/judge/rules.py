"""Rules that decide without a model: ratings, an environment's outcome, test runs, thumbs.

The verdict names the rule that decided. Among tool results, rules accept only test runs whose exit the client itself reports
(`executions.py`), because a page, a file or a command can print any text. If a user's message follows a tool result, the judge
decides instead of the rules.
"""

import re
from collections.abc import Mapping

from clawctl.config import JudgeConfig
from clawctl.judge.executions import verdict
from clawctl.judge.protocol import Evidence, Opinion
from clawctl.run.reward import OUTCOME, RATING, RULES, worth
from clawctl.run.rows import Message

RULES_VERSION = "2"
_THUMBS = (
    (re.compile(r"(?:\U0001F44D[\U0001F3FB-\U0001F3FF]?|:\+1:|:thumbsup:)+", re.IGNORECASE), 1),
    (re.compile(r"(?:\U0001F44E[\U0001F3FB-\U0001F3FF]?|:-1:|:thumbsdown:)+", re.IGNORECASE), -1),
)


def rating_opinion(turn: Evidence, settings: JudgeConfig) -> Opinion | None:
    """The verdict given by a person or an environment. It takes precedence over rules and the judge."""
    value = worth(turn.feedback, turn.outcome_reward)
    if value.by == "rating":
        return Opinion(RATING, value.value, reason=value.problem)
    if value.by == "outcome" and settings.outcome == "decides":
        return Opinion(OUTCOME, value.value, reason=value.problem)
    return None


def only_rules(turn: Evidence, settings: JudgeConfig) -> Opinion | None:
    """An opinion without a reward, if only rules may give this turn a step reward and none of them decided."""
    if worth(turn.feedback, turn.outcome_reward).by == "outcome" and settings.steps == "rules":
        return Opinion(f"{RULES}{RULES_VERSION}", None, reason="no rule decides, and judge.steps asks rules alone")
    return None


def rule_opinion(turn: Evidence, tools: Mapping[str, str] | None = None) -> Opinion | None:
    """The verdict of the rules for a turn, or None if no rule decides. `tools` is `judge.execution_tools`."""
    next_state = turn.next_state or []
    speakers = {message.get("role") for message in next_state}
    if speakers == {"tool"}:
        return _of_tools(turn, next_state, tools or {})
    if speakers == {"user"} and len(next_state) == 1:
        return _of_user(next_state[0])
    return None


def _of_tools(turn: Evidence, results: list[Message], tools: Mapping[str, str]) -> Opinion | None:
    """The verdict on test runs. One failed run makes the turn bad; it is good if every call was a test run that passed."""
    calls = _calls(turn.response)
    pairs = [
        verdict(calls[call_id], result, tools) if (call_id := _id(result.get("tool_call_id"))) in calls else None
        for result in results
    ]
    answered = {_id(result.get("tool_call_id")) for result in results}
    if len(answered) < len(results):
        return None  # two results share a call id, so the client's own result is unknown
    decided = [pair for pair in pairs if pair is not None]
    failed = [pair for pair in decided if pair[1] < 0]
    if not decided or (not failed and (len(decided) < len(pairs) or answered != calls.keys())):
        return None
    name, score = failed[0] if failed else decided[0]
    return Opinion(f"{RULES}{RULES_VERSION}: {name}", float(score))


def _calls(response: Message | None) -> dict[str, Message]:
    """The turn's tool calls by id. Empty if two calls share an id or a call has none."""
    calls = response.get("tool_calls") if response is not None else None
    valid = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    by_id = {_id(call.get("id")): call for call in valid}
    return by_id if len(by_id) == len(valid) and "" not in by_id else {}


def _id(given: object) -> str:
    """An id without punctuation, because some clients remove it."""
    return "".join(letter for letter in given if letter.isalnum()) if isinstance(given, str) else ""


def _of_user(message: Message) -> Opinion | None:
    text = "".join(_text(message).split())
    score = next((score for pattern, score in _THUMBS if pattern.fullmatch(text)), None)
    return None if score is None else Opinion(f"{RULES}{RULES_VERSION}: thumbs", float(score))


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")
