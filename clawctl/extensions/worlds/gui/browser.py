"""Chromium, driven by Playwright. Each event loop has one browser, which ends with the loop. Each episode has its own context."""

import asyncio
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from clawctl.environments import EpisodeFailed
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.bubblewrap import find_bubblewrap

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_START_S = 120.0
_UNUSED = ("SpareRendererForSitePerProcess", "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup")  # cost processes
_ARGUMENTS = ("--disable-gpu", "--js-flags=--max-old-space-size=256", f"--disable-features={','.join(_UNUSED)}")
_OPENED = 4  # pages that load concurrently; with more, each would take too long on a few cores

Starting = asyncio.Future[Any]
_browsers = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple["asyncio.Task[None]", Starting]]]()
_turns = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()


def find_chromium(given: str | None = None) -> str:
    """The path of Chromium's program. Raises ClawError (exit code 2) if it, Playwright or bubblewrap is missing."""
    find_bubblewrap()
    if find_spec("playwright") is None:
        raise ClawError("the environment gui needs Playwright", "run `pip install 'clawctl[gui]'`", 2)
    if given is not None:
        if shutil.which(os.path.expanduser(given)) is None:
            raise ClawError(f"there is no program {given}", "name Chromium's program in the option browser", 2)
        return str(shutil.which(os.path.expanduser(given)))
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        cure = "install it (Debian: apt-get install chromium), or name its program: --option browser=/path/to/chromium"
        raise ClawError(f"Chromium is not in PATH (looked for {', '.join(NAMES)})", cure, 2)
    return program


async def open_context(chromium: str, **settings: Any) -> Any:
    """A Playwright context in the browser of this event loop. The browser is started if necessary. Raises EpisodeFailed."""
    browser = await _browser(chromium)
    try:
        return await browser.new_context(
            accept_downloads=False, service_workers="block", locale="en-US", timezone_id="UTC", **settings
        )
    except Exception as error:
        raise EpisodeFailed("sandbox", f"Chromium cannot open a page: {short(error)}") from error


async def close_context(context: Any) -> None:
    with suppress(Exception):  # the browser may have ended
        await asyncio.wait_for(asyncio.shield(context.close()), 10.0)


@asynccontextmanager
async def new_context(chromium: str, **settings: Any) -> AsyncIterator[Any]:
    """A context as `open_context` makes it, closed at the end. Raises EpisodeFailed."""
    context = await open_context(chromium, **settings)
    try:
        yield context
    finally:
        await close_context(context)


def playwright_error() -> type[Exception]:
    from playwright.async_api import Error

    return cast(type[Exception], Error)


async def escapes() -> tuple[str, list[str]]:
    """Chromium's version, and the forbidden resources that a page reaches: "network", "files". Raises ClawError, EpisodeFailed."""
    failed = []
    with tempfile.TemporaryDirectory() as folder, socket.socket() as server:
        secret = Path(folder) / "secret.txt"
        secret.write_text("secret")
        os.chmod(folder, 0o755)
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.1)
        async with new_context(find_chromium()) as context:
            for name, address in (("network", f"http://127.0.0.1:{server.getsockname()[1]}/"), ("files", secret.as_uri())):
                page = await context.new_page()
                with suppress(playwright_error()):
                    await page.goto(address, timeout=5000)
                    failed.append(name)
            version = str(context.browser.version)
        with suppress(OSError):
            server.accept()
            failed.append("network")
    return version, sorted(set(failed))


def turn_to_load() -> asyncio.Semaphore:
    """The semaphore that a page holds while it loads."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_OPENED))


def short(error: Exception) -> str:
    """The first line of an error, and Chromium's own error message."""
    lines = str(error).splitlines() or [type(error).__name__]
    message = next((line.partition("[err]")[2].strip() for line in lines if "[err]" in line), "")
    return " ".join(part for part in (lines[0], message) if part)[:300]


async def _browser(chromium: str) -> Any:
    mine = _browsers.setdefault(asyncio.get_running_loop(), {})
    if chromium in mine:
        keeper, started = mine[chromium]
        if not keeper.done() and not (started.done() and not started.exception() and not started.result().is_connected()):
            return await asyncio.shield(started)
    started = asyncio.get_running_loop().create_future()
    mine[chromium] = (asyncio.create_task(_keep(chromium, started)), started)
    return await asyncio.shield(started)


async def _keep(chromium: str, started: Starting) -> None:
    """Start a browser and keep it until it ends, or until the loop ends and cancels this task."""
    from playwright.async_api import async_playwright

    try:
        with tempfile.TemporaryDirectory(prefix="clawctl-") as folder:
            program = Path(folder) / "chromium"
            arguments = [sys.executable, "-P", "-m", "clawctl.extensions.worlds.gui.confined", chromium]
            program.write_text(f'#!/bin/sh\nexec {shlex.join(arguments)} "$@"\n')
            program.chmod(0o755)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=program, chromium_sandbox=False, args=list(_ARGUMENTS), timeout=1000 * _START_S,
                    handle_sigint=False, handle_sigterm=False, handle_sighup=False,
                )  # fmt: skip
                try:
                    ended = asyncio.Event()
                    browser.on("disconnected", lambda _: ended.set())
                    started.set_result(browser)
                    await ended.wait()
                finally:
                    with suppress(Exception):
                        await browser.close()
    except Exception as error:  # noqa: BLE001 - each episode that waits for it reports it
        if not started.done():
            failed = EpisodeFailed("sandbox", f"Chromium did not start: {short(error)}. Try `clawctl doctor`, or another browser=")
            started.set_exception(failed)
    finally:
        if not started.done():
            started.cancel()
