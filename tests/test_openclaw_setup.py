"""The configuration that `clawctl openclaw-setup` writes for each OpenClaw, and that existing settings are kept."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.launch.openclaw import Setup, fragment, merged, openclaw_version, plugin_folder, set_up
from clawctl.run.directory import RunDir, open_run, publish_bytes
from clawctl.run.endpoint import announce
from clawctl.run.keys import list_keys

ANSWERS = """#!/bin/sh
case "$1" in
  --version) echo "OpenClaw {version} (abc1234)"; exit {starts} ;;
  config) echo "$2: {said}" >&2; exit {valid} ;;
esac
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("OPENCLAW_CONFIG_PATH", str(tmp_path / "home" / "openclaw.json"))
    run = open_run(tmp_path / "run")
    announce(run, "127.0.0.1", 9)
    publish_bytes(run.api_key, b"key\n")
    return run


def openclaw(tmp_path: Path, version: str = "2026.9.6", starts: int = 0, valid: int = 0, said: str = "fine") -> str:
    """A command that answers as OpenClaw does."""
    command = tmp_path / f"openclaw-{version}-{starts}-{valid}"
    command.write_text(ANSWERS.format(version=version, starts=starts, valid=valid, said=said))
    command.chmod(0o755)
    return str(command)


def setup(run: RunDir, command: str, way: Any = None, dry_run: bool = False) -> Setup:
    return set_up(run, Recipe(), command, way, "openclaw", dry_run)


def written(run: RunDir) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((run.root.parent / "home" / "openclaw.json").read_text())
    return config


def test_missing_parts_are_reported_and_nothing_is_written(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="there is no command 'no-such-openclaw'"):
        setup(run, "no-such-openclaw")
    with pytest.raises(ClawError, match="--version prints"):
        setup(run, openclaw(tmp_path, starts=1))
    with pytest.raises(ClawError, match="too old for the plugin"):
        setup(run, openclaw(tmp_path, "2026.3.2"), "plugin")
    (run.root / "serve.json").unlink()
    with pytest.raises(ClawError, match="no server has registered"):
        setup(run, openclaw(tmp_path))
    assert not (tmp_path / "home").exists()
    assert list_keys(run) == []


def test_a_dry_run_shows_all_and_changes_nothing(run: RunDir, tmp_path: Path) -> None:
    done = setup(run, openclaw(tmp_path), dry_run=True)
    assert (done.openclaw, done.way, done.backup) == ("2026.9.6", "plugin", None)
    assert done.written["plugins"]["load"]["paths"] == [str(plugin_folder())]
    assert not (tmp_path / "home").exists()
    assert list_keys(run) == []


def test_each_version_gets_a_configuration_that_it_supports(tmp_path: Path) -> None:
    assert openclaw_version(openclaw(tmp_path, "2026.6.9")) == (2026, 6, 9)
    made = {
        (way, version): fragment(way, version, "http://x/v1", "k", "m", 1000, False)  # type: ignore[arg-type]
        for way in ("plugin", "responses", "plain")
        for version in ((2026, 6, 9), (2026, 9, 6))
    }
    compat = {key: next(iter(config["models"]["providers"].values()))["models"][0]["compat"] for key, config in made.items()}
    assert compat["plain", (2026, 6, 9)] == {"supportsPromptCacheKey": True}  # it refuses unknown keys
    assert compat["plain", (2026, 9, 6)] == {"supportsPromptCacheKey": True, "sendSessionAffinityHeaders": True}
    assert compat["plugin", (2026, 9, 6)] == {"supportsPromptCacheKey": True}
    responses = made["responses", (2026, 9, 6)]
    assert responses["models"]["providers"]["openai"]["api"] == "openai-responses"
    assert responses["agents"]["defaults"]["model"]["primary"] == "openai/m"
    assert "plugins" not in responses
    thinking = fragment("plain", (2026, 9, 6), "http://x/v1", "k", "m", 1000, True)["models"]["providers"]["clawctl"]["models"][0]
    assert (thinking["reasoning"], thinking["compat"]["thinkingFormat"]) == (True, "qwen-chat-template")


