"""`clawctl up`: real stages under one parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from clawctl.run.directory import open_run, sole_worker
from tests import forked
from tests.waiting import exit_code_of, until

QUIET = "up: {stages: [collect, judge], backoff_s: 0.2}\n"  # two stages that wait for work without loading a model


@dataclass
class Up:
    process: subprocess.Popen[bytes]
    folder: Path

    def log(self) -> str:
        return (self.folder / "output").read_text()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stage(self, name: str) -> psutil.Process | None:
        for child in self.children():
            try:
                if ["-m", "clawctl", name] == child.cmdline()[2:5]:
                    return child
            except psutil.Error:  # ended while we looked
                continue
        return None

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        until(condition, why=lambda: f"waited in vain: {what}\n{self.log()}")


@contextmanager
def up(folder: Path, recipe: str) -> Iterator[Up]:
    (folder / "recipe.yaml").write_text(recipe)
    command = [sys.executable, "-m", "clawctl", "up", str(folder / "recipe.yaml"), "--run", str(folder / "run")]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    family = [psutil.Process(process.pid)]
    try:
        yield Up(process, folder)
    finally:
        if process.poll() is None:
            family += family[0].children(recursive=True)
            for member in family:
                with suppress(psutil.NoSuchProcess):  # a stage that was about to be restarted
                    member.kill()
            process.wait()


def both_run(running: Up) -> bool:
    """Both stages are up and have their signal handlers."""
    return (
        running.stage("collect") is not None
        and (running.folder / "run" / "locks" / "collect.owner").exists()
        and running.stage("judge") is not None
    )


def gone(processes: list[psutil.Process]) -> bool:
    return not [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_ctrl_c_stops_all_and_leaves_no_process(tmp_path: Path) -> None:
    with up(tmp_path, QUIET) as running:
        running.wait_for(lambda: both_run(running), "both stages run")
        children = running.children()
        assert all(os.getpgid(child.pid) == child.pid for child in children), "the terminal's Ctrl-C reaches the parent alone"
        running.process.send_signal(signal.SIGINT)
        assert exit_code_of(running.process) == 0
        assert gone(children)
    assert "stopping collect, judge" in running.log()
    assert "did not stop in time" not in running.log()


def test_a_killed_stage_is_restarted_while_the_other_continues_and_a_signal_with_its_echo_is_one_request_to_stop(
    tmp_path: Path,
) -> None:
    with up(tmp_path, QUIET) as running:
        running.wait_for(lambda: both_run(running), "both stages run")
        first, other = running.stage("collect"), running.stage("judge")
        assert first is not None
        first.kill()
        running.wait_for(lambda: (now := running.stage("collect")) is not None and now.pid != first.pid, "collect is started again")
        assert running.stage("judge") == other
        running.wait_for(lambda: both_run(running), "both stages run again")
        for number in (signal.SIGINT, signal.SIGTERM):
            running.process.send_signal(number)
        assert exit_code_of(running.process) == 0
    assert "collect was killed by SIGKILL; it will be restarted in 0.2 s" in running.log()
    assert "stopping collect, judge" in running.log()
    assert "did not stop in time" not in running.log()


def test_the_wait_doubles_with_each_death_and_the_log_names_the_stage_and_is_kept(tmp_path: Path) -> None:
    with up(tmp_path, "up: {stages: [collect], backoff_s: 0.1}\n") as running, sole_worker(open_run(tmp_path / "run"), "collect"):
        running.wait_for(lambda: "restarted in 0.4 s" in running.log(), "three deaths")
        log = tmp_path / "run" / "logs" / "up.log"
        running.wait_for(lambda: "restarted in 0.4 s" in log.read_text(), "the file has it as well")
    waits = [line.rsplit(" ", 2)[1] for line in running.log().splitlines() if "will be restarted in" in line]
    assert waits[:3] == ["0.1", "0.2", "0.4"]
    assert "is already the collect worker" in running.log()
    kept = log.read_text()
    assert "collect | clawctl: process" in running.log()
    assert "collect | clawctl: process" in kept
    assert "\x1b" not in kept + running.log()


def test_no_stage_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    with up(tmp_path, QUIET) as running:
        running.wait_for(lambda: both_run(running), "both stages run")
        children = running.children()
        running.process.kill()
        running.process.wait()
        running.wait_for(lambda: gone(children), "the stages end")


def test_a_second_ctrl_c_does_not_wait_for_a_stage_that_hangs(tmp_path: Path) -> None:
    with up(tmp_path, QUIET) as running:
        running.wait_for(lambda: both_run(running), "both stages run")
        hanging = running.stage("collect")
        assert hanging is not None
        hanging.suspend()
        running.process.send_signal(signal.SIGINT)
        running.wait_for(lambda: running.stage("judge") is None, "the other stage ends")
        assert running.process.poll() is None
        time.sleep(0.2)  # a second press, which is not taken for a repeat of the first
        running.process.send_signal(signal.SIGINT)
        until(lambda: running.process.poll() == 0, 5)
        assert gone([hanging])
    assert "collect did not stop in time and is killed" in running.log()


def ended(folder: Path, recipe: str) -> tuple[int, str]:
    """What `up` ends with that starts nothing."""
    (folder / "recipe.yaml").write_text(recipe)
    done = forked.run("up", folder / "recipe.yaml", "--run", folder / "run")
    return done.returncode, done.stdout + done.stderr


def test_the_trainer_starts_when_serve_is_ready(tmp_path: Path) -> None:
    with up(tmp_path, "{model: {path: crafts}, serve: {port: 0}, up: {stages: [train, serve]}}") as running:
        running.wait_for(lambda: "train runs as" in running.log(), "the trainer runs")
        lines = running.log().splitlines()
        [waits], [starts] = ([i for i, line in enumerate(lines) if text in line] for text in ("train starts when", "train runs as"))
        assert waits < starts
        assert any(" serve | " in line and "serves crafts, version 0" in line for line in lines[:starts]), running.log()


def test_an_unknown_recipe_key_ends_it_before_anything_starts(tmp_path: Path) -> None:
    code, log = ended(tmp_path, "train: {learning_rat: 1}\n")
    assert code == 2
    assert "train.learning_rat" in log
    assert "process" not in log


def test_a_gate_without_eval_is_refused(tmp_path: Path) -> None:
    code, log = ended(tmp_path, "gate: {}\n" + QUIET)
    assert code == 2
    assert "the recipe has a gate, but up.stages lacks eval" in log


def test_a_stage_that_refuses_its_recipe_is_not_tried_again_and_stops_the_others(tmp_path: Path) -> None:
    recipe = "judge: {by: {kind: custom_rm, path: 'nowhere.py:Judge'}}\nup: {stages: [collect, judge], backoff_s: 0.2}\n"
    with up(tmp_path, recipe) as running:
        assert exit_code_of(running.process) == 2
    said = " ".join(running.log().split())
    assert "clawctl: judge refuses to start" in said
    assert "there is no file nowhere.py" in said.partition("judge refuses to start")[2]
    assert "restarted" not in said


def test_two_parents_on_one_run_are_refused(tmp_path: Path) -> None:
    with sole_worker(open_run(tmp_path / "run"), "up"):
        code, log = ended(tmp_path, QUIET)
    assert code == 1
    assert "is already the up worker" in log


@pytest.mark.parametrize("text", ["up: {stages: [collect, cook]}\n", "up: {backoff_s: 0}\n", "- a list\n"])
def test_a_recipe_that_makes_no_sense_is_a_wrong_command(tmp_path: Path, text: str) -> None:
    code, _ = ended(tmp_path, text)
    assert code == 2
