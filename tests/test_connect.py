"""`clawctl connect`: each client gets a configuration that it reads, existing settings are kept, and a request arrives."""

import json
import stat
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.launch.client_files import configure, merged, read_config
from clawctl.launch.connecting import Connection, ConnectOptions, clients, connect, filled, show_connection
from clawctl.launch.openclaw import fragment, plugin_folder
from clawctl.run.directory import RunDir, open_run, publish_bytes
from clawctl.run.endpoint import announce
from clawctl.run.keys import list_keys
from scripts.real_clients import serving
from tests import forked

ANSWERS = """#!/bin/sh
case "$1" in
  --version) echo "OpenClaw {version} (abc1234)"; exit {starts} ;;
  config) echo "$2: {said}" >&2; exit {valid} ;;
esac
"""
# Reads its configuration as Codex does, and sends one request with it.
READER = f"""#!{sys.executable}
import json, os, pathlib, sys, tomllib, urllib.request
if sys.argv[1] == "--version":
    sys.exit(print("codex-cli 0.169.0"))
folder = pathlib.Path(os.environ.get("CODEX_HOME") or pathlib.Path.home() / ".codex")
config = tomllib.loads((folder / "clawctl.config.toml").read_text())
provider = config["model_providers"][config["model_provider"]]
body = {{"model": config["model"], "input": sys.argv[-1], "stream": False}}
headers = {{"authorization": "Bearer " + provider["experimental_bearer_token"], "content-type": "application/json"}}
request = urllib.request.Request(provider["base_url"] + "/responses", json.dumps(body).encode(), headers)
print(urllib.request.urlopen(request).status)
"""
VALUES = {"url": "http://h:1/v1", "base": "http://h:1", "key": "claw-k", "model": "m", "context": "32768"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("OPENCLAW_CONFIG_PATH", str(tmp_path / "home" / "openclaw.json"))
    run = open_run(tmp_path / "run")
    announce(run, "127.0.0.1", 9)
    publish_bytes(run.api_key, b"claw-own-key-of-this-run-and-no-other\n")
    return run


def openclaw(tmp_path: Path, version: str = "2026.9.6", starts: int = 0, valid: int = 0, said: str = "fine") -> str:
    """A command that answers as OpenClaw does."""
    return program(
        tmp_path / f"openclaw-{version}-{starts}-{valid}", ANSWERS.format(version=version, starts=starts, valid=valid, said=said)
    )


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def set_up(run: RunDir, command: str, way: Any = None, write: bool = True) -> Connection:
    return connect(run, Recipe(), "openclaw", ConnectOptions(program=command, way=way, write=write))[0]


def written(run: RunDir) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((run.root.parent / "home" / "openclaw.json").read_text())
    return config


def test_missing_parts_are_reported_and_nothing_is_written(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="there is no command 'no-such-openclaw'"):
        set_up(run, "no-such-openclaw")
    with pytest.raises(ClawError, match="--version prints") as caught:
        set_up(run, openclaw(tmp_path, starts=1))
    assert "Node 24.16" in caught.value.fix
    with pytest.raises(ClawError, match="too old for the plugin"):
        set_up(run, openclaw(tmp_path, "2026.3.2"), "plugin")
    with pytest.raises(ClawError, match=r"Codex 0\.42\.0 is too old: it needs 0\.169"):
        connect(
            run,
            Recipe(),
            "codex",
            ConnectOptions(program=program(tmp_path / "codex", "#!/bin/sh\necho codex-cli 0.42.0\n"), write=True),
        )
    with pytest.raises(ClawError, match="there is no client emacs") as caught:
        connect(run, Recipe(), "emacs", ConnectOptions())
    assert "claude-code" in caught.value.fix
    with pytest.raises(ClawError, match="there is no client c"):  # codex, claude-code, continue, …
        connect(run, Recipe(), "c", ConnectOptions())
    (run.root / "serve.json").unlink()
    with pytest.raises(ClawError, match="no server has registered"):
        set_up(run, openclaw(tmp_path))
    assert not (tmp_path / "home").exists()
    assert list_keys(run) == []


def test_what_is_printed_changes_nothing(run: RunDir, tmp_path: Path) -> None:
    done, text = connect(run, Recipe(), "openclaw", ConnectOptions(program=openclaw(tmp_path)))
    assert (done.version, done.notes[-1], done.backup) == ("2026.9.6", "way: plugin", None)
    assert done.written["plugins"]["load"]["paths"] == [str(plugin_folder())]
    assert "claw-own-key-of-this-run-and-no-other" in text
    assert "claw-own" not in json.dumps(done.written)
    assert not (tmp_path / "home").exists()
    assert list_keys(run) == []


def test_each_version_of_openclaw_gets_a_configuration_that_it_supports() -> None:
    made = {
        (way, version): fragment(way, version, 1000, False)
        for way in ("plugin", "responses", "plain")
        for version in ((2026, 6, 9), (2026, 9, 6))
    }
    compat = {key: next(iter(config["models"]["providers"].values()))["models"][0]["compat"] for key, config in made.items()}
    assert compat["plain", (2026, 6, 9)] == {"supportsPromptCacheKey": True}  # it refuses unknown keys
    assert compat["plain", (2026, 9, 6)] == {"supportsPromptCacheKey": True, "sendSessionAffinityHeaders": True}
    assert compat["plugin", (2026, 9, 6)] == {"supportsPromptCacheKey": True}
    responses = made["responses", (2026, 9, 6)]
    assert responses["models"]["providers"]["openai"]["api"] == "openai-responses"
    assert responses["agents"]["defaults"]["model"]["primary"] == "openai/{model}"
    assert "plugins" not in responses
    thinking = fragment("plain", (2026, 9, 6), 1000, True)["models"]["providers"]["clawctl"]["models"][0]
    assert (thinking["reasoning"], thinking["compat"]["thinkingFormat"]) == (True, "qwen-chat-template")


def test_the_configuration_is_added_to_and_kept_as_it_was_beside(run: RunDir, tmp_path: Path) -> None:
    before = {
        "channels": {"telegram": {"token": "t"}},
        "models": {"providers": {"other": {"baseUrl": "http://o"}}},
        "plugins": {"load": {"paths": ["/mine"]}, "entries": {"mine": {"enabled": True}}},
    }
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "openclaw.json").write_text(json.dumps(before))
    done = set_up(run, openclaw(tmp_path))
    after = written(run)
    assert after["channels"] == before["channels"]
    assert after["models"]["providers"].keys() == {"other", "clawctl"}
    assert after["plugins"]["load"]["paths"] == ["/mine", str(plugin_folder())]
    assert after["plugins"]["entries"].keys() == {"mine", "clawctl"}
    assert done.backup is not None
    assert json.loads(Path(done.backup).read_text()) == before
    assert stat.S_IMODE((tmp_path / "home" / "openclaw.json").stat().st_mode) == 0o600
    key = after["models"]["providers"]["clawctl"]["apiKey"]
    assert key not in json.dumps(done.written)
    assert [stored.name for stored in list_keys(run)] == ["openclaw"]
    assert set_up(run, openclaw(tmp_path)).backup is None  # again: the same key, nothing twice
    assert written(run) == after
    assert len(list_keys(run)) == 1


