import time
from pathlib import Path

import pytest

from clawctl.errors import ClawError
from clawctl.policies import ensure_base_policy, list_versions, live_version, move_live, publish_policy, read_policy
from clawctl.run_dir import RunDir, open_run
from clawctl.types import Policy


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "demo")
    return run


def policy(version: int) -> Policy:
    return Policy(version, version - 1, version, "combine", "full", "demo", ["t1"], None, {"loss": 0.5}, time.time())


def test_the_base_model_is_version_0_and_live_from_the_start(run: RunDir) -> None:
    assert (list_versions(run), live_version(run), read_policy(run, 0).kind) == ([0], 0, "base")
    ensure_base_policy(run, "demo")
    assert live_version(run) == 0


def test_a_run_never_changes_its_base_model(run: RunDir) -> None:
    with pytest.raises(ClawError, match="trains 'demo', the recipe names 'other'"):
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


def test_live_moves_only_to_what_is_published(run: RunDir) -> None:
    with pytest.raises(ClawError, match="policy 5 is not published"):
        move_live(run, 5)
    publish_policy(run, policy(1), lambda folder: None)
    move_live(run, 1)
    assert live_version(run) == 1
    move_live(run, 0)
    assert live_version(run) == 0


def test_an_unreadable_live_or_policy_says_what_to_do(run: RunDir) -> None:
    (run.policies / "LIVE").write_text("newest\n")
    with pytest.raises(ClawError, match="policies/LIVE is not a number"):
        live_version(run)
    (run.policies / "0" / "policy.json").write_text("{")
    with pytest.raises(ClawError, match="policy 0 cannot be read"):
        read_policy(run, 0)
