"""`clawctl` in processes that are forked from one that has imported PyTorch and the trainer: seven seconds of CPU less for each."""

import multiprocessing
import os
import socket
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["clawctl.cli", "clawctl.train.launch", "clawctl.trainers.local.trainer", "peft", "transformers.models.qwen3.modeling_qwen3"]
)


def _run(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.environ.update(environment)
    sys.argv[:] = ["clawctl", *arguments]
    from clawctl.__main__ import main

    main()


def start(arguments: list[str], log: Path, **environment: str) -> ForkServerProcess:
    """`clawctl ARGUMENTS`, with its output in a log."""
    process = _CONTEXT.Process(target=_run, args=(arguments, log, environment), daemon=True)
    process.start()
    return process


def start_ranks(arguments: list[str], log: Path, count: int) -> list[ForkServerProcess]:
    """The same on several ranks, as torchrun starts them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [start(arguments, log, **place, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(count)]


def finish(processes: list[ForkServerProcess], log: Path, patience_s: float = 120) -> None:
    """Wait until all have ended well."""
    for process in processes:
        process.join(patience_s)
    assert [process.exitcode for process in processes] == [0] * len(processes), log.read_text()
