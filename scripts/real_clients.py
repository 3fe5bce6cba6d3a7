"""Runs unmodified clients against `clawctl serve`. Each has a conversation with tools, and the turns from collect are reported.

    scripts/clients [--where FOLDER] [--json FILE] [--patience SECONDS] [NAME ...]

The model is a rehearsal (see scripts/rehearsal.py), so that all runs are the same. Everything else is real. Clients that are not
installed in the folder are reported and skipped.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.rows import NO_NEXT_STATE, Turn
from clawctl.run.shards import read_turns
from scripts import asgi, openclaw_talks
from scripts.client_place import PATIENCE_S, Place, must_say
from scripts.rehearsal import Rehearsal

CASES = Path(__file__).parent / "client_cases"


@dataclass(frozen=True, slots=True)
class Client:
    """A client. `needs` is a path below the folder. A run must give at least `turns` turns in exactly `sessions` conversations."""

    name: str
    needs: str
    run: Callable[[Place], object]
    turns: int
    sessions: int


def _python(script: str) -> Callable[[Place], object]:
    return lambda place: place.run(place.python, CASES / script, LITELLM_LOCAL_MODEL_COST_MAP="True")


def _openai_js(place: Place) -> None:
    script = place.where / "openai_js.mjs"  # Node.js finds its modules from here
    script.write_text((CASES / "openai_js.mjs").read_text())
    place.run(place.node, script)


def mini_swe_agent(place: Place) -> None:
    submit = json.dumps({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
    order = json.dumps({"command": f"echo '[''[tool:bash {submit}]'']'"})
    place.run(
        place.python.with_name("mini"), "-m", "openai/demo", "-y", "--exit-immediately", "-t",
        f"#mini-1 Look. [[tool:bash {order}]]",
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
    must_say(said, "hi-from-tool", "It says:")
    must_say(place.run(*codex, "resume", "--last", *free, "Thanks [[say:Bye now]]"), "Bye now")


def _claude_code(place: Place) -> None:
    claude = next(place.module("@anthropic-ai").glob("claude-code-*/claude"))
    settings = {"ANTHROPIC_BASE_URL": place.url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": place.key,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}  # fmt: skip
    free = ("--model", "demo", "--output-format", "json", "--dangerously-skip-permissions")
    order = 'Run it. [[think]] [[tool:Bash {"command": "echo hi-from-tool", "description": "x"}]]'
    must_say(place.run(claude, "-p", order, *free, **settings), "It says: hi-from-tool")
    must_say(place.run(claude, "-c", "-p", "Thanks [[say:Bye now]]", *free, **settings), "Bye now")


CLIENTS = (
    Client("litellm", "venv/bin/litellm", _python("chat_litellm.py"), 7, 3),
    Client("langchain", "venv/bin/litellm", _python("chat_langchain.py"), 6, 2),
    Client("openai-agents", "venv/bin/litellm", _python("openai_agents.py"), 6, 2),
    Client("mini-swe-agent", "venv/bin/mini", mini_swe_agent, 2, 1),
    Client("openai-js", "node_modules/openai", _openai_js, 6, 2),
    Client("codex", "node_modules/@openai/codex", _codex, 3, 1),
    Client("claude-code", "node_modules/@anthropic-ai/claude-code", _claude_code, 3, 1),
    Client("openclaw", "node_modules/openclaw", openclaw_talks.plain, 5, 1),
    Client("openclaw-plugin", "node_modules/openclaw", openclaw_talks.set_up("plugin"), 5, 1),
    Client("openclaw-responses", "node_modules/openclaw", openclaw_talks.set_up("responses"), 5, 1),
    Client("openclaw-gateway", "node_modules/openclaw", openclaw_talks.gateway, 5, 1),
    Client("openclaw-gateway-plugin", "node_modules/openclaw", openclaw_talks.gateway_with_plugin, 5, 1),
)


@contextmanager
def serving(run: RunDir, embedded: bool = False, **serve: Any) -> Iterator[tuple[str, str]]:
    """Run `clawctl serve` in front of a rehearsal, or with the model `crafts` if `embedded`. Yields its URL and key.

    `serve` adds settings to the `serve` section of its recipe.
    """
    with ExitStack() as stack:
        recipe = run.root.with_suffix(".yaml")
        if embedded:
            recipe_of_model: dict[str, Any] = {"model": {"path": "crafts", "dtype": "float32"}}
            serve.setdefault("threads", 1)
        else:
            serve["upstream"] = {"url": stack.enter_context(asgi.serving(Rehearsal().app())), "kind": "vllm"}
            recipe_of_model = {}
        recipe.write_text(
            yaml.safe_dump(
                {**recipe_of_model, "eval": {"holdout": 0}, "serve": {"port": 0, "api_key": "key-of-the-clients", **serve}}
            )
        )
        command = [sys.executable, "-m", "clawctl", "serve", "--run", str(run.root), "--recipe", str(recipe), "--intercept"]
        with run.root.with_suffix(".log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                while not (run.root / "serve.json").exists():
                    if server.poll() is not None:
                        raise ClawError("clawctl serve ended", f"read {log.name}")
                    with suppress(subprocess.TimeoutExpired):
                        server.wait(0.2)
                yield orjson.loads((run.root / "serve.json").read_bytes())["url"], "key-of-the-clients"
            finally:
                server.terminate()


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of `clawctl collect`. `open_turns` counts the turns without a next state: the last turn of each conversation."""

    turns: list[Turn]
    open_turns: int
    sessions: int


