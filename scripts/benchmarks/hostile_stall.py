"""Case `stall`: the delay of another client's tokens while one client grows each field of each API to the body limit.

An attacker in a separate process sends consecutive grown requests to a real `clawctl serve --model crafts`. Meanwhile, a victim
with another key streams consecutive short chats. The added delay of a field is the victim's latest first token, or its longest gap
between two tokens, minus the median without an attack, which is measured before each field. Fields above half of the bar are
measured again and the smallest delay counts, because a busy machine can only add delays.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import orjson

from clawctl.run.directory import open_run
from clawctl.run.keys import add_key
from scripts.benchmarks.table import Row

_MB = 1 << 20
_LIMITS_MB = (32.0, 2.9)  # the default body limit, and the largest body that fits into the model's context
_BAR_MS = 250.0
_CHATS = 3  # smallest number of the victim's chats during an attack
_LONGEST_S = 20.0
_REPEATS = 3
_USER: dict[str, Any] = {"role": "user", "content": "hi"}
Grow = Callable[[int], Any]  # bytes → a value of about that length as JSON


def text(size: int) -> Any:
    return "word " * (size // 5)


def spaces(size: int) -> Any:
    return " " * size


def escapes(size: int) -> Any:
    return "\x01" * (size // 6)


def items(item: Any) -> Grow:
    return lambda size: [item] * (size // (len(orjson.dumps(item)) + 1))


def keys(size: int) -> Any:
    return {f"k{i}": i for i in range(size // 16)}


def biases(size: int) -> Any:
    return {f"{i:09}": 1 for i in range(size // 14)}


def deep(size: int) -> Any:
    value: Any = "x" * (size - 1400)
    for _ in range(100):
        value = {"a": [value]}
    return value


def arguments(size: int) -> Any:
    return [_call("[" + "1," * (size // 2) + "1]")]


def _call(said: str) -> Any:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"a": {said}}}'}}


def _tool(**function: Any) -> Any:
    return {"type": "function", "function": {"name": "f", **function}}


def in_tool(name: str, grow: Grow) -> Grow:
    return lambda size: [_tool(**{name: grow(size)})]


def in_message(name: str, grow: Grow, role: str = "user") -> Grow:
    return lambda size: [{"role": role, "content": "hi", name: grow(size)}, _USER]


# Schemas that are expensive to compile or to follow, independently of their size.


def _form(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def schema_of_patterns(_: int) -> Any:
    return _form({"allOf": [{"type": "string", "pattern": f".*{i}.*"} for i in range(100)]})


def schema_of_choices(_: int) -> Any:
    schema: Any = {"type": "string"}
    for _level in range(16):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return _form(schema)


def schema_of_properties(_: int) -> Any:
    return _form({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}})


def schema_of_an_automaton(_: int) -> Any:
    return _form({"type": "array", "items": {"type": "string", "pattern": "^(.*[a-z].{30}){20}$"}})


def schema_of_formats(_: int) -> Any:
    kinds = ("date-time", "email", "uri", "ipv6", "uuid")
    return _form({"type": "array", "items": {"anyOf": [{"type": "string", "format": kind} for kind in kinds]}})


_SCHEMAS: list[tuple[str, Grow]] = [
    ("response_format", grow)
    for grow in (schema_of_patterns, schema_of_choices, schema_of_properties, schema_of_an_automaton, schema_of_formats)
]
_SHARED: list[tuple[str, Grow]] = [
    ("stop", items("x")), ("stop", items("a" * 200)), ("metadata", keys), ("metadata", text), ("user", text), ("model", text),
    ("logit_bias", biases), ("chat_template_kwargs", keys), ("chat_template_kwargs", lambda size: {"chat_template": text(size)}),
    ("response_format", deep), ("session_id", text), ("unknown", keys), ("unknown", deep), ("unknown", items([])),
]  # fmt: skip
_FIELDS: dict[str, list[tuple[str, Grow]]] = {
    "chat/completions": [
        *_SHARED, *_SCHEMAS, ("messages", items(_USER)), ("messages", in_message("content", text)),
        ("messages", in_message("content", spaces)),
        ("messages", in_message("content", escapes)), ("messages", in_message("content", items({"type": "text", "text": "x"}))),
        ("messages", in_message("extra", keys)), ("messages", in_message("tool_calls", arguments, "assistant")),
        ("messages", in_message("tool_calls", items(_call("1")), "assistant")), ("tools", items(_tool())),
        ("tools", in_tool("description", text)), ("tools", in_tool("parameters", keys)), ("tools", in_tool("parameters", deep)),
        ("functions", items({"name": "f"})), ("bad_words", items("x")), ("guided_grammar", text),
    ],
    "responses": [
        *_SHARED, ("input", text), ("input", items(_USER)),
        ("input", items({"type": "reasoning", "summary": [{"text": "x" * 40}]})),
        ("input", items({"role": "assistant", "content": "x" * 40})),
        ("input", items({"type": "item_reference", "id": "rs" + "a" * 24})),
        ("instructions", text), ("tools", items({"type": "custom", "name": "f"})), ("include", items("x")),
        ("tools", lambda size: [{"type": "function", "name": "f", "parameters": keys(size)}]),
    ],
    "messages": [
        *_SHARED, ("messages", items(_USER)), ("messages", in_message("content", text)),
        ("messages", in_message("content", items({"type": "tool_result", "tool_use_id": "c", "content": "x"}))),
        ("system", items({"type": "text", "text": "x"})), ("tools", items({"name": "f"})), ("stop_sequences", items("x")),
        ("tools", lambda size: [{"name": "f", "input_schema": keys(size)}]),
    ],
    "messages/count_tokens": [
        ("messages", in_message("content", text)), ("tools", lambda size: [{"name": "f", "input_schema": keys(size)}]),
        ("chat_template_kwargs", keys),
    ],
    "feedback": [("comment", text), ("turn_id", text), ("unknown", keys)],
}  # fmt: skip


class Attack(NamedTuple):
    """One grown field."""

    path: str
    field: str
    grow: Grow
    size_mb: float

    @property
    def name(self) -> str:
        return f"{self.path} {self.field} ({getattr(self.grow, '__name__', '')}) {self.size_mb:g} MB"

    def body(self) -> bytes:
        most = 64 if self.field == "response_format" else 4
        plain = {"messages": [_USER], "input": "hi", "max_tokens": most, "max_output_tokens": most, "stream": True}
        return orjson.dumps({**plain, self.field: self.grow(int(self.size_mb * _MB) - 2000)})


def attacks(quick: bool, sizes_mb: Sequence[float] = _LIMITS_MB) -> list[Attack]:
    sizes = sizes_mb[-1:] if quick else sizes_mb
    every = [Attack(path, field, grow, size) for path, fields in _FIELDS.items() for field, grow in fields for size in sizes]
    return every[:: 6 if quick else 1]


class Delays(NamedTuple):
    """Delays of the victim's chats, in ms."""

    first: list[float]
    gaps: list[float]


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    with _served(folder) as (url, process, victim, attacker):
        _chats(url, victim, lambda done: done >= 4)
        before, worst, tried = _resident_mb(process.pid), list[tuple[float, str]](), attacks(options.quick)
        body = folder / "body.json"
        for attack in tried:
            body.write_bytes(attack.body())
            added = _added(url, victim, attacker, attack, body)
            for _ in range(_REPEATS - 1):
                if added > _BAR_MS / 2:
                    added = min(added, _added(url, victim, attacker, attack, body))
            worst.append((added, attack.name))
            print(f"{added:7.0f} ms  {attack.name}", file=sys.stderr, flush=True)
        worst.sort(reverse=True)
        print("worst field:", worst[0][1], file=sys.stderr)
        return [
            Row("stall", "other_first_token_ms_max", round(worst[0][0], 1), "ms"),
            Row("stall", "other_first_token_ms_median", round(median(ms for ms, _ in worst), 1), "ms"),
            Row("stall", "fields_tried", len(tried), "fields"),
            Row("stall", "server_rss_growth_mb", round(_resident_mb(process.pid) - before, 1), "MB"),
        ]


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]", str, str]]:
    run = open_run(folder / "run")
    victim, attacker = add_key(run, "victim"), add_key(run, "attacker")
    command = [sys.executable, "-m", "clawctl", "serve", "--run", str(run.root), "--model", "crafts", "--port", "0", "--intercept"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        announced = run.root / "serve.json"
        while not announced.exists() and process.poll() is None:
            time.sleep(0.1)
        yield orjson.loads(announced.read_bytes())["url"], process, victim, attacker
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _added(url: str, victim: str, attacker: str, attack: Attack, body: Path) -> float:
    quiet = _chats(url, victim, lambda done: done >= _CHATS)
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_attack, args=(f"{url}/{attack.path}", attacker, str(body), ready, stop), daemon=True)
    process.start()
    ready.wait(60)
    began = time.monotonic()
    loud = _chats(url, victim, lambda done: done >= _CHATS and (time.monotonic() - began > 1 or done >= 20))
    stop.set()
    process.join(60)
    return max(max(loud.first) - median(quiet.first), max(loud.gaps, default=0) - median(quiet.gaps or [0]))


