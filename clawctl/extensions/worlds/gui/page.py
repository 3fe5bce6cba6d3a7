"""One page of an episode: its text for the agent, and the effects of the agent's actions on it.

The agent cannot run script and has no address bar. The site that the episode serves answers every request. The page can therefore
reach the site's own paths and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from clawctl.environments import EpisodeFailed
from clawctl.extensions.worlds.gui.actions import LONGEST, Action
from clawctl.extensions.worlds.gui.browser import close_context, open_context, playwright_error, short, turn_to_load

HOST = "http://page.test"
LOAD_S = 60.0
_STEP_S = 120.0  # the time limit of one action; after that, the page counts as frozen
_LINES = 60  # the number of lines that the agent sees at a time
_SLOWLY = 200  # up to this many characters are typed key by key; longer texts are inserted at once
_LIST_ELEMENTS = (Path(__file__).parent / "list_elements.js").read_text(encoding="utf-8")
_LISTENERS = (Path(__file__).parent / "listeners.js").read_text(encoding="utf-8")
_REACH = (Path(__file__).parent / "reach.js").read_text(encoding="utf-8")
_ELEMENT = "(number) => window.__clawctl_elements[number - 1]"
_SENDS = "form button:not([type=button]), form input[type=submit]"  # what sends a form when it is clicked, or by the space bar
_KEY_LEAVES = {"Enter": f"{_SENDS}, form input, a[href]", "Space": _SENDS}
_FOCUS_MATCHES = "(selector) => document.activeElement.matches(selector)"
_POINT_MATCHES = "([x, y, selector]) => !!document.elementFromPoint(x, y)?.closest(selector)"
_FRAMES = (Path(__file__).parent / "frames.js").read_text(encoding="utf-8")

_EPISODES = 100  # the number of episodes that use a page one after another
_STILL_ALIVE_S = 20.0  # the time that another page of the browser has to answer
_SETTLE_S = 0.1  # after which a load that another one interrupted is tried again
_numbers = count(1)  # of the hosts of sites without script
T = TypeVar("T")


# The tabs of each event loop that no episode uses, by Chromium's program and the page's size
_spare = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, tuple[int, int]], list["_Tab"]]]()


class PageCrashed(Exception):
    """An action of the agent ended the page or the browser. The policy caused this ending, and could learn to repeat it."""


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """A site's answer to one request."""

    content: bytes
    kind: str = "text/html; charset=utf-8"
    policy: str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'"


class Site(Protocol):
    """Serves an episode's pages and grades the agent."""

    @property
    def start(self) -> str:
        """The path of the first page: "/"."""
        ...

    @property
    def hidden(self) -> str:
        """A CSS selector for elements that the agent must not see, such as the instruction."""
        ...

    @property
    def uses_script(self) -> bool: ...

    def answer(self, method: str, path: str, query: str) -> SiteAnswer | None:
        """The answer to a request. None refuses the request. Forms are sent with GET."""
        ...

    async def begin(self, page: Any) -> str:
        """Start the task on the loaded page. Returns the instruction."""
        ...

    async def verdict(self, page: Any) -> float | None:
        """The score from 0 to 1, or None while the task is undecided."""
        ...


