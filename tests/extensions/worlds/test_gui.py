"""Websites in real Chromium: tasks and their verdicts, what an agent cannot do, and what happens when the browser fails."""

import asyncio
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clawctl.environments import EpisodeFailed, Outcome, Task, create
from clawctl.environments.episode import graded
from clawctl.errors import ClawError
from clawctl.extensions.worlds.gui.actions import SYSTEM_PICTURE, Action, action_in, action_of, numbered
from clawctl.extensions.worlds.gui.browser import NAMES, escapes, playwright_error
from clawctl.extensions.worlds.gui.confined import command
from clawctl.extensions.worlds.gui.environment import Gui, solve, step_action
from clawctl.extensions.worlds.gui.miniwob import MiniWobSite
from clawctl.extensions.worlds.gui.page import LOAD_S, Page, PageCrashed, open_page
from clawctl.extensions.worlds.gui.sites import (
    DRAWN,
    FAMILIES,
    SPOT_COLOURS,
    SPOT_COLUMNS,
    SPOT_ROWS,
    DrawnSite,
    SiteTask,
    draw_site,
)  # fmt: skip
from clawctl.extensions.worlds.splits import SHOWN
from clawctl.extensions.worlds.verdicts import Graded
from clawctl.run.endpoint import Endpoint
from scripts.craft_model.browser import Browser
from tests.stub_http import StubHandler, StubServer, running

CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("bwrap") is None,
    reason="Chromium or bubblewrap is missing: apt-get install chromium bubblewrap",
)
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def in_loop() -> Iterator[Run]:
    """One event loop for all tests here, and so one browser."""
    with asyncio.Runner() as runner:
        yield runner.run


async def episode(environment: Gui, task: Task, says: Callable[[list[dict[str, Any]]], str | dict[str, Any]]) -> Outcome:
    """One episode whose model's answers are `says(messages)`."""

    class Model(StubHandler):
        def do_POST(self) -> None:
            messages = self.sent()["messages"]
            said = says(messages)
            message = {"role": "assistant", "content": said} if isinstance(said, str) else said
            turn = f"chatcmpl-turn-{len(messages) // 2}"
            self.answer({"id": turn, "choices": [{"message": message}], "usage": {"total_tokens": 1}})

    with running(StubServer(Model)) as server:
        return await graded(environment, task, Endpoint(f"{server.url}/e/secret/v1", "key", "model"), 100.0)


