"""The version in LIVE goes live, or the reason is reported; temporary failures are retried."""

from pathlib import Path
from typing import Any

import pytest

from clawctl.engines import Swap, Unanswered
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import ensure_base_policy, live_version, move_live, publish_policy, read_moves
from clawctl.run.rows import Policy
from clawctl.serve.canary import CanaryFailure
from clawctl.serve.versions import Versions


class Scripted:
    """A backend with scripted results of its swaps; further swaps succeed."""

    def __init__(self, *ends: Exception) -> None:
        self.version, self.tried, self.ends = 0, 0, list(ends)
        self.waits: str | None = None
        self.doubts: str | None = None

    def waiting_for(self) -> str | None:
        return self.waits

    def doubt(self) -> str | None:
        return self.doubts

    def load(self, version: int) -> Swap:
        self.tried += 1
        if self.ends:
            raise self.ends.pop(0)
        self.version, self.doubts = version, None
        return Swap(version, 0.0, 0.0, 0.0)


def unanswered() -> Unanswered:
    return Unanswered("the engine does not answer /pause", "check that it is running")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "m")
    for version in (1, 2):
        publish_policy(run, Policy(version, 0, version, None, "adapter", "m", [], None, {}, 0.0), lambda folder: None)
    return run


def following(run: RunDir, backend: Scripted) -> Versions:
    made: Any = backend
    return Versions(run, made)


def test_a_swap_without_an_answer_is_tried_again(run: RunDir) -> None:
    backend = Scripted(unanswered())
    versions = following(run, backend)
    move_live(run, 1)
    versions.follow_once()
    assert versions.last_swap_error == "version 1 does not go live: the engine does not answer /pause"
    versions.follow_once()
    assert (backend.version, versions.last_swap_error, versions.swaps_refused) == (1, None, 1)


def test_a_version_that_never_gets_an_answer_is_tried_three_times_each_time_that_live_names_it(run: RunDir) -> None:
    backend = Scripted(*(unanswered() for _ in range(7)))
    versions = following(run, backend)
    for tried in (3, 6):
        move_live(run, 1)
        for _ in range(5):
            versions.follow_once()
        assert (backend.tried, backend.version) == (tried, 0)
        move_live(run, 0)
        versions.follow_once()


def test_a_version_that_was_refused_is_not_tried_again(run: RunDir) -> None:
    backend = Scripted(CanaryFailure("its canary differs by 1"))
    versions = following(run, backend)
    move_live(run, 1)
    for _ in range(3):
        versions.follow_once()
    assert (backend.tried, backend.version) == (1, 0)
    move_live(run, 2)
    versions.follow_once()
    assert (backend.version, versions.last_swap_error) == (2, None)


def test_live_that_moves_while_the_engine_starts_is_taken_up_when_it_is_there(run: RunDir) -> None:
    backend = Scripted()
    backend.waits = "vLLM is restarting"
    versions = following(run, backend)
    move_live(run, 1)
    for _ in range(5):
        versions.follow_once()
    assert (backend.tried, versions.last_swap_error) == (0, None)
    versions.follow_once(begun=True)
    assert backend.version == 1


def test_a_restarted_engine_serves_the_previous_version_if_live_names_a_refused_one(run: RunDir) -> None:
    backend = Scripted()
    versions = following(run, backend)
    move_live(run, 1)
    versions.follow_once()
    backend.ends = [CanaryFailure("its canary differs by 1")]
    move_live(run, 2)
    versions.follow_once()
    backend.version = 0  # it died and is back
    versions.follow_once(begun=True)
    versions.follow_once()
    assert (backend.version, versions.last_swap_error) == (1, "version 2 does not go live: its canary differs by 1")
    move_live(run, 0)
    versions.follow_once()
    backend.tried = 0
    versions.follow_once(begun=True)
    assert (backend.version, backend.tried) == (0, 0)


def test_unknown_weights_are_reloaded_although_live_did_not_change(run: RunDir) -> None:
    backend = Scripted()
    versions = following(run, backend)
    move_live(run, 1)
    versions.follow_once()
    backend.doubts = "a swap failed, and version 1 could not be reloaded"
    versions.follow_once()
    versions.follow_once()
    assert (backend.tried, backend.version, backend.doubts) == (2, 1, None)
    backend.doubts, backend.ends = "again", [CanaryFailure("its canary differs by 1")]
    for _ in range(3):
        versions.follow_once()
    assert (backend.tried, versions.last_swap_error) == (3, "version 1 does not go live: its canary differs by 1")
    move_live(run, 2)
    versions.follow_once()
    assert (backend.version, backend.doubts, versions.last_swap_error) == (2, None, None)


def test_a_version_that_fails_its_canary_returns_live_to_the_served_one_unless_a_person_moved_it(run: RunDir) -> None:
    backend = Scripted(CanaryFailure("its canary differs by 1"))
    versions = Versions(run, backend)  # type: ignore[arg-type]
    move_live(run, 1, by="train")
    versions.follow_once()
    assert (live_version(run), backend.version) == (0, 0)
    assert read_moves(run)[-1]["by"] == "serve, because of version 1: its canary differs by 1"
    backend.ends = [CanaryFailure("its canary differs by 1")]
    move_live(run, 1, by="promote by anna on host")
    versions.follow_once()
    assert (live_version(run), backend.version) == (1, 0)
    backend.ends = [CanaryFailure("its canary differs by 1")]
    move_live(run, 2, by="train")  # what this server serves is not what LIVE named before
    versions.follow_once()
    assert (live_version(run), backend.version) == (2, 0)