def _chats(url: str, key: str, enough: Callable[[int], bool]) -> Delays:
    """Have consecutive short chats and return their delays."""
    delays, done, began = Delays([], []), 0, time.monotonic()
    body = orjson.dumps({"messages": [{"role": "user", "content": "what is 2 + 3?"}], "max_tokens": 12, "stream": True})
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(timeout=120) as client:
        while not enough(done) and (time.monotonic() - began < _LONGEST_S or not done):
            begun, last = time.perf_counter(), 0.0
            with client.stream("POST", f"{url}/chat/completions", content=body, headers=headers) as answer:
                for line in answer.iter_lines():
                    if '"delta":{"content":"' in line and '"content":""' not in line:
                        now = time.perf_counter()
                        (delays.gaps if last else delays.first).append((now - (last or begun)) * 1000)
                        last = now
            done += 1
    return delays


def _attack(url: str, key: str, body: str, ready: Any, stop: Any) -> None:
    """Send the body repeatedly. The answers are not read to their end."""
    content = Path(body).read_bytes()
    ready.set()
    while not stop.is_set():
        headers = {"authorization": f"Bearer {key}"}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.Client(timeout=60) as client,
            client.stream("POST", url, content=content, headers=headers) as answer,
        ):
            next(answer.iter_bytes(), b"")


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MB
