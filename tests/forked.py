"""`clawctl` in processes that are forked from one that has imported PyTorch, the trainer and the server.

A command takes a second of CPU less than in a new process, a server three, and a trainer seven. It has the environment of the test,
except for what libraries read when they are imported (`HF_…`)."""

import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import torch

from clawctl.config import Recipe
from clawctl.engines import ENGINES, Engine
from clawctl.engines.embedded.process import ModelProcess
from clawctl.engines.embedded.start import start as start_engine
from clawctl.run.directory import RunDir
from tests.waiting import SpareTime

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "clawctl.cli", "clawctl.engines.embedded.worker", "clawctl.serve.app", "clawctl.train.launch",
        "clawctl.trainers.local.trainer", "peft", "transformers.models.qwen3.modeling_qwen3",
    ]
)  # fmt: skip


def _run(
    work: Callable[[list[str]], None], arguments: list[str], folder: str, environment: Mapping[str, str], outputs: tuple[Path, Path]
) -> None:
    os.setsid()
    torch.manual_seed(0)  # what a model of random weights samples is the same in every run of the tests
    gc.freeze()  # or the first full garbage collection copies all that is shared with the other processes
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    work(arguments)


def _command(arguments: list[str]) -> None:
    if arguments[0] == "serve":
        global models
        models = _ModelProcess()
        ENGINES.built_in["transformers"] = "tests.forked:models.begin"
    sys.argv[:] = ["clawctl", *arguments]
    from clawctl.__main__ import main

    main()


def _torchrun(arguments: list[str]) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "run_id": str(os.getpid())}
    elastic_launch(LaunchConfig(1, 1, 2, max_restarts=1, start_method="fork", **standalone), _command)(arguments)


models: "_ModelProcess"  # of this server


class _ModelProcess:
    """A process for the models, forked while this one has no threads and no files. It has the methods of a `subprocess.Popen`."""

    def __init__(self) -> None:
        self._to_child, from_parent = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._to_child.close()
            _serve_models(from_parent)
        from_parent.close()
        self._process = psutil.Process(pid)
        self.kill = self._process.kill

    def begin(self, run: RunDir, recipe: Recipe) -> Engine:
        return start_engine(run, recipe, partial(ModelProcess, begin=self._serve))

    def _serve(self, command: list[str], pass_fds: list[int], **_: Any) -> "_ModelProcess":
        socket.send_fds(self._to_child, [b"1"], pass_fds)
        return self

    def wait(self, timeout: float | None = None) -> int | None:
        try:
            return self._process.wait(timeout)
        except psutil.TimeoutExpired as error:
            raise subprocess.TimeoutExpired("models", timeout or 0) from error


def _serve_models(from_parent: socket.socket) -> None:
    os.setsid()
    _, descriptors, *_ = socket.recv_fds(from_parent, 1, 1)
    if not descriptors:  # the parent ended without models
        os._exit(0)
    from clawctl.engines.embedded.worker import main

    main(*descriptors)


def _start(
    arguments: list[str], outputs: tuple[Path, Path], environment: Mapping[str, str], work: Callable[[list[str]], None] = _command
) -> ForkServerProcess:
    values = (work, arguments, os.getcwd(), {**os.environ, **environment}, outputs)
    process = CONTEXT.Process(target=_run, args=values, daemon=work is _command)  # a daemon may have no children
    process.start()
    return process


def start(arguments: list[str], log: Path, **environment: str) -> ForkServerProcess:
    """`clawctl ARGUMENTS`, with its output in a log."""
    return _start(arguments, (log, log), environment)


class Command:
    """`clawctl ARGUMENTS` with its output in a log, and with the methods of a `subprocess.Popen`."""

    def __init__(self, arguments: list[str], log: Path, **environment: str) -> None:
        self._arguments, self._process = arguments, start(arguments, log, **environment)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _join(process: ForkServerProcess, patience_s: float) -> None:
    spare = SpareTime()
    while process.exitcode is None and spare.seconds() < patience_s:
        process.join(1)


def run(*arguments: object, timeout_s: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """`clawctl ARGUMENTS` from beginning to end, as `subprocess.run` does it with the output captured."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder, "stdout"), Path(folder, "stderr")
        command = [str(argument) for argument in arguments]
        process = _start(command, outputs, environment)
        _join(process, timeout_s)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, timeout_s)
        return subprocess.CompletedProcess(command, process.exitcode, *(path.read_text() for path in outputs))


def start_ranks(arguments: list[str], log: Path, count: int) -> list[ForkServerProcess]:
    """The same on several ranks, as torchrun starts them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [start(arguments, log, **rendezvous, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(count)]


def start_torchrun(arguments: list[str], log: Path, **environment: str) -> ForkServerProcess:
    """The same on two ranks, which torchrun's agent forks and starts again once. It is no daemon: kill it."""
    return _start(arguments, (log, log), environment, _torchrun)


def finish(processes: list[ForkServerProcess], log: Path, patience_s: float = 120) -> None:
    """Wait until all have ended well."""
    for process in processes:
        _join(process, patience_s)
    assert [process.exitcode for process in processes] == [0] * len(processes), log.read_text()
