# ruff: noqa: E501 - expressions and templates stay lines
"""Case `ids`: measures whether a capture keeps a secret as token ids or in any other form.

A real server (gateway, dialects, parser, capture) with a tiny model's tokenizer answers with scripted tokens instead of sampled ones.
Each case plants a new secret that is absent from the client's text or has another form there. Then all content of `captures/` is
searched: the bytes, the unescaped text, and the decoded token ids.
"""

import argparse
import asyncio
import html
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import httpx
import orjson

from clawctl.config import Recipe
from clawctl.engines.embedded.frames import Ready, Sampling, Token
from clawctl.run.directory import open_run
from clawctl.run.policies import ensure_base_policy
from scripts import asgi
from scripts.benchmarks.table import Row

_KEY = "benchmark"
_LEFT = 12  # so many characters of a secret may occur by chance


class Scripted:
    """Models that return scripted text token by token. See `clawctl.engines.embedded.process.ModelProcess`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.backend_tokenizer.token_to_id(tokenizer.special_tokens_map["eos_token"])
        self.about = Ready(1 << 20, 1 << 16, frozenset({self._end}), False)
        self.said = ""

    async def attach(self) -> None:
        return None

    async def ended(self) -> None:
        await asyncio.Event().wait()

    def generate(
        self, model: int | None, prompt_ids: list[int], sampling: Sampling, grammar: int | None = None, images: Sequence[Any] = ()
    ) -> "_Saying":
        return _Saying([*self._tokenizer(self.said, add_special_tokens=False)["input_ids"], self._end])

    def failure(self, model: int | None = None) -> str | None:
        return None

    def stop(self) -> None:
        return None


class _Saying:
    start_version: int | None = 0

    def __init__(self, ids: list[int]) -> None:
        self._ids, self._cancelled = ids, False

    async def __aiter__(self) -> AsyncIterator[list[Token]]:
        for number in self._ids:
            if self._cancelled:
                return
            yield [Token(number, -0.5, 0)]

    def cancel(self) -> None:
        self._cancelled = True

    def allowed(self, count: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    said: Callable[[str], str]  # the model's text for a secret
    fields: Callable[[str], dict[str, Any]]  # the additional fields of the request
    path: str = "/v1/chat/completions"


_TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}
]
_CLEAN = '<tool_call>\n{"name": "look", "arguments": {"q": "x"}}\n</tool_call>'


def _user(content: Any, **more: Any) -> Callable[[str], dict[str, Any]]:
    def body(secret: str) -> dict[str, Any]:
        filled = orjson.loads(orjson.dumps(content).replace(b"SECRET", secret.encode()))
        return {"messages": [{"role": "user", "content": filled}], **more}

    return body


def _halves(make: Callable[[str, str], list[dict[str, Any]]]) -> Callable[[str], dict[str, Any]]:
    return lambda secret: {"messages": make(secret[: len(secret) // 2], secret[len(secret) // 2 :])}


def _escaped(secret: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in secret)


def _call(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


def _fine(_: str) -> str:
    return "fine"


CASES = (
    Case("second call, parallel_tool_calls off", lambda s: _CLEAN + f'\n<tool_call>\n{{"name": "look", "arguments": {{"q": "{s}"}}}}\n</tool_call>', _user("hi", tools=_TOOLS, parallel_tool_calls=False)),
    Case("text after a call's brace", lambda s: f'<tool_call>\n{{"name": "look", "arguments": {{"q": "x"}}}} {s}\n</tool_call>', _user("hi", tools=_TOOLS)),
    Case("an extra key beside the arguments", lambda s: f'<tool_call>\n{{"name": "look", "arguments": {{"q": "x"}}, "note": "{s}"}}\n</tool_call>', _user("hi", tools=_TOOLS)),
    Case("text between calls", lambda s: _CLEAN + f"\n{s}\n" + _CLEAN, _user("hi", tools=_TOOLS)),
    Case("text after the last call", lambda s: _CLEAN + f"\n{s}", _user("hi", tools=_TOOLS)),
    Case("a call that no JSON is", lambda s: f'<tool_call>\n{{"name": "look", "arguments": {{"q": "{s}"\n</tool_call>', _user("hi", tools=_TOOLS)),
    Case("escapes in a call", lambda s: f'<tool_call>\n{{"name": "look", "arguments": {{"q": "{_escaped(s)}"}}}}\n</tool_call>', _user("hi", tools=_TOOLS)),
    Case("a sampled stop string", lambda s: f"fine {s}", lambda s: {"messages": [{"role": "user", "content": "hi"}], "stop": [s[2:]]}),
    Case("a stop string that begins the secret", lambda s: f"fine {s}", lambda s: {"messages": [{"role": "user", "content": "hi"}], "stop": [s[:6]]}),
    Case("reasoning", lambda s: f"<think>\n{s}\n</think>\nfine", _user("hi")),
    Case("the plain answer", lambda s: f"take {s}", _user("hi")),
    Case("HTML in the answer", lambda s: "take " + "".join(f"&#{ord(letter)};" for letter in s), _user("hi")),
    Case("URL escapes in the answer", lambda s: "take " + "".join(f"%{ord(letter):02X}" for letter in s), _user("hi")),
    Case("the plain question", _fine, _user("use SECRET")),
    Case("parts that join", _fine, lambda s: {"messages": [{"role": "user", "content": [{"type": "text", "text": "use " + s[:9]}, {"type": "text", "text": s[9:]}]}]}),
    Case("bare strings that join", _fine, lambda s: {"messages": [{"role": "user", "content": ["use " + s[:9], s[9:]]}]}),
    Case("a refusal beside a text", _fine, _halves(lambda a, b: [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": a}, {"type": "refusal", "refusal": b}]}, {"role": "user", "content": "and?"}])),
    Case("escapes in sent arguments", _fine, lambda s: {"messages": _call(f'{{"q": "{_escaped(s)}"}}')}),
    Case("escapes in sent arguments that are no JSON", _fine, lambda s: {"messages": _call(f'{{"q": "{_escaped(s)}')}),
    Case("a tool result", _fine, lambda s: {"messages": [*_call('{"q": "x"}')[:-1], {"role": "tool", "tool_call_id": "c1", "content": f'{{"token": "{s}"}}'}]}),
    Case("a tool's description", _fine, lambda s: {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "look", "description": f"use {s}", "parameters": {}}}]}),
    Case("messages dialect, text blocks", _fine, lambda s: {"max_tokens": 99, "messages": [{"role": "user", "content": [{"type": "text", "text": s[:9]}, {"type": "text", "text": s[9:]}]}]}, "/v1/messages"),
    Case("messages dialect, second call", lambda s: _CLEAN + f'\n<tool_call>\n{{"name": "look", "arguments": {{"q": "{s}"}}}}\n</tool_call>', lambda s: {"max_tokens": 99, "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "look", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "/v1/messages"),
    Case("responses dialect, instructions", _fine, lambda s: {"input": "hi", "instructions": f"use {s}"}, "/v1/responses"),
    Case("responses dialect, second call", lambda s: _CLEAN + f'\n<tool_call>\n{{"name": "look", "arguments": {{"q": "{s}"}}}}\n</tool_call>', lambda s: {"input": "hi", "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}], "parallel_tool_calls": False}, "/v1/responses"),
)  # fmt: skip


@contextmanager
def served(folder: Path) -> Any:
    """Run a server with a scripted engine. Yields its address, the engine, the tokenizer and the run."""
    from clawctl.engines.embedded.engine import Embedded
    from clawctl.engines.embedded.process import ModelProcess
    from clawctl.run.model_files import IdReader
    from clawctl.serve.app import Gateway
    from clawctl.serve.capture import Capture
    from clawctl.serve.prompt import load_tokenizer
    from clawctl.serve.versions import Versions

    recipe = Recipe()
    run = open_run(folder / "run")
    ensure_base_policy(run, recipe.model.path)
    tokenizer = load_tokenizer(recipe.model_path)
    engine = Scripted(tokenizer)
    capture = Capture(run.captures, recipe.privacy, IdReader(recipe.model_path))
    gateway = Gateway(run, recipe, _KEY, Versions(run, Embedded(recipe, tokenizer, cast(ModelProcess, engine))), capture)
    with asgi.serving(gateway) as url:
        yield url, engine, tokenizer, run
    capture.close()


def forms(text: str) -> list[str]:
    """Return the text, and the text after each of three rounds of unescaping."""
    forms = [text]
    for _ in range(3):
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), unquote(html.unescape(text))).replace(
            "\\\\", "\\"
        )
        forms.append(text)
    return forms


def kept(secret: str, line: bytes, tokenizer: Any) -> bool:
    """Whether `line` of the captures still contains the secret or a large part of it."""
    row = orjson.loads(line)
    ids = [*(row["prompt_ids"] or []), *(row["completion_ids"] or [])]
    # Parts of a message are adjacent: without the JSON between them, the strings are joined.
    said = [
        line.decode(),
        re.sub(r'","|"\},\{"type":"\w+","\w+":"', "", line.decode()),
        tokenizer.decode(ids),
        tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True),
    ]
    pieces = [secret[at : at + _LEFT] for at in range(0, len(secret) - _LEFT)]
    return any(piece in form for text in said for form in forms(text) for piece in pieces)


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure all cases. `clean_captures_with_ids` must be 1: the exchange without a secret keeps all its ids."""
    rounds, held, refused = 1 if options.quick else 4, list[str](), 0
    makers: list[Callable[[], str]] = [
        lambda: "sk-" + "proj-" + secrets.token_urlsafe(36) + "a1",
        lambda: "claw" + "-" + secrets.token_urlsafe(24) + "b2",
        lambda: "gh" + "p_" + secrets.token_hex(18),
    ]
    count = 0
    with served(folder) as (url, engine, tokenizer, run):
        for case in CASES:
            for number in range(rounds):
                secret = makers[number % len(makers)]()
                engine.said = case.said(secret)
                body = {"model": "crafts", **case.fields(secret)}
                answer = httpx.post(url + case.path, json=body, headers={"Authorization": f"Bearer {_KEY}"}, timeout=60)
                lines = [line for path in run.captures.glob("*.jsonl") for line in path.read_bytes().splitlines()]
                count += 1
                if answer.status_code != 200:
                    refused += 1
                    continue
                if any(kept(secret, line, tokenizer) for line in lines):
                    held.append(case.name)
        engine.said = "fine"
        httpx.post(
            url + CASES[0].path,
            json={"model": "crafts", **_user("hi")("")},
            headers={"Authorization": f"Bearer {_KEY}"},
            timeout=60,
        )
        lines = [line for path in run.captures.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        clean = int(orjson.loads(lines[-1])["completion_ids"] is not None)
    return [
        Row("ids", "secrets_kept", len(held), "secrets"),
        Row("ids", "cases", count, "captures"),
        Row("ids", "refused", refused, "requests"),
        Row("ids", "clean_captures_with_ids", clean, "captures"),
        *(Row(f"ids, {name}", "secrets_kept", held.count(name), "secrets") for name in sorted(set(held))),
    ]