def number_of(messages: list[dict[str, Any]], described: str) -> str:
    """The number of the element that the last message describes so."""
    content = messages[-1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    return next(line[1 : line.index("]")] for line in text.splitlines() if described in line)


# The websites that clawctl draws


@needs_browser
def test_of_eighteen_pages_at_once_those_with_their_solution_are_right_and_those_without_are_worth_nothing(in_loop: Run) -> None:
    environment = Gui(pages=",".join(DRAWN))
    train, held_out = ([task.spec for task in environment.tasks(split, len(DRAWN), 3)] for split in ("train", "eval"))
    assert {task.name.split("-")[0] for task in train} == {*FAMILIES, "spot"}

    async def scores() -> list[Graded]:
        both = *(solve(task) for task in train), *(solve(task, "") for task in held_out)
        return await asyncio.gather(*both)

    graded = in_loop(scores())
    assert [score.value for score in graded] == [1.0] * 9 + [0.0] * 9, [score.log for score in graded]


@needs_browser
def test_a_solved_website_in_a_prompt_is_what_an_episode_with_its_answers_would_be(in_loop: Run) -> None:
    sent, tasks, number = list[list[dict[str, Any]]](), Gui().tasks("train", len(FAMILIES), SHOWN), len(FAMILIES)
    said = in_loop(episode(Gui(examples=number), Gui().tasks("eval", 1, 0)[0], lambda messages: sent.append(messages) or "done"))
    assert (said.reward, said.ending) == (0, "done")
    shown = sent[0][1:-1]
    begins = [index for index, message in enumerate(shown) if message["content"].startswith("Task: ")]
    for task, begin, end in zip(tasks, begins, [*begins[1:], len(shown)], strict=True):
        answers, seen = iter([message for message in shown[begin:end] if message["role"] == "assistant"]), list[dict[str, Any]]()
        outcome = in_loop(episode(Gui(), task, lambda messages: seen.extend(messages[len(seen) :]) or next(answers)))  # noqa: B023
        assert outcome.reward == 1
        assert seen[1:] == shown[begin : end - 1]
    assert shown[begins[0] + 1]["content"].startswith('click "')  # a label that no other element has


@needs_browser
def test_the_pages_of_demonstrations_are_those_of_chromium(in_loop: Run) -> None:
    async def same(task: SiteTask) -> list[str]:
        ours, different, draw = Browser(DrawnSite(task)), list[str](), Random(task.name)
        async with open_page(CHROMIUM or "", DrawnSite(task), (480, 360), 2 * LOAD_S) as page:
            for step in ("", *task.solution):
                if (text := await page.visible_text()) != ours.visible_text():
                    different.append(f"{text}\n--- not:\n{ours.visible_text()}")
                free = [
                    number for number, element in enumerate(ours.elements(), 1) if element.kind in ("checkbox", "radio", "section")
                ]
                if step == "" and free:  # an action that leaves the page as it was when it is done again
                    action = Action("click", draw.choice(free))
                    for _ in range(2):
                        assert not await page.act(action)
                        ours.act(action)
                        if (text := await page.visible_text()) != ours.visible_text():
                            different.append(f"{text}\n--- not:\n{ours.visible_text()}")
                elif step:
                    action = step_action(step, text)
                    assert not await page.act(action)
                    ours.act(action)
            assert await page.verdict() == ours.score == 1
        return different

    async def all_families() -> list[list[str]]:
        return await asyncio.gather(*(same(draw_site(name, 8)) for name in FAMILIES))

    assert in_loop(all_families()) == [[]] * len(FAMILIES)


@needs_browser
def test_the_links_of_a_closed_section_are_not_on_the_page(in_loop: Run) -> None:
    task = draw_site("open", 8)

    async def texts() -> tuple[str, str]:
        async with open_page(CHROMIUM or "", DrawnSite(task), (480, 360)) as page:
            closed = await page.visible_text()
            await page.act(step_action(task.solution[0], closed))
            return closed, await page.visible_text()

    closed, opened = in_loop(texts())
    assert "link" not in closed
    assert opened.count("] link ") == 2


@needs_browser
def test_an_agent_reads_the_page_acts_and_is_graded(in_loop: Run) -> None:
    environment, texts = Gui(pages="press"), []
    task = environment.tasks("train", 1, 0)[0]
    wanted = dict(task.spec.wanted)["pressed"]

    def answers(messages: list[dict[str, Any]]) -> str:
        texts.append(messages[-1]["content"])
        number = number_of(messages, f'button "{wanted}"')
        return "I wonder." if len(messages) == 2 else f"Here it is.\nclick {number}"

    outcome = in_loop(episode(environment, task, answers))
    assert (outcome.reward, outcome.ending, outcome.parts) == (1, "done", {"solved": True})
    assert task.spec.instruction in texts[0]
    assert texts[1].startswith("error: this is no action")
    wrong = in_loop(episode(environment, task, lambda messages: "done"))
    assert (wrong.reward, wrong.ending) == (0, "done")
    idle = in_loop(episode(Gui(pages="press", max_turns=2), task, lambda messages: "scroll down"))
    assert (idle.reward, idle.ending) == (0, "turns")


def test_a_label_that_one_element_has_stands_for_its_number() -> None:
    lines = (
        'checkbox "rice" (checked)',
        'list "Day" options: Monday | Friday; chosen: "Monday"',
        'field "A \\"b\\"" contains "rice"',
    )
    shown = "Task: rice\n\n" + "\n".join(
        f"[{n}] {line}" for n, line in enumerate((*lines, 'button "Edit"', 'button "Edit"', 'link "Day"'), 1)
    )

    def result(reply: str) -> Action | str:
        action = action_in(reply)
        assert action is not None
        return numbered(action, shown)

    assert result('click "Rice"') == Action("click", 1)
    assert result('select "Day" "Friday"') == Action("select", 2, "Friday")
    assert result('type "A \\"b\\"" "Ada"') == Action("type", 3, "Ada")
    assert result("click 4") == Action("click", 4)
    assert result('click "Edit"') == 'error: "Edit" is the label of the elements 4, 5. Use a number'
    assert result('click "Day"') == 'error: "Day" is the label of the elements 2, 6. Use a number'
    assert result('click "Monday"') == 'error: there is no element "Monday"'
    assert result('type "rice" "Ada"') == 'error: there is no field "rice"'
    assert action_in("click rice") is None
    assert action_in('type "Ada"') is None


@needs_browser
def test_an_agent_may_name_elements_by_their_labels_and_steps_are_worth_what_they_did(in_loop: Run) -> None:
    environment, problems = Gui(pages="press", steps=True), []
    task = environment.tasks("train", 1, 0)[0]
    wanted = dict(task.spec.wanted)["pressed"]

    def answers(messages: list[dict[str, Any]]) -> str:
        problems.append(messages[-1]["content"].splitlines()[0])
        return 'click "Nothing"' if len(messages) == 2 else f'click "{wanted}"'

    outcome = in_loop(episode(environment, task, answers))
    assert (outcome.reward, outcome.steps) == (1, {"chatcmpl-turn-1": -1, "chatcmpl-turn-2": 1})
    assert not in_loop(episode(Gui(pages="press"), task, answers)).steps
    assert problems[1] == 'error: there is no element "Nothing"'


@needs_browser
def test_an_agent_that_calls_tools_sees_the_page_in_their_results(in_loop: Run) -> None:
    environment = Gui(pages="fill", actions="tools")
    task = environment.tasks("train", 1, 0)[0]
    steps = list(task.spec.solution)

    def answers(messages: list[dict[str, Any]]) -> dict[str, Any]:
        name, _, rest = steps[len(messages) // 2 - 1].partition(" ")
        what, _, text = rest.partition(" | ")
        arguments = {"element": int(number_of(messages, what)), **({"text": text} if text else {})}
        call = {"id": f"call-{len(messages)}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    assert in_loop(episode(environment, task, answers)).reward == 1


@needs_browser
def test_with_screenshots_each_message_has_a_picture_of_the_page(in_loop: Run) -> None:
    environment = Gui(pages="press", screenshots=True, width=320, height=240)
    task = environment.tasks("train", 1, 0)[0]
    pictures = []

    def answers(messages: list[dict[str, Any]]) -> str:
        pictures.append(messages[-1]["content"][0]["image_url"]["url"])
        return "scroll down" if len(messages) == 2 else "done"

    in_loop(episode(environment, task, answers))
    assert len(pictures) == 2
    assert all(url.startswith("data:image/png;base64,") for url in pictures)


@needs_browser
def test_an_agent_with_screenshots_only_reads_no_text_of_the_page_and_clicks_pixels(in_loop: Run) -> None:
    environment, read = Gui(pages="spot", screenshots="only", width=128, height=96), []
    task = environment.tasks("train", 1, 0)[0]
    x, y = map(int, task.spec.solution[0].split()[1:])

    def answers(messages: list[dict[str, Any]]) -> str:
        read.append([part.get("text") for part in messages[-1]["content"]])
        assert messages[0]["content"] == SYSTEM_PICTURE
        return ["click 1", 'click "red"', "press Tab", f"click {x} {y}"][len(messages) // 2 - 1]

    assert in_loop(episode(environment, task, answers)).reward == 1
    unknown = "error: this is no action. Answer with one line such as: click 120 45"
    assert read == [[None, f"Task: {task.spec.instruction}"], [None, unknown], [None, unknown], [None]]


@needs_browser
def test_only_a_click_inside_the_named_box_of_spot_is_right(in_loop: Run) -> None:
    environment = Gui(pages="spot", screenshots="only", width=128, height=96, max_turns=1)
    task = environment.tasks("train", 1, 0)[0]
    x, y = map(int, task.spec.solution[0].split()[1:])
    for click, reward, ending in (((12, 12), 1, "done"), ((-12, -12), 1, "done"), ((15, 0), 0, "turns")):
        outcome = in_loop(episode(environment, task, lambda messages, at=click: f"click {x + at[0]} {y + at[1]}"))
        assert (outcome.reward, outcome.ending) == (reward, ending)


def test_the_named_box_of_spot_is_anywhere() -> None:
    """A policy that does not see the picture can do no better than one of twelve places."""
    tasks = [draw_site("spot", number) for number in range(1200)]
    places = Counter(task.solution for task in tasks)
    assert len(places) == SPOT_COLUMNS * SPOT_ROWS
    assert max(places.values()) < 1200 / 12 * 1.4
    assert len({task.instruction for task in tasks}) == len(SPOT_COLOURS)


# What an agent cannot do


HOSTILE = """<html><head><script src="../core/core.js"></script><script>
var genProblem = function() {};
window.onload = function() {
  core.startEpisode();
  document.getElementById("query").innerHTML = "Write something.";
  document.getElementById("say").addEventListener("click", () => {
    document.getElementById("said").innerHTML = document.getElementById("field").value;
  });
  document.getElementById("right").addEventListener("click", () => core.endEpisode(0.5, true));
};
</script></head><body><div id="wrap"><div id="query"></div><div id="area">
<input id="field" placeholder="words"><button id="say">Say</button><button id="right">Right</button><div id="said"></div>
<a href="javascript:core.endEpisode(1)">one</a> <a href="data:text/html,hello">two</a> <a href="http://192.0.2.1/">three</a>
<a href="/core/core.js" target="_blank">four</a> <a href="/miniwob/hostile.html">five</a>
</div></div></body></html>"""
CORE = """var core = {}, WOB_RAW_REWARD_GLOBAL = 0, WOB_DONE_GLOBAL = false; Math.seedrandom = () => {};
core.startEpisode = () => {}; core.startEpisodeReal = () => { genProblem(); WOB_DONE_GLOBAL = false; };
core.endEpisode = (reward) => { WOB_RAW_REWARD_GLOBAL = reward; WOB_DONE_GLOBAL = true; };"""


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder in MiniWoB's layout whose page inserts the agent's text as HTML."""
    for name, text in {
        "core/core.js": CORE,
        "miniwob/hostile.html": HOSTILE,
        "miniwob/endless.html": _ENDLESS,
        "miniwob/bomb.html": _BOMB,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


_BOMB = """<html><head><script src="../core/core.js"></script><script>
var genProblem = function() {};
window.onload = function() {
  core.startEpisode();
  document.getElementById("query").innerHTML = "Press the button.";
  document.getElementById("bomb").addEventListener("click", () => {
    const held = [];
    for (;;) held.push(new Array(1 << 20).fill(1.5));
  });
};
</script></head><body><div id="wrap">
<div id="query"></div><div id="area"><button id="bomb">Bomb</button></div></div></body></html>"""
_ENDLESS = "<script>while (true) {}</script>"
_ATTACKS = (
    '<img src=x onerror="core.endEpisode(1)">',
    "<script>core.endEpisode(1)</script>",
    '<iframe srcdoc="<script>parent.core.endEpisode(1)</script>"></iframe>',
    '<svg onload="core.endEpisode(1)">',
    '<a href="javascript:core.endEpisode(1)">press me</a>',
    '<form action="/miniwob/hostile.html"><button>send me</button></form>',
    '<meta http-equiv=refresh content="0; url=javascript:core.endEpisode(1)">',
    '<base href="http://192.0.2.1/">',
)


@needs_browser
def test_no_words_and_no_link_of_an_agent_set_its_reward(in_loop: Run, pages: Path) -> None:
    async def attack() -> tuple[list[float | None], str, float | None]:
        task = Gui(path=str(pages), pages="hostile").tasks("train", 1, 0)[0].spec
        async with open_page(str(CHROMIUM), MiniWobSite(task), (320, 240)) as page:
            verdicts = []
            for text in _ATTACKS:
                await act(page, "type", "field", text)
                await act(page, "click", 'button "Say"')
                for link in ("press me", "send me"):
                    if link in await page.visible_text():
                        await act(page, "click", link)
                verdicts.append(await page.verdict())
            for link in ("one", "two", "three", "four", "five"):
                await act(page, "click", f'link "{link}"')
                verdicts.append(await page.verdict())
            address = page._page.url
            await act(page, "click", 'button "Right"')
            return verdicts, address, await page.verdict()

    verdicts, address, raw_reward = in_loop(attack())
    assert verdicts == [None] * (len(_ATTACKS) + 5)
    assert address == "http://page.test/miniwob/hostile.html"
    assert raw_reward == 0.5  # the page's own script works, and its raw reward counts


async def act(page: Page, name: Any, described: str, text: str = "") -> None:
    number = next(line[1 : line.index("]")] for line in (await page.visible_text()).splitlines() if described in line)
    await page.act(Action(name, int(number), text))


@needs_browser
def test_a_page_reaches_neither_the_machine_nor_its_files(in_loop: Run) -> None:
    version, reached = in_loop(escapes())
    assert (version.split(".")[0].isdigit(), reached) == (True, [])


@needs_browser
def test_a_site_without_script_takes_over_a_page_without_its_history_and_its_requests(in_loop: Run) -> None:
    first, second = (task.spec for task in Gui(pages="press").tasks("train", 2, 7))
    right = "&".join(f"{name}={value}" for name, value in second.wanted)

    async def both() -> tuple[bool, bool, Any, float | None, float | None]:
        async with open_page(str(CHROMIUM), DrawnSite(first), (320, 240)) as page:
            used, old = page._page, await page._page.evaluate("location.origin")
            await act(page, "click", "button")
        async with open_page(str(CHROMIUM), DrawnSite(second), (320, 240)) as page:
            back = await page._page.go_back()
            with pytest.raises(playwright_error()):
                await page._page.goto(f"{old}/done?{right}")  # as a late request of the first site
            late = await page.verdict()
            new = await page._page.evaluate("location.origin")
            await act(page, "click", f'button "{dict(second.wanted)["pressed"]}"')
            return page._page is used, new == old, back, late, await page.verdict()

    assert in_loop(both()) == (True, False, None, None, 1.0)


@needs_browser
def test_neither_a_site_with_script_nor_an_episode_after_an_error_takes_over_a_page(in_loop: Run, pages: Path) -> None:
    drawn = Gui(pages="press").tasks("train", 1, 7)[0].spec
    scripted = Gui(path=str(pages), pages="hostile").tasks("train", 1, 0)[0].spec

    async def used(site: Any, error: Exception | None = None) -> Any:
        async with open_page(str(CHROMIUM), site, (320, 240)) as page:
            if error is not None:
                raise error
            return page._page

    async def opened() -> list[Any]:
        pages = [await used(DrawnSite(drawn))]
        with pytest.raises(ValueError, match="an error"):
            await used(DrawnSite(drawn), ValueError("an error"))
        pages += [await used(DrawnSite(drawn)), await used(MiniWobSite(scripted)), await used(MiniWobSite(scripted))]
        return pages

    seen_pages = in_loop(opened())
    assert len(set(map(id, seen_pages))) == 4
    assert [page.is_closed() for page in seen_pages] == [True, False, True, True]


@needs_browser
def test_chromium_disables_the_features_that_playwright_names_and_those_that_clawctl_names() -> None:
    given = ["--disable-features=One,Two", "--user-data-dir=/theirs", "--headless", "--disable-features=Three"]
    arguments, descriptors = command(str(CHROMIUM), given)
    for descriptor in descriptors:
        os.close(descriptor)
    assert [word for word in arguments if "disable-features" in word] == ["--disable-features=One,Two,Three"]
    assert "--headless" in arguments
    assert "--user-data-dir=/theirs" not in arguments


# Failures


@needs_browser
def test_a_page_that_never_loads_fails_alone(in_loop: Run, pages: Path) -> None:
    endless, drawn = Gui(path=str(pages), pages="endless", load_s=2.0), Gui(pages="press")

    async def both() -> list[Any]:
        good = drawn.tasks("train", 1, 0)[0]
        bad = episode(endless, endless.tasks("train", 1, 0)[0], lambda messages: "done")
        return list(await asyncio.gather(bad, solve(good.spec)))

    failed, solved = in_loop(both())
    assert (failed.status, failed.ending) == ("failed", "environment")
    assert "/miniwob/endless.html did not load" in failed.log
    assert solved.value == 1


@needs_browser
def test_an_episode_whose_browser_is_killed_fails_and_the_next_one_has_a_new_browser(in_loop: Run) -> None:
    environment = Gui(pages="press")
    task = environment.tasks("train", 1, 0)[0]

    async def killed() -> str:
        async with open_page(str(CHROMIUM), DrawnSite(task.spec), (320, 240)) as page:
            for pid in _browsers_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(EpisodeFailed) as failed:
                await page.visible_text()
            return f"{failed.value.ending}: {failed.value}"

    problem = in_loop(killed())
    assert problem.startswith("sandbox: Chromium or the page ended")
    assert in_loop(solve(task.spec)).value == 1


@needs_browser
def test_a_page_crash_caused_by_an_action_is_an_ending_by_the_policy(in_loop: Run, pages: Path) -> None:
    bomb, drawn = Gui(path=str(pages), pages="bomb"), Gui(pages="press")

    async def both() -> list[Any]:
        good = drawn.tasks("train", 1, 0)[0]
        bad = episode(bomb, bomb.tasks("train", 1, 0)[0], lambda messages: f"click {number_of(messages, 'Bomb')}")
        return list(await asyncio.gather(bad, solve(good.spec)))

    crashed, solved = in_loop(both())
    assert (crashed.status, crashed.ending, crashed.reward) == ("done", "crashed", 0.0)
    assert solved.value == 1  # other pages of the same browser go on


@needs_browser
def test_a_browser_that_ends_during_an_action_is_an_ending_by_the_policy(in_loop: Run) -> None:
    async def killed() -> None:
        task = Gui(pages="press").tasks("train", 1, 0)[0]
        async with open_page(str(CHROMIUM), DrawnSite(task.spec), (320, 240)) as page:
            await page.visible_text()
            for pid in _browsers_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(PageCrashed):
                await page.act(Action("click", 1))

    in_loop(killed())


def _browsers_of(parent: int) -> list[int]:
    """The bubblewraps of browsers that this process started."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
            except OSError:
                continue
            if (
                command.startswith(shutil.which("bwrap").encode())
                and b"--remote-debugging-pipe" in command
                and parent in _ancestors(status)
            ):  # type: ignore[union-attr]
                pids.append(int(folder.name))
    return pids


def _ancestors(status: str) -> list[int]:
    pids = []
    while (pid := int(status.rpartition(")")[2].split()[1])) > 1:
        pids.append(pid)
        status = Path(f"/proc/{pid}/stat").read_text()
    return pids


def test_missing_requirements_are_named_before_the_first_episode(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="there is no program /nowhere/chromium"):
        Gui(browser="/nowhere/chromium")
    with pytest.raises(ClawError, match="no pages in MiniWoB's layout"):
        Gui(path=str(tmp_path))
    with pytest.raises(ClawError, match="there is no page 'pres'"):
        Gui(pages="pres,press")
    with pytest.raises(ClawError, match="gui: the option actions is 'pixels' -> input should be 'text' or 'tools'"):
        create(Gui, "gui", "--env", {"actions": "pixels"})
    for wrong in ("some", "Only", None, 2):
        with pytest.raises(ClawError, match=r"the option screenshots is .* -> input should be False, True or 'only'"):
            create(Gui, "gui", "--env", {"screenshots": wrong})
    with pytest.raises(ClawError, match="the option max_turns is 'many' -> input should be a valid integer"):
        create(Gui, "gui", "--env", {"max_turns": "many"})
    with pytest.raises(ClawError, match="unexpected keyword argument 'max_turn' -> its options are: pages, path, held_out,"):
        create(Gui, "gui", "--env", {"max_turn": 3})
    with pytest.raises(ClawError, match="screenshots=only has no tools"):
        Gui(actions="tools", screenshots="only")


# Tasks and actions


def test_no_task_of_training_is_held_out() -> None:
    environment = Gui()
    train, held_out = ([task.id for task in environment.tasks(split, 40, 1)] for split in ("train", "eval"))
    assert train == [task.id for task in environment.tasks("train", 40, 1)]
    assert not set(train) & set(held_out)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("click 3", Action("click", 3)),
        ("I think.\nAction: click [12].", Action("click", 12)),
        ("click 40, 80", Action("click_at", 40, down=80)),
        ('```\ntype 4 "two words"\n```', Action("type", 4, "two words")),
        ('type 4 "a \\"quoted\\" word"', Action("type", 4, 'a "quoted" word')),
        ("select 5 Monday", Action("select", 5, "Monday")),
        ("press enter", Action("press", text="Enter")),
        ("press Control+L", None),
        ("SCROLL DOWN", Action("scroll", text="down")),
        ("click 1\nclick 2", Action("click", 2)),
        ("submit", Action("done")),
        ("click the button", None),
        ("javascript:alert(1)", None),
        ("", None),
    ],
)
def test_the_last_line_that_is_an_action_counts(said: str, action: Action | None) -> None:
    assert action_in(said) == action


def test_a_tool_call_with_wrong_arguments_is_no_action() -> None:
    assert action_of("type", {"element": 4, "text": "x"}) == Action("type", 4, "x")
    assert action_of("done", {}) == Action("done")
    for name, arguments in (
        ("type", {"element": "4", "text": "x"}),
        ("click", {}),
        ("press", {"key": "F12"}),
        ("open", {}),
        ("click", None),
    ):
        assert action_of(name, arguments) is None
