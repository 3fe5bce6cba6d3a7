"""Starts and watches a whole circle of real processes."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil

from clawctl.config import load_recipe
from clawctl.launch.up import command
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import read_turns, read_verdicts
from scripts.benchmarks.circle import CLAWCTL, ENVIRONMENT
from tests import forked
from tests.waiting import exit_code_of, until


@contextmanager
def circle(folder: Path, recipe: Path) -> Iterator[tuple[RunDir, psutil.Process]]:
    """`clawctl up` on a new run; at the end Ctrl-C, after which no process of it may be left."""
    run = open_run(folder / "run")
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [*CLAWCTL, "up", str(recipe), "--run", str(run.root)], stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT
        )
        family = psutil.Process(up.pid)
        try:
            wait_until_served(run, up, folder)
            yield run, family
            children = family.children(recursive=True)
            os.kill(up.pid, signal.SIGINT)
            assert exit_code_of(up) == 0
            assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
        finally:
            if up.poll() is None:
                for process in [*family.children(recursive=True), family]:
                    process.kill()


@contextmanager
def stages(folder: Path, recipe: Path) -> Iterator[RunDir]:
    """The stages of a recipe on a new run without `clawctl up`, forked from a process that has imported PyTorch. At the end, each
    stops cleanly when it is asked to."""
    run, log = open_run(folder / "run"), folder / "up.log"

    def begin(stage: str) -> forked.Command:
        return forked.Command(command(stage, run, recipe, "info")[4:], log, CLAWCTL_UP="1")

    names = load_recipe(recipe).up.stages
    begun = [begin("serve")]
    try:
        wait_until_served(run, begun[0], folder)
        begun += [begin(stage) for stage in names if stage != "serve"]
        yield run
        for process in begun:
            process.send_signal(signal.SIGTERM)
        assert [exit_code_of(process) for process in begun] == [0] * len(names), log.read_text()
    finally:
        for process in begun:
            process.kill()


def wait_until_served(run: RunDir, process: "subprocess.Popen[bytes] | forked.Command", folder: Path) -> None:
    announced = run.root / "serve.json"
    wait_for(lambda: announced.exists() or process.poll() is not None, "the server announces itself", folder)
    assert process.poll() is None, (folder / "up.log").read_text()


def wait_for(condition: Callable[[], Any], what: str, folder: Path) -> Any:
    """Poll for something that processes do; on failure show the end of their log."""
    return until(condition, 300.0, lambda: f"{what}: waited in vain\n" + (folder / "up.log").read_text()[-4000:], pause_s=0.1)


def stage(family: psutil.Process, name: str) -> psutil.Process | None:
    """The process of one stage, if it runs just now."""
    for child in family.children(recursive=True):
        try:
            if ["-m", "clawctl", name] == child.cmdline()[2:5]:
                return child
        except psutil.Error:
            continue
    return None


def captured(run: RunDir) -> dict[str, dict[str, Any]]:
    """Every whole line of captures/, by exchange id."""
    lines = [line for file in published(run.captures, ".jsonl") for line in file.read_bytes().split(b"\n")[:-1] if line]
    exchanges = []
    for line in lines:
        try:
            exchanges.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue  # torn by a kill: its answer never left
    return {exchange["exchange_id"]: exchange for exchange in exchanges}


def turns_of(run: RunDir) -> list[Turn]:
    return [turn for file in published(run.trajectories, ".parquet") for turn in read_turns(file)]


def verdicts_of(run: RunDir) -> list[Verdict]:
    return [verdict for file in published(run.verdicts, ".parquet") for verdict in read_verdicts(file)]


def ledger_of(run: RunDir) -> list[str]:
    """Ids of all trained turns, once per entry of the ledger."""
    entries = [orjson.loads(file.read_bytes()) for file in published(run.train / "ledger", ".json")]
    trained = sorted((entry for entry in entries if entry["outcome"] == "trained"), key=lambda entry: entry["step"])
    return [turn for entry in trained for ids in entry["turns"].values() for turn in ids]