def test_a_configuration_that_openclaw_refuses_is_taken_back(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "openclaw.json"
    path.write_text('{"a": 1}')
    with pytest.raises(ClawError, match="OpenClaw refuses the new configuration, so the old one stays: validate: unknown key x"):
        set_up(run, openclaw(tmp_path, valid=1, said="unknown key x"))
    assert path.read_text() == '{"a": 1}'
    assert [file.name for file in path.parent.iterdir()] == ["openclaw.json"]
    assert list_keys(run) == []
    set_up(run, openclaw(tmp_path, "2026.6.9", valid=1, said="unknown command"))  # an OpenClaw that cannot check


@pytest.mark.parametrize(("name", "text"), [("a.json", "{ // mine\n a: 1 }"), ("b.yml", "a: 1  # mine\n"), ("c.yml", "- a\n")])
def test_comments_and_what_is_no_mapping_are_not_thrown_away(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ClawError, match=r"is not"):
        read_config(tmp_path / name)


def test_an_overlay_keeps_keys_that_it_does_not_name() -> None:
    assert merged({"a": {"b": 1}, "l": [1, {"id": "x", "v": 1}]}, {"a": {"c": 2}, "l": [{"id": "x", "v": 2}]}) == {
        "a": {"b": 1, "c": 2},
        "l": [1, {"id": "x", "v": 2}],
    }
    assert merged([{"name": "m", "v": 1}, {"v": 3}], [{"name": "m", "v": 2}]) == [{"v": 3}, {"name": "m", "v": 2}]


@pytest.mark.parametrize("name", sorted(name for name, client in clients().items() if "file" in client and "made_by" not in client))
def test_each_file_holds_address_key_and_model_and_is_written_once(tmp_path: Path, name: str) -> None:
    client = filled(clients()[name], VALUES)
    path = tmp_path / client["file"]
    if "merge" in client or "lines" in client:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text({".json": '{"mine": 1}', ".env": "MINE=1\n"}.get(path.suffix, "mine: 1\n") if path.suffix else "MINE=1\n")
    backup = configure(client, "unused", tmp_path)
    text = path.read_text()
    assert (backup is not None) == ("own" not in client)
    assert "claw-k" in text
    assert "http://h:1" in text
    assert "{" not in text or path.suffix == ".json"  # nothing was left to fill in
    readers: dict[str, Callable[[str], Any]] = {
        ".json": json.loads,
        ".toml": tomllib.loads,
        ".yaml": yaml.safe_load,
        ".yml": yaml.safe_load,
    }
    parsed = readers.get(path.suffix)
    if parsed is not None and "merge" in client:
        assert parsed(text)["mine"] == 1
    elif parsed is not None:
        assert parsed(text)["model"] == "m"
    else:
        assert text.splitlines()[0] == "MINE=1"
    assert configure(client, "unused", tmp_path) is None
    assert path.read_text() == text


def test_a_configuration_that_is_a_link_stays_one(tmp_path: Path) -> None:
    """As people keep them who have their configuration in a repository."""
    client = filled(clients()["qwen-code"], VALUES)
    path, kept = tmp_path / client["file"], tmp_path / "dotfiles" / "settings.json"
    for folder in (path.parent, kept.parent):
        folder.mkdir(parents=True)
    kept.write_text('{"mine": 1}')
    path.symlink_to(kept)
    configure(client, "unused", tmp_path)
    assert path.is_symlink()
    assert json.loads(kept.read_text())["mine"] == 1
    assert "claw-k" in kept.read_text()


def test_clients_without_a_file_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="has no file for this"):
        configure(filled(clients()["copilot"], VALUES), "copilot", tmp_path)
    seen = tmp_path / "seen"
    configure(filled(clients()["cline"], VALUES), program(tmp_path / "cline", f'#!/bin/sh\necho "$@" > {seen}\n'), tmp_path)
    assert seen.read_text() == "auth -p openai -k claw-k -b http://h:1/v1 -m m\n"


