"""Rules for utility calls, transient context, and prompts that name their session.

The clients' texts are in `client_texts.yaml`. Increment VERSION with each change of rules or texts; the worker logs it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from clawctl.run.rows import Exchange, Message

VERSION = 8

# Values of a client's X-Turn-Type header or turn_type field. OpenClaw's provider plugin sends "user" and "unknown".
MAIN_TYPES = frozenset({"main", "user", "turn", "unknown"})
SIDE_TYPES = frozenset({"side", "heartbeat", "memory", "cron", "title", "summary", "compaction", "utility", "judge", "eval"})


@dataclass(frozen=True, slots=True)
class SideRule:
    """A request is a side turn if its first system message starts with `opener`, or if its last user message is the client's text.

    That text starts with the line of `opener` and ends with the line of `ending`, if that is known. Other lines around it are a
    person's, unless the client added them to earlier messages as well.
    """

    name: str
    where: Literal["system", "user"]
    opener: str
    ending: str = ""

    def is_in(self, text: str, is_added: Callable[[str], bool]) -> bool:
        if self.opener not in text or self.ending not in text:
            return False
        lines = text.split("\n")
        begin = next((i for i, line in enumerate(lines) if line.lstrip().startswith(self.opener)), len(lines))
        end = next(i for i in range(len(lines) - 1, -1, -1) if self.ending in lines[i])
        around = lines[:begin] + lines[end + 1 :]
        return begin < len(lines) and all(not line.strip() or is_added(line.strip()) for line in around)


_TEXTS = yaml.safe_load((Path(__file__).parent / "client_texts.yaml").read_text(encoding="utf-8"))
SIDE_RULES = [SideRule(name, where, *texts) for where, rules in _TEXTS["side_rules"].items() for name, *texts in rules]

# A request with one of these types is a main turn, whatever it looks like. "unknown" carries no information.
_SURE_TYPES = MAIN_TYPES - {"unknown"}

_PAIR_BEGINS = tuple(begin for begin, _ in _TEXTS["pairs"])

# OpenClaw names its session in the system prompt or in the first user message: "Runtime: agent=main | … | sessionId=c388bb34-… |".
_RUNTIME = re.compile(r"^Runtime: [^\n]*\| sessionId=([0-9A-Za-z-]{8,64})", re.MULTILINE)
# OpenClaw appends the number of compactions to the id: "c86d8302-…:1"
_REVISION = re.compile(r"^([0-9a-f]{8}-[0-9a-f-]{27}):\d+$")

# Parts of a text that may be a time: digits, days and months.
_TIME = re.compile(
    r"\d+|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(?:mon|tue|wed|thu|fri|sat|sun)\b|\b(?:january|february|march|april|may"
    r"|june|july|august|september|october|november|december|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b|\b[ap]m\b",
    re.IGNORECASE,
)
_STAMP = re.compile(r"\[[^\]\n]{1,40}\]\s*")  # "[Sat 2026-11-21 07:28 UTC] "


def is_transient(text: str) -> bool:
    text = text.strip()
    return text[:1] == "<" and any(text.startswith(begin) and text.endswith(end) for begin, end in _TEXTS["transient"])


def is_pair(question: str, answered: str) -> bool:
    """Whether the client itself wrote both messages."""
    question = question[:200].lstrip()
    if not question.startswith(_PAIR_BEGINS):
        return False
    answered = answered[:200].lstrip()
    return any(question.startswith(begin) and answered.startswith(answer) for begin, answer in _TEXTS["pairs"])


def session_in_prompt(messages: Sequence[Message]) -> str | None:
    """Return the session that the client wrote into the prompt, or None. As any claim, it groups requests but links nothing."""
    user_messages = 0
    for message in messages:
        if user_messages == 2 or message.get("role") in ("assistant", "tool"):
            return None
        user_messages += message.get("role") == "user"
        content = message.get("content")
        for text in [content] if isinstance(content, str) else [_opening(message, None)]:
            match = _RUNTIME.search(text) if "sessionId=" in text else None
            if match:
                return match[1]
    return None


def without_revision(claim: str) -> str:
    """Return a claimed session id without its compaction count, because the conversation continues after a compaction."""
    match = _REVISION.match(claim)
    return match[1] if match else claim


def turn_kind(
    turn_type: Any, messages: Sequence[Message], rules: Sequence[SideRule], is_added: Callable[[str], bool]
) -> Literal["main", "side"]:
    """Return the kind that the client names, if it is known, else the kind by the rules. A request that matches no rule is main.

    `is_added`: whether a line was in an earlier message of the conversation.
    """
    claimed = turn_type.strip().lower() if isinstance(turn_type, str) else ""
    if claimed in SIDE_TYPES:
        return "side"
    if claimed in MAIN_TYPES:
        return "main"
    system = next((_opening(m) for m in messages if m.get("role") in ("system", "developer")), "")
    text = next((_opening(m, None) for m in reversed(messages) if _is_user_text(m)), "")
    is_side = any(system.startswith(rule.opener) if rule.where == "system" else rule.is_in(text, is_added) for rule in rules)
    return "side" if is_side else "main"


def is_named(hints: Mapping[str, Any]) -> bool:
    """Whether the client marks this request as part of the conversation: it names it a main turn, or rates the turn before."""
    turn_type = hints.get("turn_type")
    return (isinstance(turn_type, str) and turn_type.strip().lower() in _SURE_TYPES) or hints.get("feedback") is not None


def tool_names(tools: Sequence[Mapping[str, Any]] | None) -> frozenset[str]:
    """Return the names of the tools that a request offers, in the format of any API."""
    names = []
    for tool in tools or []:
        function = tool.get("function")
        named = function if isinstance(function, dict) else tool
        names.append(str(named.get("name") or named.get("type")))
    return frozenset(names)


def opening_of(messages: Sequence[Message]) -> str:
    """Return the start of the system prompt, without parts that may be a time."""
    first = messages[0] if messages and messages[0].get("role") in ("system", "developer") else None
    return "" if first is None else without_time(_opening(first, 160))[:80]


def without_time(text: str) -> str:
    return _TIME.sub("", text)


def _is_user_text(message: Message) -> bool:
    return message.get("role") == "user" and not is_transient(_opening(message, None))


def _opening(message: Message, length: int | None = 200) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict) and part.get("text")), "")
    text = str(content or "").lstrip()
    stamp = _STAMP.match(text)
    return text[stamp.end() if stamp else 0 :][:length]


def session_hint(exchange: Exchange) -> str | None:
    """Return the session that the client claims in a header, in the body or in its prompt, or None."""
    claim = exchange.hints.get("session_id")
    if isinstance(claim, str | int) and not isinstance(claim, bool) and claim != "":
        return without_revision(str(claim))
    return session_in_prompt(exchange.messages)
