"""Measures training and serving on one CUDA card, for a card that is at hand for minutes only.

Cases run in order of worth, each in a process of its own with its own time limit. Rows are written as they come. The same command
again continues: a finished case in FILE is skipped. A case that fails leaves a row with the error. Its log is beside FILE.
Weights are random at the sizes of real models, because speed and memory do not depend on them. They are made on the card.

    scripts/bench gpu --minutes 10 --json gpu.json              all cases
    scripts/bench gpu --only gradients,memory --json gpu.json   some of them
    scripts/bench gpu --rehearse                                tiny shapes, on the CPU as well
    scripts/bench gpu --carry                                   the packages that a machine with torch alone lacks
    scripts/bench gpu --carry FOLDER                            download their wheels

A machine without a package index has PyTorch but no environment for clawctl. Take the repository and the wheels there, then:

    python3 -m pip install --no-index --no-deps --target /tmp/site FOLDER/*.whl
    PYTHONPATH=/tmp/site python3 -m scripts.benchmarks.gpu --minutes 10 --json gpu.json
"""

import argparse
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from scripts.benchmarks.gpu_carry import carry, make_importable
from scripts.benchmarks.table import Row, commit, machine, make_parser, names_among, report

ROOT = Path(__file__).resolve().parent.parent.parent
LEAST_S = 8.0  # a case is not started with less time left


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    seconds: float  # its time limit
    about: str
    function: str  # in the modules gpu_*.py


CASES = (
    Case("gradients", 90, "gradients of trees in FlexAttention against one sequence a turn", "gpu_training.gradients"),
    Case("memory", 80, "peak memory of a step against `train --estimate`", "gpu_training.memory"),
    Case("train", 110, "Qwen3-4B's dimensions, LoRA rank 16: tokens per second and MFU", "gpu_training.train"),
    Case("canary", 60, "the engine's canary against the trainer's, in bfloat16 and nf4", "gpu_serving.canary"),
    Case("oom", 45, "out of memory on purpose, and recovery", "gpu_training.out_of_memory"),
    Case("engine", 100, "the embedded engine at 1, 32 and 128 streams, and the pause of a swap", "gpu_serving.engine"),
    Case("circle", 120, "`clawctl up`: requests, captures, verdicts, a step, and a new live version", "gpu_circle.circle"),
    Case("shared", 60, "one card shared by serving and training", "gpu_serving.shared"),
    Case("one-copy", 90, "one copy of the base model for serving and training (`model.one_copy: always`)", "gpu_serving.one_copy"),
    Case("full", 240, "Qwen3-4B's dimensions, all weights, optimizer in host memory", "gpu_training.full"),
)


@dataclass(slots=True)
class Results:
    """The rows and states of cases, in memory and in FILE."""

    file: Path | None
    rows: list[Row] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)  # by case: "done", or why it ended

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            saved = json.loads(self.file.read_text())
            self.rows, self.states = [Row(**row) for row in saved["rows"]], saved["states"]

    def begin(self, case: str) -> None:
        self.rows = [row for row in self.rows if row.case != case]
        self.states[case] = "started"
        self.write()

    def add(self, row: Row) -> None:
        value = "–" if row.value is None else f"{row.value:.4g}"
        print(f"{row.case:>10} | {row.metric} {value} {row.unit}", file=sys.stderr, flush=True)
        self.rows.append(row)
        self.write()

    def end(self, case: str, state: str, seconds: float) -> None:
        self.states[case] = state
        if state != "done":
            self.add(Row(case, "failed", None, state))
        self.add(Row(case, "seconds", seconds, "s"))

    def write(self) -> None:
        if self.file is not None:
            command = shlex.join(["scripts/bench", "gpu", *sys.argv[1:]])
            about = {"name": "gpu", "machine": f"{card()}, {machine()}", "date": date.today().isoformat(), "command": command}
            with suppress(FileNotFoundError):  # the machine of a card may have no git
                about["commit"] = commit()
            result = {**about, "rows": [asdict(row) for row in self.rows], "states": self.states}
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps(result, indent=1) + "\n")
            part.replace(self.file)


def main() -> None:
    options = options_from(sys.argv[1:])
    if options.carry is not None:
        carry(None if options.carry == "" else Path(options.carry))
        return
    if options.case is not None:
        run_child(options.case, Path(options.folder), options.rehearse)
        return
    results = Results(options.json)
    if not options.rehearse and not has_card():
        raise SystemExit("PyTorch sees no GPU here; scripts/bench gpu --rehearse runs every case with tiny shapes on the CPU")
    cases = [case for case in CASES if case.name in options.only and results.states.get(case.name) != "done"]
    with scratch() as folder:
        if options.rehearse:
            rehearse(cases, results, folder)
        else:
            run_cases(cases, results, folder, time.monotonic() + 60 * options.minutes)
    report("gpu", results.rows, None)


