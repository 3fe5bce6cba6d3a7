"""Names in files reach nothing outside of the run, and nothing in a run directory runs code."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawctl.collect.read_position import ReadPosition
from clawctl.collect.upkeep import Upkeep
from clawctl.collect.worker import remove_leftovers
from clawctl.config import Recipe
from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import check_folder, read_sealed, sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.names import below, counted, is_name, is_policy_name, number_of, open_to_append
from clawctl.run.policies import check_policy, ensure_base_policy, list_versions, move_live, publish_policy, read_policy
from clawctl.run.rows import Policy, Turn
from clawctl.run.shards import merged_from, write_turns, write_verdicts
from clawctl.train.checkpoints import read_state, steps_kept

EVIL = ["/etc/passwd", "../../outside", "..", ".", "", "a/../../outside", "a\0b", "a\nb", "x" * 300, "a\\b", "\udcff\ud800", "a/b"]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


@given(st.one_of(st.text(), st.integers().map(str), st.sampled_from(["²", "٣", "007", "1x", "+1", " 1", "1_0", "9" * 400])))
def test_a_number_of_a_step_is_written_as_we_write_it_or_is_none(name: str) -> None:
    number = number_of(name)
    assert number is None or (str(number) == name and 0 <= number < 10**15)


@pytest.mark.parametrize(
    "name", [*EVIL, "7", "²", "LIVE", "live", "moves.jsonl", "Checkpoints", "ledger", ".hidden", "a@3", "a b", None, 3]
)
def test_the_name_of_a_policy_is_no_path_no_version_and_no_file_of_a_run(run: RunDir, name: Any) -> None:
    assert not is_policy_name(name)
    with pytest.raises(ClawError, match="is not a policy name"):
        run.of(name)


def test_every_file_of_a_run_has_a_name_that_no_policy_can_have(run: RunDir) -> None:
    places = [getattr(run, name) for name, value in vars(RunDir).items() if type(value).__name__ == "_RunPath"]
    below = [path.name for path in places if path.parent in (run.policies, run.train, run.eval)]
    assert len(below) > 10
    assert not any(map(is_policy_name, below))


def test_a_folder_with_a_strange_name_stops_no_stage(run: RunDir) -> None:
    ensure_base_policy(run, "crafts")
    for name in ("²", "٣", "007", "1x", "9" * 200):
        for folder in (run.policies / name, run.train / "checkpoints" / name):
            folder.mkdir(parents=True)
            (folder / "READY").touch()
    assert list_versions(run) == [0]
    assert steps_kept(run) == []


@given(st.one_of(st.text(), st.sampled_from(EVIL), st.none(), st.integers(), st.binary()))
def test_a_name_is_one_entry_of_its_folder_or_no_name(value: Any) -> None:
    if is_name(value):
        path = Path("/folder") / value
        assert path.parent == Path("/folder")
        assert os.path.normpath(path) == str(path)
        assert len(os.fsencode(value)) <= 200


@pytest.mark.parametrize("value", [*EVIL, None, 7, ["a"]])
def test_an_invalid_name_is_damage(value: Any, tmp_path: Path) -> None:
    if value != "a/b":
        with pytest.raises(Damaged):
            below(tmp_path, value)
    with pytest.raises(Damaged):
        counted(value if value != 7 else -7)


def test_a_path_below_a_folder_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert below(tmp_path, "real/file") == tmp_path / "real" / "file"
    with pytest.raises(Damaged, match="is a link"):
        below(tmp_path, "link/file")


# ---- shards --------------------------------------------------------------------------------------------------------------


def merged_shard(run: RunDir, stems: list[Any]) -> Path:
    """A merged shard that names these parts, as an attacker with write access would make it."""
    path = run.trajectories / f"{7:020d}-aaaaaa-merged.parquet"
    write_turns(path, list[Turn]())
    write_verdicts(run.verdicts / path.name, [])
    for shard in (path, run.verdicts / path.name):
        table = pq.read_table(shard)
        metadata = {**(table.schema.metadata or {}), b"merged": orjson.dumps(stems)}
        pq.write_table(table.replace_schema_metadata(metadata), shard)
    return path


@pytest.mark.parametrize("evil", ["{outside}", "../../outside", "../verdicts/../../outside", "a/../../../outside"])
def test_a_merged_shard_removes_nothing_outside_the_run(run: RunDir, tmp_path: Path, evil: str) -> None:
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"kept")
    path = merged_shard(run, [evil.format(outside=outside.with_suffix(""))])
    with pytest.raises(Exception, match="is not a file name"):
        merged_from(path)
    Upkeep(run, Recipe()).work(ReadPosition(run))
    assert outside.read_bytes() == b"kept"
    assert path.exists()


def test_a_shard_that_is_a_link_loses_the_link_alone(run: RunDir, tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"kept")
    (run.trajectories / "00000000000000000001-bbbbbb.parquet").symlink_to(outside)
    merged_shard(run, ["00000000000000000001-bbbbbb"])
    (run.verdicts / "00000000000000000001-bbbbbb.parquet").symlink_to(outside)
    Upkeep(run, Recipe()).work(ReadPosition(run))
    assert outside.read_bytes() == b"kept"
    assert not (run.trajectories / "00000000000000000001-bbbbbb.parquet").is_symlink()


def test_a_collect_worker_that_starts_leaves_the_drafts_of_others(run: RunDir) -> None:
    draft = run.trajectories / ".00000000000000000007-aaaaaa.parquet.7-0a1b2c3d.tmp"
    others = [
        run.trajectories / ".00000000000000000007-aaaaaa-custom.parquet.7-0a1b2c3d.tmp",
        run.trajectories / f".{0:020d}-import-aa-00000.parquet.7-0a1b2c3d.tmp",
    ]
    for path in [draft, *others]:
        path.touch()
    remove_leftovers(run)
    assert not draft.exists()
    assert all(path.exists() for path in others)


# ---- policies and checkpoints --------------------------------------------------------------------------------------------


def published_policy(run: RunDir) -> Path:
    ensure_base_policy(run, "crafts")

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "config.json").write_bytes(b"{}")

    publish_policy(run, Policy(1, 0, 1, None, "full", "crafts", [], None, {}, 0.0), write)
    return run.version_folder(1)


@pytest.mark.parametrize("evil", EVIL)
def test_a_list_of_checksums_names_files_of_its_folder_only(run: RunDir, evil: str) -> None:
    folder = published_policy(run)
    if "\udcff" not in evil:
        (folder / "READY").write_bytes(sealed(orjson.dumps({"files": {evil: "00000000"}})))
    with pytest.raises(Damaged):
        check_folder(folder, {evil: "00000000"})
    if "\udcff" not in evil:
        with pytest.raises(ClawError, match="policy 1 is damaged"):
            check_policy(run, 1)


TRAPS: list[tuple[str, Callable[[Path], Any]]] = [
    ("could run code", lambda folder: (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")),
    ("could run code", lambda folder: (folder / "modeling.py").write_text("boom")),
    ("names code", lambda folder: (folder / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Model"}}')),
    ("names code", lambda folder: (folder / "adapter_config.json").write_text('{"megatron_config": {"a": 1}}')),
    ("is a link", lambda folder: (folder / "more.safetensors").symlink_to("/etc/passwd")),
    (
        "is not a file name",
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../x.safetensors"}}'),
    ),
]


@pytest.mark.parametrize(("problem", "set_trap"), TRAPS)
def test_a_policy_folder_that_could_run_code_or_reads_elsewhere_is_refused(
    run: RunDir, problem: str, set_trap: Callable[[Path], Any]
) -> None:
    folder = published_policy(run)
    check_policy(run, 1)
    set_trap(folder)
    (folder / "READY").write_bytes(sealed(orjson.dumps({"files": {}})))
    with pytest.raises(ClawError, match=problem):
        check_policy(run, 1)


@pytest.mark.parametrize("evil", [*EVIL, 2, -1, True, None, 1.0])
def test_a_policys_version_must_match_its_folder(run: RunDir, evil: Any) -> None:
    if isinstance(evil, str) and "\udcff" in evil:
        return
    path = published_policy(run) / "policy.json"
    path.write_bytes(orjson.dumps({**read_sealed(path.read_bytes()), "version": evil}))
    with pytest.raises(ClawError, match="policy 1 cannot be read"):
        read_policy(run, 1)


@pytest.mark.parametrize("evil", ["../../outside", "/outside", -1, None])
@pytest.mark.parametrize("place", ["step", "version"])
def test_a_checkpoint_publishes_nothing_outside_the_run(tmp_path: Path, place: str, evil: Any) -> None:
    state: dict[str, Any] = {"step": 1, "policy": {"version": 1, "step": 1}, "turns": {}}
    (state if place == "step" else state["policy"])[place] = evil
    (tmp_path / "state.json").write_bytes(sealed(orjson.dumps(state)))
    with pytest.raises(ClawError, match="cannot be read"):
        read_state(tmp_path)


def test_nothing_is_appended_through_a_link(run: RunDir, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept")
    ensure_base_policy(run, "crafts")
    for path in (run.policies / "moves.jsonl", run.captures / "a-0.jsonl"):
        path.unlink(missing_ok=True)
        path.symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        open_to_append(run.captures / "a-0.jsonl")
    with pytest.raises(OSError, match="symbolic links"):
        move_live(run, 0)
    assert outside.read_bytes() == b"kept"
