"""`gui`: the agent uses a web page in Chromium. It reads the page as text, with screenshots, or from screenshots alone."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from clawctl.asking import Refused, complete, new_client
from clawctl.environments import EpisodeFailed, Outcome, Split, Task
from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.checking import check_each
from clawctl.extensions.worlds.gui.actions import (
    SYSTEM,
    SYSTEM_PICTURE,
    SYSTEM_PIXELS,
    TOOLS,
    Action,
    action_in,
    action_of,
    numbered,
    written,
)
from clawctl.extensions.worlds.gui.browser import find_chromium
from clawctl.extensions.worlds.gui.miniwob import MiniWobSite, MiniWobTask, find_folder, has_pages, page_names
from clawctl.extensions.worlds.gui.page import LOAD_S, Page, PageCrashed, Site, open_page
from clawctl.extensions.worlds.gui.sites import DRAWN, FAMILIES, DrawnSite, SiteTask, draw_site
from clawctl.extensions.worlds.sandbox import SandboxFailed
from clawctl.extensions.worlds.splits import SHOWN, task_numbers
from clawctl.extensions.worlds.toolcall.tools import name_and_arguments
from clawctl.extensions.worlds.verdicts import Graded, nothing
from clawctl.extensions.worlds.wording import HeldOut, wording_of
from clawctl.run.endpoint import Endpoint

NO_ACTION = "error: this is no action. Answer with one line such as: {}"


@dataclass(kw_only=True, eq=False, repr=False)
class Gui:
    """`pages` names pages, separated by commas: websites that clawctl draws (default: all with text), or pages of MiniWoB such as
    `click-button`. `miniwob` stands for all of MiniWoB. `spot` has coloured boxes without text, for screenshots.

    `held_out`: what the measured websites have that training lacks: `same_prompts` (other pages alone), `new_words`, or
    `paraphrased` (prompts by other authors).

    `path`: a folder in MiniWoB's layout, in place of the package `miniwob`. `actions`: `text`, or `tools` for tool calls.
    `screenshots`: send a picture of the page with each message; `only` sends no text of the page with it. `load_s`: the time limit
    for loading a page, in seconds. `browser`: Chromium's program, if it is not in PATH. `steps`: also reward single turns: 1 for an
    action that was done, otherwise -1. `examples`: how many solved websites of training stand before each task."""

    metrics = ("reward", "solved")
    version = "3"
    worst = 0.0

    pages: str = ""
    path: str | None = None
    held_out: HeldOut = "same_prompts"
    max_turns: int = 10
    actions: Literal["text", "tools"] = "text"
    screenshots: Literal[False, True, "only"] = False
    width: int = 480
    height: int = 360
    load_s: float = LOAD_S
    browser: str | None = None
    steps: bool = False
    examples: int = 0

    def __post_init__(self) -> None:
        if self.screenshots == "only" and self.actions == "tools":
            raise ClawError("screenshots=only has no tools", "leave out actions=tools, or use screenshots=true", 2)
        self._has_text = self.screenshots != "only"
        self._unknown = NO_ACTION.format("click 3" if self._has_text else "click 120 45")
        names = [name.strip() for name in self.pages.split(",") if name.strip()]
        self._names = names or (["miniwob"] if self.path else list(FAMILIES))
        self._folder = find_folder(self.path) if set(self._names) - set(DRAWN) else None
        if self._folder is not None:
            available = page_names(self._folder)
            self._names = [page for name in self._names for page in (available if name == "miniwob" else [name])]
            if unknown := set(self._names) - set(DRAWN) - set(available):
                raise ClawError(
                    f"there is no page {min(unknown)!r}",
                    f"choose from {', '.join(DRAWN)}, or a page in {self._folder / 'miniwob'}",
                    2,
                )
        if self.examples and (self._folder is not None or self.actions == "tools"):
            raise ClawError("examples are drawn websites with actions as text", "leave out examples, or path, pages and actions", 2)
        self._solved, self._solving = list[dict[str, Any]](), asyncio.Lock()
        self._chromium = find_chromium(self.browser)

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Load each page of a folder in MiniWoB's layout, and do nothing."""
        if not place or not has_pages(Path(place).expanduser()):
            return None
        gui = Gui(**{**options, "path": place})
        tasks = gui.tasks("train", len(gui._names), 0)
        return check_each(tasks, lambda task: str(task.spec.page), lambda task: False, partial(_left_alone, gui._chromium))

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        tasks = []
        for index, number in enumerate(task_numbers(split, count, seed)):
            page = self._names[index % len(self._names)]
            if page in DRAWN:
                spec: SiteTask | MiniWobTask = draw_site(page, number, wording_of(split, self.held_out))
            else:
                assert self._folder is not None
                spec = MiniWobTask(page, str(number), self._folder)
            tasks.append(Task(f"{page.replace('-', '_')}-{number}", spec, split))
        return tasks

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        async with self._solving:
            if self.examples and not self._solved:
                self._solved = [
                    message for shown in self.tasks("train", self.examples, SHOWN) for message in await self._solve(shown)
                ]
        site: Site = DrawnSite(task.spec) if isinstance(task.spec, SiteTask) else MiniWobSite(task.spec)
        async with open_page(self._chromium, site, (self.width, self.height), self.load_s) as page, new_client(endpoint) as client:
            tools, (system, request) = {"tools": TOOLS} if self.actions == "tools" else {}, await self._first(page)
            messages = [system, *self._solved, request]
            reply, score, ending, log = "", None, "turns", None
            steps: dict[str, float] = {}
            for turn in range(self.max_turns):
                try:
                    message = await complete(endpoint, messages, client, **tools)
                except Refused as refused:
                    if turn == 0 or refused.used_up is None:
                        raise
                    ending = refused.used_up
                    break
                action, reply = _chosen(message)
                if not self._has_text and action is not None and action.name in ("click", "type", "select"):
                    action = None  # the agent was shown neither numbers nor labels
                try:
                    problem = self._unknown if action is None else "" if action.name == "done" else await _act(page, action)
                    steps[message["turn_id"]] = -1.0 if problem else 1.0
                    score = await page.verdict()
                    if score is not None or (action is not None and action.name == "done"):
                        ending = "done"
                        break
                    if turn + 1 < self.max_turns:
                        messages += await self._next(page, message, problem)
                except PageCrashed as crashed:
                    score, ending, log = None, "crashed", str(crashed)
                    break
            instruction = page.instruction
        score = score or 0.0
        example = {"prompt": instruction, "reply": reply}
        return Outcome(score, {"solved": score == 1}, steps if self.steps else {}, ending=ending, log=log, example=example)

    async def _solve(self, task: Task) -> list[dict[str, Any]]:
        """The messages of an episode that does the steps of the solution."""
        async with open_page(self._chromium, DrawnSite(task.spec), (self.width, self.height), self.load_s) as page:
            messages = (await self._first(page))[1:]
            for step in task.spec.solution:
                shown = await page.visible_text()
                action = step_action(step, shown)
                said = {"role": "assistant", "content": written(action, shown)}
                await page.act(action)
                messages += [said] if await page.verdict() is not None else await self._next(page, said, "")
            return messages

    async def _first(self, page: Page) -> list[dict[str, Any]]:
        system = SYSTEM + (SYSTEM_PIXELS if self.screenshots else "") if self._has_text else SYSTEM_PICTURE
        content = await self._shown(page, f"Task: {page.instruction}\n\n{await self._text(page)}".rstrip())
        return [{"role": "system", "content": system}, {"role": "user", "content": content}]

    async def _next(self, page: Page, message: dict[str, Any], problem: str) -> list[dict[str, Any]]:
        reply: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
        text = f"{problem}\n\n{await self._text(page)}".strip()
        calls = message.get("tool_calls") or []
        if not calls:
            return [reply, {"role": "user", "content": await self._shown(page, text)}]
        results = [
            {"role": "tool", "tool_call_id": call.get("id", ""), "content": "not done: one call at a time"} for call in calls
        ]
        results[0]["content"] = text
        seen = [{"role": "user", "content": await self._shown(page, "The page now:")}] if self.screenshots else []
        return [{**reply, "tool_calls": calls}, *results, *seen]

    async def _text(self, page: Page) -> str:
        return await page.visible_text() if self._has_text else ""

    async def _shown(self, page: Page, text: str) -> str | list[dict[str, Any]]:
        if not self.screenshots:
            return text
        picture = base64.b64encode(await page.screenshot()).decode()
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        return [shown, {"type": "text", "text": text}] if text else [shown]


