"""How far a trainer is with its running step: it writes a small file, which the terminal and the pages show.

The process that runs the training loop writes, so with several ranks the leader does. Readers ask first whether a trainer is
running: the file of a killed one stays until the next one starts, and counts for a while.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass

import orjson

from clawctl.run.checksums import read_object
from clawctl.run.directory import RunDir
from clawctl.run.rows import DEFAULT_POLICY

_EVERY_S = 1.0  # between two files
_OLD_S = 1800.0  # longer than any microbatch
_running: ContextVar["StepReport | None"] = ContextVar("running", default=None)


@dataclass(frozen=True, slots=True)
class Progress:
    """The microbatch that is being computed."""

    policy: str
    step: int
    microbatch: int  # from 1
    of: int

    def __str__(self) -> str:
        """ "step 5: microbatch 3 of 8"."""
        whose = "" if self.policy == DEFAULT_POLICY else f" of {self.policy}"
        return f"step {self.step}{whose}: microbatch {self.microbatch} of {self.of}"


class StepReport:
    """The trainer's side. A disk that is full stops no step."""

    def __init__(self, run: RunDir) -> None:
        self._policy, self._path, self._step, self._due = run.policy, run.progress, 0, 0.0
        self._remove()  # of a trainer that was killed

    @contextmanager
    def of_step(self, step: int) -> Iterator[None]:
        """Within this context, `report` writes the file."""
        self._step, token = step, _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)
            self._remove()

    def write(self, microbatch: int, of: int) -> None:
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + _EVERY_S
        draft = self._path.with_name(f".{self._path.name}.tmp")
        with suppress(OSError):
            draft.write_bytes(orjson.dumps(asdict(Progress(self._policy, self._step, microbatch, of))))
            os.replace(draft, self._path)

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def report(microbatch: int, of: int) -> None:
    """Called before each microbatch of a step."""
    if (running := _running.get()) is not None:
        running.write(microbatch, of)


def read_progress(run: RunDir) -> Progress | None:
    """None: no step is running, or its trainer reports no microbatches."""
    try:
        if time.time() - run.progress.stat().st_mtime > _OLD_S:
            return None
        progress = Progress(**(read_object(run.progress) or {}))
        return progress if 0 < progress.microbatch <= progress.of and isinstance(progress.step, int) else None
    except (OSError, TypeError):
        return None
