"""The actions of an agent on a page, given as text or as tool calls."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

Name = Literal["click", "click_at", "type", "select", "press", "scroll", "done"]
KEYS = ("Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight")
LONGEST = 2000  # the number of characters that one action can type

_TOLD = yaml.safe_load((Path(__file__).parent / "actions.yaml").read_text("utf-8"))
SYSTEM, SYSTEM_PIXELS, SYSTEM_PICTURE = str(_TOLD["text"]), str(_TOLD["pixels"]), str(_TOLD["picture"])

_ACTION = re.compile(
    r"""(?:action:\s*)?(?:
    (?P<click>click)\s+(?:\[?(?P<x>\d{1,6})\]?(?:[\s,]+(?P<y>\d{1,6}))?|(?P<label>"(?:[^"\\]|\\.)+"))
    |(?P<fill>type|select)\s+(?:\[?(?P<at>\d{1,6})\]?|(?P<field>"(?:[^"\\]|\\.)+"))\s+(?P<text>\S.*)
    |press\s+(?P<key>[a-z]+)
    |scroll\s+(?P<way>up|down)
    |(?P<done>done|submit)
    )\.?""",
    re.IGNORECASE | re.VERBOSE,
)
_LINE = re.compile(r'\[(?P<number>\d+)\] (?P<kind>[^"]*)(?P<label>"(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Action:
    """One action: Action("type", 4, "words")."""

    name: Name
    number: int | None = None  # the element's number; for "click_at", pixels from the left
    text: str = ""  # the text to type, the option, the key, "up" or "down"
    down: int = 0  # for "click_at": pixels from the top
    label: str = ""  # the element's label, in place of its number


def action_in(reply: str) -> Action | None:
    """The last line of an answer that is a valid action, or None."""
    for line in reversed(reply.splitlines()):
        match = _ACTION.fullmatch(line.strip().strip("`").strip())
        if match is not None and (action := _action(match)) is not None:
            return action
    return None


def _action(match: re.Match[str]) -> Action | None:
    if match["label"]:
        return Action("click", label=_unquoted(match["label"]))
    if match["click"]:
        return Action("click", int(match["x"])) if match["y"] is None else Action("click_at", int(match["x"]), down=int(match["y"]))
    if match["fill"]:
        number, field = None if match["at"] is None else int(match["at"]), _unquoted(match["field"] or "")
        return Action("type" if match["fill"].lower() == "type" else "select", number, _unquoted(match["text"]), label=field)
    if match["key"]:
        key = next((name for name in KEYS if name.lower() == match["key"].lower()), None)
        return None if key is None else Action("press", text=key)
    if match["way"]:
        return Action("scroll", text=match["way"].lower())
    return Action("done")


def numbered(action: Action, shown: str) -> Action | str:
    """The action with the number of the element that it names by its label, or an error message for the agent.

    `shown` is the page as the agent reads it. Upper and lower case may differ. `type` looks for fields, `select` for lists.
    """
    if not action.label:
        return action
    kinds = {"type": "field", "select": "list"}
    lines = [match for line in shown.splitlines() if (match := _LINE.match(line)) and kinds.get(action.name, "") in match["kind"]]
    numbers = [line["number"] for line in lines if _unquoted(line["label"]).lower() == action.label.lower()]
    if len(numbers) == 1:
        return replace(action, number=int(numbers[0]), label="")
    quoted = json.dumps(action.label[:80], ensure_ascii=False)
    if not numbers:
        return f"error: there is no {kinds.get(action.name, 'element')} {quoted}"
    return f"error: {quoted} is the label of the elements {', '.join(numbers)}. Use a number"


def written(action: Action, shown: str) -> str:
    """The action as an agent writes it: by its element's label if no other element has that label, else by the number."""
    if action.name == "click_at":
        return f"click {action.number} {action.down}"
    label = next(
        (line["label"] for line in map(_LINE.match, shown.splitlines()) if line and line["number"] == str(action.number)), ""
    )
    is_unique = label != "" and numbered(replace(action, label=_unquoted(label)), shown) == action
    return f"{action.name} {label if is_unique else action.number}" + (f" {json.dumps(action.text)}" if action.text else "")


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == "'" else text


def _tool(name: str, description: str, properties: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    parameters = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [_tool(**tool) for tool in _TOLD["tools"]]


def action_of(name: str, arguments: Mapping[str, Any] | None) -> Action | None:
    """The action of a tool call. None if the tool does not exist or its arguments are wrong."""
    if arguments is None:
        return None
    number, text = (
        arguments.get("element"),
        next((arguments[key] for key in ("text", "option", "key", "direction") if key in arguments), ""),
    )
    if isinstance(number, bool) or not isinstance(number, int | None) or not isinstance(text, str):
        return None
    if name in ("click", "type", "select") and number is not None:
        return Action("click" if name == "click" else "type" if name == "type" else "select", number, text)
    if name == "press" and text in KEYS:
        return Action("press", text=text)
    if name == "scroll" and text in ("up", "down"):
        return Action("scroll", text=text)
    return Action("done") if name == "done" else None
