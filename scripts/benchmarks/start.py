"""The first minutes of a new user, from the wheel: scripts/bench start

Case `wheel`: a new environment gets the wheel; PyTorch and the other packages are there already, those of this checkout.
`first_answer_s` is the time from `pip install` until `smollm2` has answered a request through `clawctl start`, and
`warm_first_answer_s` that of the same command once more, which goes on with the run. `warm_cpu_s` is the CPU time that all its
processes took until then. `silence_s` is the longest time in which nothing new came to the terminal, which is a pseudo-terminal.
`help_s` is the median time of `clawctl --help`. `missing_files` counts the pages of docs/ and the recipes that the package's texts
name and the wheel lacks.

Case `connect`: all clients that `clawctl connect` knows and that install here are configured by it, and send a request
(`start_connect.py`). Case `silence`: the longest silence of each command at a terminal (`start_silence.py`). Case `learned`: what a
person types until the run has learned a wish (`start_learned.py`).

The exit code is 1 if a metric misses its bar.
"""

import argparse
import contextlib
import os
import pty
import re
import select
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import psutil

from clawctl.engines.vllm.child import free_port
from scripts.benchmarks import start_connect, start_learned, start_silence
from scripts.benchmarks.table import Row, make_parser, report

ROOT = Path(__file__).parents[2]
BARS = {
    "first_answer_s": 90.0, "warm_first_answer_s": 10.0, "silence_s": 2.0, "help_s": 0.35, "serve_ready_s": 3.0,
    "missing_files": 0.0, "clients_without_request": 0.0, "failed": 0.0, "commands": 2.0,
}  # fmt: skip
_NAMED = re.compile(r"\b(docs/[\w/-]+\.md|recipes/[\w-]+\.yaml)\b")
_PATIENCE_S = 300.0


def main() -> None:
    parser = make_parser(__doc__ or "")
    cases = {"wheel": wheel_rows, "connect": _connect_rows, "silence": _silence_rows, "learned": _learned_rows}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--case", action="append", choices=cases, help="this case only; may be repeated")
    parser.add_argument("--where", type=Path, default=cache / "clawctl-clients", help="folder that the clients are installed into")
    parser.add_argument("--client", action="append", default=[], help="connect this one only; may be repeated")
    options = parser.parse_args()
    rows = [row for case in options.case or ["wheel"] for row in cases[case](options)]
    report("start", rows, options.json)
    if missed := [f"{row.case} {row.metric}" for row in rows if row.metric in BARS and _misses(row)]:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


def _misses(row: Row) -> bool:
    return row.value is None or row.value > BARS[row.metric]


def _connect_rows(options: argparse.Namespace) -> Iterator[Row]:
    return start_connect.connect_rows(options.where.resolve(), options.client)


def _silence_rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="clawctl-silence-") as folder:
        yield from start_silence.silence_rows(str(Path(sys.executable).with_name("clawctl")), Path(folder))


def _learned_rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="clawctl-learned-") as folder:
        yield from start_learned.learned_rows(str(Path(sys.executable).with_name("clawctl")), Path(folder) / "run", _is_ready)


def wheel_rows(options: argparse.Namespace) -> Iterator[Row]:
    os.environ.pop("PYTHONPATH", None)  # the checkout, from which the commands below would import clawctl in place of the wheel
    with tempfile.TemporaryDirectory(prefix="clawctl-start-") as name:
        folder = Path(name)
        wheel, began = build_wheel(folder), time.monotonic()
        clawctl = install(folder / "env", wheel)
        installed_s = time.monotonic() - began
        first, silence, _ = first_answer(clawctl, folder / "run")
        warm, quiet, warm_cpu = first_answer(clawctl, folder / "run")
        helped = statistics.median(_timed([clawctl, "--help"]) for _ in range(3 if options.quick else 9))
        ready = statistics.median(serve_ready_s(clawctl, folder / f"serve{number}") for number in range(1 if options.quick else 3))
        values = {
            "first_answer_s": installed_s + first, "warm_first_answer_s": warm, "warm_cpu_s": warm_cpu,
            "silence_s": max(silence, quiet), "help_s": helped, "serve_ready_s": ready, "missing_files": float(len(missing(wheel))),
        }  # fmt: skip
    for name, value in values.items():
        yield Row("wheel", name, value, "files" if name == "missing_files" else "s")


