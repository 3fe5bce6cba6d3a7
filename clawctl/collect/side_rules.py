"""Rules, as data, for utility calls, transient context, and prompts that name their session.

All are taken from recordings (`tests/recordings/`) or from the clients' own texts (2026-11). VERSION is incremented with each
change; the worker logs it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clawctl.run.rows import Exchange, Message

VERSION = 6

# Values of a client's X-Turn-Type header or turn_type field. OpenClaw's provider plugin sends "user" and "unknown".
MAIN_TYPES = frozenset({"main", "user", "turn", "unknown"})
SIDE_TYPES = frozenset({"side", "heartbeat", "memory", "cron", "title", "summary", "compaction", "utility", "judge", "eval"})


@dataclass(frozen=True, slots=True)
class SideRule:
    """A request is a side turn if its first system message or its last user message starts with `opener`."""

    name: str
    where: Literal["system", "user"]
    opener: str


SIDE_RULES = (
    SideRule("openclaw title", "system", "Generate a concise session title"),
    SideRule("openclaw compaction", "system", "You are a context summarization assistant."),
    SideRule("openclaw memory flush", "user", "Pre-compaction memory flush."),
    SideRule("openclaw heartbeat", "user", "Follow the heartbeat monitor scratch context"),
    SideRule("codex compaction", "user", "You are performing a CONTEXT CHECKPOINT COMPACTION"),
    SideRule("claude code compaction", "user", "CRITICAL: Respond with TEXT ONLY"),
    SideRule("claude code suggestion", "user", "[SUGGESTION MODE:"),
    SideRule("qwen code suggestion", "user", "[SUGGESTION MODE:"),
    SideRule("qwen code memory", "system", "You are now acting as the managed memory extraction subagent"),
    SideRule("qwen code compaction", "system", "You are the component that summarizes"),
    SideRule("qwen code title", "system", "Generate a concise, sentence-case title"),
    SideRule("qwen code next speaker", "user", "Analyze *only* the content and structure of your immediately preceding response"),
    SideRule("qwen code permission", "system", "You are a security classifier for an AI coding agent"),
    SideRule("codex title", "user", "Generate a concise, single-line task title"),
    SideRule("aider commit message", "system", "You are an expert software engineer that generates concise, one-line Git commit"),
    SideRule("aider summary", "system", "*Briefly* summarize this partial conversation about programming."),
    SideRule("gptme title", "system", "Generate concise conversation titles."),
    SideRule("gptme pruning", "system", "You are a precise extraction helper for coding-agent tool output."),
    SideRule("clawctl judge", "system", "You judge one turn of an assistant by what came back after it."),
)

# A request with one of these types is a main turn, whatever it looks like. "unknown" carries no information.
_SURE_TYPES = MAIN_TYPES - {"unknown"}

# A user message that starts and ends like this is context from the client and may appear and disappear with each request.
TRANSIENT = (
    ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"),
    ("<environment_context>", "</environment_context>"),  # Codex, after each change
)

# The client itself wrote a user message that starts like this, followed by such an answer. Both may appear and disappear.
PAIRS = (
    ("I have *added these files to the chat*", "Ok, any changes I propose will be to those files."),  # all from aider
    ("I have *added these files to the chat*", "Ok, I will use that as the true, current contents of the files."),
    ("These files have been *added these files to the chat*", "Ok, I will use that as the true, current contents of the files."),
    ("These are some files we have been discussing", "Ok, any changes I propose will be to those files."),
    ("I am not sharing any files", "Ok."),
    ("I am not sharing the full contents of any files", "Ok."),
    ("Don't try and edit any existing code without asking me", "Ok, based on your requests I will suggest which files"),
    ("Here are summaries of some files present in my git repository", "Ok, I won't try and edit those files"),
    ("I am working with you on code in a git repository.", "Ok, I won't try and edit those files"),
    ("Here are some READ ONLY files, provided for your reference.", "Ok, I will use these files as references."),
    ("I committed the changes with git hash", "Ok."),
    ("I updated the files.", "Ok."),
    ("I made those changes to the files.", "Ok."),
    ("I didn't update the files.", "Ok."),
    ("I switched to a new code base.", "Ok."),
)

_PAIR_BEGINS = tuple(begin for begin, _ in PAIRS)

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
    return text[:1] == "<" and any(text.startswith(begin) and text.endswith(end) for begin, end in TRANSIENT)


def is_pair(question: str, answered: str) -> bool:
    """Whether the client itself wrote both messages."""
    question = question[:200].lstrip()
    if not question.startswith(_PAIR_BEGINS):
        return False
    answered = answered[:200].lstrip()
    return any(question.startswith(begin) and answered.startswith(answer) for begin, answer in PAIRS)


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


def turn_kind(turn_type: Any, messages: Sequence[Message], rules: Sequence[SideRule] = SIDE_RULES) -> Literal["main", "side"]:
    """Return the kind that the client names, if it is known, else the kind by the rules. A request that matches no rule is main."""
    claimed = turn_type.strip().lower() if isinstance(turn_type, str) else ""
    if claimed in SIDE_TYPES:
        return "side"
    if claimed in MAIN_TYPES:
        return "main"
    return "side" if side_rule(messages, rules) else "main"


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


def side_rule(messages: Sequence[Message], rules: Sequence[SideRule] = SIDE_RULES) -> SideRule | None:
    """Return the first rule that matches this request, or None."""
    openings = {
        "system": next((_opening(m) for m in messages if m.get("role") in ("system", "developer")), ""),
        "user": next((_opening(m) for m in reversed(messages) if _is_user_text(m)), ""),
    }
    return next((rule for rule in rules if openings[rule.where].startswith(rule.opener)), None)


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
