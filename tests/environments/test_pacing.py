"""Episodes wait for the trainer instead of going stale, and settings of `play` are checked."""

import asyncio
import threading
from collections import Counter
from pathlib import Path

import orjson
import pytest

from clawctl.config import Recipe, TrainConfig, UpConfig
from clawctl.config.play import PlayConfig
from clawctl.environments import ENVIRONMENTS, Outcome, Task, create
from clawctl.environments.episode import play_task
from clawctl.environments.player import Player, Summary, make_plan
from clawctl.environments.worker import play, warn_if_unsolved
from clawctl.errors import ClawError
from clawctl.launch.up import up
from clawctl.named_code import check_named_code
from clawctl.run.backlog import Backlog
from clawctl.run.directory import RunDir, open_run, publish_bytes
from clawctl.run.endpoint import Endpoint
from tests.extension import needs


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def feed_says(run: RunDir, waiting: int, newest: str | None = None) -> None:
    publish_bytes(run.feed_counts, orjson.dumps({"waiting": waiting, "newest_shard": newest}))


def test_no_episode_begins_while_more_turns_wait_than_the_trainer_takes_before_they_are_stale(run: RunDir) -> None:
    config = TrainConfig(batch_turns=8, max_staleness=1)
    assert Backlog(run, config).is_full(1000) is None, "no trainer has looked at this run"
    feed_says(run, 15)
    assert Backlog(run, config).is_full(0) is None
    assert Backlog(run, config).is_full(1) is not None, "a running episode brings at least one turn"
    feed_says(run, 16)
    assert "16 turns wait for the trainer" in (Backlog(run, config).is_full(0) or "")
    feed_says(run, 0)
    assert Backlog(run, config).is_full(0) is None


def test_an_episode_that_is_over_counts_until_the_trainer_has_read_its_turns(run: RunDir) -> None:
    feed_says(run, 7)
    backlog = Backlog(run, TrainConfig(batch_turns=8, max_staleness=0))
    backlog.ended("e-1")
    assert backlog.is_full(0) is not None
    backlog._stem_of["e-1"] = "0001"  # published there
    feed_says(run, 7, newest="0001")
    assert backlog.is_full(0) is None


def test_play_ends_with_the_trainer_beside_it(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `up` nothing that is played after the last update would be trained. `collect --env` alone plays its plan."""
    server = Endpoint("http://127.0.0.1:9/v1", "key", "tiny")
    run.version_folder(2).mkdir(parents=True)
    (run.version_folder(2) / "READY").touch()

    def plays(config: TrainConfig, seed: int) -> bool:
        plan = make_plan(Limited(), "Limited", 2, 1, seed)
        player = Player(run, plan, lambda: server, 2, threading.Event(), backlog=Backlog(run, config))
        asyncio.run(player.play())
        return bool(player.summary.settled)

    assert plays(TrainConfig(max_steps=2), 0), "not under up"
    monkeypatch.setenv("CLAWCTL_UP", "1")
    assert not plays(TrainConfig(max_steps=2), 1)
    assert plays(TrainConfig(max_steps=3), 2)


class Limited:
    def __init__(self, max_turns: int = 20) -> None:
        self.max_turns = max_turns

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return [Task(f"same-{number % self.max_turns}", number) for number in range(count)]

    def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        return Outcome(reward=float(self.max_turns))


def test_options_of_an_environment_are_arguments_of_its_class() -> None:
    endpoint = Endpoint("http://127.0.0.1:9/v1", "key", "tiny")
    limited = create(Limited, "Limited", "play.env", {"max_turns": 1})
    assert asyncio.run(play_task(limited, Task("t", 1), endpoint)).reward == 1.0
    with pytest.raises(ClawError, match="does not take these options") as caught:
        create(Limited, "Limited", "play.env", {"max_step": 3})
    assert caught.value.fix == "its options are: max_turns"
    with pytest.raises(ClawError, match="several tasks with the id 'same-0'"):
        make_plan(limited, "Limited", 2, 1, 0)


def test_a_plan_is_the_same_for_the_same_arguments_and_another_for_others() -> None:
    plans = {
        make_plan(Limited(), "Limited", *arguments).id for arguments in ((3, 8, 0), (3, 8, 0, 1), (2, 8, 0), (3, 4, 0), (3, 8, 1))
    }
    assert len(plans) == 5
    assert make_plan(Limited(), "Limited", 3, 8, 0).id in plans


def test_reinforcement_that_has_too_little_to_select_from_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    over = Counter(dict.fromkeys(range(8), 8))
    summary = Summary(by_task={number: [0.0, float(number < 3)] for number in range(8)}, settled=over)
    assert not warn_if_unsolved(summary, 8, fewest=9), "too early"
    assert caplog.text == ""
    assert warn_if_unsolved(summary, 8)
    assert "pass@8 is 0.38" in caplog.text
    caplog.clear()
    assert warn_if_unsolved(Summary(by_task={number: [float(number < 4)] for number in range(8)}, settled=over), 8)
    assert caplog.text == ""
    running = Summary(by_task={number: [0.0] for number in range(8)}, settled=Counter(dict.fromkeys(range(8), 7)))
    assert not warn_if_unsolved(running, 8), "an attempt at each task is running"


@needs("worlds")
def test_a_recipe_that_plays_names_an_environment_and_code_only_if_its_user_did(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="names no environment"):
        up(run, Recipe(up=UpConfig(stages=["serve", "play"])), tmp_path / "recipe.yaml", "info")
    code = Recipe(play=PlayConfig(env=f"{tmp_path / 'mine.py'}:Mine"))
    with pytest.raises(ClawError, match=r"names code, play\.env"):
        check_named_code("play", run.root, code, None, {})
    check_named_code("play", run.root, Recipe(play=PlayConfig(env="toolcall")), None, {})
    with pytest.raises(ClawError, match="no server has registered"):
        play(run, Recipe(play=PlayConfig(env="toolcall")))


@needs("worlds")
def test_the_built_in_environments_declare_their_version() -> None:
    assert getattr(ENVIRONMENTS.load("gui", "env"), "version", None)
