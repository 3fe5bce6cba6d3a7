"""The configuration of a client: where it is, and how it is added to. A copy of the old file is kept."""

import copy
import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from clawctl.config.environment import client_folder, environment_of_program, openclaw_config
from clawctl.errors import ClawError
from clawctl.printing import plain
from clawctl.run.directory import publish_bytes

ClientEntry = dict[str, Any]  # an entry of `clients.yaml`
VERSION_S = 120.0  # that a short command of a client may take
_XDG = {"CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state", "CACHE": ".cache"}


def as_text(config: Any, name: str) -> str:
    if name.endswith(".json"):
        return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return str(yaml.safe_dump(config, sort_keys=False))


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
    path = file_of(client, home).resolve()  # a link stays a link
    if "merge" in client:
        text = as_text(merged(read_config(path), client["merge"]), path.name)
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
        [program, *client["setup"]], capture_output=True, text=True, timeout=VERSION_S, check=False, env=surroundings(client, home)
    )
    if done.returncode != 0:
        raise ClawError(f"{client['title']} refuses its configuration: {end_of(done.stderr + done.stdout)}", "update it", 1)


def _refusal(client: ClientEntry, program: str) -> str | None:
    """What the client says against its configuration, or None, also if it cannot check one."""
    done = subprocess.run([program, *client["check"]], capture_output=True, text=True, timeout=VERSION_S, check=False)
    output = done.stderr + done.stdout
    cannot = "unknown command" in output.lower() or "too many arguments" in output.lower()
    return None if done.returncode == 0 or cannot else end_of(output)


def end_of(output: str) -> str:
    return plain(" ".join(output.split()))[-400:] or "it prints nothing"


def surroundings(client: ClientEntry, home: Path | None) -> dict[str, str]:
    """The environment of the client, without variables that would configure it otherwise; with the folder `home`."""
    variables = dict(client.get("variables", {}))
    if home is None:
        return environment_of_program(variables, [name for name in (client.get("moved_by"), *client.get("named", [])) if name])
    folders = {f"XDG_{name}_HOME": str(home / below) for name, below in _XDG.items()}
    return environment_of_program({**variables, "HOME": str(home), **folders})
