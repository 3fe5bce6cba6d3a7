"""Continuous batching of a `Llama`: requests join and leave between two steps of the sampling thread. Requests of several adapters
of one base model share the steps, each with its own adapter on its rows.

Running requests lie in blocks, next to others of a similar length, so that a step attends to keys in place. When an answer
ends, its keys stay for later prompts that begin alike, until the memory is needed. A change of the weights is an assignment
between two steps.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from clawctl.engines.embedded.blocks import Fresh, KvBlock, Part, Request, Served, attend, decode_part, is_prompt, prompt_part
from clawctl.engines.embedded.cache import SHARED, KvCache, common
from clawctl.engines.embedded.llama import Llama
from clawctl.engines.embedded.steering import Steering

_log = logging.getLogger("clawctl.serve")
_SMALLEST = 128  # tokens per row
_BLOCK, _GPU_BLOCK = (4096, 16), (8192, 64)  # tokens and rows per block; a GPU starts fewer and larger operations
_MAX_RUNNING = 256  # requests per engine step
_CHUNK = 256  # tokens of prompts in a step that other requests wait for
_LOOK_S, _STOP_S = 0.1, 30.0
_CROWDED_S = 0.02  # until a model whose requests find no room looks again; another version's requests hold all of it


class Batches:
    """The sampling thread of one model. Call `add` on the event loop, and everything else in any thread."""

    def __init__(
        self, model: Llama, version: int, steering: Steering, eos_ids: frozenset[int], cache: KvCache, batch_tokens: int
    ) -> None:
        self.served = Served(model, version)
        self._all = [self.served]
        self._steering, self._eos_ids = steering, eos_ids
        self._mixed: tuple[list[tuple[Llama, int, int]], Llama] = [], model  # the rows of the last step of several adapters
        self._cache, self._batch_tokens = cache, batch_tokens
        self.max_context = min(model.max_positions, cache.tokens)
        self._waiting = deque[Request]()
        self._running = list[Request]()  # in the order of their arrival
        self._blocks = list[KvBlock]()
        self._changed = threading.Condition()
        self._between = list[Callable[[], None]]()  # to do before the next step
        self._paused = self._stopped = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    # ---- from other threads -----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> bool:
        """Begin to sample. Returns False if the thread has ended."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()
        return self.failure() is None

    def cancel(self, request: Request) -> None:
        with self._changed:
            request.cancelled = True
            self._changed.notify()

    def replace(self, model: Llama, version: int, done: Callable[[], None]) -> float:
        """Sample with `model` from the next step on, and call `done` before it. Returns the pause in ms. Raises ValueError if it is
        not an adapter of the model that others share."""
        pauses = list[float]()
        if len(self._all) > 1 and model.base is not self.served.model.base:
            raise ValueError(f"version {version} is not an adapter of the base model, which the policies of keys share")

        def swap() -> None:
            began = time.perf_counter()
            self.served.model, self.served.version = model, version
            self._mixed = [], model  # keeps no adapter that is replaced
            self._cache.drop(self.served)
            for request in self._running:
                request.mixed = request.mixed or (request.served is self.served and request.cached > 0)
            done()
            pauses.append((time.perf_counter() - began) * 1000)

        self._do_between(swap)
        return sum(pauses)

    def join(self, model: Llama, version: int) -> Served | None:
        """Weights whose requests share the steps. None if they do not share the matrices of this model."""
        if model.base is not self.served.model.base:
            return None
        served = Served(model, version)
        self._do_between(lambda: self._all.append(served))
        return served

    def part(self, served: Served) -> None:
        """End the requests of weights that joined."""

        def part() -> None:
            self._all.remove(served)
            self._mixed = [], self.served.model
            for request in [request for request in self._running if request.served is served]:
                self._leave(request)
            self._waiting = deque(request for request in self._waiting if request.served is not served)
            self._cache.drop(served)

        self._do_between(part)

    def pause(self) -> None:
        """Returns when no token is being sampled; requests are kept until `resume`."""

        def hold() -> None:
            self._paused = True

        self._do_between(hold)

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify()

    def _do_between(self, work: Callable[[], None]) -> None:
        """Do `work` in the sampling thread between two steps. Returns when it is done, or when the thread has ended."""
        done = threading.Event()
        with self._changed:
            self._between += [work, done.set]
            self._changed.notify()
        while not done.wait(_LOOK_S) and self._thread.is_alive():
            pass

    def failure(self) -> str | None:
        """Why no more tokens are sampled, or None."""
        return self._failure or (None if self._thread.is_alive() and not self._stopped else "the engine has stopped")

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting."""
        return not self._running and not self._waiting

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(_STOP_S)

    # ---- the sampling thread ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while self._has_work():
                self._admit()
                if self._running:
                    self._step()
                else:
                    time.sleep(_CROWDED_S)
        except Exception as error:  # noqa: BLE001 - the edge of a thread: the gateway learns of it through `failure`
            _log.exception("the sampling thread failed")
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._cache.give(sum(request.block.capacity for request in self._running if request.block is not None))
            for served in self._all:
                self._cache.drop(served)

    def _has_work(self) -> bool:
        """Wait until there is a request to continue. False at the end."""
        with self._changed:
            while not self._stopped:
                while self._between:
                    self._between.pop(0)()
                if any(request.cancelled for request in (*self._running, *self._waiting)):
                    for request in [request for request in self._running if request.cancelled]:
                        self._leave(request)
                    self._waiting = deque(request for request in self._waiting if not request.cancelled)
                if not self._paused and not self.idle:
                    return True
                self._changed.wait()
            return False

    def _capacity(self, tokens: int) -> int:
        return int(min(max(_SMALLEST, 1 << (tokens - 1).bit_length()), self.max_context))

    def _admit(self) -> None:
        """Give waiting requests a block, with what is known of their beginning. They stay in order."""
        while self._waiting and len(self._running) < _MAX_RUNNING:
            request = self._waiting[0]
            shared, kv = self._longest_beginning(request)
            capacity = self._capacity(min(len(request.ids) + 1, request.limit))
            alike = (other for other in self._running if other.served is request.served)
            unfinished = (other for other in alike if len(other.ids) - other.cached > 1 and not other.mixed)
            if any(common(other.ids, request.ids) >= shared + SHARED for other in unfinished) or not self._cache.take(capacity):
                return  # it waits for another request to compute its beginning, or for memory
            with self._changed:
                self._waiting.popleft()
            block = KvBlock(self.served.model, 1, capacity)
            self._blocks.append(block)
            block.append(request, kv or [kv[0, :, :, :0] for kv in block.kv])
            request.cached, request.mixed = shared, False
            self._running.append(request)

    def _longest_beginning(self, request: Request) -> tuple[int, list[Tensor]]:
        """The keys and values of as many of the first ids as are in memory. The last id is computed, for its logits."""
        ids = request.ids
        best, kv = self._cache.longest(request.served, ids)
        for other in self._running:
            if other.served is not request.served:
                continue
            count = min(common(other.ids, ids), other.cached, len(ids) - 1)
            if count > max(best, SHARED - 1) and not other.mixed and other.block is not None:
                best, kv = count, other.block.kv_of(other, count)
        return best, kv

    def _leave(self, request: Request) -> None:
        """Take a request out of its block, and keep its keys for later prompts."""
        block = request.block
        assert block is not None
        self._cache.give(block.capacity)
        if request.cached >= SHARED and not request.mixed:
            self._cache.keep(request.served, request.ids[: request.cached], block.kv_of(request, request.cached))
        self._take_out(request)
        self._running.remove(request)

    def _take_out(self, request: Request) -> None:
        block = request.block
        assert block is not None
        kind = block.rows, block.capacity
        last = next(
            other for other in reversed(self._blocks) if other is block or (block.rows > 1 and (other.rows, other.capacity) == kind)
        )
        block.remove(request, last.requests[-1])  # so at most one block of a kind has free rows
        request.block = None
        self._blocks = [kept_block for kept_block in self._blocks if kept_block.requests]

    def _settle(self, request: Request) -> None:
        """Move a request whose prompt is computed, or that has filled its row, next to others of its length."""
        block, capacity = request.block, self._capacity(min(len(request.ids) + 1, request.limit))
        assert block is not None
        block_tokens, block_rows = _BLOCK if self.served.model.device.type == "cpu" else _GPU_BLOCK
        rows = max(1, min(block_rows, block_tokens // capacity))
        if capacity == block.capacity and rows == block.rows:
            return
        while not self._cache.take(capacity - block.capacity):
            self._preempt(self._running[-1])
            if request.block is None:
                return
        block = request.block  # it may have moved to the row of a request that now waits
        assert block is not None
        # Copied if the row may go to another request before the keys are in the new block.
        kv = [part.clone() if block.rows > 1 else part for part in block.kv_of(request, request.cached)]
        self._take_out(request)
        partial = (other for other in self._blocks if other.capacity == capacity and 1 < other.rows > len(other.requests))
        if (free := next(partial, None)) is None:
            free = KvBlock(self.served.model, rows, capacity)
            self._blocks.append(free)
        free.append(request, kv)

    def _preempt(self, request: Request) -> None:
        """Make a request wait. Its keys will be computed again."""
        assert request.block is not None
        self._cache.give(request.block.capacity)
        self._take_out(request)
        self._running.remove(request)
        request.cached = 0
        with self._changed:
            self._waiting.appendleft(request)

    # ---- one step ---------------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        model, runs = self.served.model, list[tuple[Llama, int, int]]()
        ids, positions, parts, last, sampled = list[int](), list[int](), list[Part](), list[int](), list[Request]()
        decoding = sum(len(block.requests) for block in self._blocks if not is_prompt(block))
        room = min(_CHUNK, self._batch_tokens) if decoding else self._batch_tokens
        for block in self._blocks:
            start = len(ids)
            for request in block.requests:
                count = min(len(request.ids) - request.cached, max(room, 0)) if is_prompt(block) else 1
                assert request.served is not None
                if runs and runs[-1][0] is request.served.model:
                    runs[-1] = request.served.model, runs[-1][1], len(ids) + count
                elif count:
                    runs.append((request.served.model, len(ids), len(ids) + count))
                ids += request.ids[request.cached : request.cached + count]
                positions += range(request.cached, request.cached + count)
                if request.cached + count == len(request.ids):
                    last.append(len(ids) - 1)
                    sampled.append(request)
            if len(ids) > start:
                parts.append(prompt_part(model, block, start, len(ids)) if is_prompt(block) else decode_part(model, block, start))
                room -= len(ids) - start if is_prompt(block) else 0
        ids_T, positions_T = torch.tensor([ids, positions]).to(model.device)
        states_TD = self._model_of(runs).forward(ids_T, positions_T, attend(model, parts))
        for part in parts:
            for request in part.block.requests:
                request.cached += 1 if part.written is not None else part.stop - part.start
        if sampled:
            logits_NV = model.logits(states_TD if len(last) == len(ids) else states_TD[torch.tensor(last).to(model.device)])
            self._sample(sampled, logits_NV)

    def _model_of(self, runs: list[tuple[Llama, int, int]]) -> Llama:
        """The model for a step with these rows."""
        if len(runs) == 1:
            return runs[0][0]
        if runs != self._mixed[0]:
            self._mixed = runs, self.served.model.with_rows(runs)
        return self._mixed[1]

    def _sample(self, requests: list[Request], logits_NV: Tensor) -> None:
        names, settings = [request.name for request in requests], [request.sampling for request in requests]
        tokens, logprobs = self._steering.sample(names, settings, logits_NV)
        results: dict[asyncio.AbstractEventLoop, list[tuple[Request, Fresh, bool]]] = {}
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            assert request.served is not None
            version = request.served.version  # it changes between steps only
            request.ids.append(token)
            ended = token in self._eos_ids or len(request.ids) >= request.limit
            results.setdefault(request.loop, []).append((request, (token, logprob, version), ended))
            if ended:
                self._leave(request)
        for request in requests:
            if request.block is not None:
                self._settle(request)
        for loop, fresh in results.items():
            try:
                loop.call_soon_threadsafe(_deliver, fresh)
            except RuntimeError:  # the loop is closed, because the server is stopping
                _log.debug("results for a closed event loop are dropped")


def _deliver(results: list[tuple[Request, Fresh, bool]]) -> None:
    for request, fresh, ended in results:
        if not request.cancelled:
            request.take([fresh], ended, None)