def collect(place: Place, run: RunDir) -> Collected:
    place.clawctl("collect", "--run", run.root, "--once", "--end-sessions")
    closed = [turn for shard in published(run.trajectories, ".parquet") for turn in read_turns(shard)]
    turns = [turn for turn in closed if turn.untrainable_reason != NO_NEXT_STATE]
    captured = sum(len(path.read_bytes().splitlines()) for path in run.captures.glob("*.jsonl"))
    inspected = json.loads(place.clawctl("inspect", "sessions", "--run", run.root, "--json"))
    return Collected(turns, captured - len(turns), sum(session["main"] > 0 for session in inspected["sessions"]))


def row_of(client: Client, collected: Collected, seconds: float) -> dict[str, object]:
    """Make one row of the table. Raises ClawError if the turns do not match the client's conversations."""
    main = [turn for turn in collected.turns if turn.kind == "main"]
    roots = sum(turn.parent_turn_id is None for turn in main)
    reasons = sorted({turn.untrainable_reason for turn in main if turn.untrainable_reason})
    whole = len(main) + collected.open_turns
    seen = f"{roots} conversations, {collected.sessions} sessions"
    summary = f"{whole} turns in {seen}, {collected.open_turns} turns open, untrained because: {reasons}"
    if whole < client.turns or {roots, collected.sessions, collected.open_turns} != {client.sessions} or reasons:
        raise ClawError(summary, "")
    return {
        "client": client.name,
        "turns": whole,
        "side": len(collected.turns) - len(main),
        "conversations": roots,
        "trainable": sum(turn.trainable for turn in main),
        "seconds": round(seconds, 1),
    }


def rehearse(client: Client, where: Path, patience_s: float = PATIENCE_S) -> dict[str, object]:
    """Run one client and return its row. Raises ClawError if the client fails or its turns are wrong."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        run = open_run(Path(folder) / "run")
        with serving(run) as (url, key):
            client_place = Place(where, home, run.root, url, key, patience_s)
            began = time.monotonic()
            client.run(client_place)
            seconds = time.monotonic() - began
        return row_of(client, collect(client_place, run), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Real clients against clawctl serve.")
    parser.add_argument("names", nargs="*", help="clients; all that are installed by default")
    parser.add_argument("--where", type=Path, default=Path(".clients"), help="folder with venv/ and node_modules/")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds that one command of a client may take")
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
            line = "{client:16} {turns} turns, {side} side, {conversations} conversations, {trainable} trainable, {seconds} s"
            print(line.format(**rows[-1]), flush=True)
        except (ClawError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{client.name:16} FAILED: {getattr(error, 'problem', error)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