def test_the_configuration_is_added_to_and_kept_as_it_was_beside(run: RunDir, tmp_path: Path) -> None:
    before = {
        "channels": {"telegram": {"token": "t"}},
        "models": {"providers": {"other": {"baseUrl": "http://o"}}},
        "plugins": {"load": {"paths": ["/mine"]}, "entries": {"mine": {"enabled": True}}},
    }
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "openclaw.json").write_text(json.dumps(before))
    done = setup(run, openclaw(tmp_path))
    after = written(run)
    assert after["channels"] == before["channels"]
    assert after["models"]["providers"].keys() == {"other", "clawctl"}
    assert after["plugins"]["load"]["paths"] == ["/mine", str(plugin_folder())]
    assert after["plugins"]["entries"].keys() == {"mine", "clawctl"}
    assert done.backup is not None
    assert json.loads(done.backup.read_text()) == before
    assert stat.S_IMODE((tmp_path / "home" / "openclaw.json").stat().st_mode) == 0o600
    key = after["models"]["providers"]["clawctl"]["apiKey"]
    assert key not in json.dumps(done.written)
    assert [stored.name for stored in list_keys(run)] == ["openclaw"]
    setup(run, openclaw(tmp_path))  # again: the same key, nothing twice
    assert written(run) == after
    assert len(list_keys(run)) == 1


def test_a_configuration_that_openclaw_refuses_is_taken_back(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "openclaw.json"
    path.write_text('{"a": 1}')
    with pytest.raises(ClawError, match="OpenClaw refuses the new configuration, so the old one stays: validate: unknown key x"):
        setup(run, openclaw(tmp_path, valid=1, said="unknown key x"))
    assert path.read_text() == '{"a": 1}'
    assert [file.name for file in path.parent.iterdir()] == ["openclaw.json"]
    assert list_keys(run) == []
    setup(run, openclaw(tmp_path, "2026.6.9", valid=1, said="unknown command"))  # an OpenClaw that cannot check


def test_comments_are_not_thrown_away(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "openclaw.json").write_text("{ // mine\n a: 1 }")
    with pytest.raises(ClawError, match="is not plain JSON"):
        setup(run, openclaw(tmp_path))
    assert list_keys(run) == []


def test_an_overlay_keeps_keys_that_it_does_not_name() -> None:
    assert merged({"a": {"b": 1}, "l": [1, {"id": "x", "v": 1}]}, {"a": {"c": 2}, "l": [{"id": "x", "v": 2}]}) == {
        "a": {"b": 1, "c": 2},
        "l": [1, {"id": "x", "v": 2}],
    }


def test_the_command_reports_its_changes_as_json(run: RunDir, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clawctl", "openclaw-setup", "--run", str(run.root), "--openclaw", openclaw(tmp_path)]
    done = subprocess.run([*command, "--json", "--dry-run"], capture_output=True, text=True, timeout=120, check=True)
    printed = json.loads(done.stdout)
    assert (printed["way"], printed["dry_run"], printed["backup"]) == ("plugin", True, None)
    wrong = subprocess.run([*command, "--way", "magic"], capture_output=True, text=True, timeout=120, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "choose plugin, responses or plain" in wrong.stderr


def test_the_plugin_has_the_form_that_openclaw_reads() -> None:
    folder = plugin_folder()
    manifest, package = (json.loads((folder / name).read_text()) for name in ("openclaw.plugin.json", "package.json"))
    assert manifest["id"] == "clawctl"
    assert manifest["configSchema"]["type"] == "object"
    assert package["openclaw"]["extensions"] == ["./index.mjs"]
    assert "appendOnlyRuntimeContext: true" in (folder / "index.mjs").read_text()
