"""How a client is pointed at a run: the lines to paste, from the table `clients.yaml`."""

import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from clawctl.config import load_recipe
from clawctl.http_client import RequestFailed, fetch
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint, own_endpoint

UNKNOWN_CONTEXT = 32768  # tokens, if the server does not answer
_TABLE = Path(__file__).with_name("clients.yaml")


@cache
def clients() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(_TABLE.read_text()))


def filled(template: Any, values: dict[str, str]) -> Any:
    """`template` with `{name}` replaced in each of its texts, by `values`."""
    if isinstance(template, dict):
        return {filled(key, values): filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(part, values) for part in template]
    if isinstance(template, str):
        for name, value in values.items():
            template = template.replace(f"{{{name}}}", value)
    return template


def values_of(endpoint: Endpoint, context: int) -> dict[str, str]:
    base = endpoint.url.removesuffix("/v1")
    return {"url": endpoint.url, "base": base, "key": endpoint.api_key, "model": endpoint.model, "context": str(context)}


def by_hand(name: str, values: dict[str, str]) -> str:
    """What a person pastes where, to point this client at the run."""
    client = filled(clients()[name], values)
    if "own" in client:
        text = f"# ~/{client['file']}\n{client['own']}"
    elif "merge" in client:
        write = yaml.safe_dump if client["file"].endswith("ml") else lambda part, **_: json.dumps(part, indent=2) + "\n"
        text = f"# in ~/{client['file']}\n{write(client['merge'], sort_keys=False)}"
    elif "setup" in client:
        text = f"{shlex.join([client['program'], *client['setup']])}\n"
    else:
        lines = client.get("lines") or client["variables"]
        head, before = (f"# in ~/{client['file']}\n", "") if "lines" in client else ("", "export ")
        text = head + "".join(f"{before}{name}={shlex.quote(value)}\n" for name, value in lines.items())
    return f"{text}then run: {client['use']}"


def context_of(endpoint: Endpoint) -> int | None:
    """The context of the served model in tokens, or None if the server does not answer."""
    try:
        response = fetch("GET", f"{endpoint.url}/models", key=endpoint.api_key, timeout_s=5.0)
        return int(json.loads(response.body)["data"][0]["max_model_len"])
    except (RequestFailed, ValueError, LookupError, TypeError):
        return None


def greeting(run: RunDir, agent: str | None, link: str | None, shown_run: str) -> str:
    """What `clawctl start` prints when the server is ready."""
    endpoint = own_endpoint(run, load_recipe(run.recipe))
    values = values_of(endpoint, context_of(endpoint) or UNKNOWN_CONTEXT)
    lines = ["", f"{endpoint.model} answers at", f"  base URL  {values['url']}   (Anthropic clients: {values['base']})"]
    lines.append(f"  key       {values['key']}")
    if agent in clients():
        lines += ["", by_hand(str(agent), values), ""]
    lines.append(f"clawctl chat --run {shlex.quote(shown_run)}   talks to it at a terminal")
    if agent == "openclaw":
        lines.append(f"clawctl openclaw-setup --run {shlex.quote(shown_run)}   configures OpenClaw")
    return "\n".join([*lines, *([f"pages       {link}"] if link else []), ""])
