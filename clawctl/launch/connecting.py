"""`clawctl connect`: points a client at a run. The table `clients.yaml` has the clients; OpenClaw's configuration depends on its
version (`launch/openclaw.py`). An existing configuration is added to, and a copy of it is kept."""

import copy
import json
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
from uuid import uuid4

import yaml

from clawctl.config import Recipe, load_recipe, openclaw_config
from clawctl.config.environment import client_folder, environment_of_program
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch
from clawctl.launch.openclaw import addition
from clawctl.printing import busy, plain, print_json
from clawctl.process import kill_group
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.keys import CHECK_EVERY_S, KeyRing, add_key, remove_key

UNKNOWN_CONTEXT = 32768  # tokens, if the server does not answer
_TABLE = Path(__file__).with_name("clients.yaml")
_VERSION_S, _TRY_S, _LOOK_S = 120.0, 300.0, 0.5
_KEY = re.compile(r"claw-[A-Za-z0-9_-]{20,}")
ClientEntry = dict[str, Any]  # an entry of the table


@cache
def clients() -> dict[str, ClientEntry]:
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
        text = f"# in ~/{client['file']}\n{_written(client['merge'], client['file'])}"
    elif "setup" in client:
        text = f"{shlex.join([client['program'], *client['setup']])}\n"
    else:
        lines = client.get("lines") or client["variables"]
        head, before = (f"# in ~/{client['file']}\n", "") if "lines" in client else ("", "export ")
        text = head + "".join(f"{before}{name}={shlex.quote(value)}\n" for name, value in lines.items())
    return f"{text}then run: {client['use']}"


def _written(config: Any, name: str) -> str:
    if name.endswith(".json"):
        return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return str(yaml.safe_dump(config, sort_keys=False))