@dataclass(slots=True)
class Page:
    """A loaded page, made by `open_page`."""

    site: Site
    instruction: str
    _page: Any
    _first: int = 0  # the first line that the agent sees
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)
    _is_acting: bool = False
    _has_acted: bool = False
    _has_crashed: bool = False  # this page crashed, but the browser still runs
    _has_failed: bool = False  # something failed, or was cancelled

    async def visible_text(self) -> str:
        """The visible lines of the page as text, with a number for each usable element."""
        elements = await self._whole(self._read_elements())
        total = len(elements)
        self._first = max(0, min(self._first, total - _LINES))
        shown = elements[self._first : self._first + _LINES]
        above, below = self._first, total - self._first - len(shown)
        notes = [f"({count} more lines {way}: scroll {way})" for count, way in ((above, "up"), (below, "down")) if count]
        return "\n".join([*shown, *notes]) or "(the page is empty)"

    async def _read_elements(self) -> list[str]:
        for left in (2, 1, 0):
            try:
                return list(await self._page.evaluate(_LIST_ELEMENTS, self.site.hidden))
            except Exception as error:  # the page navigated in the meantime
                if not left or "context was destroyed" not in str(error):
                    raise
                await self._page.wait_for_load_state("domcontentloaded")
        raise AssertionError

    async def screenshot(self) -> bytes:
        """The visible part of the page, as PNG."""
        taken = self._page.screenshot(type="png", animations="disabled", caret="initial", timeout=1000 * _STEP_S)
        return bytes(await self._whole(taken))

    async def verdict(self) -> float | None:
        return await self._whole(self.site.verdict(self._page))

    async def act(self, action: Action) -> str:
        """Perform an action. Returns an error message for the agent, or "". Raises PageCrashed if the page or Chromium ends."""
        self._is_acting = self._has_acted = True
        problem = await self._whole(self._act(action))
        self._is_acting = False
        return problem

    async def _act(self, action: Action) -> str:
        target: dict[str, Any] = {}
        if action.number is not None and action.name != "click_at":
            target = await self._page.evaluate(_REACH, [action.number, action.name, action.text])
            if "missing" in target:
                return f"error: there is no element {action.number}"
            if "problem" in target:
                return f"error: {action.name} does not work on element {action.number}: {target['problem']}"
        leaves = action.name == "click" and target["leaves"]
        if action.name == "click_at":
            leaves = await self._page.evaluate(_POINT_MATCHES, [action.number, action.down, f"{_SENDS}, a[href]"])
        if action.name == "press" and action.text in _KEY_LEAVES:
            leaves = await self._page.evaluate(_FOCUS_MATCHES, _KEY_LEAVES[action.text])
        self._loaded.clear()
        problem = await self._do(action, target)
        await self._settle(leaves, action)
        return problem

    async def _do(self, action: Action, target: dict[str, Any]) -> str:
        keyboard, mouse = self._page.keyboard, self._page.mouse
        if action.name == "click":
            await mouse.click(target["x"], target["y"])
        elif action.name == "click_at":
            await mouse.click(action.number, action.down)
        elif action.name == "type" and "fill" in target:  # a date or colour field
            try:
                element = await self._page.evaluate_handle(_ELEMENT, action.number)
                await element.as_element().fill(action.text, force=True)
            except playwright_error() as error:
                if "Malformed" not in str(error):
                    raise
                return f"error: element {action.number} does not take {action.text[:80]!r}"
        elif action.name == "type":
            if not action.text:
                await keyboard.press("Delete")
            elif self.site.uses_script and len(action.text) <= _SLOWLY and "\n" not in action.text:
                await keyboard.type(action.text)
            else:
                await keyboard.insert_text(action.text[:LONGEST])
        elif action.name == "press":
            await keyboard.press(action.text)
        elif action.name == "scroll":
            self._first += (_LINES // 2) * (1 if action.text == "down" else -1)
            await mouse.wheel(0, 300 if action.text == "down" else -300)
        return ""

    async def _settle(self, leaves: bool, action: Action) -> None:
        """Wait until the effects of an action are complete.

        `leaves`: the action used a link or a form. If a site has no script, this always leads to another page. Without script,
        the effect of another action on a numbered element is complete when Chromium confirms it.
        """
        if not self.site.uses_script:
            if leaves:
                await self._loaded.wait()
            if action.name in ("click", "type", "select"):
                return
        with suppress(Exception):  # the page is navigating; the next reading waits for the new page
            await self._page.evaluate(_FRAMES)
        await self._page.wait_for_load_state("domcontentloaded", timeout=1000 * LOAD_S)

    async def _whole(self, call: Awaitable[T]) -> T:
        """The result of a call. If it fails because of the agent's actions, raises PageCrashed, otherwise EpisodeFailed."""
        had_failed, self._has_failed = self._has_failed, True
        try:
            async with asyncio.timeout(_STEP_S):
                result = await call
            self._has_failed = had_failed
            return result
        except TimeoutError as error:
            problem = f"the page {self.site.start} did not respond within {_STEP_S:.0f} s"
            if self._has_acted and await self._other_pages_respond():
                raise PageCrashed(f"{problem}, and other pages do") from error
            raise EpisodeFailed("environment", f"{problem}; play fewer episodes at a time") from error
        except EpisodeFailed:
            raise
        except Exception as error:
            await asyncio.sleep(0.1)  # the browser needs a moment to report which page crashed
            if self._is_acting or (self._has_acted and self._has_crashed):
                raise PageCrashed(f"Chromium or the page ended: {short(error)}") from error
            raise EpisodeFailed("sandbox", f"Chromium or the page ended: {short(error)}. The episode is played again") from error

    async def _other_pages_respond(self) -> bool:
        """Whether another page of the browser works, so that only this page is frozen."""
        try:
            async with asyncio.timeout(_STILL_ALIVE_S):
                context = await self._page.context.browser.new_context()
                try:
                    return bool(await (await context.new_page()).evaluate("1 + 1") == 2)
                finally:
                    await context.close()
        except Exception:  # noqa: BLE001 - whatever it is, the browser does not work
            return False


@dataclass(eq=False)  # without slots: Playwright sets attributes on the owner of a handler
class _Tab:
    """A page of Chromium in a context of its own. `site` answers its requests."""

    context: Any
    site: Site
    host: str = HOST
    page: Any = None
    opened: Page | None = None
    episodes: int = 0
    has_crashed: bool = False

    async def answer(self, route: Any) -> None:
        request, parts = route.request, urlsplit(route.request.url)
        reply = None
        if f"{parts.scheme}://{parts.netloc}" == self.host:
            with suppress(OSError, ValueError):  # the path cannot be a file name
                reply = self.site.answer(request.method, parts.path, parts.query)
        with suppress(Exception):  # the page has been closed
            if reply is None:
                await route.fulfill(status=204)  # the page does not navigate
            else:
                headers = {"Content-Security-Policy": reply.policy, "Cache-Control": "no-store"}
                await route.fulfill(body=reply.content, content_type=reply.kind, headers=headers)

    async def load(self, site: Site, load_s: float) -> Page:
        """Load a site's first page and start its task."""
        self.opened, self.site, self.episodes = None, site, self.episodes + 1
        if not site.uses_script:
            self.host = f"http://{next(_numbers)}.page.test"
        if self.page is None:
            self.page = await self.context.new_page()
            self.page.on("domcontentloaded", self._on_load)
            self.page.on("crash", self._on_crash)
            self.context.on("page", lambda other: asyncio.ensure_future(other.close()))  # close every other window
        else:
            await self.page.mouse.move(-1, -1)  # the pointer of the last episode does not hover over this page
        while True:
            try:
                await self.page.goto(f"{self.host}{site.start}", timeout=1000 * load_s, wait_until="load")
                break
            except playwright_error() as error:  # the last click of the episode before this one may still be loading a page
                if "interrupted by another navigation" not in str(error):
                    raise
                await asyncio.sleep(_SETTLE_S)  # `open_page` has a time limit
        if self.episodes > 1:
            session = await self.context.new_cdp_session(self.page)
            await session.send("Page.resetNavigationHistory")
            await session.detach()
        self.opened = Page(site, await site.begin(self.page), self.page)
        return self.opened

    def _on_load(self, _: Any) -> None:
        if self.opened is not None:
            self.opened._loaded.set()

    def _on_crash(self, _: Any) -> None:
        self.has_crashed = True
        if self.opened is not None:
            self.opened._has_crashed = True

    @property
    def is_usable(self) -> bool:
        """Whether another site without script can use the page."""
        if self.site.uses_script or self.episodes >= _EPISODES or self.opened is None or self.opened._has_failed:
            return False
        return self.context.browser.is_connected() and not self.page.is_closed() and not self.has_crashed


async def _new_tab(chromium: str, site: Site, size: tuple[int, int], spare: list[_Tab]) -> _Tab:
    context = await open_context(chromium, viewport={"width": size[0], "height": size[1]}, java_script_enabled=True)
    tab = _Tab(context, site)
    try:
        context.on("close", lambda _: spare.remove(tab) if tab in spare else None)
        await context.route("**/*", tab.answer)
        await context.route_web_socket("**/*", lambda socket: socket.close())
        if site.uses_script:
            await context.add_init_script(_LISTENERS)
    except BaseException:
        await close_context(context)
        raise
    return tab


@asynccontextmanager
async def open_page(chromium: str, site: Site, size: tuple[int, int], load_s: float = LOAD_S) -> AsyncIterator[Page]:
    """Load the site's first page and start its task. Raises EpisodeFailed.

    To open a context costs more than a whole episode on a drawn website. Sites without script therefore use contexts one after
    another, each with a host of its own. A late request of an earlier site is thus refused, and storage is separate.
    """
    spare = _spare.setdefault(asyncio.get_running_loop(), {}).setdefault((chromium, size), [])
    tab = spare.pop() if spare and not site.uses_script else None
    if tab is not None and not tab.is_usable:
        await close_context(tab.context)
        tab = None
    tab = tab or await _new_tab(chromium, site, size, spare)
    ended = False
    try:
        try:
            async with turn_to_load(), asyncio.timeout(load_s):
                opened = await tab.load(site, load_s)
        except EpisodeFailed:
            raise
        except Exception as error:
            problem = f"the page {site.start} did not load: {short(error) or type(error).__name__}"
            cure = "open it in a browser by hand; all its files must be in its folder"
            raise EpisodeFailed("environment", f"{problem}; {cure}") from error
        yield opened
        ended = True
    finally:
        if ended and tab.is_usable:
            spare.append(tab)
        else:
            await close_context(tab.context)