@pytest.mark.parametrize("write", [False, True])
def test_a_request_through_the_client_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: bool) -> None:
    home = tmp_path / "codex-home"
    monkeypatch.setenv("CODEX_HOME", str(home))
    run, codex = open_run(tmp_path / "run"), program(tmp_path / "codex", READER)
    command = ["connect", "codex", "--run", run.root, "--program", codex, "--try", "--json"]
    with serving(run):
        done = forked.run(*command, *(["--write"] if write else []))
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        assert "a request of Codex arrived and was answered" in printed["tried"]
        assert (printed["version"], printed["dry_run"]) == ("0.169.0", not write)
        assert (home / "clawctl.config.toml").exists() == write
        captured = [json.loads(line) for path in run.captures.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        assert [line["key"] for line in captured] == ["codex" if write else "default"]
        silent = program(
            tmp_path / "silent", '#!/bin/sh\n[ "$1" = --version ] && echo codex-cli 1.0 && exit\necho no network >&2; exit 3\n'
        )
        failed = forked.run(*command, "--program", silent)
        assert failed.returncode == 1
        assert "no request of Codex arrived" in failed.stderr
        assert "no network" in failed.stderr


def test_the_plugin_has_the_form_that_openclaw_reads() -> None:
    folder = plugin_folder()
    manifest, package = (json.loads((folder / name).read_text()) for name in ("openclaw.plugin.json", "package.json"))
    assert manifest["id"] == "clawctl"
    assert manifest["configSchema"]["type"] == "object"
    assert package["openclaw"]["extensions"] == ["./index.mjs"]
    assert "appendOnlyRuntimeContext: true" in (folder / "index.mjs").read_text()


def test_the_beginning_of_a_name_is_enough(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    show_connection(run, Recipe(), "qwen", ConnectOptions(program="no-such-qwen"), as_json=True)
    assert json.loads(capsys.readouterr().out)["client"] == "qwen-code"


def test_an_agent_that_is_not_known_is_refused_before_a_model_is_chosen(tmp_path: Path) -> None:
    done = forked.run("start", "--model", "smollm2", "--agent", "emacs", "--run", tmp_path / "run")
    assert done.returncode == 2
    assert "there is no client emacs" in done.stderr
    assert not (tmp_path / "run").exists()