def version_of(client: ClientEntry, program: str) -> str:
    """The version of the installed client, such as "2026.9.6". Raises ClawError if it is missing or does not start."""
    cure = f"install it (`{client['install']}`), or name its command with --program"
    if shutil.which(program) is None:
        raise ClawError(f"there is no command {program!r}", cure)
    try:
        done = subprocess.run(
            [program, client.get("version", "--version")], capture_output=True, text=True, timeout=_VERSION_S, check=False
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


# ---- the configuration -----------------------------------------------------------------------------------------------------


def file_of(client: ClientEntry, home: Path | None = None) -> Path:
    """The client's configuration: below `home`, or where the client expects it."""
    file = Path(client["file"])
    if home is None and "made_by" in client:
        return openclaw_config()
    if home is None and (moved := client_folder(client.get("moved_by"))) is not None:
        return moved / file.name
    return (home or Path.home()) / file


def read_config(path: Path) -> dict[str, Any]:
    """The current configuration; {} if there is none. Raises ClawError if it could not be written back without loss."""
    try:
        text = path.read_text()
        if path.suffix != ".json" and re.search(r"^\s*#|\s#", text, re.MULTILINE):
            raise ValueError("it has comments")
        config = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text) or {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        cure = "its comments would be lost: copy the output of `clawctl connect` without --write into it by hand"
        raise ClawError(f"{path} is not plain {kind}: {error}", cure) from error
    if not isinstance(config, dict):
        raise ClawError(f"{path} is not an object", "repair it")
    return config


def merged(existing: Any, added: Any) -> Any:
    """`added` merged into `existing`: objects by key, models by id or name, other lists concatenated. Neither argument changes."""
    if isinstance(existing, dict) and isinstance(added, dict):
        return {**existing, **{key: merged(existing.get(key), value) for key, value in added.items()}}
    if isinstance(existing, list) and isinstance(added, list):
        named = [_identity(entry) for entry in added]
        return [entry for entry in existing if entry not in added and (_identity(entry) or entry) not in named] + copy.deepcopy(
            added
        )
    return copy.deepcopy(added)


def _identity(entry: Any) -> Any:
    return entry.get("id", entry.get("name")) if isinstance(entry, dict) else None


def configure(client: ClientEntry, program: str, home: Path | None = None) -> Path | None:
    """Write the configuration of a filled-in `client`. Returns the copy of the old file, which stays if this raises ClawError."""
    if "variables" in client:
        raise ClawError(
            f"{client['title']} has no file for this", "set the variables that `clawctl connect` without --write prints", 2
        )
    if "setup" in client:
        _set_up(client, program, home)
        return None
    path = file_of(client, home)
    if "merge" in client:
        text = _written(merged(read_config(path), client["merge"]), path.name)
    elif "own" in client:
        text = client["own"]
    else:
        old = path.read_text().splitlines() if path.exists() else []
        others = [line for line in old if line.partition("=")[0].strip() not in client["lines"]]
        text = "\n".join([*others, *(f"{name}={shlex.quote(value)}" for name, value in client["lines"].items()), ""])
    backup = None
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and path.read_text() != text:
        backup = path.with_name(f"{path.name}.before-clawctl-{time.strftime('%Y%m%d-%H%M%S')}")
        publish_bytes(backup, path.read_bytes())
    publish_bytes(path, text.encode())
    path.chmod(0o600)  # it has a key in it
    if "check" in client and (refusal := _refusal(client, program)) is not None:
        path.unlink()
        if backup is not None:
            backup.rename(path)
        title = client["title"]
        raise ClawError(f"{title} refuses the new configuration, so the old one stays: {refusal}", "try another --way")
    return backup


def _set_up(client: ClientEntry, program: str, home: Path | None) -> None:
    done = subprocess.run(
        [program, *client["setup"]],
        capture_output=True,
        text=True,
        timeout=_VERSION_S,
        check=False,
        env=_surroundings(client, home),
    )
    if done.returncode != 0:
        raise ClawError(f"{client['title']} refuses its configuration: {_end_of(done.stderr + done.stdout)}", "update it", 1)


def _refusal(client: ClientEntry, program: str) -> str | None:
    """What the client says against its configuration, or None, also if it cannot check one."""
    done = subprocess.run([program, *client["check"]], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    output = done.stderr + done.stdout
    cannot = "unknown command" in output.lower() or "too many arguments" in output.lower()
    return None if done.returncode == 0 or cannot else _end_of(output)


def _end_of(output: str) -> str:
    return plain(" ".join(output.split()))[-400:] or "it prints nothing"


def _surroundings(client: ClientEntry, home: Path | None) -> dict[str, str]:
    """The environment of the client, without variables that would configure it otherwise; with the folder `home`."""
    variables = dict(client.get("variables", {}))
    if home is None:
        return environment_of_program(variables, [name for name in (client.get("moved_by"), *client.get("named", [])) if name])
    folders = {f"XDG_{name}_HOME": str(home / below) for name, below in _XDG.items()}
    return environment_of_program({**variables, "HOME": str(home), **folders})


_XDG = {"CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state", "CACHE": ".cache"}


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
    if name not in clients():
        raise ClawError(f"there is no client {name}", f"choose one of {', '.join(clients())}; others: docs/clients.md", 2)
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
    run: RunDir,
    endpoint: Endpoint,
    template: ClientEntry,
    values: dict[str, str],
    program: str,
    key_name: str,
    notes: list[str],
) -> Path | None:
    """Write the configuration with a key of its own. A key that an earlier one holds is kept."""
    ring, known = KeyRing(run, endpoint.api_key), None
    if "file" in template:
        with suppress(OSError, UnicodeDecodeError):
            known = next((key for key in _KEY.findall(file_of(template).read_text()) if ring.owner(key)), None)
    key = known or add_key(run, key_name)
    try:
        backup = configure(filled(template, {**values, "key": key}), program)
    except BaseException:
        if known is None:
            remove_key(run, key_name)  # the key was never handed out
        raise
    if known is None:
        time.sleep(2 * CHECK_EVERY_S)  # from then on, a running server accepts it
        notes.append(f"created the API key {key_name!r}; turns of {template['title']} carry this name")
    return backup


def _try(run: RunDir, endpoint: Endpoint, client: ClientEntry, program: str, is_written: bool) -> str:
    """Send one request through the client. Raises ClawError if none arrives. If nothing `is_written`, it gets a home of its own."""
    marker = f"clawctl-{uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = None if is_written else Path(folder) / "home"
        work = Path(folder) / "work"
        work.mkdir()
        if home is not None:
            home.mkdir()
            if "variables" not in client:
                configure({key: value for key, value in client.items() if key != "check"}, program, home)
        file = str(file_of(client, home)) if "file" in client else ""
        words = filled(client["try"], {"words": f"{marker}: answer with one word.", "file": file})
        before, began = _requests(endpoint), time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [program, *words], cwd=work, env=_surroundings(client, home), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
            try:
                while process.poll() is None and time.monotonic() < began + _TRY_S and not _is_captured(run, marker):
                    time.sleep(_LOOK_S)
            finally:
                kill_group(process.pid)
                process.wait()
            output.seek(0)
            said = _end_of(output.read())
    took = f"{time.monotonic() - began:.0f} s"
    if _is_captured(run, marker):
        return f"a request of {client['title']} arrived and was answered ({took})"
    after = _requests(endpoint)
    if before is not None and after is not None and after["total"] > before["total"]:
        how = "was refused" if after["refused"] > before["refused"] else "is not captured, or not answered yet"
        return f"a request of {client['title']} arrived, but {how} ({took}); its output ends with: {said}"
    raise ClawError(f"no request of {client['title']} arrived in {took}; its output ends with: {said}", "see docs/clients.md")


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
    title = f"{clients()[name]['title']} {done.version or ''}".strip()
    if options.write:
        print(
            f"{title}: wrote {done.file or 'its configuration'}"
            + (f"; the old file is kept as {done.backup}" if done.backup else "")
        )
    else:
        print(text)
    for line in (*done.notes, *([done.tried] if done.tried else [])):
        print(f"note: {line}" if line in done.notes else line)
