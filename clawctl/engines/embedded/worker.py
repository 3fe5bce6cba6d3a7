"""The process that holds the models (`__main__`), which `process.ModelProcess` starts.

It samples, loads, swaps and follows grammars for the gateway at the other end of the socket. It exits when the gateway does.
"""

import asyncio
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clawctl.config import Recipe
from clawctl.engines import CannotFollow, EngineFailure
from clawctl.engines.embedded import frames
from clawctl.engines.embedded.cache import KvCache
from clawctl.engines.embedded.decoder import Decoder, Running
from clawctl.engines.embedded.sight import SeenPrompt
from clawctl.engines.structured.grammars import Grammar, Grammars
from clawctl.errors import ClawError
from clawctl.memory import return_freed_heap
from clawctl.process import log_to
from clawctl.run.directory import RunDir
from clawctl.run.mounts import run_folder
from clawctl.run.policies import PolicyId, located
from clawctl.serve.canary import CanaryFailure
from clawctl.vision.reader import UnreadableImage

_log = logging.getLogger("clawctl.serve")
_WATCH_S = 1.0
_SWITCH_S = 0.001  # thread switch interval: the sampling thread holds the interpreter this long (Python's default: 5 ms)


class Worker:
    """All requests, models and grammars of one gateway."""

    def __init__(self, start: frames.StartWorker, send: Callable[[bytes], None]) -> None:
        self._run, self._recipe, self._send = RunDir(run_folder(start.run)), Recipe.model_validate_json(start.recipe), send
        self._cache = KvCache(self._recipe.serve.kv_cache_tokens)
        self._models: dict[int | str | None, Decoder] = {}  # the live model under None, others under their versions
        self._running: dict[int, Running] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}  # requests whose images are being decoded
        self._grammars: Grammars | None = None
        self._opening = threading.Lock()
        self._opened: dict[int, Grammar] = {}
        self._pieces: list[frames.TokenPiece] = []  # pieces of the current engine step
        self._calls: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Load version 0 as the live model."""
        if self._recipe.serve.threads is not None:
            torch.set_num_threads(self._recipe.serve.threads)
        # cuDNN's attention, which PyTorch prefers on new GPUs, plans each length of the keys anew, and each decoding step has one.
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            live = self._models[None] = await asyncio.to_thread(Decoder, self._run, self._recipe, 0, self._cache)
        except Exception as error:  # noqa: BLE001 - the edge of a process: the gateway reports it
            self._answer(frames.failed(0, error))
            return
        return_freed_heap()
        gc.freeze()  # exclude loaded modules from garbage collection; a full collection would delay every stream by about one token
        self._answer(frames.Ready(live.vocabulary, live.max_context, live.eos_ids, live.steers))
        asyncio.get_running_loop().call_later(_WATCH_S, self._watch)

    def _watch(self) -> None:
        """Report models that cannot continue."""
        for name, model in list(self._models.items()):
            if problem := model.failure():
                del self._models[name]
                self._answer(frames.Died(name, problem))
        asyncio.get_running_loop().call_later(_WATCH_S, self._watch)

    def handle(self, message: frames.ToProcess) -> None:
        match message:
            case frames.Generate() if message.images:
                self._looking[message.number] = asyncio.get_running_loop().create_task(self._decode_images(message))
            case frames.Generate():
                self._generate(message)
            case frames.Cancel():
                if (running := self._running.pop(message.number, None)) is not None:
                    running.cancel()
                if (looking := self._looking.pop(message.number, None)) is not None:
                    looking.cancel()
            case frames.Discard():
                if (grammar := self._opened.pop(message.number, None)) is not None:
                    grammar.close()
            case frames.StartWorker():
                raise ValueError("a process starts once")
            case frames.ProcessCall():
                call = asyncio.get_running_loop().create_task(self._call(message))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _decode_images(self, request: frames.Generate) -> None:
        """Decode the images of a request in a thread, then begin it."""
        try:
            seen_prompt = await asyncio.to_thread(self._model(request.model).prepare_images, request.prompt_ids, request.images)
            self._generate(request, seen_prompt)
        except UnreadableImage as error:
            self._add(request.number, frames.TokenPiece(request.number, 0, [], [], [], True, str(error), False, True))
        except EngineFailure as failure:
            self._fail(request.number, failure)
        except Exception:  # noqa: BLE001 - the edge of a process: a decoder may fail in any way, and the request must end
            _log.exception("an image of a request cannot be decoded")
            self._fail(request.number, EngineFailure("an image could not be decoded"))
        finally:
            self._looking.pop(request.number, None)

    def _generate(self, request: frames.Generate, seen_prompt: SeenPrompt | None = None) -> None:
        model = self._models.get(request.model)
        grammar = None if request.grammar is None else self._opened.get(request.grammar)
        try:
            if model is None:
                raise EngineFailure("the engine has stopped")
            take = partial(self._add, request.number)
            self._running[request.number] = model.generate(
                request.prompt_ids, request.sampling, take, request.number, grammar, seen_prompt
            )
        except EngineFailure as failure:
            self._fail(request.number, failure)

    def _fail(self, number: int, failure: EngineFailure) -> None:
        self._add(number, frames.TokenPiece(number, 0, [], [], [], True, str(failure), False))

    def _add(self, number: int, piece: frames.TokenPiece) -> None:
        """Queue a piece; all pieces of a step are sent together."""
        if piece.ended:
            self._running.pop(number, None)
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._send_step)
        self._pieces.append(piece)

    def _send_step(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._answer(frames.Step(pieces))

    def _answer(self, message: frames.FromProcess) -> None:
        self._send(frames.packed(message))

    async def _call(self, request: frames.ProcessCall) -> None:
        """Run a call in a thread, because it may take long, and send its answer."""
        answer: frames.FromProcess
        try:
            answer = frames.Done(request.number, await asyncio.to_thread(self._do, request))
        except Exception as error:  # noqa: BLE001 - the edge of a process: the gateway decides what to do about it
            if not isinstance(error, ClawError | CanaryFailure | CannotFollow | EngineFailure):
                _log.exception("the engine's process failed at %s", request.method)
            answer = frames.failed(request.number, error)
        self._answer(answer)

    def _do(self, call: frames.ProcessCall) -> Any:
        match call.method, call.arguments:
            case "compile", (grammar, specification):
                self._opened[grammar] = self._ready_grammars().open(specification)
            case "load", (version,):
                run, number = located(self._run, PolicyId.parse(version) if isinstance(version, str) else version)
                beside = None if number == version else self._model(None)
                self._models[version] = Decoder(run, self._recipe, number, self._cache, beside)
            case "unload", (version,):
                if (model := self._models.pop(version, None)) is not None:
                    model.stop()
            case "pause", ():
                for model in self._models.values():
                    model.pause()
            case "resume", ():
                for model in self._models.values():
                    model.resume()
            case "replace", (version,):
                return self._model(None).swap(version)
            case "score", (name, ids, first):
                return self._model(name).score(ids, first)
            case _:
                raise ValueError(f"there is no call {call.method} with {len(call.arguments)} arguments")
        return None

    def _model(self, name: int | str | None) -> Decoder:
        model = self._models.get(name)
        if model is None:
            raise EngineFailure("the engine has stopped")
        return model

    def _ready_grammars(self) -> Grammars:
        with self._opening:
            if self._grammars is None:
                from clawctl.serve.prompt import load_tokenizer  # imports transformers, which takes seconds

                live = self._model(None)
                self._grammars = Grammars(load_tokenizer(self._recipe.model_path), live.vocabulary, sorted(live.eos_ids))
            return self._grammars


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    worker: Worker | None = None
    loading: asyncio.Task[None] | None = None
    async for frame in frames.received(reader):
        message = frames.to_process.decode(frame)
        if worker is None:
            assert isinstance(message, frames.StartWorker)
            log_to(RunDir(Path(message.run)).logs / "serve.log", message.log_level)
            worker = Worker(message, writer.write)
            loading = asyncio.create_task(worker.load())
        else:
            worker.handle(message)
    del loading


def main(descriptor: int) -> None:
    sys.setswitchinterval(_SWITCH_S)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_and_end(socket.socket(fileno=descriptor)))


async def _serve_and_end(connection: socket.socket) -> None:
    try:
        await _serve(connection)
    finally:
        logging.shutdown()
        os._exit(0)  # exit immediately: a model may be loading, and threads are sampling
