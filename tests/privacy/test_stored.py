"""Whose requests are captured, what is stored, who can read it, how long it stays, and what the logs contain."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import orjson
import pytest
from transformers import AutoTokenizer

from clawctl.config import PrivacyConfig, Recipe
from clawctl.inspect.data import read_data, show_data
from clawctl.privacy.consent import may_capture
from clawctl.run.directory import RunDir, open_run, publish_bytes, published
from clawctl.run.notes import add_note, change_note, read_notes
from clawctl.run.retention import Stored, choose, expire
from clawctl.serve.capture import Capture
from tests import forked
from tests.extension import needs
from tests.inspect.example_run import run as example
from tests.privacy.made import exchange
from tests.serve.served import Server, build_model

__all__ = ["example"]

DAY = 86400.0
MARKER = "xyzzy plugh 7331"
KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"))


def every_file(run: RunDir) -> dict[str, bytes]:
    return {str(path.relative_to(run.root)): path.read_bytes() for path in run.root.rglob("*") if path.is_file()}


# ---- consent -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "captured"),
    [
        ({}, True),
        ({"capture_keys": ["team-*"]}, True),
        ({"capture_keys": ["others"]}, False),
        ({"skip_keys": ["team-a"]}, False),
        ({"capture_keys": ["team-*"], "skip_keys": ["team-a"]}, False),
        ({"capture_models": ["crafts"]}, True),
        ({"capture_models": []}, False),
        ({"skip_models": ["craft*"]}, False),
    ],
)
def test_keys_and_models_are_allowed_and_denied_by_name(settings: dict[str, Any], captured: bool) -> None:
    assert may_capture(PrivacyConfig(**settings), "team-a", "crafts") is captured


async def keep(capture: Capture, **changes: Any) -> None:
    await capture.write(exchange([{"role": "user", "content": "hi"}], **changes))


def captured_ids(run: RunDir) -> list[str]:
    return [
        orjson.loads(line)["exchange_id"] for path in published(run.captures, ".jsonl") for line in path.read_bytes().splitlines()
    ]


def test_requests_of_a_skipped_key_leave_no_byte(tmp_path: Path) -> None:

    run = open_run(tmp_path / "run")
    capture = Capture(run.captures, PrivacyConfig(skip_keys=["ann"]))
    asyncio.run(keep(capture, key="ann"))
    assert list(run.captures.iterdir()) == []
    asyncio.run(keep(capture, key="ben", exchange_id="b"))
    capture.close()
    assert captured_ids(run) == ["b"]


def test_an_exchange_that_cannot_be_looked_through_is_lost_and_counted_not_written(tmp_path: Path) -> None:

    run = open_run(tmp_path / "run")
    capture = Capture(run.captures, PrivacyConfig())
    asyncio.run(keep(capture, tools=[{"secret": {1.5j: KEY}}]))
    assert (capture.written, capture.lost) == (0, 1)
    assert capture.last_error == "a turn was not captured: RedactionFailed: redaction failed with TypeError"
    assert list(run.captures.iterdir()) == []
    asyncio.run(keep(capture))
    capture.close()
    assert (capture.written, capture.lost) == (1, 1)


@needs("secrets")
def test_a_served_secret_reaches_the_client_but_no_file(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        server.say(f"{MARKER}: log in with {KEY}")
        server.say(f"{MARKER} without")
        first, second = server.captured()
        assert first["messages"][0]["content"] == f"{MARKER}: log in with [redacted:api_key]"
        prompt = AutoTokenizer.from_pretrained(model_path).decode(first["prompt_ids"])
        assert MARKER in prompt  # placeholders of the same length stand for the secret alone
        assert KEY not in prompt
        assert first["untrainable_reason"] is None
        assert second["prompt_ids"]
        assert second["untrainable_reason"] is None
        server.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "keep out"}], max_tokens=4, extra_headers={"X-Capture": "off"}
        )
        assert len(server.captured()) == 2
        assert server.stop() == 0
        files = every_file(server.run)
        assert [name for name, data in files.items() if KEY.encode() in data or KEY[8:30].encode() in data] == []
        holders = [name for name, data in files.items() if MARKER.encode() in data]
        assert holders == [f"captures/{path.name}" for path in published(server.run.captures, ".jsonl")], "no body is logged"
        assert MARKER not in server.log.read_text()


def test_without_intercept_no_byte_of_a_conversation_is_written(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path, intercept=False) as server:
        before = set(every_file(server.run))
        server.say(MARKER)
        assert server.stop() == 0
        after = every_file(server.run)
        assert set(after) <= before
        assert [name for name, data in after.items() if MARKER.encode() in data] == []


# ---- permissions ---------------------------------------------------------------------------------------------------------------


def test_files_are_their_owners_alone_whatever_the_umask_was(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir(mode=0o755)
    (tmp_path / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
    )
    command = [sys.executable, "-m", "clawctl", "import", str(tmp_path / "chat.jsonl"), "--run", str(root)]
    subprocess.run(command, check=True, capture_output=True, preexec_fn=lambda: os.umask(0))
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")]}
    assert "run/logs/collect.log" in modes
    assert any(name.startswith("run/trajectories/") for name in modes)
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_dir()} == {0o700}
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_file()} == {0o600}, modes


# ---- what is stored --------------------------------------------------------------------------------------------------------------


def test_data_lists_the_stores_their_age_and_their_users(example: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"exchange_id": "e", "key": "third", "created_at": 500.0, "messages": []}
    (example.captures / "w-0.jsonl").write_bytes(orjson.dumps(line) + b'\n{"torn')
    report = read_data(example)
    stores = {store["where"]: store for store in report["stores"]}
    assert [where for where, store in stores.items() if store["what"] == "of another stage"] == []
    assert (stores["captures/"]["rows"], stores["trajectories/"]["rows"], stores["verdicts/"]["rows"]) == (1, 7, 5)
    assert stores["trajectories/"]["files"] == 2
    assert stores["trajectories/"]["bytes"] == sum(path.stat().st_size for path in example.trajectories.iterdir())
    assert report["users"] == [
        {"user": "default", "sessions": 2, "turns": 6, "captured": 0, "first": 1000.0, "last": 2000.0},
        {"user": "other", "sessions": 1, "turns": 1, "captured": 0, "first": 3000.0, "last": 3000.0},
        {"user": "third", "sessions": 0, "turns": 0, "captured": 1, "first": 500.0, "last": 500.0},
    ]
    show_data(example, as_json=False)
    shown = capsys.readouterr().out
    assert "every request and answer" in shown
    show_data(example, as_json=True)
    assert json.loads(capsys.readouterr().out)["users"] == report["users"]


# ---- retention ----------------------------------------------------------------------------------------------------------------


def stored(name: str, age_days: float, size: int = 100) -> Stored:
    return Stored((Path(name),), 100 * DAY - age_days * DAY, size)


def test_exactly_the_expired_data_is_deleted() -> None:
    entries = [stored("a", 31), stored("b", 29), stored("c", 30.5)]
    gone = choose(entries, PrivacyConfig(max_age_days=30), now=100 * DAY)
    assert [entry.paths[0].name for entry in gone] == ["a", "c"]


def test_the_oldest_go_until_the_rest_has_room() -> None:
    entries = [stored("new", 1, 600), stored("old", 3, 500), stored("mid", 2, 400)]
    gone = choose(entries, PrivacyConfig(max_gb=1.0e-6), now=100 * DAY)  # 1000 bytes for 1500
    assert [entry.paths[0].name for entry in gone] == ["old"]
    assert choose(entries, PrivacyConfig(), now=100 * DAY) == []


def aged(path: Path, days: float, now: float) -> None:
    os.utime(path, (now - days * DAY, now - days * DAY))


def test_a_shard_stays_while_captures_could_bring_it_back_and_goes_with_its_verdicts(example: RunDir) -> None:
    now = 1e9
    recipe = Recipe.model_validate({"privacy": {"max_age_days": 30}})
    for name in ("a", "b"):
        for folder in (example.trajectories, example.verdicts):
            if (folder / f"{name}.parquet").exists():
                aged(folder / f"{name}.parquet", 40, now)
    capture = example.captures / "w-0.jsonl"
    publish_bytes(capture, orjson.dumps({"exchange_id": "t1", "created_at": now - 41 * DAY}) + b"\n")
    aged(capture, 1, now)  # its writer still appends to it
    publish_bytes(example.quarantine / "x.parquet", b"?")
    publish_bytes(example.quarantine / "x.parquet.reason.txt", b"?")
    for path in example.quarantine.iterdir():
        aged(path, 50, now)
    assert [path.name for path in expire(example, recipe, now, dry_run=True).files] == ["x.parquet", "x.parquet.reason.txt"]
    assert list(example.quarantine.iterdir())
    expire(example, recipe, now)
    assert list(example.quarantine.iterdir()) == []
    aged(capture, 31, now)
    gone = expire(example, recipe, now)
    assert {path.name for path in gone.files} == {"w-0.jsonl", "a.parquet", "b.parquet"}
    assert [*example.captures.iterdir(), *example.trajectories.iterdir(), *example.verdicts.iterdir()] == []
    assert (example.policies / "1" / "policy.json").exists()


def test_notes_that_hold_no_longer_expire_and_those_in_force_stay(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    for text, changes in (
        ("Answer in Spanish.", {}),
        ("Answer in verse.", {"state": "retracted"}),
        ("Use emoji.", {"state": "retracted", "steps": 3}),  # is still to be practised away
        ("Be brief.", {"until": date(2020, 1, 1)}),
    ):
        note = add_note(run, "anna", text).note
        change_note(run, "anna", note.id, **changes)
        aged(run.notes / "anna" / f"{note.id}.md", 2, time.time())
    gone = expire(run, Recipe.model_validate({"privacy": {"max_age_days": 1}})).files
    assert {path.name for path in gone} == {"answer-in-verse.md", "be-brief.md"}
    assert [note.text for note in read_notes(run, "anna")] == ["Answer in Spanish.", "Use emoji."]


def test_a_writer_whose_file_expired_opens_another_and_loses_nothing(tmp_path: Path) -> None:

    run = open_run(tmp_path / "run")
    capture = Capture(run.captures, PrivacyConfig())
    asyncio.run(keep(capture, exchange_id="first"))
    for path in published(run.captures, ".jsonl"):
        aged(path, 2, path.stat().st_mtime)
    assert len(expire(run, Recipe.model_validate({"privacy": {"max_age_days": 1}})).files) == 1
    asyncio.run(keep(capture, exchange_id="second"))
    capture.close()
    assert (captured_ids(run), capture.lost) == (["second"], 0)


def test_collect_deletes_expired_data(example: RunDir) -> None:
    (example.root / "recipe.yaml").write_text("privacy: {max_age_days: 1}\n")
    for path in [*example.trajectories.iterdir(), *example.verdicts.iterdir()]:
        aged(path, 2, path.stat().st_mtime)
    assert forked.run("collect", "--once", "--run", example.root).returncode == 0
    assert [*example.trajectories.iterdir(), *example.verdicts.iterdir()] == []
    assert "deleted 3 files" in (example.logs / "collect.log").read_text()


def test_retention_is_reported_as_text_and_as_json(example: RunDir) -> None:
    said = forked.run("retention", "--run", example.root).stdout
    assert "nothing expires" in said
    (example.root / "recipe.yaml").write_text("privacy: {max_age_days: 0.00001}\n")
    for path in example.trajectories.iterdir():
        aged(path, 1, path.stat().st_mtime)
    said = forked.run("retention", "--run", example.root, "--json").stdout
    assert "trajectories/b.parquet" in json.loads(said)["files"]
