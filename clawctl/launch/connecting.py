"""`clawctl connect`: points a client at a run. The table `clients.yaml` has the clients; OpenClaw's configuration depends on its
version (`launch/openclaw.py`). An existing configuration is added to, and a copy of it is kept."""

import json
import random
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from clawctl.config import Recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch
from clawctl.launch.client_files import VERSION_S, ClientEntry, as_text, configure, end_of, file_of, read_config, surroundings
from clawctl.launch.openclaw import addition
from clawctl.printing import busy, print_json
from clawctl.process import kill_group
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.keys import CHECK_EVERY_S, KeyRing, add_key, remove_key

UNKNOWN_CONTEXT = 32768  # tokens, if the server does not answer
_TABLE = Path(__file__).with_name("clients.yaml")
_TRY_S, _LOOK_S = 300.0, 0.5
_WORDS = ("amber", "dusty", "early", "golden", "heavy", "lively", "narrow", "quiet", "rusty", "tiny")
_KEY = re.compile(r"claw-[A-Za-z0-9_-]{20,}")


@cache
def clients() -> dict[str, ClientEntry]:
    return dict(yaml.safe_load(_TABLE.read_text()))


def client_named(name: str) -> str:
    """The whole name of a client, of which the beginning is enough if no other begins so. Raises ClawError (exit code 2)."""
    matching = [name] if name in clients() else [client for client in clients() if client.startswith(name.casefold())]
    if len(matching) != 1:
        raise ClawError(f"there is no client {name}", f"choose one of {', '.join(clients())}; others: `clawctl docs clients`", 2)
    return matching[0]


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
    values, here = values_of(endpoint, context_of(endpoint) or UNKNOWN_CONTEXT), f"--run {shlex.quote(shown_run)}"
    lines = ["", f"{endpoint.model} answers at", f"  base URL  {values['url']}   (Anthropic clients: {values['base']})"]
    lines.append(f"  key       {values['key']}")
    client = clients().get(agent or "")
    if client is not None and "made_by" not in client:
        lines += ["", by_hand(filled(client, values)), ""]
    lines.append(f"clawctl chat {here}   talks to it at a terminal")
    lines.append(
        f"clawctl connect {agent if client else 'CLIENT'} {here} --write   configures {client['title'] if client else 'an agent'}"
    )
    return "\n".join([*lines, *([f"pages       {link}"] if link else []), ""])


# ---- what a client needs ---------------------------------------------------------------------------------------------------


def by_hand(client: ClientEntry) -> str:
    """What a person pastes where."""
    if "own" in client:
        text = f"# ~/{client['file']}\n{client['own']}"
    elif "merge" in client:
        text = f"# in ~/{client['file']}\n{as_text(client['merge'], client['file'])}"
    elif "setup" in client:
        text = f"{shlex.join([client['program'], *client['setup']])}\n"
    else:
        lines = client.get("lines") or client["variables"]
        head, before = (f"# in ~/{client['file']}\n", "") if "lines" in client else ("", "export ")
        text = head + "".join(f"{before}{name}={shlex.quote(value)}\n" for name, value in lines.items())
    return f"{text}then run: {client['use']}"


