"""The gateway's side of the process that holds the models: starts the process and communicates with it."""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from typing import Any

from clawctl.config import Recipe
from clawctl.engines import CannotFollow, EngineFailure, Swap, Unanswered
from clawctl.engines.embedded import frames
from clawctl.engines.event_loop import OnLoop
from clawctl.engines.requests import Refusal
from clawctl.errors import ClawError
from clawctl.run.allowed_tokens import Allowed
from clawctl.run.directory import RunDir
from clawctl.run.policies import PolicyId, Version
from clawctl.vision import SentImage

_log = logging.getLogger("clawctl.serve")
_CALL_S = 900.0  # seconds; a large model may take this long to load
_END_S = 5.0


class ModelProcess:
    """The models of the embedded engine, in a process that starts at once; `wait` returns when it has loaded version 0.

    `model` is a version beside the live one, or None for the live model. Call `generate` and `discard` on the event loop. Calls of
    the process block, so make them in threads. They raise EngineFailure if it cannot continue, and Unanswered if it ends meanwhile.
    """

    about: frames.Ready

    def __init__(self, run: RunDir, recipe: Recipe, begin: Callable[..., Any] = subprocess.Popen) -> None:
        self._socket, peer = socket.socketpair()
        with peer:
            command = [sys.executable, "-P", "-m", "clawctl.engines.embedded", str(peer.fileno())]
            self._process = begin(command, stdin=subprocess.DEVNULL, pass_fds=[peer.fileno()], start_new_session=True)
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        self._socket.sendall(frames.packed(frames.StartWorker(str(run.root), recipe.model_dump_json(), level)))
        self._numbers = count(1)
        self._running: dict[int, ChildGeneration] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._dead: dict[int | str | None, str] = {}  # why models cannot continue
        self._ended = asyncio.Event()
        self._on_loop = OnLoop()
        self._attaching = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    def wait(self) -> None:
        """Wait until version 0 is loaded. Raises ClawError, and the errors of loading."""
        message = frames.blocking_read(self._socket)
        if isinstance(message, frames.Ready):
            self.about = message
            return
        self.stop()
        if isinstance(message, frames.Failed):
            raise frames.as_exception(message)
        raise ClawError(self._cause(), "logs/serve.log has the details")

    async def attach(self) -> None:
        """Start reading the models' messages on the running event loop."""
        async with self._attaching:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
                self._on_loop.start(asyncio.get_running_loop())
                self._reading = asyncio.create_task(self._read(reader))

    async def ended(self) -> None:
        """Returns when the live model cannot continue."""
        await self._ended.wait()

    def failure(self, model: Version | None = None) -> str | None:
        """Why the model cannot continue, or None while it runs."""
        return self._dead.get(None) or self._dead.get(_named(model))

    # ---- requests ---------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        model: Version | None,
        prompt_ids: list[int],
        sampling: frames.Sampling,
        grammar: int | None = None,
        images: Sequence[SentImage] = (),
    ) -> "ChildGeneration":
        """Begin to sample; `grammar` then belongs to the answer. Raises EngineFailure."""
        if (problem := self.failure(model)) is not None:
            raise EngineFailure(problem)
        request = ChildGeneration(self, next(self._numbers), None if grammar is None else self.about.vocabulary)
        self._running[request.number] = request
        self._send(frames.Generate(request.number, _named(model), prompt_ids, sampling, grammar, list(images)))
        return request

    def cancel(self, number: int) -> None:
        if self._running.pop(number, None) is not None:
            self._send(frames.Cancel(number))

    def forget(self, number: int) -> None:
        self._running.pop(number, None)

    def discard(self, grammar: int) -> None:
        self._send(frames.Discard(grammar))

    # ---- calls, from threads ----------------------------------------------------------------------------------------------------

    def compile(self, specification: bytes) -> int:
        """Compile a grammar and return its number. Raises CannotFollow."""
        number = next(self._numbers)
        self._call("compile", number, specification)
        return number

    def load(self, version: Version) -> None:
        """Load a version in addition to the live model. Raises CanaryFailure, ClawError, OSError, ValueError, RuntimeError."""
        self._dead.pop(_named(version), None)
        self._call("load", _named(version))

    def unload(self, version: Version) -> None:
        self._call("unload", _named(version))

    def replace(self, version: int) -> Swap:
        """Load a version's weights into the live model once its canary check passes. Raises like `load`; the old weights then
        stay."""
        return Swap(**self._call("replace", version))

    def pause(self) -> None:
        """Returns when no model is sampling; requests are kept until `resume`."""
        self._call("pause")

    def resume(self) -> None:
        self._call("resume")

    def score(self, ids: Sequence[int], first: int, model: Version | None = None) -> tuple[int, list[float]]:
        """The version of the weights, and the logprobs of `ids[first:]`, each given all preceding ids."""
        version, logprobs = self._call("score", _named(model), list(ids), first)
        return version, logprobs

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._on_loop.wait(self._answer(frames.ProcessCall(next(self._numbers), method, arguments)), _CALL_S)

    async def _answer(self, message: frames.ProcessCall) -> Any:
        if (problem := self.failure()) is not None:
            raise EngineFailure(problem)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[message.number] = answer
        self._send(message)
        return await answer

    # ---- the connection ---------------------------------------------------------------------------------------------------------

    def _send(self, message: frames.ToProcess) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frames.packed(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for frame in frames.received(reader):
            self._handle(frames.from_process.decode(frame))
        problem = await asyncio.to_thread(self._cause)
        _log.error("%s", problem)
        self._mark_dead(None, problem)

    def _handle(self, message: frames.FromProcess) -> None:
        match message:
            case frames.Step():
                for piece in message.pieces:
                    if (request := self._running.get(piece.number)) is not None:
                        request.add_piece(piece)
            case frames.Failed():
                if (call := self._calls.pop(message.number, None)) is not None and not call.done():
                    call.set_exception(frames.as_exception(message))
            case frames.Died():
                self._mark_dead(message.model, message.problem)
            case frames.Done():
                if (call := self._calls.pop(message.number, None)) is not None and not call.done():
                    call.set_result(message.result)

    def _mark_dead(self, model: int | str | None, problem: str) -> None:
        self._dead[model] = problem
        if model is not None:
            return
        self._ended.set()
        running, self._running = self._running, {}
        for request in running.values():
            request.fail(problem)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(Unanswered(problem, "logs/serve.log has the details"))

    def _cause(self) -> str:
        """Why the process has ended. Blocks for up to `_END_S` seconds."""
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "the engine's process does not answer"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"the engine's process {how}"

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # the event loop may have closed the socket
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _named(model: Version | None) -> int | str | None:
    """The name of a model in messages."""
    return str(model) if isinstance(model, PolicyId) else model


class ChildGeneration:
    """One running request."""

    def __init__(self, process: ModelProcess, number: int, vocabulary: int | None) -> None:
        self.number = number
        self.start_version: int | None = None  # the version that the request began with, once a token was sampled
        self._process, self._vocabulary = process, vocabulary
        self._tokens = list[frames.Token]()
        self._which, self._sets = list[int](), list[bytes]()
        self._ended = False
        self._error: EngineFailure | Refusal | None = None
        self._changed = asyncio.Event()

    def add_piece(self, piece: frames.TokenPiece) -> None:
        """Add a piece. Called on the event loop."""
        self.start_version = piece.start_version
        self._tokens += piece.tokens
        self._which += piece.which
        self._sets += piece.sets
        if piece.unreadable:
            self._end(Refusal(400, piece.error or "", "messages"))
        elif piece.ended:
            self._end(None if piece.error is None else (CannotFollow if piece.unfollowable else EngineFailure)(piece.error))
        self._changed.set()

    def fail(self, problem: str) -> None:
        self._end(EngineFailure(problem))

    def _end(self, error: EngineFailure | Refusal | None) -> None:
        self._ended, self._error = True, error
        self._process.forget(self.number)
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[list[frames.Token]]:
        """New tokens, in non-empty lists, up to and including the end token. Raises EngineFailure, and Refusal for an image."""
        try:
            while not (self._ended and not self._tokens):
                await self._changed.wait()
                self._changed.clear()
                tokens, self._tokens = self._tokens, []
                if tokens:
                    yield tokens
                if self._ended:
                    self._changed.set()
            if self._error is not None:
                raise self._error
        finally:
            self.cancel()

    def allowed(self, count: int) -> Allowed | None:
        """The allowed tokens at the positions of the first `count` tokens; None: any, because no grammar was requested."""
        if self._vocabulary is None:
            return None
        which = self._which[:count]
        return Allowed(self._vocabulary, tuple(which), tuple(self._sets[: max(which, default=-1) + 1]))

    def cancel(self) -> None:
        """Stop sampling: the iteration ends after the delivered tokens. Has no effect after the end."""
        if not self._ended:
            self._ended = True
            self._process.cancel(self.number)
        self._changed.set()
