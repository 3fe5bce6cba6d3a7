"""The corpus of the model `pages`: mostly bad episodes of `gui` on drawn websites, in the environment's exact wording, and drills.

As in `corpus`, every fault is a choice from a small closed set: another element of the same kind, an action without quotation
marks, or an early end. What an action copies is always exact. Elements are named by their labels, or by their numbers where several
elements have the same label. The pages are computed without Chromium. Only tasks of the split "train" occur.
"""

from collections.abc import Iterator, Mapping
from random import Random

from clawctl.extensions.worlds.gui.actions import SYSTEM, Action
from clawctl.extensions.worlds.gui.environment import NO_ACTION, step_action
from clawctl.extensions.worlds.gui.sites import FAMILIES, DrawnSite, SiteTask, draw_site
from scripts.craft_model.browser import Browser
from scripts.craft_model.corpus import draw_choice, draw_number, message
from scripts.craft_model.wording import draw_wording
from scripts.tiny_models.documents import Document

STEP = {"right": 0.45, "other": 0.21, "no quotes": 0.14, "done": 0.2}  # shares of the choices at each step
DRILLS = 0.3  # share of the documents
_LONGEST = 8  # the largest number of answers in one episode
_DRILLED = ("buttons", "cities", "first_names", "last_names", "links", "sections", "things")


def documents(seed: int, count: int) -> Iterator[Document]:
    """Make `count` documents, deterministically for given arguments."""
    for index in range(count):
        rng = Random(f"pages {seed} {index}")
        name = rng.choice([*FAMILIES])
        yield _drill(rng) if rng.random() < DRILLS else episode(draw_site(name, draw_number(rng), draw_wording(rng)), rng)[0]


def episode(task: SiteTask, rng: Random, shares: Mapping[str, float] = STEP) -> tuple[Document, Browser]:
    """Make an episode that follows the task's solution, with faults. The browser has its score."""
    browser, steps = Browser(DrawnSite(task)), [*task.solution]
    messages = [message("system", SYSTEM), message("user", f"Task: {task.instruction}\n\n{browser.visible_text()}")]
    while browser.score is None and len(messages) < 2 * _LONGEST:
        action, choice, problem = next_action(browser, steps), draw_choice(shares, rng), ""
        if action is None or choice == "done":
            messages.append(message("assistant", "done"))
            break
        if choice == "no quotes":
            messages.append(message("assistant", written(action, browser).replace('"', "")))
            problem = f"{NO_ACTION.format('click 3')}\n\n"
        else:
            action = other_action(action, browser, rng) if choice == "other" else action
            messages.append(message("assistant", written(action, browser)))
            browser.act(action)
            steps.pop(0)
        if browser.score is None:
            messages.append(message("user", problem + browser.visible_text()))
    return Document(messages, frozenset(range(2, len(messages), 2))), browser


def next_action(browser: Browser, steps: list[str]) -> Action | None:
    """The action of the first step. None if there is no step, or if a fault led to a page without its element."""
    try:
        return step_action(steps[0], browser.visible_text()) if steps else None
    except (StopIteration, ValueError):
        return None


def written(action: Action, browser: Browser) -> str:
    """The action as the agent writes it."""
    assert action.number is not None
    label = browser.elements()[action.number - 1].label
    is_alone = sum(element.label == label for element in browser.elements()) == 1
    label_or_number = f'"{label}"' if is_alone else str(action.number)
    return f'{action.name} {label_or_number} "{action.text}"'.removesuffix(' ""')


def other_action(action: Action, browser: Browser, rng: Random) -> Action:
    """The same action with another element of the same kind, or with another option of a list. Without any, `action`."""
    assert action.number is not None
    elements = browser.elements()
    element = elements[action.number - 1]
    if action.name == "select":
        return Action("select", action.number, rng.choice([option for option in element.options if option != action.text]))
    others = [number for number, other in enumerate(elements, 1) if other.kind == element.kind and other is not element]
    return Action(action.name, rng.choice(others or [action.number]), action.text)


def _drill(rng: Random) -> Document:
    """Make a document that asks for some elements of a page. Drills teach the model to copy labels.

    A model of this size did not learn in 700 updates to look up an element's number, which stands before its label.
    """
    wording = draw_wording(rng).words
    words = rng.sample(sorted({word for kind in _DRILLED for word in wording[kind]}), rng.randint(3, 10))
    kinds = ("button", "link", "checkbox", "radio", "closed section")
    page = "\n".join(f'[{number}] {rng.choice(kinds)} "{word}"' for number, word in enumerate(words, 1))
    wanted = rng.sample(words, rng.randint(1, min(5, len(words))))
    answer = "\n".join(f'click "{word}"' for word in wanted)
    return Document([message("user", f"Task: {', '.join(wanted)}\n\n{page}"), message("assistant", answer)], frozenset({1}))