def version_of(client: ClientEntry, program: str) -> str:
    """The version of the installed client, such as "2026.9.6". Raises ClawError if it is missing or does not start."""
    cure = f"install it (`{client['install']}`), or name its command with --program"
    if shutil.which(program) is None:
        raise ClawError(f"there is no command {program!r}", cure)
    try:
        done = subprocess.run(
            [program, client.get("version", "--version")], capture_output=True, text=True, timeout=VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClawError(f"{program} --version failed: {error}", cure) from error
    match = re.search(r"\b\d+(\.\d+)+", done.stdout)
    if done.returncode != 0 or match is None:
        output = (done.stderr or done.stdout).strip().splitlines()
        problem = f"{program} --version prints {output[-1][:200] if output else 'nothing'!r}"
        raise ClawError(problem, f"{client['title']} needs {client['needs']}; {cure}" if "needs" in client else cure)
    return match[0]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


# ---- the command -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connection:
    """What was printed, written and tried."""

    client: str
    version: str | None  # None: it is not installed here
    file: str | None
    backup: str | None
    written: Any  # what was or would be added, without the key
    notes: list[str]
    tried: str | None


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    program: str | None = None
    way: str | None = None  # OpenClaw's
    key: str | None = None  # the name of the key that is created
    write: bool = False
    attempt: bool = False


def connect(run: RunDir, recipe: Recipe, name: str, options: ConnectOptions) -> tuple[Connection, str]:
    """Point a client at `run`. Returns what was done, and the text to paste by hand. Raises ClawError."""
    name = client_named(name)
    template, notes, endpoint = clients()[name], list[str](), own_endpoint(run, recipe)
    program = options.program or template["program"]
    try:
        version: str | None = version_of(template, program)
    except ClawError as error:
        if options.attempt or "made_by" in template:
            raise
        version = None
        notes.append(f"not installed here: {error.problem}; {template['install']}")
    if version is not None and "since" in template and numbers(version) < numbers(template["since"]):
        raise ClawError(f"{template['title']} {version} is too old: it needs {template['since']}", template["install"])
    context = context_of(endpoint)
    if context is None:
        notes.append(f"the server at {endpoint.url} did not answer; clawctl assumes a context of {UNKNOWN_CONTEXT} tokens")
    elif context < template.get("context", 0):
        notes.append(f"the context of {context} tokens is short: {template['title']} needs about {template['context']}")
    if "made_by" in template:
        existing = read_config(file_of(template))
        added = addition(numbers(version or "0"), options.way, recipe, context or UNKNOWN_CONTEXT, existing, notes)
        template = {**template, "merge": added}
    values = values_of(endpoint, context or UNKNOWN_CONTEXT)
    client = filled(template, values)
    backup = _write(run, endpoint, template, values, program, options.key or name, notes) if options.write else None
    tried = _try(run, endpoint, client, program, options.write) if options.attempt else None
    shown = filled(template, {**values, "key": "(the key)"})
    written = next((shown[form] for form in ("merge", "own", "lines", "variables", "setup") if form in shown), None)
    file = str(file_of(client)) if "file" in client else None
    return Connection(name, version, file, None if backup is None else str(backup), written, notes, tried), by_hand(client)


def _write(
    run: RunDir, endpoint: Endpoint, template: ClientEntry, values: dict[str, str], program: str, key_name: str, notes: list[str]
) -> Path | None:
    """Write the configuration with a key of its own. A key that an earlier one holds is kept."""
    ring, kept_key = KeyRing(run, endpoint.api_key), None
    if "file" in template:
        with suppress(OSError, UnicodeDecodeError):
            kept_key = next((key for key in _KEY.findall(file_of(template).read_text()) if ring.owner(key)), None)
    key = kept_key or add_key(run, key_name)
    try:
        backup = configure(filled(template, {**values, "key": key}), program)
    except BaseException:
        if kept_key is None:
            remove_key(run, key_name)  # the key was never handed out
        raise
    if kept_key is None:
        time.sleep(2 * CHECK_EVERY_S)  # from then on, a running server accepts it
        notes.append(f"created the API key {key_name!r}; turns of {template['title']} carry this name")
    return backup


def _try(run: RunDir, endpoint: Endpoint, client: ClientEntry, program: str, is_written: bool) -> str:
    """Send one request through the client. Raises ClawError if none arrives. If nothing `is_written`, it gets a home of its own."""
    marker = f"One {' '.join(random.sample(_WORDS, 5))} boat has arrived"  # an id could be redacted as a secret
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = None if is_written else Path(folder) / "home"
        work = Path(folder) / "work"
        work.mkdir()
        if home is not None:
            home.mkdir()
            if "variables" not in client:
                configure({key: value for key, value in client.items() if key != "check"}, program, home)
        file = str(file_of(client, home)) if "file" in client else ""
        arguments = filled(client["try"], {"words": f"{marker}. Answer with one word.", "file": file})
        before, began = _requests(endpoint), time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [program, *arguments], cwd=work, env=surroundings(client, home), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
            try:
                while process.poll() is None and time.monotonic() < began + _TRY_S and not _is_captured(run, marker):
                    time.sleep(_LOOK_S)
            finally:
                kill_group(process.pid)
                process.wait()
            output.seek(0)
            said = end_of(output.read())
    took = f"{time.monotonic() - began:.0f} s"
    if _is_captured(run, marker):
        return f"a request of {client['title']} arrived and was answered ({took})"
    after = _requests(endpoint)
    if before is not None and after is not None and after["total"] > before["total"]:
        how = "was refused" if after["refused"] > before["refused"] else "is not captured, or not answered yet"
        return f"a request of {client['title']} arrived, but {how} ({took}); its output ends with: {said}"
    raise ClawError(f"no request of {client['title']} arrived in {took}; its output ends with: {said}", "`clawctl docs clients`")


def _requests(endpoint: Endpoint) -> dict[str, int] | None:
    try:
        response = fetch("GET", f"{endpoint.url.removesuffix('/v1')}/health", key=endpoint.api_key, timeout_s=5.0)
        return dict(json.loads(response.body)["requests"])
    except (RequestFailed, ValueError, LookupError, TypeError):
        return None


def _is_captured(run: RunDir, marker: str) -> bool:
    newest = sorted(run.captures.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)[-2:]
    return any(marker.encode() in path.read_bytes() for path in newest)


def show_connection(run: RunDir, recipe: Recipe, name: str, options: ConnectOptions, as_json: bool) -> None:
    """Connect the client, and print what was done. Raises ClawError."""
    with busy(f"asking {name} …"):
        done, text = connect(run, recipe, name, options)
    if as_json:
        return print_json({**asdict(done), "dry_run": not options.write})
    title = f"{clients()[done.client]['title']} {done.version or ''}".strip()
    if options.write:
        print(
            f"{title}: wrote {done.file or 'its configuration'}"
            + (f"; the old file is kept as {done.backup}" if done.backup else "")
        )
    else:
        print(text)
    for line in (*done.notes, *([done.tried] if done.tried else [])):
        print(f"note: {line}" if line in done.notes else line)
