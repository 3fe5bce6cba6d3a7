"""Structured answers: the allowed next tokens, from a separate process for each answer (`grammar_process`).

Messages on the socket of one answer: clawctl sends the length of the specification in 4 bytes and the specification as JSON, later
each sampled token in 4 bytes. The reply to each of these is `f` (any token is allowed), `m` and a bit for each token of the
vocabulary (lowest first), or `e`, a length in 2 bytes and a sentence (it cannot continue).
"""

import contextlib
import importlib.util
import logging
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from clawctl.engines import CannotFollow
from clawctl.engines.embedded.grammar_process import FAILED, FREE

_log = logging.getLogger("clawctl.serve")
_PROGRAM: Final = Path(__file__).parent / "grammar_process.py"
_START_S, _COMPILE_S, _STEP_S = 60.0, 20.0, 5.0  # of patience; the process counts processor time, and much less of it
_CURE: Final = "structured output needs llguidance: pip install 'llguidance>=1.7'"
Bits = NDArray[np.uint8]


class Grammar:
    """The tokens allowed next in one answer. Only the sampling thread calls `mask` and `take`."""

    def __init__(self, own: socket.socket, vocabulary: int, specification: bytes) -> None:
        """Blocks until the first mask is there. Raises CannotFollow."""
        self._socket, self._bytes = own, 4 * ((vocabulary + 31) // 32)
        self._said = bytearray()
        self._mask: Bits | None = None
        self._waits = True
        own.settimeout(_COMPILE_S)
        self._send(struct.pack(">I", len(specification)) + specification)
        self.mask()
        own.settimeout(_STEP_S)

    def mask(self) -> Bits | None:
        """A bit for each allowed token, as bytes, the lowest first; None if any is allowed. Waits for the result. Raises
        CannotFollow."""
        if self._waits:
            kind = self._read(1)
            if kind == FAILED:
                problem = self._read(struct.unpack(">H", self._read(2))[0]).decode(errors="replace")
                raise CannotFollow(problem)
            self._mask = None if kind == FREE else np.frombuffer(self._read(self._bytes), np.uint8)
            self._waits = False
        return self._mask

    def take(self, token: int) -> None:
        """`token` was sampled: the next mask is worked out meanwhile. Raises CannotFollow."""
        self._send(struct.pack(">I", token))
        self._waits = True

    def close(self) -> None:
        """End the process. Any thread may call it, also twice: the descriptor stays open until no thread uses it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()

    def _send(self, told: bytes) -> None:
        try:
            self._socket.sendall(told)
        except OSError as error:
            raise _gone(error) from error

    def _read(self, count: int) -> bytes:
        while len(self._said) < count:
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise _gone(error) from error
            if not more:
                raise _gone(None)
            self._said += more
        told = bytes(self._said[:count])
        del self._said[:count]
        return told


def _gone(error: OSError | None) -> CannotFollow:
    slow = isinstance(error, TimeoutError)
    return CannotFollow("no answer in time" if slow else "it needs more processor time or memory than allowed")


class Grammars:
    """Opens grammars for one tokenizer. Its process starts with the first. Methods block, and belong to a thread."""

    def __init__(self, tokenizer: Any, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocabulary, self._eos_ids = tokenizer, vocabulary, sorted(eos_ids)
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open(self, specification: bytes) -> Grammar:
        """`specification` is JSON, see `clawctl.serve.structured`. Raises CannotFollow if the grammar cannot be compiled within the
        limits, or if llguidance is missing."""
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._control is not None
            ours, its = socket.socketpair()
            with its:
                try:
                    socket.send_fds(self._control, [b"o"], [its.fileno()])
                except OSError as error:
                    ours.close()
                    raise CannotFollow(f"its process has ended: {error}") from error
        try:
            return Grammar(ours, self._vocabulary, specification)
        except CannotFollow:
            ours.close()
            raise

    def _start(self) -> None:
        self._end()
        if importlib.util.find_spec("llguidance") is None:
            raise CannotFollow(_CURE)
        ours, its = socket.socketpair()
        with its:
            command = [sys.executable, "-P", str(_PROGRAM), str(its.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], start_new_session=True)
        self._control = ours
        settings = {"tokenizer": _as_json(self._tokenizer), "vocabulary": self._vocabulary, "eos_ids": self._eos_ids}
        told = orjson.dumps(settings)
        ours.settimeout(_START_S)
        try:
            ours.sendall(struct.pack(">I", len(told)) + told)
            answer = ours.recv(1024)
        except OSError as error:
            self._end()
            raise CannotFollow(f"the grammar process does not start: {error}") from error
        if answer[:1] != FREE:
            self._end()
            problem = answer[3:].decode(errors="replace") or "it ended"
            _log.error("structured output is not possible with this tokenizer: %s", problem)
            raise CannotFollow(f"structured output is not possible with this model's tokenizer: {problem}")

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()  # it ends by itself, and its forks end with their answers
            self._control = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        with self._starting:
            self._end()


def _as_json(tokenizer: Any) -> str:
    """The tokenizer's own description, without padding and truncation."""
    from copy import copy

    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str())


class Sets:
    """The masks under which the tokens of one answer were drawn. It grows in the thread that samples."""

    def __init__(self) -> None:
        self.distinct: list[bytes] = []  # numbered as they came
        self.which: list[int] = []  # of each token, the index of its mask; -1: any token could be drawn
        self._numbers: dict[bytes, int] = {}

    def add(self, mask: Bits | None) -> None:
        """The mask of the next token."""
        number = -1
        if mask is not None:
            told = mask.tobytes()
            number = self._numbers.setdefault(told, len(self._numbers))
            if number == len(self.distinct):
                self.distinct.append(told)
        self.which.append(number)
