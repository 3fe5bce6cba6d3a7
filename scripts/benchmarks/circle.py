"""Runs a whole training loop in real processes: `clawctl up` on a new run, simulated people, and measurements of versions."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from clawctl.config import load_recipe
from clawctl.process import die_with_parent
from scripts.wishes.judge import judge_server

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPES = (ROOT / "recipes", ROOT / "scripts" / "benchmarks" / "recipes")
WORLD = f"{ROOT / 'scripts' / 'wishes' / 'environment.py'}:Wishes"  # as a suite or an environment
_PATHS = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(_PATHS)}  # the stages find the modules that WORLD imports
CLAWCTL = [sys.executable, "-m", "clawctl"]


def read_recipe(name: str) -> dict[str, Any]:
    """The sections of a recipe in recipes/ or of the benchmarks. A model of this repository has its whole path."""
    file = next(file for folder in RECIPES if (file := folder / f"{name}.yaml").exists())
    recipe: dict[str, Any] = yaml.safe_load(file.read_text())
    if (folder := ROOT / recipe["model"]["path"]).is_dir():
        recipe["model"]["path"] = str(folder)
    return recipe


@cache
def judge_url() -> str:
    """The judge of the world `wishes`, in a thread of this process."""
    server = judge_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def write_recipe(folder: Path, changes: dict[str, Any]) -> Path:
    """Write the recipe `circle` with `changes` to its sections, such as {"train": {"method": "opd"}, "gate": None}."""
    recipe = read_recipe("circle")
    if "custom_rm" in changes.get("judge", {}):
        del recipe["judge"]
    else:
        recipe["judge"]["endpoint"] = judge_url()
    for key, value in changes.items():
        recipe[key] = {**recipe.get(key, {}), **value} if isinstance(value, dict) else value
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    load_recipe(path)  # a recipe that breaks a rule is refused here, also in `scripts/bench all --rehearse`
    return path


@contextmanager
def running(run: Path, recipe: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run all stages of `recipe` on `run` and stop them cleanly at the end. If this process is killed, they end too."""
    with (run.parent / f"{run.name}.log").open("wb") as log:
        up = subprocess.Popen(
            [*CLAWCTL, "up", str(recipe), "--run", str(run)], stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        try:
            try:
                wait_until(lambda: (run / "serve.json").exists(), 600, "the server did not start", up)
            except SystemExit as error:
                raise SystemExit(f"{error}\n{Path(log.name).read_text()[-2000:]}") from error
            yield up
        finally:
            if up.poll() is None:
                os.kill(up.pid, signal.SIGINT)
            up.wait(60)


def people(run: Path, count: int, seed: int, until_version: int, timeout_s: float, think_s: float = 0.0) -> dict[str, Any]:
    """Let `count` simulated people talk until `until_version` is live. Returns their own summary."""
    command = [sys.executable, "-m", "scripts.wishes.chat", "--run", str(run), "--people", str(count), "--seed", str(seed)]
    command += ["--think-s", str(think_s)]
    done = subprocess.run(
        [*command, "--stop-at-version", str(until_version)], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"the simulated people stopped: {done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return summary


def measure(run: Path, recipe: Path, version: int) -> dict[str, Any]:
    """Measure one version with `clawctl eval`. Returns the content of eval/<version>.json."""
    command = [*CLAWCTL, "eval", "--run", str(run), "--recipe", str(recipe), "--version", str(version), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        raise SystemExit(f"eval of version {version} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def wait_until(condition: Any, seconds: float, problem: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Poll until `condition()` is true. Raises SystemExit with `problem` after `seconds` or if `process` has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{problem}: clawctl up ended with code {process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"{problem} within {seconds:.0f} s")
        time.sleep(0.1)
