"""The part `fireworks` of `scripts/bench backends`: the same trainer over Fireworks' SDK. A stand-in for Fireworks' gateway passes
the calls of the training plane to SkyRL's server. This runs in the environment that `scripts/venv-fireworks` makes.

`calls_refused` counts the calls of the training plane that SkyRL answered with an error. The calls are those of three steps with
`step_change_error` of each, of a return to version 0, and of a run that is killed and resumed.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from clawctl.engines.vllm.child import free_port
from scripts.benchmarks.backends import QUICK_KILLS, Target, kill_rows, service_recipe, step_rows
from scripts.benchmarks.circle import ROOT
from scripts.benchmarks.table import Row, make_parser, report
from scripts.fireworks_gateway import BASE

FIRST, LAST = 14, 60  # borders of calls: from the download of the new adapter to the second step
_START_S = 60.0


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("model", type=Path, help="folder with float32 weights")
    parser.add_argument("url", help="SkyRL's server for this model")
    parser.add_argument("--kills", type=int, default=QUICK_KILLS, help=f"kills (default {QUICK_KILLS})")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as name, gateway(options.url) as url:
        folder, target = Path(name), Target(url, "fireworks", "fw_local", BASE)
        # First, because its forks need a process without the SDK's threads.
        rows = kill_rows(options.model, target, folder, [FIRST + (LAST - FIRST) * n // options.kills for n in range(options.kills)])
        rows += step_rows(options.model, target, folder)
        start_again(options.model, target, folder)
        counts = httpx.get(f"{url}/calls").json()
    rows += [Row("fireworks", "calls", counts["calls"], "count"), Row("fireworks", "calls_refused", counts["refused"], "count")]
    report("backends", rows, options.json)


@contextmanager
def gateway(skyrl: str) -> Iterator[str]:
    """Its address. It has a process of its own, because the trainer forks."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "scripts.fireworks_gateway", skyrl, str(port)], cwd=ROOT)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_S
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the gateway did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/calls", timeout=2).is_success
    except httpx.HTTPError:
        return False


def start_again(model: Path, target: Target, folder: Path) -> None:
    """A trainer that returns to version 0 in the same process, as after a refused candidate."""
    from clawctl.trainers import TRAINERS

    recipe = service_recipe(model, target, folder, method="binary")
    with TRAINERS.load(target.kind, "train.backend").open(recipe, lambda: None, None) as trainer:
        assert trainer is not None
        for _ in range(2):
            trainer.resume(0, None, None)


if __name__ == "__main__":
    main()
