"""Structured answers: the allowed next tokens, computed by a separate process for each answer (`process`).

Each answer has a connection. clawctl sends the specification as JSON, and later each sampled token in 4 bytes. The reply to the
first message is the grammar, then the mask of the first token; to each other message, the mask of the next token. A reply that
begins with `e` is a sentence: the grammar cannot continue.
"""

import contextlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from copy import copy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from clawctl.engines import CannotFollow
from clawctl.engines.structured.process import FAILED
from clawctl.run.allowed_tokens import Allowed

_log = logging.getLogger("clawctl.serve")
_PROGRAM: Final = Path(__file__).parent / "process.py"
_START_S, _COMPILE_S, _STEP_S = 60.0, 20.0, 5.0  # timeouts; the process itself counts processor time, with much lower limits
_CURE: Final = "structured output needs llguidance: pip install 'llguidance>=1.7'"
Bits = NDArray[np.uint8]


def _reply(connection: Connection, timeout_s: float) -> bytes:
    """The next reply. Raises CannotFollow."""
    try:
        if not connection.poll(timeout_s):
            raise CannotFollow("no answer in time")
        data = connection.recv_bytes()
    except (EOFError, OSError) as error:
        raise CannotFollow("it needs more processor time or memory than allowed") from error
    if data[:1] == FAILED:
        raise CannotFollow(data[1:].decode(errors="replace"))
    return data[1:]


class Grammar:
    """The tokens allowed next in one answer, and the sets of them so far. Only the sampling thread calls `mask` and `advance`."""

    def __init__(self, connection: socket.socket, specification: bytes) -> None:
        """Blocks until the first mask has arrived. Raises CannotFollow."""
        self._socket, self._connection = connection, Connection(os.dup(connection.fileno()))
        self._mask: Bits | None = None
        self._index_of: dict[bytes, int] = {}
        self.which: list[int] = []  # for each token, the index of the set that it was sampled from
        self.sets: list[bytes] = []  # the different sets, in order of appearance
        self._timeout_s = _COMPILE_S
        self._send(specification)
        self.text = _reply(self._connection, self._timeout_s).decode()
        self.mask()
        self._timeout_s = _STEP_S

    def mask(self) -> Bits:
        """One bit per token, set if it is allowed, as bytes with the lowest bit first. Blocks until the result has arrived. Raises
        CannotFollow."""
        if self._mask is None:
            self._mask = np.frombuffer(_reply(self._connection, self._timeout_s), np.uint8)
        return self._mask

    def advance(self, token: int, last: bool = False) -> None:
        """Send the sampled `token`, unless it is the last. The process computes the next mask in the meantime. Raises
        CannotFollow."""
        allowed = self.mask().tobytes()
        self.which.append(self._index_of.setdefault(allowed, len(self.sets)))
        if self.which[-1] == len(self.sets):
            self.sets.append(allowed)
        if not last:
            self._send(token.to_bytes(4))
            self._mask = None

    def close(self) -> None:
        """End the grammar's process. Any thread may call it, even twice: the descriptor stays open until no thread uses it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._connection.send_bytes(data)
        except OSError as error:
            raise CannotFollow("it needs more processor time or memory than allowed") from error


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
                    raise CannotFollow(f"its process has ended: {error}") from error
        try:
            return Grammar(ours, specification)
        except CannotFollow:
            ours.close()
            raise

    def text(self, specification: bytes) -> str:
        """The grammar in llguidance's language. Raises CannotFollow."""
        grammar = self.open(specification)
        grammar.close()
        return grammar.text

    def allowed(self, specification: bytes, ids: Sequence[int]) -> Allowed:
        """The sets that another engine sampled `ids` from under the same grammar. Raises CannotFollow."""
        grammar = self.open(specification)
        try:
            for i, token in enumerate(ids):
                grammar.advance(token, i == len(ids) - 1)
        finally:
            grammar.close()
        return Allowed(self._vocabulary, tuple(grammar.which), tuple(grammar.sets))

    def _start(self) -> None:
        self.stop()
        if importlib.util.find_spec("llguidance") is None:
            raise CannotFollow(_CURE)
        self._control, peer = socket.socketpair()
        with peer:
            command = [sys.executable, "-P", str(_PROGRAM), str(peer.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[peer.fileno()], start_new_session=True)
        settings = {"tokenizer": _as_json(self._tokenizer), "vocabulary": self._vocabulary, "eos_ids": self._eos_ids}
        connection = Connection(os.dup(self._control.fileno()))
        try:
            connection.send_bytes(orjson.dumps(settings))
            _reply(connection, _START_S)
        except (CannotFollow, OSError) as error:
            self.stop()
            problem = f"structured output is not possible with this model's tokenizer: {error}"
            _log.error("%s", problem)
            raise CannotFollow(problem) from error

    def stop(self) -> None:
        if self._control is not None:
            self._control.close()  # the process then exits, and its forks exit at the end of their answers
            self._control = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process.kill()
            self._process.wait()
            self._process = None


def _as_json(tokenizer: Any) -> str:
    """The serialised tokenizer, without padding and truncation."""
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str())
