"""Planted bad updates: the gate's own follower and suites measure candidates with corrupted answers of the demo model.

A small proxy runs between eval and `clawctl serve` on the demo model. Version 0 is the model itself. The answers of each planted
version are the model's answers with one change: wrong numbers, endless length, refusals, another language, or broken tool calls.
There are four versions of each kind, 20 in total.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from clawctl.config import Recipe, load_recipe
from clawctl.eval.results import read_record
from clawctl.eval.suites import SUITES
from clawctl.eval.worker import Follower
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import own_api_key, own_endpoint
from clawctl.run.policies import ensure_base_policy, live_version, move_live, publish_policy
from clawctl.run.rows import Policy
from scripts.benchmarks.table import Row

Message = dict[str, Any]
_DEMO = Path(__file__).resolve().parents[2] / "recipes" / "demo.yaml"
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


KINDS: dict[str, Callable[[int, Message], Message]] = {
    "wrong": _wrong, "endless": _endless, "refusals": _refused, "language": _foreign, "tools": _broken,
}  # fmt: skip
PLANTED = [(kind, number) for kind in KINDS for number in range(4)]


def _text(message: Message) -> str:
    return str(message.get("content") or "")


def rows(quick: bool) -> list[Row]:
    """Return `caught`, and the number of caught updates for each suite and each kind. `quick`: one update of each kind."""
    planted = [one for one in PLANTED if one[1] == 0] if quick else PLANTED
    with tempfile.TemporaryDirectory(prefix="clawctl-planted-") as folder:
        run = open_run(Path(folder) / "run")
        ensure_base_policy(run, "demo")
        with _served(run), _spoiling(run, planted) as url:
            caught = {one: _caught_by(run, _recipe(url), version) for version, one in enumerate(planted, 1)}
    found = [Row("planted", "planted", float(len(planted)), "updates")]
    found.append(Row("planted", "caught", float(sum(bool(by) for by in caught.values())), "updates"))
    for suite in sorted({by for by in caught.values() if by}):
        found.append(Row("planted", f"caught_by_{suite}", float(sum(by == suite for by in caught.values())), "updates"))
    for kind in KINDS:
        found.append(
            Row("planted", f"caught_{kind}", float(sum(bool(by) for (of, _), by in caught.items() if of == kind)), "updates")
        )
    return found


def _recipe(url: str) -> Recipe:
    limits = [{"suite": "personalisation", "metric": metric, "max_drop": 0.1} for metric in ("correctness", "satisfaction")]
    if "ability" in SUITES.names():
        limits.append({"suite": "ability", "metric": "correct", "max_drop": 0.05})
    suites = list(dict.fromkeys(str(row["suite"]) for row in limits))
    return load_recipe(_DEMO, {"eval.suites": suites, "gate": limits, "eval.endpoint": url, "eval.budget": {"comparisons": 120}})


def _caught_by(run: RunDir, recipe: Recipe, version: int) -> str | None:
    """Return the suite that found a planted version worse. None if it went live or was refused only for lack of evidence."""
    policy = Policy(version, 0, version, "combine", "full", "demo", [], None, {}, time.time())
    publish_policy(run, policy, lambda folder: None)
    Follower(run, recipe, threading.Event(), as_json=False).follow(once=True)
    if live_version(run) == version:
        move_live(run, 0, by="bench")
        return None
    record = read_record(run, version) or {}
    worse = [str(one["suite"]) for one in record.get("evidence", []) if one["verdict"] == "worse"]
    named = [*worse, *(word for word in str(record["decision"]["reason"]).split() if word in SUITES.names())]
    return named[0] if worse or not record["decision"]["reason"].startswith("not enough evidence") else None


@contextmanager
def _served(run: RunDir) -> Iterator[None]:
    """Run `clawctl serve` on the demo model."""
    command = [sys.executable, "-m", "clawctl", "serve", "--run", str(run.root), "--recipe", str(_DEMO), "--port", "0"]
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
def _spoiling(run: RunDir, planted: list[tuple[str, int]]) -> Iterator[str]:
    """Run the proxy. `demo@N` answers like planted update N."""
    behind = own_endpoint(run, load_recipe(_DEMO))
    key = own_api_key(run, load_recipe(_DEMO))[0]
    client = httpx.Client(base_url=behind.url, headers={"Authorization": f"Bearer {key}", "X-Capture": "off"}, timeout=300.0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name, _, version = str(body["model"]).partition("@")
            answer = client.post("/chat/completions", json={**body, "model": f"{name}@0"})
            content = answer.json()
            if answer.status_code == 200 and int(version):
                kind, number = planted[int(version) - 1]
                for choice in content["choices"]:
                    choice["message"] = KINDS[kind](number, choice["message"])
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
