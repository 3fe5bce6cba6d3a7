"""A browser without Chromium for drawn websites. It shows their pages in the words of `gui`, and computes what actions do to them.

It knows only the HTML that `clawctl/extensions/worlds/gui/sites.py` writes. A test compares it with Chromium.
"""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

from clawctl.extensions.worlds.gui.actions import Action
from clawctl.extensions.worlds.gui.sites import DrawnSite

_BLOCKS = ("p", "h1", "form", "details", "table", "tr", "td", "body")
_EMPTY = ("input", "br", "meta")


@dataclass(slots=True)
class Element:
    """An element that the agent can use, or a hidden input."""

    kind: str  # "button", "link", "field", "checkbox", "radio", "list", "section" or "hidden"
    label: str
    attributes: dict[str, str]
    form: int | None  # the number of its form
    section: "Element | None" = None  # the section that it is in
    options: list[str] = field(default_factory=list)
    value: str = ""  # typed or chosen
    is_on: bool = False  # checked, or open

    def described(self) -> str:
        match self.kind:
            case "list":
                return f'list "{self.label}" options: {" | ".join(self.options)}; chosen: "{self.value}"'
            case "field":
                return f'field "{self.label}"' + (f' contains "{self.value}"' if self.value else "")
            case "section":
                return f'{"open" if self.is_on else "closed"} section "{self.label}"'
            case "checkbox" | "radio":
                return f'{self.kind} "{self.label}"' + (" (checked)" if self.is_on else "")
        return f'{self.kind} "{self.label}"'


class _Reader(HTMLParser):
    """Collects the lines of a page: texts, and the elements that can be used."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str | Element] = []
        self.forms: list[str] = []  # the path of each form
        self._text, self._label, self._is_labelled = "", "", False
        self._form: int | None = None
        self._inside: Element | None = None  # an element whose text is being read
        self._section: Element | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in (*_BLOCKS, "br"):
            self._end_line()
        if tag == "form":
            self._form = len(self.forms)
            self.forms.append(attributes["action"])
        if tag == "label":
            self._label, self._is_labelled = "", True
        kind = {"a": "link", "button": "button", "summary": "section", "select": "list"}.get(tag)
        if tag == "input":
            kind = attributes.get("type", "field")
        if kind is not None:
            self._end_line()
            element = Element(kind, self._label.strip(), attributes, self._form, self._section)
            self.lines.append(element)
            self._inside = None if tag == "input" else element
            if tag == "summary":
                self._section = element
        if tag == "option" and self._inside is not None:
            self._inside.options.append("")

    def handle_data(self, text: str) -> None:
        if self._inside is None and self._is_labelled:
            self._label += text
            if self.lines and isinstance(last := self.lines[-1], Element) and last.kind in ("checkbox", "radio"):
                last.label = f"{last.label}{text}".strip()
        elif self._inside is None:
            self._text += text
        elif self._inside.kind == "list":
            self._inside.options[-1] += text
        else:
            self._inside.label += text

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_line()
        if tag == "form":
            self._form = None
        if tag == "details":
            self._section = None
        if tag == "label":
            self._label, self._is_labelled = "", False
        if tag == "select" and self._inside is not None:
            self._inside.value = self._inside.options[0]
        if tag in ("a", "button", "summary", "select"):
            self._inside = None

    def _end_line(self) -> None:
        if text := " ".join(self._text.split()):
            self.lines.append(text)
        self._text = ""


@dataclass(slots=True)
class Browser:
    """One episode on a drawn website."""

    site: DrawnSite
    _page: _Reader = field(default_factory=_Reader)

    def __post_init__(self) -> None:
        self._open("/")

    @property
    def score(self) -> float | None:
        """The verdict, or None while the task is undecided."""
        return self.site._score

    def visible_text(self) -> str:
        """The page as the agent reads it."""
        lines, number = [], 0
        for line in self._page.lines:
            if isinstance(line, str):
                lines.append(line)
            elif _is_visible(line):
                number += 1
                lines.append(f"[{number}] {line.described()}")
        return "\n".join(lines) or "(the page is empty)"

    def elements(self) -> list[Element]:
        """The elements with numbers. Element 1 is the first."""
        return [line for line in self._page.lines if isinstance(line, Element) and _is_visible(line)]

    def act(self, action: Action) -> None:
        """Do an action with the number of an element."""
        assert action.number is not None
        element = self.elements()[action.number - 1]
        match action.name, element.kind:
            case "type", _:
                element.value = action.text
            case "select", _:
                element.value = action.text
            case _, "checkbox" | "section":
                element.is_on = not element.is_on
            case _, "radio":
                for other in self.elements():
                    if other.kind == "radio" and other.attributes["name"] == element.attributes["name"]:
                        other.is_on = other is element
            case _, "link":
                self._open(element.attributes["href"])
            case _, "button":
                assert element.form is not None
                self._open(f"{self._page.forms[element.form]}?{urlencode(self._sent(element))}")

    def _sent(self, button: Element) -> list[tuple[str, str]]:
        """The fields that a form sends."""
        sent = []
        for line in self._page.lines:
            if not isinstance(line, Element) or line.form != button.form or "name" not in line.attributes:
                continue
            name = line.attributes["name"]
            if line.kind in ("field", "list"):
                sent.append((name, line.value))
            elif line.kind == "hidden" or line.is_on or line is button:
                sent.append((name, line.attributes["value"]))
        return sent

    def _open(self, address: str) -> None:
        parts = urlsplit(address)
        reply = self.site.answer("GET", parts.path, parts.query)
        assert reply is not None, address
        self._page = _Reader()
        self._page.feed(reply.content.decode().partition("</head>")[2])
        self._page._end_line()


def _is_visible(element: Element) -> bool:
    return element.kind != "hidden" and (element.section is None or element.section.is_on)
