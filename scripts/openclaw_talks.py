"""Runs conversations with tools in unmodified OpenClaw, configured by hand, by `clawctl connect`, or via its gateway."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from clawctl.engines.vllm.child import free_port
from scripts.client_place import Place, must_say

_QUIET = {"OPENCLAW_DISABLE_BONJOUR": "1", "OPENCLAW_NO_AUTO_UPDATE": "1"}
_EVENT_S = 30.0  # longest time until the agent that an event woke has answered


def plain(place: Place) -> None:
    """Talk with a configuration that contains only a provider with a `baseUrl`."""
    _configure(place, _bare(place))
    _talk(place, _command(place), "--local")


def set_up(way: str) -> Callable[[Place], None]:
    """Return a function that talks with the configuration of `clawctl connect openclaw --way`."""

    def run(place: Place) -> None:
        _talk(place, _set_up(place, way), "--local")

    return run


def gateway(place: Place) -> None:
    """Talk through the gateway with only a `baseUrl`. An event wakes the agent after the person's messages."""
    _configure(place, _bare(place))
    _through_gateway(place, _command(place))


def gateway_with_plugin(place: Place) -> None:
    """Talk through the gateway with the configuration of `clawctl connect openclaw`."""
    _through_gateway(place, _set_up(place, "plugin"))


def _set_up(place: Place, way: str) -> Path:
    openclaw = _command(place)
    place.clawctl("connect", "openclaw", "--run", place.served, "--program", openclaw, "--way", way, "--write")
    return openclaw


def _through_gateway(place: Place, openclaw: Path) -> None:
    port = free_port()
    gateway = {"mode": "local", "port": port, "bind": "loopback", "auth": {"mode": "token", "token": "of-the-clients"}}
    _configure(place, {"gateway": gateway, "discovery": {"mdns": {"mode": "off"}}, "update": {"checkOnStart": False}})
    with place.beside(openclaw, "gateway", "run", **_QUIET) as server:
        place.until_ready(server, f"http://127.0.0.1:{port}/readyz")  # `openclaw health` succeeds too early, during the start
        _talk(place, openclaw)
        place.run(openclaw, "system", "event", "--text", "The build is green.", "--mode", "now", **_QUIET)
        time.sleep(_EVENT_S)


def _command(place: Place) -> Path:
    script = place.home / "openclaw"
    script.write_text(f'#!/bin/sh\nexec "{place.node}" "{place.module("openclaw") / "openclaw.mjs"}" "$@"\n')
    script.chmod(0o755)
    return script


def _bare(place: Place) -> dict[str, object]:
    model = {"id": "demo", "name": "demo", "reasoning": True, "input": ["text"], "contextWindow": 131072, "maxTokens": 8192,
             "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}  # fmt: skip
    provider = {"baseUrl": place.url, "apiKey": place.key, "api": "openai-completions", "models": [model]}
    agents = {"defaults": {"model": {"primary": "clawctl/demo"}, "workspace": str(place.home / "work")}}
    return {"agents": agents, "models": {"mode": "merge", "providers": {"clawctl": provider}}}


def _configure(place: Place, config: dict[str, object]) -> None:
    """Add `config` to the existing configuration."""
    path = place.home / ".openclaw" / "openclaw.json"
    path.parent.mkdir(exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **config}))


def _talk(place: Place, openclaw: Path, *how: str) -> None:
    say: tuple[str | Path, ...] = (openclaw, "agent", *how, "--agent", "main", "--json", "--message")
    must_say(
        place.run(*say, '#claw-1 Run it. [[think]] [[tool:exec {"command": "echo claw hi-from-tool"}]]', **_QUIET), "hi-from-tool"
    )
    must_say(place.run(*say, '#claw-2 And again. [[tool:exec {"command": "echo claw once-more"}]]', **_QUIET), "once-more")
    must_say(place.run(*say, "#claw-3 Thanks [[say:Bye now]]", **_QUIET), "Bye now")
