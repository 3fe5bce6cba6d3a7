"""`RUN/columns.npz` is a cache without texts: readers show the same with it, without it, and after damage."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest

from clawctl.config import PrivacyConfig, Recipe
from clawctl.inspect.health import read_health
from clawctl.inspect.rows import read_rows
from clawctl.inspect.sessions import SessionTable
from clawctl.privacy.forget import forget
from clawctl.privacy.selection import Selection
from clawctl.run import columns
from clawctl.run.directory import RunDir, published
from clawctl.run.retention import expire
from scripts.benchmarks.web_run import make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = make_run(tmp_path_factory.mktemp("columns") / "run", 4200, per_shard=500)
    read_rows(run)
    return run


@pytest.fixture
def run(made: RunDir, tmp_path: Path) -> RunDir:
    """A run whose columns are stored. The copies have the stamps of other files."""
    shutil.copytree(made.root, tmp_path / "run")
    copy = RunDir(tmp_path / "run")
    copy.columns.unlink()
    read_rows(copy)
    return copy


def shown(run: RunDir) -> bytes:
    joined = read_rows(run)
    health = read_health(run) | {"disk_free_bytes": None, "disk_bytes": None}
    return orjson.dumps([[row.turn["turn_id"], row.why_not, row.step, row.worth] for row in joined.rows[::40]]) + orjson.dumps(
        [SessionTable(joined)[:], health], option=orjson.OPT_SERIALIZE_NUMPY
    )


def of_shards(run: RunDir) -> bytes:
    run.columns.unlink()
    return shown(run)


def damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(255 - byte for byte in data[middle : middle + 64]) + data[middle + 64 :]


def test_stored_columns_show_what_the_shards_show(run: RunDir) -> None:
    assert run.columns.stat().st_mode & 0o777 == 0o600
    assert {len(of.stored) for of in columns.load(run).values()} == {len(published(run.trajectories, ".parquet"))}
    assert shown(run) == of_shards(run)


@pytest.mark.parametrize("damage", [damaged, lambda data: data[:-100], lambda data: b"", lambda data: b"no archive"])
def test_a_damaged_file_is_made_anew(run: RunDir, damage: Callable[[bytes], bytes]) -> None:
    whole, before = run.columns.read_bytes(), shown(run)
    run.columns.write_bytes(damage(whole))
    assert shown(run) == before
    assert len(run.columns.read_bytes()) == len(whole)


def test_a_file_of_another_format_is_made_anew(run: RunDir) -> None:
    with np.load(run.columns) as stored:
        header = orjson.loads(stored["header"].tobytes()) | {"format": "of a later clawctl"}
        arrays = {name: stored[name] for name in ("turns", "verdicts")}
    with run.columns.open("wb") as file:
        np.savez(file, header=np.frombuffer(orjson.dumps(header), np.uint8), **arrays)
    assert not columns.load(run)["turns"].stored
    assert len(read_rows(run).rows) == len(arrays["turns"])
    assert columns.load(run)["turns"].stored


def test_the_file_has_no_text_and_no_id(run: RunDir) -> None:
    data, rows = run.columns.read_bytes(), list(read_rows(run).rows.with_texts())
    header = data[: data.index(b"turns.npy")]
    assert b"anna" in header, "the names of keys are in it"
    for row in rows[::20]:
        texts = [row.turn["turn_id"], row.turn["response"]["content"], row.turn["messages"][-1]["content"]]
        texts += [row.turn["session_id"]] * (len(row.turn["session_id"]) > 4) + (row.verdict or {"hints": []})["hints"]
        assert not [text for text in texts if text.encode() in data]


def test_nothing_of_a_forgotten_turn_is_left(run: RunDir) -> None:
    ids = [row.turn["turn_id"] for row in read_rows(run).rows if row.turn["user"] == "anna"]
    assert columns.hashed(ids[:1]).tobytes() in run.columns.read_bytes()
    forget(run, Selection(user="anna"), dry_run=False, retrain=False)
    data = run.columns.read_bytes() if run.columns.exists() else b""
    assert b'"anna"' not in data
    assert not [number for number in columns.hashed(ids) if number.tobytes() in data]
    assert "anna" not in {row.turn["user"] for row in read_rows(run).rows}


def test_a_reader_that_stores_after_a_shard_was_rewritten_stores_nothing(run: RunDir) -> None:
    stored = list(columns.load(run).values())
    path = published(run.trajectories, ".parquet")[0]
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    columns.save(run, stored)
    assert not run.columns.exists()


def test_expired_shards_leave_the_columns(run: RunDir) -> None:
    old, *others = published(run.trajectories, ".parquet")
    for path in (old, run.verdict_shard(old.stem)):
        os.utime(path, (1.0, 1.0))
    read_rows(run)
    assert expire(run, Recipe(privacy=PrivacyConfig(max_age_days=30))).files
    assert set(columns.load(run)["turns"].stored) == set(others)


def test_a_run_that_cannot_be_written_is_read(run: RunDir) -> None:
    before = of_shards(run)
    run.columns.unlink()
    run.columns.mkdir()  # nothing can be published under this name, whoever runs the test
    assert shown(run) == before
    assert run.columns.is_dir()
