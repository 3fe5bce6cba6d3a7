"""The forms of secrets that `forms.txt` lists."""

import re
from dataclasses import dataclass

from clawctl.extensions.secrets.tables import table
from clawctl.extensions.secrets.text import Anchors, anchors_of, regex


@dataclass(frozen=True, slots=True)
class Form:
    """A form of text with a secret, the group `value` of its pattern."""

    check: str  # the name of the condition that the value must meet: "strong password"
    anchors: Anchors  # the words at which it is tried
    pattern: re.Pattern[str]
    before: re.Pattern[str] | None = None  # must match directly before an anchor


def forms_of(heading: str) -> tuple[Form, ...]:
    return tuple(_form(*block) for block in blocks_of(heading))


def _form(head: str, pattern: str, before: str | None = None) -> Form:
    check, _, words = head.partition(": ")
    anchors = Anchors(*anchors_of(words.replace("·", " ")))
    return Form(check, anchors, regex(pattern), None if before is None else regex(before))


def blocks_of(heading: str) -> list[list[str]]:
    """The blocks of lines below a heading, without comments."""
    lines = re.sub(r"(?m)^# .*\n", "", table("forms.txt")[heading]).strip("\n")
    return [block.split("\n") for block in lines.split("\n\n")]


def alternatives_of(heading: str) -> str:
    """An expression that matches any of the lines below a heading."""
    return "|".join(line for block in blocks_of(heading) for line in block)
