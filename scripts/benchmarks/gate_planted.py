"""Planted bad updates: the gate's own follower and suites measure candidates with corrupted answers of the tiny models.

A small proxy runs between eval and `clawctl serve`. All requests of the suites pass it (`eval.endpoint`). Version 0 is the
model itself. The answers of each planted version have one change: wrong numbers, endless length, refusals, another
language, or broken tool calls. There are four versions of each kind, 20 in total.

There are two runs, because no tiny model does everything. The model `wishes` answers word problems, and its world measures it:
satisfaction is that the answer is in English and has two sentences. The model of the crafts calls tools. Before it is measured, a
simulated person asks it through the server with tools. Its held-out turns and the environment `toolcall` measure it. Broken tool
calls are planted there.

As a control, unchanged versions pass the same proxy in both runs. An update is caught if a row of the gate is *worse* by the test.
Refusals for lack of evidence do not count.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml
from rich.console import Console

from clawctl.collect.worker import collect
from clawctl.config import Recipe, load_recipe
from clawctl.environments import Task
from clawctl.eval.results import read_record
from clawctl.eval.suites.answers import Answered
from clawctl.eval.worker import Follower
from clawctl.extensions.worlds.toolcall.environment import ToolCall
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint, own_api_key, own_endpoint
from clawctl.run.policies import ensure_base_policy, live_version, move_live, publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks.circle import WORLD, read_recipe
from scripts.benchmarks.table import Row

Message = dict[str, Any]
_WISH = {"wish": "answer in English, in two sentences"}  # as the unchanged model mostly does
_ASKED = 160  # questions of the simulated person, most of which are held out
_CONTROLS = 2  # unchanged versions in each run
_REFUSALS = ("I'm sorry, but I can't help with that.", "I cannot assist with this request.", "No.", "As an AI, I must decline.")
_ELSEWHERE = (
    "Die Antwort ist {}.", "La réponse est {}, voilà tout ce que je peux dire.", "La respuesta correcta es {}.", "答案是{}。",
)  # fmt: skip
_START_S = 180.0


def _wrong(number: int, message: Message) -> Message:
    return {**message, "content": re.sub(r"\d", lambda digit: str((int(digit[0]) + 1 + number) % 10), _text(message))}


def _endless(number: int, message: Message) -> Message:
    return {**message, "content": " ".join([_text(message) or "Well."] * 20 * (number + 1))}


def _refused(number: int, message: Message) -> Message:
    return {"role": "assistant", "content": _REFUSALS[number]}


def _foreign(number: int, message: Message) -> Message:
    numbers = re.findall(r"\d+", _text(message)) or ["0"]
    return {**message, "content": _ELSEWHERE[number].format(numbers[-1])}


def _broken(number: int, message: Message) -> Message:
    """Break tool calls: truncated arguments, another name, no calls, or calls as text."""
    calls = [json.loads(json.dumps(call)) for call in message.get("tool_calls") or []]
    for call in calls:
        function = call["function"]
        if number == 0:
            function["arguments"] = function["arguments"][: len(function["arguments"]) // 2]
        elif number == 1:
            function["name"] = f"{function['name']}_x"
    if number >= 2 and calls:
        text = "" if number == 2 else json.dumps(calls)
        return {"role": "assistant", "content": _text(message) + text}
    return {**message, **({"tool_calls": calls} if calls else {})}


def _unchanged(number: int, message: Message) -> Message:
    return message


KINDS: dict[str, Callable[[int, Message], Message]] = {
    "wrong": _wrong, "endless": _endless, "refusals": _refused, "language": _foreign, "tools": _broken, "unchanged": _unchanged,
}  # fmt: skip
Update = tuple[str, int]  # kind and number: ("wrong", 0)


@dataclass(frozen=True)
class World:
    """A run with a tiny model, the gate that measures its versions, and the kinds of faults that are planted in it."""

    name: str
    recipe: str  # its name
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]  # suite and metric
    with_tools: bool = False  # a person asks with tools first, so that there are held-out turns

    def gated(self, recipe: Path, url: str) -> Recipe:
        limits = [{"suite": suite, "metric": metric, "max_drop": 0.1} for suite, metric in self.rows]
        named = list(dict.fromkeys(suite for suite, _ in self.rows))
        suites = [{"name": suite, "options": _WISH} if suite == WORLD else suite for suite in named]
        settings = {"eval.suites": suites, "gate": limits, "eval.endpoint": url, "eval.budget": {"comparisons": 120}}
        return load_recipe(recipe, settings)


WORLDS = (
    World(
        "chat", "circle", ("wrong", "endless", "refusals", "language"), ((WORLD, "correctness"), (WORLD, "satisfaction")),
    ),
    World("tools", "craft-toolcall", ("tools",), (("own", "guards"), ("toolcall", "reward")), with_tools=True),
)  # fmt: skip

PLANTED: list[Update] = [(kind, number) for world in WORLDS for kind in world.kinds for number in range(4)]


@dataclass(frozen=True)
class Finding:
    """A row of the gate that found an update worse."""

    suite: str
    metric: str
    why: str  # "0 won, 11 lost, 37 tied, e-value 1.2e+03"


def _text(message: Message) -> str:
    return str(message.get("content") or "")


def rows(quick: bool) -> list[Row]:
    """Return `caught`, and the number of caught updates for each suite and each kind. `quick`: one update of each kind."""
    caught: dict[tuple[str, Update], list[Finding]] = {}
    for world in WORLDS:
        with tempfile.TemporaryDirectory(prefix="clawctl-planted-") as folder:
            caught |= {(world.name, update): by for update, by in _measured(world, Path(folder), quick).items()}
    planted = {update: by for (_, update), by in caught.items() if update[0] != "unchanged"}
    controls = [by for (_, update), by in caught.items() if update[0] == "unchanged"]
    rows = [Row("planted", "planted", float(len(planted)), "updates")]
    rows.append(Row("planted", "caught", float(sum(map(bool, planted.values()))), "updates"))
    rows.append(Row("planted", "missed", float(sum(not by for by in planted.values())), "updates"))
    for row in dict.fromkeys(row for world in WORLDS for row in world.rows):
        number = sum(any((evidence.suite, evidence.metric) == row for evidence in by) for by in planted.values())
        rows.append(Row("planted", f"caught_by_{row[0]}_{row[1]}", float(number), "updates"))
    for kind in dict.fromkeys(kind for kind, _ in planted):
        number = sum(bool(by) for (of, _), by in planted.items() if of == kind)
        rows.append(Row("planted", f"caught_{kind}", float(number), "updates"))
    rows.append(Row("planted", "unchanged", float(len(controls)), "versions"))
    rows.append(Row("planted", "caught_unchanged", float(sum(map(bool, controls))), "versions"))
    return rows


def _measured(world: World, folder: Path, quick: bool) -> dict[Update, list[Finding]]:
    """Put each update of a world before its gate, and print which rows found it worse."""
    updates = [(kind, number) for kind in world.kinds for number in range(1 if quick else 4)]
    updates += [("unchanged", number) for number in range(1 if quick else _CONTROLS)]
    run = open_run(folder / "run")
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(read_recipe(world.recipe)))
    served = load_recipe(recipe, {"eval.holdout": 0.9})
    ensure_base_policy(run, served.model.path)
    caught: dict[Update, list[Finding]] = {}
    with _served(run, recipe):
        if world.with_tools:
            _converse(run, served)
        with _spoiling(run, served, updates) as url:
            for version, (kind, number) in enumerate(updates, 1):
                began = time.monotonic()
                caught[kind, number] = by = _caught_by(run, world.gated(recipe, url), version)
                reasons = "; ".join(f"{loss.suite} {loss.metric} is worse: {loss.why}" for loss in by) or "not found worse"
                Console(stderr=True).print(
                    f"{world.name} {kind} {number} ({time.monotonic() - began:.0f} s): {reasons}", highlight=False, soft_wrap=True
                )
    return caught


def _converse(run: RunDir, recipe: Recipe) -> None:
    """A person asks questions with a tool through the server, as any client does. Most of her sessions are held out."""
    server, key = own_endpoint(run, recipe), own_api_key(run, recipe)
    person = ToolCall()

    async def ask_all() -> None:
        places = asyncio.Semaphore(16)

        async def one(number: int, task: Task) -> None:
            sampling = {"temperature": 1.0, "max_tokens": 96}
            endpoint = Endpoint(server.url, key, recipe.model_name, {"X-Session-Id": f"session-{number}"}, sampling)
            async with places:
                await person.play(task, endpoint)

        await asyncio.gather(*(one(number, task) for number, task in enumerate(person.tasks("train", _ASKED, 0))))

    asyncio.run(ask_all())
    collect(run, recipe, once=True, end_sessions=True)


def _caught_by(run: RunDir, recipe: Recipe, version: int) -> list[Finding]:
    """Return the rows that found a version worse. None did if it went live, or was refused only for lack of evidence."""
    policy = Policy(version, 0, version, "combine", "full", recipe.model.path, [], None, {}, time.time())
    publish_policy(run, policy, lambda folder: None)
    Follower(run, recipe, threading.Event(), as_json=False).catch_up(once=True)
    if live_version(run) == version:
        move_live(run, 0, by="bench")
    record = read_record(run, version) or {}
    return [
        Finding(
            str(evidence["suite"]),
            str(evidence["metric"]),
            f"{evidence['wins']} won, {evidence['losses']} lost, {evidence['ties']} tied, e-value {evidence['e_worse']:.3g}",
        )
        for evidence in record.get("evidence", [])
        if evidence["verdict"] == "worse"
    ]


@contextmanager
def _served(run: RunDir, recipe: Path) -> Iterator[None]:
    """Run `clawctl serve --intercept` on a recipe."""
    command = [sys.executable, "-m", "clawctl", "serve", "--intercept"]
    command += ["--run", str(run.root), "--recipe", str(recipe), "--port", "0"]
    with (run.root / "bench.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as serving:
        try:
            until = time.monotonic() + _START_S
            while not run.server.exists():
                if serving.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"clawctl serve did not start: {(run.root / 'bench.log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield
        finally:
            serving.terminate()


@contextmanager
def _spoiling(run: RunDir, recipe: Recipe, planted: list[Update]) -> Iterator[str]:
    """Run the proxy. `NAME@N` answers like planted update N, in chats and in completions of token ids."""
    behind = own_endpoint(run, recipe)
    key = own_api_key(run, recipe)
    client = httpx.Client(base_url=behind.url, headers={"Authorization": f"Bearer {key}", "X-Capture": "off"}, timeout=300.0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name, _, version = str(body["model"]).partition("@")
            answer = client.post(self.path.removeprefix("/v1"), json={**body, "model": f"{name}@0"})
            content = answer.json()
            if answer.status_code == 200 and int(version):
                spoil(content, *planted[int(version) - 1])
            raw = json.dumps(content).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        client.close()


def spoil(content: dict[str, Any], kind: str, number: int) -> None:
    """Change the answers of a chat completion, or of a completion as text with the model's markup, in place."""
    before = after = 0
    for choice in content["choices"]:
        if "message" in choice:
            before += len(str(choice["message"]))
            choice["message"] = KINDS[kind](number, choice["message"])
            after += len(str(choice["message"]))
        elif kind != "unchanged":
            before += len(choice["text"])
            choice["text"] = as_text(KINDS[kind](number, Answered(choice["text"], 0, None).message))
            after += len(choice["text"])
    usage = content.get("usage")
    if usage and before and kind != "unchanged":  # tokens are not counted again: they grow as the text does
        usage["completion_tokens"] = max(1, round(usage["completion_tokens"] * after / before))


def as_text(message: Message) -> str:
    """The markup of a message: its text, and each call in a `<tool_call>` block. Broken arguments stay broken."""
    calls = [call["function"] for call in message.get("tool_calls") or []]
    blocks = [
        f'<tool_call>\n{{"name": {json.dumps(call["name"])}, "arguments": {call["arguments"]}}}\n</tool_call>' for call in calls
    ]
    return "\n".join([part for part in (_text(message), *blocks) if part])