def build_wheel(folder: Path) -> Path:
    """The wheel of the committed files."""
    (folder / "source").mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", folder / "source"], input=archive, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "."]
    subprocess.run([*command, "./source"], check=True, cwd=folder)
    return next(folder.glob("*.whl"))


def install(environment: Path, wheel: Path) -> str:
    """Make an environment with the wheel and the packages of this one. Returns its `clawctl`."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", "--no-deps", wheel], check=True)
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return str(environment / "bin" / "clawctl")


def first_answer(clawctl: str, run: Path) -> tuple[float, float, float]:
    """Seconds until `clawctl start` has answered a request, the longest silence of its terminal, and the CPU time."""
    began, silence = time.monotonic(), 0.0
    ours, theirs = pty.openpty()
    command = [clawctl, "start", "--model", "smollm2", "--agent", "other", "--run", str(run), "--no-open", "--page-port", "0"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=run.parent, start_new_session=True)
    try:
        last = began
        while not _is_ready(run):
            if process.poll() is not None or time.monotonic() - began > _PATIENCE_S:
                raise SystemExit(f"clawctl start ended with {process.poll()}: {os.read(ours, 1 << 16).decode(errors='replace')}")
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 1 << 16)
                silence, last = max(silence, time.monotonic() - last), time.monotonic()
        silence = max(silence, time.monotonic() - last)
        _ask(run)
        return time.monotonic() - began, silence, _cpu_s(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            if select.select([ours], [], [], 0.1)[0]:
                os.read(ours, 1 << 16)
        os.close(ours)
        os.close(theirs)


def _cpu_s(parent: int) -> float:
    """CPU time of a process and of its descendants that run."""
    times = [process.cpu_times() for process in (psutil.Process(parent), *psutil.Process(parent).children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def _is_ready(run: Path) -> bool:
    try:
        url = orjson.loads((run / "serve.json").read_bytes())["url"]
        return httpx.get(f"{url.removesuffix('/v1')}/health/ready", timeout=2).status_code == 200
    except (OSError, LookupError, orjson.JSONDecodeError, httpx.HTTPError):
        return False


def _ask(run: Path) -> None:
    url = orjson.loads((run / "serve.json").read_bytes())["url"].removesuffix("/v1")
    headers = {"Authorization": f"Bearer {(run / 'api_key').read_text().strip()}"}
    body = {"model": "default", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=_PATIENCE_S).raise_for_status()
    assert answer.json()["choices"][0]["message"]["content"]


def serve_ready_s(clawctl: str, run: Path) -> float:
    """Seconds until `clawctl serve` answers with the model of the wheel."""
    port, began = free_port(), time.monotonic()
    process = subprocess.Popen(
        [clawctl, "serve", "--model", "crafts", "--run", str(run), "--port", str(port)], stderr=-3, stdout=-3
    )
    try:
        while process.poll() is None and time.monotonic() < began + _PATIENCE_S:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=1).raise_for_status()
                return time.monotonic() - began
            time.sleep(0.02)
        raise SystemExit("clawctl serve did not get ready")
    finally:
        process.terminate()
        process.wait()


def _timed(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def missing(wheel: Path) -> list[str]:
    """The files that texts of the package name and the wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = [archive.read(name).decode(errors="replace") for name in names if name.endswith((".py", ".html", ".yaml"))]
    named = {file for text in texts for file in _NAMED.findall(text)}
    return sorted(file for file in named if not any(name.endswith(f"/{file}") for name in names))


if __name__ == "__main__":
    main()
