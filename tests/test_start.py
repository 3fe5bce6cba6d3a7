"""`clawctl start`: one command serves, trains and shows a model, and ends with everything that it began."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import httpx
import psutil
import pytest

from clawctl.config import load_recipe
from clawctl.run.directory import open_run, sole_worker
from scripts.terminal import Terminal, terminal
from tests.extension import needs
from tests.waiting import until, until_gone

START = [sys.executable, "-m", "clawctl", "start"]
QUIET = "serve: {port: 1}\nup: {stages: [collect, judge]}\n"  # stages that wait for work without loading a model


def answer(at: Terminal, question: str, text: str) -> None:
    until(lambda: question in at.text(), why=at.text)
    at.say(text)


def test_three_answers_at_a_terminal_are_enough_until_it_serves_and_shows_its_pages(tmp_path: Path) -> None:
    run, opened = tmp_path / "my run", tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o700)
    environment = {**os.environ, "TERM": "xterm", "BROWSER": f"{browser} %s"}
    with terminal([*START, "--run", run, "--page-port", "0"], tmp_path, environment) as at:
        answer(at, "Which model?", "crafts")
        answer(at, "Who judges the answers?", "1")
        answer(at, "Which agent will use it?", "3")
        until(lambda: "pages       http" in at.text(), why=at.text)
        shown = at.text()
        family = psutil.Process(at.pid).children(recursive=True)
        assert "codex --profile clawctl" in shown
        url, key = re.findall(r"base URL +(\S+)", shown)[-1], re.findall(r"key +(claw-\S+)", shown)[-1]
        assert httpx.get(f"{url}/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        link = re.findall(r"pages +(\S+)", shown)[-1]
        assert httpx.get(link, follow_redirects=True).status_code == 200
        until(opened.exists, why=lambda: "no browser was opened")
        file = Path(unquote(opened.read_text().removeprefix("file://")))
        assert (link in file.read_text(), file.stat().st_mode & 0o077) == (True, 0), "the key is in a file of its owner only"
        at.type("\x03")
        until(lambda: "To go on: clawctl start --run " in at.text(), why=at.text)
        until_gone(family)
    recipe = load_recipe(run / "recipe.yaml")
    assert (recipe.model.path, recipe.name) == ("crafts", "my run")
    other = subprocess.run([*START, "--run", str(run), "--model", "smollm2"], capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "has begun with the recipe in it" in other.stderr
    with sole_worker(open_run(run), "up"):
        twice = subprocess.run([*START, "--run", str(run)], capture_output=True, text=True, check=False)
    assert (twice.returncode, "already the up worker" in twice.stderr, "To go on" in twice.stderr) == (1, True, False)


@needs("secrets")
def test_up_serves_the_pages_of_its_recipe_and_ends_them_and_survives_a_hang_up_under_nohup(tmp_path: Path) -> None:
    recipe = tmp_path / "quiet.yaml"
    recipe.write_text(f"{QUIET.replace('up: {', 'up: {page_port: 0, ')}")
    output = tmp_path / "output"
    command = [sys.executable, "-m", "clawctl", "up", str(recipe), "--run", str(tmp_path / "run")]
    # `trap` as nohup does, so that the end of a login does not end it
    shell = ["sh", "-c", f"trap '' HUP; exec {shlex.join(command)}"]
    with output.open("w") as file, subprocess.Popen(shell, stdout=file, stderr=file) as process:
        until(lambda: "pages       http" in output.read_text(), why=output.read_text)
        process.send_signal(signal.SIGHUP)
        link = re.findall(r"pages +(\S+)", output.read_text())[-1]
        assert httpx.get(link).status_code == 200
        assert httpx.get(link, headers={"Host": "evil.example"}).status_code == 421
        family = psutil.Process(process.pid).children(recursive=True)
        (page,) = [child for child in family if "inspect" in child.cmdline()]
        page.kill()
        until(lambda: len(set(re.findall(r"pages +(\S+)", output.read_text()))) == 2, why=output.read_text)
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        until_gone(family)
    assert link not in (tmp_path / "run" / "logs" / "up.log").read_text(), "the key is shown on the terminal only"


def test_without_a_terminal_it_asks_nothing_and_a_model_that_cannot_be_had_leaves_no_recipe(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    command = [*START, "--run", str(tmp_path / "run"), "--model", "someone/some-model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode in (1, 2), done.stderr
    assert "someone/some-model" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "recipe.yaml").exists()


@pytest.mark.parametrize("ending", ["SIGTERM", "parent", "terminal"])
def test_whatever_ends_it_nothing_that_it_began_stays(tmp_path: Path, ending: str) -> None:
    run = open_run(tmp_path / "run").root
    (run / "recipe.yaml").write_text(QUIET)
    (run / "serve.json").write_text("{}")  # a server has worked here, so the same command goes on
    # the shell is the parent; `:` keeps it from being replaced by the command
    shell = ["sh", "-c", f"{shlex.join([*START, '--run', str(run), '--model', 'crafts', '--page-port', '0'])}; :"]
    with terminal(shell, tmp_path, {**os.environ, "TERM": "xterm"}) as at:
        until(lambda: (run / "locks" / "collect.owner").exists() and "open this link" in at.text(), why=at.text)
        family = psutil.Process(at.pid).children(recursive=True)
        assert len(family) >= 4
        if ending == "parent":
            os.kill(at.pid, signal.SIGKILL)
        elif ending == "terminal":
            at.hang_up()
        else:
            family[0].send_signal(signal.SIGTERM)
        until_gone(family)
        if ending == "SIGTERM":
            until(lambda: f"To go on: clawctl start --run {run}" in at.text(), why=at.text)