def options_from(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=10.0, help="the most that all cases may take together")
    cases = [case.name for case in CASES]
    parser.add_argument("--only", type=names_among(cases), default=",".join(cases), metavar="CASE,…", help=", ".join(cases))
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes; on the CPU if there is no card")
    parser.add_argument("--carry", nargs="?", const="", metavar="FOLDER", help="list the packages to bring along, or download them")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rehearse = options.rehearse or options.quick
    return options


@functools.cache
def card() -> str:
    """The name of the machine's GPU."""
    with suppress(FileNotFoundError):
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
        return done.stdout.strip() or "no GPU"
    return "no GPU"


def has_card() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for weights, in memory if there is room for them."""
    shared = Path("/dev/shm")
    room = os.statvfs(shared).f_bavail * os.statvfs(shared).f_frsize if shared.is_dir() else 0
    with tempfile.TemporaryDirectory(prefix="clawctl-gpu-", dir=shared if room > 24 * 2**30 else None) as folder:
        yield Path(folder)


def rehearse(cases: list[Case], results: Results, folder: Path) -> None:
    """Run the cases with tiny shapes in this process, because importing PyTorch takes longer than they do. An error ends it."""
    from scripts.benchmarks.gpu_models import Bench, load_case

    os.environ.update(make_importable(ROOT, folder))
    for case in cases:
        print(f"{case.name}: {case.about}", file=sys.stderr, flush=True)
        results.begin(case.name)
        began = time.monotonic()
        load_case(case.function)(Bench(folder, True, lambda *row, name=case.name: results.add(Row(name, *row))))
        results.end(case.name, "done", time.monotonic() - began)


def run_cases(cases: list[Case], results: Results, folder: Path, deadline: float, tiny: bool = False) -> None:
    """Run each case in a process. The next process imports its modules while the present case runs."""
    environment = make_importable(ROOT, folder)
    coming = Child(cases[0], folder, tiny, environment) if cases else None
    for index, case in enumerate(cases):
        child = coming
        assert child is not None
        if deadline - time.monotonic() < LEAST_S:
            child.stop()
            print(f"no time is left for {', '.join(case.name for case in cases[index:])}", file=sys.stderr)
            return
        print(f"{case.name}: {case.about}", file=sys.stderr, flush=True)
        results.begin(case.name)
        began = time.monotonic()
        child.go(lambda row: results.add(row))
        coming = Child(cases[index + 1], folder, tiny, environment) if index + 1 < len(cases) else None
        state = child.wait(min(case.seconds, deadline - time.monotonic()))
        results.end(case.name, state, time.monotonic() - began)
        if results.file is not None:
            results.file.with_name(f"{results.file.stem}-{case.name}.log").write_bytes(child.log.read_bytes())


class Child:
    """The process of one case. It waits for `go` before it touches the card."""

    def __init__(self, case: Case, folder: Path, tiny: bool, environment: dict[str, str]) -> None:
        self.log = folder / f"{case.name}.log"
        command = [sys.executable, "-m", "scripts.benchmarks.gpu", "--case", case.name, "--folder", str(folder)]
        command += ["--rehearse"] * tiny
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        self._reader: threading.Thread | None = None

    def go(self, take: Callable[[Row], None]) -> None:
        assert self._process.stdin is not None
        self._reader = threading.Thread(target=self._read, args=(take,))
        self._reader.start()
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    def _read(self, take: Callable[[Row], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            take(Row(**json.loads(line)))

    def wait(self, seconds: float) -> str:
        """Wait for the end, at most `seconds`. Returns "done", or why it is not done."""
        try:
            code = self._process.wait(max(0.0, seconds))
            state = "done" if code == 0 else f"{self._last_line()} (exit code {code})"
        except subprocess.TimeoutExpired:
            state = f"stopped after {seconds:.0f} s; its last line was: {self._last_line()}"
        self.stop()
        return state

    def stop(self) -> None:
        """End the process and its own children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._reader is not None:
            self._reader.join()
        with suppress(BrokenPipeError), self._process:  # closes its pipes
            pass

    def _last_line(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no output"


def run_child(name: str, folder: Path, tiny: bool) -> None:
    """In the process of a case: import, wait, then run it. Rows go to stdout, everything else to stderr."""
    from scripts.benchmarks.gpu_models import Bench, load_case

    case = next(case for case in CASES if case.name == name)
    function: Any = load_case(case.function)
    rows = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not sys.stdin.readline():
        return  # the parent has stopped

    def add(metric: str, value: float | None, unit: str) -> None:
        rows.write(json.dumps(asdict(Row(name, metric, value, unit))) + "\n")
        rows.flush()

    function(Bench(folder, tiny, add))


if __name__ == "__main__":
    main()
