"""Detects the client of a request, with rules as data, for settings that differ between clients.

A client names itself in a header or in the first words of its prompt, and anyone can send the same, so this proves nothing about
the sender. The rules come from recordings (`tests/recordings/`) and from the clients' published sources.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from clawctl.run.rows import Message

OTHER: Final = "other"
_LOOKED_AT = 4096  # characters of the first message; the phrases are at its beginning
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class ClientRule:
    """A request is this client's if the header, or the beginning of the first message, matches."""

    name: str
    where: Literal["header", "prompt"]
    pattern: str
    header: str = "user-agent"


CLIENTS: Final = (
    ClientRule("claude-code", "header", r"claude-cli/"),
    ClientRule("codex", "header", r"codex", "originator"),
    ClientRule("codex", "header", r"codex[_-]"),
    ClientRule("qwen-code", "header", r"qwencode/"),
    ClientRule("gptme", "header", r"gptme$", "x-title"),
    ClientRule("aider", "header", r"aider$", "x-title"),
    ClientRule("copilot", "prompt", r"You are the GitHub Copilot CLI"),
    ClientRule("qwen-code", "prompt", r"You are Qwen Code"),
    ClientRule("codex", "prompt", r"You are a coding agent running in the Codex CLI"),
    ClientRule("claude-code", "prompt", r"x-anthropic-billing-header: cc_version|You are Claude Code"),
    ClientRule("openclaw", "prompt", r"(<!-- openclaw:[^\n]*\n)?You are a personal assistant running inside OpenClaw"),
    ClientRule(
        "aider",
        "prompt",
        r"Act as an expert (software developer|code analyst|architect engineer and provide direction to your editor)",
    ),
    ClientRule("gptme", "prompt", r"You are (gptme v|[^\n]{1,80}, an agent running in gptme v)"),
    ClientRule("smolagents", "prompt", r"You are an expert assistant who can solve any task using (code blobs|tool calls)"),
    ClientRule("mini-swe-agent", "prompt", r"You are a helpful assistant that can interact with a computer\.?$"),
)
NAMES: Final = tuple(sorted({rule.name for rule in CLIENTS}))
_COMPILED = tuple((rule, re.compile(rule.pattern, re.IGNORECASE if rule.where == "header" else 0)) for rule in CLIENTS)


def client_of(headers: Mapping[str, str], messages: Sequence[Message]) -> str:
    """The known client that sends a request, or OTHER. `headers` have lower-case names; headers count before the prompt."""
    opening = _opening(messages)
    for rule, pattern in _COMPILED:
        if pattern.match(headers.get(rule.header, "") if rule.where == "header" else opening):
            return rule.name
    return OTHER


def agent_of(headers: Mapping[str, str]) -> str:
    """The client's own name, lower-case and short: "openai/js 7.15.0"."""
    return headers.get("user-agent", "")[:_LONGEST_NAME].lower()


def _opening(messages: Sequence[Message]) -> str:
    content = messages[0].get("content") if messages else None
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)), None)
    return content[:_LOOKED_AT].lstrip() if isinstance(content, str) else ""
