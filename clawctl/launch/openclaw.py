"""`clawctl openclaw-setup`: adds a run to OpenClaw's configuration, in the format of the installed version. Keeps a copy of the old
file."""

import copy
import json
import re
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from clawctl.config import Recipe, openclaw_config
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch
from clawctl.printing import print_json
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.endpoint import own_endpoint
from clawctl.run.keys import KeyRing, add_key, remove_key
from clawctl.shipped import shipped

Way = Literal["plugin", "responses", "plain"]
Version = tuple[int, ...]
_PLUGIN_SINCE = (2026, 6)  # buildReplayPolicy supports appendOnlyRuntimeContext
_AFFINITY_SINCE = (2026, 9)  # earlier versions refuse a configuration with sendSessionAffinityHeaders
_PATIENCE_S = 120.0
_UNKNOWN_CONTEXT = 32768
_LONGEST_ANSWER = 8192


@dataclass(frozen=True, slots=True)
class Setup:
    """The result of the setup, or of a dry run."""

    openclaw: str  # "2026.9.6"
    way: Way
    config: Path
    backup: Path | None
    written: dict[str, Any]  # the part that was added to the configuration, without the key
    notes: list[str]


def set_up(run: RunDir, recipe: Recipe, command: str, way: Way | None, key_name: str, dry_run: bool) -> Setup:
    """Write OpenClaw's configuration for `run`. Raises ClawError if something is missing; nothing is written in that case."""
    version = openclaw_version(command)
    chosen = way or ("plugin" if version >= _PLUGIN_SINCE else "plain")
    if chosen == "plugin" and version < _PLUGIN_SINCE:
        raise ClawError(f"OpenClaw {_version_text(version)} is too old for the plugin", "update OpenClaw, or use --way plain", 2)
    path = openclaw_config()
    existing = read_config(path)
    endpoint = own_endpoint(run, recipe)
    notes: list[str] = []
    context = _context_of(endpoint.url, endpoint.api_key, notes)
    thinking = thinking_of(recipe)
    shown = fragment(chosen, version, endpoint.url, "(the key)", recipe.model_name, context, thinking)
    if "allow" in existing.get("plugins", {}):
        notes.append("plugins.allow is set, so OpenClaw hides the tools of all other plugins; add 'clawctl' to it")
    backup = None
    if not dry_run:
        known = _known_key(run, existing, endpoint.api_key, chosen)
        key = known or add_key(run, key_name)
        added = fragment(chosen, version, endpoint.url, key, recipe.model_name, context, thinking)
        try:
            backup = _write(path, merged(existing, added), command)
        except BaseException:
            if known is None:
                remove_key(run, key_name)  # the key was never handed out
            raise
        if known is None:
            notes.append(f"created the API key {key_name!r}; turns from OpenClaw carry this name")
    return Setup(_version_text(version), chosen, path, backup, shown, notes)


def show_setup(run: RunDir, recipe: Recipe, command: str, way: str | None, key_name: str, dry_run: bool, as_json: bool) -> None:
    """Set up OpenClaw and print the result."""
    if way not in (None, "plugin", "responses", "plain"):
        raise ClawError(f"unknown way {way!r}", "choose plugin, responses or plain", 2)
    done = set_up(run, recipe, command, way, key_name, dry_run)  # type: ignore[arg-type]
    if as_json:
        backup = None if done.backup is None else str(done.backup)
        print_json({**asdict(done), "config": str(done.config), "backup": backup, "dry_run": dry_run})
        return
    print(f"OpenClaw {done.openclaw}, way: {done.way}")
    print(
        f"{done.config} {'would contain' if dry_run else 'now contains'}:\n{json.dumps(done.written, indent=2, ensure_ascii=True)}"
    )
    if done.backup is not None:
        print(f"the old file is kept as {done.backup}")
    print("\n".join(done.notes))


