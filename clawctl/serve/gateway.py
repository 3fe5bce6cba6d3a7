"""The door of `clawctl serve`: everything is made in order, the cheap refusals first, and ended in order."""

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
import uvicorn

from clawctl.config import Recipe
from clawctl.endpoint import announce, own_api_key
from clawctl.errors import ClawError
from clawctl.policies import ensure_base_policy, live_version
from clawctl.run_dir import RunDir
from clawctl.serve.app import Gateway
from clawctl.serve.capture import Capture
from clawctl.serve.engines.transformers import TransformersEngine
from clawctl.serve.engines.weights import check_model
from clawctl.serve.prompt import load_tokenizer
from clawctl.serve.versions import Versions

_log = logging.getLogger("clawctl.serve")
_DRAIN_S = 120  # running requests have so long to finish after SIGTERM
_BACKLOG = 2048
_WATCH_S = 1.0


def serve(run: RunDir, recipe: Recipe, intercept: bool) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish. Raises ClawError."""
    listener = _bind(recipe.serve.host, recipe.serve.port)
    with listener:
        check_model(recipe)
        key, is_new = own_api_key(run, recipe)
        if is_new:
            print(f"API key, made now and kept in {run.root / 'api_key'}: {key}", file=sys.stderr)
        ensure_base_policy(run, recipe.model.path)
        if recipe.serve.threads is not None:
            torch.set_num_threads(recipe.serve.threads)
        tokenizer = load_tokenizer(recipe.model_path)
        live = live_version(run) or 0
        trouble, engine = _first_engine(run, recipe, live)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn drains on the first signal and raises it again when it is done
        asyncio.run(_serve(run, recipe, intercept, listener, key, tokenizer, engine, trouble))


def _bind(host: str, port: int) -> socket.socket:
    """The address, taken before anything is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        return listener
    except OSError as error:
        raise _not_ours(host, port, error) from error


def _not_ours(host: str, port: int, error: OSError) -> ClawError:
    if error.errno == errno.EADDRINUSE:
        return ClawError(f"port {port} on {host} is taken", "stop what listens there or choose another with --port")
    return ClawError(f"cannot listen on {host} port {port}: {error.strerror or error}", "choose another with --host and --port")


def _first_engine(run: RunDir, recipe: Recipe, live: int) -> tuple[str | None, TransformersEngine]:
    """The engine with the live version, or with version 0 and the trouble if the live one is broken."""
    try:
        engine = TransformersEngine(run, recipe, live)
    except (ClawError, OSError, ValueError, RuntimeError, KeyError) as error:
        if live == 0:
            raise
        _log.error("version %d does not go live: %s; version 0 serves", live, error)
        return f"version {live} does not go live: {error}", TransformersEngine(run, recipe, 0)
    return None, engine


async def _serve(
    run: RunDir,
    recipe: Recipe,
    intercept: bool,
    listener: socket.socket,
    key: str,
    tokenizer: Any,
    engine: TransformersEngine,
    trouble: str | None,
) -> None:
    capture = Capture(run.captures if intercept else None)
    versions = Versions(run, engine, lambda version: TransformersEngine(run, recipe, version), recipe.serve.pinned_versions)
    versions.last_swap_error = trouble
    app = Gateway(run, recipe, key, versions, tokenizer, capture).app()
    port = int(listener.getsockname()[1])

    def started() -> None:
        announce(run, recipe.serve.host, port)
        what = "captured" if intercept else "not captured"
        url = f"http://{recipe.serve.host}:{port}/v1"
        _log.info("%s serves %s, version %d; conversations are %s", url, recipe.model_name, engine.version, what)
        versions.start()

    settings = uvicorn.Config(
        app, log_config=None, access_log=False, backlog=_BACKLOG, timeout_graceful_shutdown=_DRAIN_S, server_header=False
    )
    server = _Server(settings, started)
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    watch = asyncio.create_task(_end_with_engine(server, versions))
    try:
        listener.listen(_BACKLOG)
        await server.serve(sockets=[listener])
    except OSError as error:
        raise _not_ours(recipe.serve.host, port, error) from error
    finally:
        watch.cancel()
        await asyncio.to_thread(versions.stop)
        capture.close()
    if (dead := engine.failure()) and watch.done() and not watch.cancelled():
        raise ClawError(f"the engine failed: {dead}", "see logs/serve.log; `clawctl up` starts it again")


class _Server(uvicorn.Server):
    """Says when it really listens."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()


async def _end_with_engine(server: uvicorn.Server, versions: Versions) -> None:
    """A dead engine answers nothing: end, so that whoever supervises this process starts it again."""
    while versions.live.failure() is None:
        await asyncio.sleep(_WATCH_S)
    server.should_exit = True
