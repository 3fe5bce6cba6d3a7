"""Structured answers: the allowed next tokens, computed by a separate process for each answer (`grammar_process`).

Each answer has a socket. clawctl sends the length of the specification in 4 bytes and the specification as JSON, and later each
sampled token in 4 bytes. The reply to each of these messages is one of:

- `f`: any token is allowed;
- `m` and one bit per token of the vocabulary, lowest first;
- `e`, a length in 2 bytes, and a sentence: the grammar cannot continue.
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
_START_S, _COMPILE_S, _STEP_S = 60.0, 20.0, 5.0  # timeouts; the process itself counts processor time, with much lower limits
_CURE: Final = "structured output needs llguidance: pip install 'llguidance>=1.7'"
Bits = NDArray[np.uint8]


class Grammar:
    """The tokens allowed next in one answer. Only the sampling thread calls `mask` and `advance`."""

    def __init__(self, connection: socket.socket, vocabulary: int, specification: bytes) -> None:
        """Blocks until the first mask has arrived. Raises CannotFollow."""
        self._socket, self._bytes = connection, 4 * ((vocabulary + 31) // 32)
        self._received = bytearray()
        self._mask: Bits | None = None
        self._mask_due = True
        connection.settimeout(_COMPILE_S)
        self._send(struct.pack(">I", len(specification)) + specification)
        self.mask()
        connection.settimeout(_STEP_S)

    def mask(self) -> Bits | None:
        """One bit per token, set if it is allowed, as bytes with the lowest bit first; None if any token is allowed. Blocks until
        the result has arrived. Raises CannotFollow."""
        if self._mask_due:
            kind = self._read(1)
            if kind == FAILED:
                problem = self._read(struct.unpack(">H", self._read(2))[0]).decode(errors="replace")
                raise CannotFollow(problem)
            self._mask = None if kind == FREE else np.frombuffer(self._read(self._bytes), np.uint8)
            self._mask_due = False
        return self._mask

    def advance(self, token: int) -> None:
        """Send the sampled `token`. The process computes the next mask in the meantime. Raises CannotFollow."""
        self._send(struct.pack(">I", token))
        self._mask_due = True

    def close(self) -> None:
        """End the grammar's process. Any thread may call it, even twice: the descriptor stays open until no thread uses it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _lost_process(error) from error

    def _read(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise _lost_process(error) from error
            if not more:
                raise _lost_process(None)
            self._received += more
        data = bytes(self._received[:count])
        del self._received[:count]
        return data


def _lost_process(error: OSError | None) -> CannotFollow:
    slow = isinstance(error, TimeoutError)
    return CannotFollow("no answer in time" if slow else "it needs more processor time or memory than allowed")


class Grammars:
    """Opens grammars for one tokenizer. The process starts with the first grammar. Methods block, so call them in a thread."""

    def __init__(self, tokenizer: Any, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocabulary, self._eos_ids = tokenizer, vocabulary, sorted(eos_ids)
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open(self, specification: bytes) -> Grammar:
        """Open a grammar. `specification` is JSON, see `clawctl.serve.structured`. Raises CannotFollow if the grammar cannot be
        compiled within the limits, or if llguidance is missing."""
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._control is not None
            ours, peer = socket.socketpair()
            with peer:
                try:
                    socket.send_fds(self._control, [b"o"], [peer.fileno()])
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
        ours, peer = socket.socketpair()
        with peer:
            command = [sys.executable, "-P", str(_PROGRAM), str(peer.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[peer.fileno()], start_new_session=True)
        self._control = ours
        settings = {"tokenizer": _as_json(self._tokenizer), "vocabulary": self._vocabulary, "eos_ids": self._eos_ids}
        data = orjson.dumps(settings)
        ours.settimeout(_START_S)
        try:
            ours.sendall(struct.pack(">I", len(data)) + data)
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
            self._control.close()  # the process then exits, and its forks exit at the end of their answers
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
    """The serialised tokenizer, without padding and truncation."""
    from copy import copy

    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str())


class Sets:
    """The masks under which the tokens of one answer were sampled. The sampling thread appends to it."""

    def __init__(self) -> None:
        self.distinct: list[bytes] = []  # in order of appearance
        self.which: list[int] = []  # for each token, the index of its mask; -1: any token was allowed
        self._index_of: dict[bytes, int] = {}

    def add(self, mask: Bits | None) -> None:
        """Add the mask of the next token."""
        index = -1
        if mask is not None:
            data = mask.tobytes()
            index = self._index_of.setdefault(data, len(self._index_of))
            if index == len(self.distinct):
                self.distinct.append(data)
        self.which.append(index)
