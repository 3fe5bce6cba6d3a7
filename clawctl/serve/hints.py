"""A request's hints about its conversation and its client.

Claims group and label turns, but never link them; docs/clients.md lists where each known client puts them. A client identifies
itself by a header or by the first words of its prompt. Any sender can imitate both, so they prove nothing about the sender. The
rules are in `clients.yaml`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from clawctl.run.rows import Message
from clawctl.serve.dialects.fields import json_object

_SESSION_HEADERS = ("x-session-id", "session_id", "session-id", "x-session-affinity", "x-claude-code-session-id")
_TRUE = ("1", "true", "yes", "on")
_OWN_CLAIMS = ("session_id", "turn_type", "session_done", "prompt_cache_key")
_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_WITH_REVISION = re.compile(rf"({_UUID}):([0-9]{{1,6}})")  # OpenClaw: <session>:<number of its compactions and restarts>
_USER_ID_SESSION = re.compile(rf"_session_({_UUID})")  # Claude Code, before its user ids became JSON
_RUNTIME_LINE = re.compile(r"^Runtime: .*\bsessionId=([A-Za-z0-9._-]{1,128})", re.MULTILINE)
_CACHE_SESSION = re.compile(rf"(?:[A-Za-z]+[_-])?(?:{_UUID}|[0-9A-Za-z]{{20,32}})(?::[0-9]+)?")  # other keys are shared prefixes
_LONGEST = 256  # characters of a claim
_LONGEST_USER_ID = 4096  # characters
_RUNTIME_WITHIN = 64 << 10  # characters at the end of a message, where OpenClaw writes its line


def read_claims(body: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
    """The claims in the body of any API: clawctl's own fields, Anthropic's user id, and OpenClaw's line in the prompt."""
    claims = {key: body[key] for key in _OWN_CLAIMS if key in body}
    if not _CACHE_SESSION.fullmatch(_text(body.get("prompt_cache_key")) or ""):
        claims.pop("prompt_cache_key", None)
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and (session := _session_of_user(metadata.get("user_id"))):
        claims["user_session"] = session
    if runtime := _runtime_session(messages):
        claims["runtime_session"] = runtime
    return claims


def read_hints(headers: Mapping[str, str], claims: Mapping[str, Any]) -> dict[str, Any]:
    """The hints of an exchange, from the request's headers and the body's claims. Headers take precedence."""
    codex = json_object(headers.get("x-codex-turn-metadata", ""))
    agent = headers.get("x-claude-code-agent-id") or None
    session, revision = _split(_session(headers, claims, codex))
    turn_type = headers.get("x-turn-type") or _text(claims.get("turn_type")) or _codex_turn_type(codex)
    done = headers.get("x-session-done", claims.get("session_done", False))
    hints = {
        "session_id": f"{session}.{agent}" if session and agent else session,  # a sub-agent has its own conversation
        "turn_type": _lower(turn_type.strip()) if turn_type else None,
        "session_done": str(done).strip().lower() in _TRUE,
        "task_id": headers.get("x-task-id") or None,
        "group_id": headers.get("x-group-id") or None,
    }
    optional = {
        "session_rev": revision or headers.get("x-codex-window-id", "").rpartition(":")[2],
        "agent_id": agent,
        "turn_of_client": headers.get("x-turn-id") or _text(codex.get("turn_id")),
        "parent": claims.get("parent"),
    }
    return hints | {name: value for name, value in optional.items() if value}


def _lower(turn_type: str) -> str:
    """The turn type in lower case if it is short enough to be one. A longer text stays unchanged, so that redaction can recognise a
    key in it."""
    return turn_type.lower() if len(turn_type) < 16 else turn_type


def _session(headers: Mapping[str, str], claims: Mapping[str, Any], codex: Mapping[str, Any]) -> str | None:
    named = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), None)
    claimed = (claims.get(name) for name in ("session_id", "prompt_cache_key", "user_session", "runtime_session"))
    return named or _text(codex.get("session_id")) or next((text for claim in claimed if (text := _text(claim))), None)


def _split(session: str | None) -> tuple[str | None, str | None]:
    match = _WITH_REVISION.fullmatch(session or "")
    return (match[1], match[2]) if match else (session, None)


def _codex_turn_type(codex: Mapping[str, Any]) -> str | None:
    """Codex labels its title requests as turns too, so "turn" does not prove a main turn."""
    return "side" if _text(codex.get("request_kind")) not in (None, "turn") else None


def _session_of_user(user_id: Any) -> str | None:
    """Claude Code writes its session to `metadata.user_id`, as JSON or, in older versions, after `_session_`."""
    if not isinstance(user_id, str) or len(user_id) > _LONGEST_USER_ID:
        return None
    match = _USER_ID_SESSION.search(user_id)
    return match[1] if match else _text(json_object(user_id).get("session_id"))


def _runtime_session(messages: Sequence[Message]) -> str | None:
    """OpenClaw writes its runtime line at the end of its system prompt or of the first user message."""
    for role in ("system", "user"):
        first = next((message for message in messages if message.get("role") == role), None)
        content = first.get("content") if first else None
        if isinstance(content, str) and (match := _RUNTIME_LINE.search(content[-_RUNTIME_WITHIN:])):
            return match[1]
    return None


def _text(value: Any) -> str | None:
    """A claim as text. Only strings and integers are claims."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return str(value)[:_LONGEST]


OTHER: Final = "other"
_LOOKED_AT = 4096  # characters of the first message; the phrases are at its beginning
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class ClientRule:
    """A request is from this client if the header, or the beginning of the first message, matches."""

    name: str
    where: Literal["header", "prompt"]
    pattern: str
    header: str = "user-agent"


CLIENTS: Final = tuple(ClientRule(**row) for row in yaml.safe_load((Path(__file__).parent / "clients.yaml").read_text("utf-8")))
NAMES: Final = tuple(sorted({rule.name for rule in CLIENTS}))
_COMPILED = tuple((rule, re.compile(rule.pattern, re.IGNORECASE if rule.where == "header" else 0)) for rule in CLIENTS)


def client_of(headers: Mapping[str, str], messages: Sequence[Message]) -> str:
    """The known client that sent a request, or OTHER. `headers` have lower-case names. Rules are tried in the order of
    `CLIENTS`."""
    opening = _opening(messages)
    for rule, pattern in _COMPILED:
        if pattern.match(headers.get(rule.header, "") if rule.where == "header" else opening):
            return rule.name
    return OTHER


def agent_of(headers: Mapping[str, str]) -> str:
    """The client's own name from its User-Agent header, in lower case and shortened: "openai/js 7.15.0"."""
    return headers.get("user-agent", "")[:_LONGEST_NAME].lower()


def _opening(messages: Sequence[Message]) -> str:
    content = messages[0].get("content") if messages else None
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)), None)
    return content[:_LOOKED_AT].lstrip() if isinstance(content, str) else ""
