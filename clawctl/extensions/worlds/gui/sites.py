"""Small websites that clawctl draws. They have no script: the request of a click or a form decides the verdict."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from random import Random
from typing import Any
from urllib.parse import parse_qsl

from clawctl.extensions.worlds.gui.page import SiteAnswer
from clawctl.extensions.worlds.wording import Wording, read_wording

SPOT_COLUMNS, SPOT_ROWS, SPOT_CELL = 4, 3, 32  # cell: pixels
SPOT_BOXES = 6
SPOT_COLOURS = {
    "red": "#e00000", "green": "#00a000", "blue": "#0000e0", "yellow": "#e0e000",
    "black": "#000000", "grey": "#808080", "pink": "#ff80c0", "orange": "#ff8000",
}  # fmt: skip
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SiteTask:
    """A drawn website. The first request to /done decides the task: its fields must equal `wanted`."""

    name: str  # "tick-17"
    instruction: str
    pages: Mapping[str, str]  # the HTML body of each page, by path; search results are at "/find?words"
    wanted: Fields  # the sorted fields of the right request to /done
    solution: tuple[str, ...]  # steps that name elements by description: ('click button "Send"', 'type field "Name" | Ada')


@dataclass(slots=True)
class DrawnSite:
    """One episode on a drawn website."""

    task: SiteTask
    start: str = "/"
    hidden: str = "#none"
    uses_script: bool = False
    _score: float | None = field(default=None)

    def answer(self, method: str, path: str, query: str) -> SiteAnswer | None:
        sent = parse_qsl(query, keep_blank_values=True)
        if path == "/done":
            if self._score is None:  # only the first request counts
                self._score = float(tuple(sorted(sent)) == self.task.wanted)
            return _page("<p>Thank you.</p>")
        if path == "/find":
            searched = " ".join(value.lower().strip() for _, value in sent)
            return _page(self.task.pages.get(f"/find?{searched}", '<p>Nothing found.</p><p><a href="/">Search again</a></p>'))
        return _page(self.task.pages[path]) if path in self.task.pages and method == "GET" else None

    async def begin(self, page: Any) -> str:
        return self.task.instruction

    async def verdict(self, page: Any) -> float | None:
        return self._score


def _page(body: str) -> SiteAnswer:
    style = "body { font: 14px sans-serif; margin: 12px } td { padding: 2px 8px } td form { display: inline }"
    return SiteAnswer(
        f"<!DOCTYPE html><html><head><meta charset=utf-8><style>{style}</style></head><body>{body}</body></html>".encode()
    )


def draw_site(name: str, number: int, wording: Wording | None = None) -> SiteTask:
    """Draw the task of a family. The same number gives the same task. Without `wording`, it is one of training."""
    return DRAWN[name](f"{name}-{number}", Random(f"gui {name} {number}"), wording or read_wording())


def _form(*parts: str) -> str:
    return f'<form action="/done">{"".join(parts)}</form>'


def _button(text: str, name: str = "", value: str = "") -> str:
    attributes = f' name="{escape(name)}" value="{escape(value)}"' if name else ""
    return f"<button{attributes}>{escape(text)}</button>"


def _press(name: str, rng: Random, wording: Wording) -> SiteTask:
    buttons = rng.sample(wording.words["buttons"], rng.randint(3, 6))
    wanted = rng.choice(buttons)
    noise = f"<p>{rng.choice(wording.words['notes'])}</p>"
    body = noise + _form(*(_button(text, "pressed", text) + rng.choice((" ", "<br>")) for text in buttons))
    prompt = wording.prompt("gui.press", rng, button=wanted)
    return SiteTask(name, prompt, {"/": body}, (("pressed", wanted),), (f'click button "{wanted}"',))


def _follow(name: str, rng: Random, wording: Wording) -> SiteTask:
    links, texts = rng.sample(wording.words["links"], rng.randint(2, 5)), rng.sample(wording.words["notes"], 5)
    wanted = rng.choice(links)
    body = "".join(
        f'<p>{texts[index]} <a href="/done?link={link.replace(" ", "+")}">{link}</a></p>' for index, link in enumerate(links)
    )
    prompt = wording.prompt("gui.follow", rng, link=wanted)
    return SiteTask(name, prompt, {"/": body}, (("link", wanted),), (f'click link "{wanted}"',))


def _fill(name: str, rng: Random, wording: Wording) -> SiteTask:
    lists = {"First name": "first_names", "Last name": "last_names", "City": "cities"}
    values = {label: rng.choice(wording.words[kind]) for label, kind in lists.items()}
    labels = rng.sample(list(values), rng.randint(1, 3))
    button = rng.choice(("Send", "Save", "Continue"))
    inputs = (f'<p><label>{label} <input name="{label}"></label></p>' for label in labels)
    fields = "; ".join(f"{label}: {values[label]}" for label in labels)
    prompt = wording.prompt("gui.fill", rng, button=button, fields=fields)
    steps = (*(f'type field "{label}" | {values[label]}' for label in labels), f'click button "{button}"')
    return SiteTask(name, prompt, {"/": _form(*inputs, _button(button))}, tuple(sorted((x, values[x]) for x in labels)), steps)


def _tick(name: str, rng: Random, wording: Wording) -> SiteTask:
    things = rng.sample(wording.words["things"], rng.randint(4, 7))
    wanted = rng.sample(things, rng.randint(1, 3))
    boxes = (f'<p><label><input type=checkbox name="{thing}" value=yes> {thing}</label></p>' for thing in things)
    prompt = wording.prompt("gui.tick", rng, things=_listed(wanted))
    steps = (*(f'click checkbox "{thing}"' for thing in wanted), 'click button "Order"')
    return SiteTask(name, prompt, {"/": _form(*boxes, _button("Order"))}, tuple(sorted((x, "yes") for x in wanted)), steps)


def _choose(name: str, rng: Random, wording: Wording) -> SiteTask:
    cities, days = rng.sample(wording.words["cities"], 5), ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
    city, day, paid = rng.choice(cities[1:]), rng.choice(days[1:]), rng.choice(("card", "cash"))
    radios = "".join(f"<label><input type=radio name=paid value={kind}> {kind}</label> " for kind in ("card", "cash"))
    body = _form(_list("Destination", cities), _list("Day", days), f"<p>{radios}</p>", _button("Book"))
    prompt = wording.prompt("gui.choose", rng, city=city, day=day, paid=paid)
    steps = (f'select list "Destination" | {city}', f'select list "Day" | {day}', f'click radio "{paid}"', 'click button "Book"')
    return SiteTask(name, prompt, {"/": body}, (("Day", day), ("Destination", city), ("paid", paid)), steps)


def _find(name: str, rng: Random, wording: Wording) -> SiteTask:
    """A search, its results, and a page for each result."""
    (first, other), lasts = rng.sample(wording.words["first_names"], 2), rng.sample(wording.words["last_names"], 4)
    people = [*(f"{first} {last}" for last in lasts[:3]), f"{other} {lasts[3]}"]
    wanted = rng.choice(people)
    search = '<form action="/find"><label>Name <input name=name></label> <button>Search</button></form>'
    numbers = {person: index for index, person in enumerate(rng.sample(people, len(people)))}
    pages = {"/": f"<h1>Staff</h1>{search}"}
    for searched in {word.lower() for person in people for word in (person, *person.split())}:
        hits = [person for person in sorted(people) if searched in (person.lower(), *person.lower().split())]
        pages[f"/find?{searched}"] = "".join(f'<p><a href="/staff/{numbers[person]}">{person}</a></p>' for person in hits) + search
    for person, number in numbers.items():
        call = _form(
            f'<input type=hidden name=person value="{number}">', _button("Call", "do", "call"), _button("Write", "do", "write")
        )
        pages[f"/staff/{number}"] = f"<h1>{person}</h1>{call}"
    word, do = wanted.split()[1], rng.choice(("call", "write"))
    steps = (f'type field "Name" | {word}', 'click button "Search"', f'click link "{wanted}"', f'click button "{do.capitalize()}"')
    prompt = wording.prompt(f"gui.{do}", rng, person=wanted)
    return SiteTask(name, prompt, pages, tuple(sorted((("person", str(numbers[wanted])), ("do", do)))), steps)


def _open(name: str, rng: Random, wording: Wording) -> SiteTask:
    """Sections that are closed at the start."""
    sections = rng.sample(wording.words["sections"], rng.randint(3, 5))
    links = {section: rng.sample(wording.words["links"], 2) for section in sections}
    wanted = rng.choice(sections)
    link = rng.choice(links[wanted])

    def inside(section: str) -> str:
        return " ".join(
            f'<a href="/done?in={section.replace(" ", "+")}&amp;link={x.replace(" ", "+")}">{x}</a>' for x in links[section]
        )

    body = "".join(f"<details><summary>{section}</summary>{inside(section)}</details>" for section in sections)
    prompt = wording.prompt("gui.open", rng, section=wanted, link=link)
    return SiteTask(
        name, prompt, {"/": body}, (("in", wanted), ("link", link)), (f'click closed section "{wanted}"', f'click link "{link}"')
    )


def _row(name: str, rng: Random, wording: Wording) -> SiteTask:
    """A table in which each row has the same button."""
    count, names = rng.randint(3, 6), (wording.words["first_names"], wording.words["last_names"])
    people = [" ".join(name) for name in zip(*(rng.sample(some, count) for some in names), strict=True)]
    colours = rng.sample(wording.words["colours"], len(people))
    wanted, do = rng.randrange(len(people)), rng.choice(("Edit", "Remove"))
    rows = []
    for index, person in enumerate(people):
        forms = "".join(
            f'<form action="/done"><input type=hidden name=row value={index}>{_button(text, "do", text)}</form>'
            for text in ("Edit", "Remove")
        )
        rows.append(f"<tr><td>{person}</td><td>{colours[index]}</td><td>{forms}</td></tr>")
    named, value = rng.choice((("person", people[wanted]), ("colour", colours[wanted])))
    prompt = wording.prompt(f"gui.{do.lower()}_{named}", rng, **{named: value})
    return SiteTask(
        name, prompt, {"/": f"<table>{''.join(rows)}</table>"}, tuple(sorted((("row", str(wanted)), ("do", do)))),
        (f'click button "{do}" after {people[wanted]}',),
    )  # fmt: skip


def _spot(name: str, rng: Random, _: Wording) -> SiteTask:
    """Coloured boxes without any text, for screenshots. Their places are cells of a grid on 128 x 96 pixels."""
    cells, colours = rng.sample(range(SPOT_COLUMNS * SPOT_ROWS), SPOT_BOXES), rng.sample(list(SPOT_COLOURS), SPOT_BOXES)
    body = "".join(
        f'<a href="/done?box={index}" style="position:absolute;left:{x - 13}px;top:{y - 13}px;width:26px;height:26px;'
        f'background:{SPOT_COLOURS[colour]}"></a>'
        for index, (colour, (x, y)) in enumerate(zip(colours, map(spot_centre, cells), strict=True))
    )
    wanted = rng.randrange(SPOT_BOXES)
    x, y = spot_centre(cells[wanted])
    prompt = f"Click the {colours[wanted]} box."
    return SiteTask(name, prompt, {"/": body}, (("box", str(wanted)),), (f"click_at {x} {y}",))


def spot_centre(cell: int) -> tuple[int, int]:
    """The middle of a cell of `spot`, in pixels from the left and from the top. The number 0 is the cell at the top left."""
    return SPOT_CELL * (cell % SPOT_COLUMNS) + SPOT_CELL // 2, SPOT_CELL * (cell // SPOT_COLUMNS) + SPOT_CELL // 2


def _list(label: str, options: Iterable[str]) -> str:
    choices = "".join(f"<option>{option}</option>" for option in options)
    return f'<p><label>{label} <select name="{label}">{choices}</select></label></p>'


def _listed(things: list[str]) -> str:
    return things[0] if len(things) == 1 else f"{', '.join(things[:-1])} and {things[-1]}"


FAMILIES: dict[str, Callable[[str, Random, Wording], SiteTask]] = {
    "press": _press, "follow": _follow, "fill": _fill, "tick": _tick, "choose": _choose, "find": _find, "open": _open, "row": _row,
}  # fmt: skip
PICTURES: dict[str, Callable[[str, Random, Wording], SiteTask]] = {"spot": _spot}  # their text says nothing: for screenshots
DRAWN = FAMILIES | PICTURES
