# ruff: noqa: E501 - expressions stay lines
"""Finds secrets in terminal output: command output on the next line, input at a prompt, and rows of Markdown tables."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.forms import alternatives_of
from clawctl.extensions.secrets.names import kind_of_name
from clawctl.extensions.secrets.text import Anchors, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import (
    is_passphrase,
    is_stand_in,
    is_strong_key,
    is_strong_password,
    is_stronger_password,
)  # fmt: skip
from clawctl.extensions.secrets.vocabulary import words_of

# Commands whose output is always a secret. Commands in `_ASKS` print a named value, and the name shows whether it is a secret.
_PRINTS = regex(alternatives_of("commands that print a secret"))
_ASKS = regex(
    r"(?:printenv|echo|cat|jq|yq|grep|head|tail|more|type|docker[ ](?:compose[ ])?exec|terraform[ ]output|tofu[ ]output|pulumi[ ](?:config|stack)|heroku[ ]config:get|git[ ]config|aws[ ]configure[ ]get"
    r"|npm[ ]config[ ]get|glab[ ]config[ ]get|consul[ ]kv[ ]get|etcdctl[ ]get|redis-cli[ ]get|gcloud[ ]config[ ]get(?:-value)?|defaults[ ]read|dotenv[ ]get|kubectl[ ]exec|ssh|aws|az|nmcli|[\w.-]{2,24}[ ]config[ ]get)[ ](?P<asked>[^\n]{2,240})"
)
_VERBS = Anchors(*words_of("commands with output"))
# What may precede a command: nothing, a prompt, or other commands on the same line.
_BEFORE = regex(
    r"(?:^|[|;&(`])[ \t]{0,8}(?:(?:\([\w.-]{1,24}\)[ ])?(?:PS )?[^\s$#%>❯➜]{0,48}[ ]{0,2}[$#%>❯➜][ ]{1,2}(?:~[ ])?)?(?:(?:sudo|command|exec|time)[ ]|[A-Z_]{1,32}=[^\s]{0,80}[ ]){0,2}$"
)
_NEXT = regex(r"[^\n]{0,300}\n[ \t]{0,4}(?P<value>[^\s\"'`]{6,4096})[ \t]*(?=\r?\n|$)")
_ASKED = regex(r"[A-Za-z][\w-]{2,60}(?=(?:\.(?:txt|key|secret|token|pass))?[\"'})%\]]{0,4}(?:[ \t\r]|$))")


@tried_at(_VERBS)
def in_outputs(piece: Text) -> Iterator[Span]:
    """Find a secret alone on the line below its command: `pass show mail`, `printenv DB_PASSWORD`, `gh auth token`."""
    text = piece.text
    if "\n" not in text or not piece.present & _VERBS.bit:
        return
    read: set[int] = set()  # ends of command lines; one value each
    for at in _VERBS.positions(piece):
        line_end = text.find("\n", at, at + 300)
        if line_end < 0 or line_end in read:
            continue
        value = _NEXT.match(text, at)
        if value is None or is_stand_in(value["value"]):
            continue
        line = max(text.rfind("\n", max(0, at - 200), at) + 1, at - 200)
        begin = at
        while begin > line and (text[begin - 1].isalnum() or text[begin - 1] == "-"):
            begin -= 1
        if not _BEFORE.search(text[line:begin]):
            continue
        good = _is_printed(value["value"])
        if (_PRINTS.match(text, begin) and (good or is_strong_password(value["value"], 6))) or (
            good and _names_secret(_ASKS.match(text, begin))
        ):
            read.add(line_end)
            yield Span(*value.span("value"), "password")


def _is_printed(value: str) -> bool:
    return is_stronger_password(value) or is_strong_key(value) or is_passphrase(value)


def _names_secret(prompt: re.Match[str] | None) -> bool:
    return prompt is not None and any(kind_of_name(name) in ("password", "key") for name in _ASKED.findall(prompt["asked"]))


_ROW_OF = regex(r"[^\n]{0,300}")
_SIGNED = regex(r"[!@#$%^&*?~+=]")


def in_row(text: str, begin: int) -> Iterator[Span]:
    """Find cells that look generated in a row of a Markdown table that mentions a password."""
    line = text.rfind("\n", max(0, begin - 300), begin) + 1
    if not text.startswith("|", line) or begin - line >= 300:
        return
    row = _ROW_OF.match(text, line)
    at = line
    for cell in row[0].split("|") if row else ():
        value = cell.strip(" `*")
        both = any(map(str.isupper, value)) and any(map(str.islower, value))
        if (
            len(value) >= 10
            and both
            and " " not in value
            and is_stronger_password(value)
            and (_SIGNED.search(value) or is_strong_key(value))
        ):
            start = text.find(value, at)
            yield Span(start, start + len(value), "password")
        at += len(cell) + 1
