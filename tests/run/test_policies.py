import shutil
import time
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.lineage import abandon, read_lineage, why_dead
from clawctl.run.names import is_policy_name
from clawctl.run.policies import (
    PolicyId,
    ensure_base_policy,
    list_versions,
    live_version,
    move_live,
    policy_names,
    publish_policy,
    read_moves,
    read_policy,
)
from clawctl.run.promotion import promote, rollback
from clawctl.run.rows import Policy


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    return run


def policy(version: int) -> Policy:
    return Policy(version, version - 1, version, "combine", "full", "crafts", ["t1"], None, {"loss": 0.5}, time.time())


def test_the_base_model_is_version_0_and_live_from_the_start(run: RunDir) -> None:
    assert (list_versions(run), live_version(run), read_policy(run, 0).kind) == ([0], 0, "base")
    ensure_base_policy(run, "crafts")
    assert live_version(run) == 0


def test_a_run_never_changes_its_base_model(run: RunDir) -> None:
    with pytest.raises(ClawError, match="was created for the model 'crafts', but the recipe names 'other'"):
        ensure_base_policy(run, "other")


def test_a_version_is_published_whole_or_not_at_all(run: RunDir) -> None:
    def fails(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish_policy(run, policy(1), fails)
    assert list_versions(run) == [0]
    publish_policy(run, policy(1), lambda folder: (folder / "model.safetensors").write_bytes(b"whole") and None)
    assert list_versions(run) == [0, 1]
    assert read_policy(run, 1).turns == ["t1"]


def test_live_moves_only_to_published_versions(run: RunDir) -> None:
    with pytest.raises(ClawError, match="policy 5 is not published"):
        move_live(run, 5)
    publish_policy(run, policy(1), lambda folder: None)
    move_live(run, 1)
    assert live_version(run) == 1
    move_live(run, 0)
    assert live_version(run) == 0


def test_an_unreadable_live_or_policy_is_reported_with_the_cure(run: RunDir) -> None:
    (run.policies / "LIVE").write_text("newest\n")
    with pytest.raises(ClawError, match="policies/LIVE is not a number"):
        live_version(run)
    (run.policies / "0" / "policy.json").write_text("{")
    with pytest.raises(ClawError, match="policy 0 cannot be read"):
        read_policy(run, 0)


def moves(run: RunDir) -> list[tuple[int | None, int]]:
    return [(move["from"], move["to"]) for move in read_moves(run)]


def test_each_move_of_live_is_recorded_and_a_torn_line_hides_no_other(run: RunDir) -> None:
    publish_policy(run, policy(1), lambda folder: None)
    move_live(run, 1, by="train")
    with (run.policies / "moves.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "fr\n')
    assert "policy 0 is now live (before: 1)" in promote(run, 0)
    assert moves(run) == [(None, 0), (0, 1), (1, 0)]
    assert [move["by"].split()[0] for move in read_moves(run)] == ["start", "train", "promote"]
    assert (run.policies / "moves.jsonl").stat().st_mode & 0o777 == 0o600


def test_only_ready_and_readable_versions_are_promoted(run: RunDir) -> None:
    publish_policy(run, policy(1), lambda folder: None)
    publish_policy(run, policy(2), lambda folder: None)
    (run.version_folder(1) / "READY").unlink()
    (run.version_folder(2) / "policy.json").write_text("{")
    for version, says in (
        (1, "policy 1 is not published"),
        (2, "policy 2 cannot be read"),
        (-1, "not published"),
        (9, "not published"),
    ):
        with pytest.raises(ClawError, match=says):
            promote(run, version)
    assert (live_version(run), moves(run)) == (0, [(None, 0)])


def test_a_rollback_goes_to_the_previous_live_version_and_never_forward(run: RunDir) -> None:
    for version in (1, 2, 3):
        publish_policy(run, policy(version), lambda folder: None)
    move_live(run, 1)
    move_live(run, 3)  # 2 never served
    rollback(run, None)
    assert live_version(run) == 1
    rollback(run, None)
    assert live_version(run) == 0
    with pytest.raises(ClawError, match="no policy was live before policy 0"):
        rollback(run, None)
    with pytest.raises(ClawError, match="policy 2 is newer than the live policy 0"):
        rollback(run, 2)
    assert live_version(run) == 0


def test_a_broken_live_is_repaired_by_a_promotion(run: RunDir) -> None:
    (run.policies / "LIVE").write_text("newest")
    promote(run, 0)
    assert live_version(run) == 0
    assert promote(run, 0) == "policy 0 is already live"


def files_of(run: RunDir) -> dict[str, bytes]:
    return {str(path.relative_to(run.root)): path.read_bytes() for path in run.root.rglob("*") if path.is_file()}


def test_policies_of_different_names_do_not_affect_each_other(run: RunDir) -> None:
    publish_policy(run, policy(1), lambda folder: None)
    move_live(run, 1)
    before = files_of(run)
    anna = open_run(run.root, policy="anna")
    ensure_base_policy(anna, "crafts")
    publish_policy(anna, policy(1), lambda folder: (folder / "adapter.safetensors").write_bytes(b"anna's") and None)
    publish_policy(anna, policy(2), lambda folder: None)
    move_live(anna, 2, by="anna")
    abandon(anna, [1], by="anna")
    assert before.items() <= files_of(run).items()
    assert (list_versions(run), live_version(run), read_policy(run, 1).name) == ([0, 1], 1, "default")
    assert (list_versions(anna), live_version(anna), read_policy(anna, 2).name) == ([0, 1, 2], 2, "anna")
    assert [move["by"] for move in read_moves(anna)] == ["start", "anna"]
    assert (read_lineage(run).newest, read_lineage(anna).newest) == (1, 2)
    assert why_dead(run, read_lineage(run)) == {}
    assert policy_names(run) == policy_names(anna) == ["default", "anna"]
    with pytest.raises(ClawError, match="policy anna@7 is not published"):
        move_live(anna, 7)


def test_weights_copied_from_another_policy_are_not_taken_for_its_own(run: RunDir) -> None:
    anna = open_run(run.root, policy="anna")
    publish_policy(run, policy(1), lambda folder: None)
    shutil.copytree(run.version_folder(1), anna.version_folder(1))
    with pytest.raises(ClawError, match=r"policy anna@1 cannot be read: its policy\.json names version 1"):
        read_policy(anna, 1)


def test_a_policy_without_a_name_in_its_file_is_the_default_one(run: RunDir) -> None:
    path = run.version_folder(0) / "policy.json"
    written = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({key: value for key, value in written.items() if key not in ("name", "crc32")}))
    assert read_policy(run, 0).name == "default"


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,20}", fullmatch=True), st.integers(0, 10**9))
def test_a_policy_reads_as_it_was_written(name: str, version: int) -> None:
    if is_policy_name(name):
        assert PolicyId.parse(str(PolicyId(name, version))) == PolicyId(name, version)


@pytest.mark.parametrize("text", ["", "anna", "anna@", "@", "anna@x", "../x@1", "anna@-1", "LIVE@1", "7@1"])
def test_an_invalid_policy_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a policy"):
        PolicyId.parse(text)