async def _act(page: Page, action: Action) -> str:
    named = numbered(action, await page.visible_text()) if action.label else action
    return named if isinstance(named, str) else await page.act(named)


def _chosen(message: dict[str, Any]) -> tuple[Action | None, str]:
    """The action in an answer, and the answer as text."""
    reply, calls = str(message.get("content") or ""), message.get("tool_calls") or []
    if not calls:
        return action_in(reply), reply
    name, arguments = name_and_arguments(calls[0])
    return action_of(name, arguments), f"{reply} {name} {arguments}".strip()


async def _left_alone(chromium: str, task: Task, commands: str | None) -> Graded:
    """Grade a page of MiniWoB after no action. Raises SandboxFailed if it does not load."""
    try:
        async with open_page(chromium, MiniWobSite(task.spec), (480, 360), LOAD_S) as page:
            await page.visible_text()
            return Graded(await page.verdict() or 0.0, "")
    except (EpisodeFailed, PageCrashed) as error:
        raise SandboxFailed(str(error)) from error


async def solve(task: SiteTask, commands: str | None = None) -> Graded:
    """Grade without a model: after the task's solution, or after no action (""). Raises EpisodeFailed."""
    async with open_page(find_chromium(), DrawnSite(task), (480, 360), 2 * LOAD_S) as page:
        for step in task.solution if commands is None else ():
            problem = await page.act(step_action(step, await page.visible_text()))
            if problem:
                return nothing(f"{step}: {problem}")
        score = await page.verdict()
        return Graded(score or 0.0, "undecided" if score is None else "decided")


def step_action(step: str, visible_text: str) -> Action:
    """Translate a step of a solution into an action on the page: ('type field "Name" | Ada'), ("click_at 48 80")."""
    name, _, rest = step.partition(" ")
    if name == "click_at":
        x, y = map(int, rest.split())
        return Action("click_at", x, down=y)
    what, _, text = rest.partition(" | ")
    what, _, before = what.partition(" after ")
    line = next(
        line for line in visible_text[visible_text.index(before) :].splitlines() if line.partition("] ")[2].startswith(what)
    )
    return Action(name, int(line[1 : line.index("]")]), text)  # type: ignore[arg-type]
