"""Runs the server on an engine and a bound socket, and drains it on a signal."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from clawctl.config import Recipe, ServeConfig
from clawctl.engines import Engine
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, Unreachable, fetch
from clawctl.run.directory import RunDir
from clawctl.run.disk import retry_while_full
from clawctl.run.endpoint import announce, cannot_listen, own_url, registered_url
from clawctl.run.model_files import IdReader
from clawctl.serve.app import Gateway
from clawctl.serve.capture import Capture
from clawctl.serve.limits import limited, share_descriptors
from clawctl.serve.versions import Versions

_log = logging.getLogger("clawctl.serve")
_CUT_S = 10  # after the drain, cancelled requests are captured within this time
# Thread switch interval: a thread that renders a long prompt holds the interpreter this long (Python's default: 5 ms).
_SWITCH_S = 0.001
_LOOK_EVERY_S = 2.0  # for another server of the run
_SHORT_CONTEXT = 2048  # tokens; below that, the system prompt and tools of an agent alone are too long
# Response headers that a page may read in addition to the CORS-safelisted ones.
_READABLE = ("x-request-id", "request-id", "retry-after", "allow", "x-clawctl-ignored", "x-clawctl-sampling")
_KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, so that no client sends into a connection that is being closed


def run_server(
    engine: Engine, run: RunDir, recipe: Recipe, intercept: bool, listener: socket.socket, key: str, pin: int | None = None
) -> None:
    """Serve and drain. Raises ClawError."""
    logging.getLogger("uvicorn.error").setLevel("ERROR")  # it logs a warning for each malformed request
    versions = Versions(run, engine, pin)
    capture = Capture(run.captures if intercept else None, recipe.privacy, IdReader(recipe.model_path), run.images)
    gateway = Gateway(run, recipe, key, versions, capture)
    sys.setswitchinterval(_SWITCH_S)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn drains on the first signal and raises it again at the end
        descriptors = share_descriptors(recipe.serve.limits.connections, 1 if recipe.serve.upstream is None else 2)
        if descriptors.connections < recipe.serve.limits.connections:
            warning = "the limit of open files allows %d connections, but serve.limits.connections is %d; raise it with ulimit -n"
            _log.warning(warning, descriptors.connections, recipe.serve.limits.connections)
        settings = uvicorn.Config(
            for_pages(gateway, recipe.serve.cors_origins),
            http=limited(recipe.serve.limits, descriptors.connections),
            proxy_headers=False,  # unused: a request with such a header never counts as local
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=descriptors.backlog,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(recipe.serve.drain_s + _CUT_S),
        )
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:  # uvloop, if it is installed
            runner.run(_serve(run, recipe, listener, settings, gateway, versions, capture))
        if dead := engine.failure():
            raise ClawError(f"the engine failed: {dead}", "logs/serve.log has the details; `clawctl up` restarts it")
    finally:
        gateway.stop()
        versions.stop()
        capture.close()


def for_pages(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application with CORS headers for web pages of these origins. A browser does not send a key by itself, and cookies are
    never used, so a page needs a key like any client: with `*`, pages of all origins read answers to requests with a key."""
    if not origins:
        return app
    return CORSMiddleware(
        app, [origin.lower() for origin in origins], ["*"], ["*"], expose_headers=_READABLE, allow_private_network=True
    )


async def _serve(
    run: RunDir,
    recipe: Recipe,
    listener: socket.socket,
    settings: uvicorn.Config,
    gateway: Gateway,
    versions: Versions,
    capture: Capture,
) -> None:
    host, port = recipe.serve.host, int(listener.getsockname()[1])
    announced = False

    def up() -> None:
        """Called when the engine is ready. The engine starts with version 0. The live version then follows by a normal swap, with
        its canary check and with version 0 as fallback."""
        nonlocal announced
        versions.follow_once(begun=True)
        if not announced:
            announced = True
            # Exclude loaded modules from garbage collection; a full collection would delay every stream by about one token.
            gc.freeze()
            _announce(run, host, port)
            what = "captured" if capture.enabled else "not captured"
            version, context = versions.live.version, versions.live.max_context
            if context is not None and context < _SHORT_CONTEXT:
                _log.warning(
                    "%s reads at most %d tokens, conversation and answer together; longer conversations are refused with status "
                    "400 (context_length_exceeded). An agent's first request alone is longer: choose a model with more positions",
                    recipe.model_name,
                    context,
                )  # fmt: skip
            _log.info("http://%s:%d/v1 serves %s, version %d; conversations are %s", host, port, recipe.model_name, version, what)
            _log.info("%s", gateway.defaults)
            versions.start()

    def started() -> None:
        keeping.append(asyncio.ensure_future(versions.live.keep(up)))
        keeping[0].add_done_callback(ended)
        keeping.append(asyncio.ensure_future(gateway.end_revoked()))
        keeping.append(asyncio.ensure_future(gateway.sleeping.keep()))
        keeping.append(asyncio.ensure_future(_keep_registered(run, host, port)))

    def ended(task: asyncio.Task[None]) -> None:
        server.should_exit = True  # no request can be answered; the supervisor of this process restarts it

    keeping: list[asyncio.Task[None]] = []
    server = _Server(settings, started, gateway, recipe.serve)
    try:
        listener.listen(settings.backlog)
        await server.serve(sockets=[listener])
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    finally:
        versions.leave()
        for task in keeping:
            if task.done():
                task.result()  # raises the error that ended the engine
            task.cancel()


def _announce(run: RunDir, host: str, port: int) -> None:
    """Write the server's address. On a full disk a thread retries until there is space, while the server already answers."""
    try:
        announce(run, host, port)
    except OSError as error:
        _log.error("cannot write serve.json, so the other stages cannot find this server: %s", error)
        retry = partial(retry_while_full, partial(announce, run, host, port), "serve.json")
        threading.Thread(target=retry, name="announce", daemon=True).start()


async def _keep_registered(run: RunDir, host: str, port: int) -> None:
    """The other stages use the server that registered last. When that one has ended, this one registers again."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if await asyncio.to_thread(_is_alone, run, own_url(host, port)):
            _announce(run, host, port)
            _log.info("the other stages use this server again: the one that registered after it has ended")


def _is_alone(run: RunDir, here: str) -> bool:
    """Whether another server than the one at `here` registered last and does not run any more."""
    try:
        registered = registered_url(run)
        if registered != here:
            fetch("GET", f"{registered.removesuffix('/v1')}/health", timeout_s=_LOOK_EVERY_S, connect_s=_LOOK_EVERY_S)
    except Unreachable:
        return True
    except (ClawError, RequestFailed):
        pass  # it cannot be read now, or the server is busy
    return False


class _Server(uvicorn.Server):
    """Announces the server when it listens. It shuts down in steps: it reports not ready, then refuses new requests, then finishes
    running ones."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], gateway: Gateway, serve: ServeConfig) -> None:
        super().__init__(config)
        self._on_started, self._gateway, self._serve_config = started, gateway, serve

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.drain()
        if not self.force_exit:
            await asyncio.sleep(self._serve_config.drain_notice_s)
        cut = asyncio.get_running_loop().call_later(self._serve_config.drain_s, self._gateway.cancel_running)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()