def openclaw_version(command: str) -> Version:
    """The version, such as (2026, 9, 6). Raises ClawError if OpenClaw is missing or does not start."""
    cure = "install it (`npm i -g openclaw`), or pass its command with --openclaw"
    if shutil.which(command) is None:
        raise ClawError(f"there is no command {command!r}", cure)
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClawError(f"{command} --version failed: {error}", cure) from error
    match = re.search(r"\b(20\d\d)\.(\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or match is None:
        output = (done.stderr or done.stdout).strip().splitlines()
        problem = f"{command} --version prints {output[-1][:200] if output else 'nothing'!r}"
        raise ClawError(problem, "OpenClaw needs Node 24.16 or 26.1 and newer; " + cure)
    return tuple(int(part) for part in match.groups())


def read_config(path: Path) -> dict[str, Any]:
    """The current configuration; {} if there is none. Raises ClawError if it could not be written back without loss."""
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ClawError(
            f"{path} is not plain JSON: {error}",
            "its comments would be lost: copy the output of `clawctl openclaw-setup --dry-run` into it by hand, "
            "with a key from `clawctl keys add`",
        ) from error
    if not isinstance(config, dict):
        raise ClawError(f"{path} is not a JSON object", "repair it with `openclaw doctor`")
    return config


def plugin_folder() -> Path:
    """Folder of the provider plugin, in a checkout or in an installation. Raises ClawError."""
    folder = shipped("integrations") / "openclaw"
    if (folder / "openclaw.plugin.json").is_file():
        return folder
    raise ClawError("the OpenClaw plugin is not installed", "use --way plain, or reinstall clawctl")


def thinking_of(recipe: Recipe) -> bool:
    """Whether the model's chat template can switch reasoning on and off, as Qwen's do."""
    folder = Path(recipe.model_path)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (folder / name).is_file() and "enable_thinking" in (folder / name).read_text(errors="replace"):
            return True
    return False


def fragment(way: Way, version: Version, url: str, key: str, model: str, context: int, thinking: bool) -> dict[str, Any]:
    """The part that is added to the configuration."""
    compat: dict[str, Any] = {"supportsPromptCacheKey": True}
    if way == "plain" and version >= _AFFINITY_SINCE:
        compat["sendSessionAffinityHeaders"] = True
    if thinking and way != "responses":
        compat["thinkingFormat"] = "qwen-chat-template"
    entry = {
        "id": model,
        "name": model,
        "reasoning": thinking,  # if false, OpenClaw removes the model's reasoning from the history
        "input": ["text"],
        "contextWindow": context,
        "maxTokens": min(_LONGEST_ANSWER, context // 4),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "compat": compat,
    }
    provider = "openai" if way == "responses" else "clawctl"
    api = "openai-responses" if way == "responses" else "openai-completions"
    config: dict[str, Any] = {
        "agents": {"defaults": {"model": {"primary": f"{provider}/{model}"}}},
        "models": {"mode": "merge", "providers": {provider: {"baseUrl": url, "apiKey": key, "api": api, "models": [entry]}}},
    }
    if way == "plugin":
        allowed = {"enabled": True, "hooks": {"allowConversationAccess": True}}
        config["plugins"] = {"load": {"paths": [str(plugin_folder())]}, "entries": {"clawctl": allowed}}
    return config


def merged(existing: Any, added: Any) -> Any:
    """`added` merged into `existing`: objects by key, models by id, other lists concatenated. Neither argument changes."""
    if isinstance(existing, dict) and isinstance(added, dict):
        return {**existing, **{key: merged(existing.get(key), value) for key, value in added.items()}}
    if isinstance(existing, list) and isinstance(added, list):
        named = {entry["id"] for entry in added if isinstance(entry, dict) and "id" in entry}
        unchanged = [
            entry for entry in existing if entry not in added and not (isinstance(entry, dict) and entry.get("id") in named)
        ]
        return unchanged + copy.deepcopy(added)
    return copy.deepcopy(added)


def _context_of(url: str, key: str, notes: list[str]) -> int:
    try:
        response = fetch("GET", f"{url}/models", key=key, timeout_s=5.0)
        return int(json.loads(response.body)["data"][0]["max_model_len"])
    except (RequestFailed, ValueError, KeyError, IndexError, TypeError):
        notes.append(f"the server at {url} did not answer; clawctl assumes a context of {_UNKNOWN_CONTEXT} tokens")
        return _UNKNOWN_CONTEXT


def _known_key(run: RunDir, existing: dict[str, Any], own: str, way: Way) -> str | None:
    """The key that an earlier setup wrote, if it is still valid."""
    provider = existing.get("models", {}).get("providers", {}).get("openai" if way == "responses" else "clawctl", {})
    key = provider.get("apiKey") if isinstance(provider, dict) else None
    return key if isinstance(key, str) and KeyRing(run, own).owner(key) else None


def _write(path: Path, after: dict[str, Any], command: str) -> Path | None:
    """Write `after` and keep a copy of the old file. Restore the copy if OpenClaw refuses the new file."""
    backup = None
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        backup = path.with_name(f"{path.name}.before-clawctl-{time.strftime('%Y%m%d-%H%M%S')}")
        publish_bytes(backup, path.read_bytes())
    publish_bytes(path, json.dumps(after, indent=2, ensure_ascii=False).encode() + b"\n")
    done = subprocess.run([command, "config", "validate"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    if done.returncode == 0 or _unknown_command(done.stderr + done.stdout):
        return backup
    if backup is None:
        path.unlink()
    else:
        publish_bytes(path, backup.read_bytes())
        backup.unlink()
    output = " ".join((done.stderr + done.stdout).split())[-400:]
    raise ClawError(f"OpenClaw refuses the new configuration, so the old one stays: {output}", "try --way plain")


def _unknown_command(output: str) -> bool:
    return "unknown command" in output.lower() or "too many arguments" in output.lower()


def _version_text(version: Version) -> str:
    return ".".join(map(str, version))
