"""What was said before a message: its text may answer a question for a secret."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clawctl.privacy.finders import Secret
from clawctl.privacy.prompt_ids import strings_of
from clawctl.run.rows import Message

QUESTION = 240  # characters of a question for a secret
CONTENTS = ("", "content", "parts", "text", "input", "output", "summary")  # lists whose bare strings form one text
STAYS_OPEN = 5  # messages after a question for a secret: `Which PIN?`, `Wait.`, `No hurry.`, `it's 3308`
_QUOTED_REQUEST = re.compile(r"(?<!\w)['\"‘“„«]([^'\"‘’“”„«»\n]{4,200})['\"’”»](?!\w)|[“「『]([^“”「」『』\n]{4,120})[”」』]")
_OF_PROGRAM = re.compile(r"[$={}\\]")  # `Bearer $TOKEN`
_LATE = re.compile(
    r"\d\D*\d\D*\d\D*\d|[^\W\d_].*\d|\d.*[^\W\d_]|\w[&*#$%^+=!~@]\w", re.DOTALL
)  # four digits, or letters and digits or signs
# `Priya: does anyone know the code?`, with a time or a group before the name
_LINE_OF_TALK = re.compile(
    r"(?m)^[ \t>*]*(?:[\[(]?\d[\d/.:, -]{3,20}(?:[AP]M)?[\])]?[ -]{1,3})?(?:\[[^\]\n]{1,24}\]:? )?(?:\*\*)?"
    r"(?:(?<=\] )|@?[^\W\d_][\w.'’-]{0,20}(?: [^\W\d_(][\w.'’-]{0,20})?(?:\*\*)?:(?:\*\*)? )(?P<text>[^\n]{2,300})$"
)
_ASKING = r"(?i:what|which|who)(?:['’]?s| is| was|\b)"  # also without a question mark
_ASKING_LINE = re.compile(rf": {_ASKING}")
_LONGEST_TALK = 4000  # characters


@dataclass(frozen=True, slots=True)
class Said:
    """What a message follows."""

    role: str = ""  # of the last message, and the end of it, or the question that it repeats in other words
    text: str = ""
    pending: str = ""  # the newest question for a secret
    asker: str = ""  # its role
    age: int = 0  # messages since then


NOTHING_SAID = Said()


def is_late(secret: Secret, text: str, role: str, asker: str) -> bool:
    """Whether a part of a text answers an earlier question although other things were said since."""
    if role == "user" != asker:
        return secret.by == "form" or _LATE.search(text[secret.start : secret.end]) is not None
    return secret.by == "form" or (secret.by == "name" and role == "tool")


def quoted(text: str) -> Iterator[tuple[str, int]]:
    """The requests that a person quotes, and where each ends: `the installer says 'Please enter your product key'`."""
    for match in _QUOTED_REQUEST.finditer(text) if len(text) <= 2 * QUESTION else ():
        request = match[1] or match[2]
        if (" " in request or not request.isascii()) and not _OF_PROGRAM.search(request):
            yield request, match.end()


def is_asked(text: str) -> bool:
    """Whether a line of a chat asks something."""
    return "?" in text or re.match(_ASKING, text) is not None


def lines_of_talk(text: str, pending: str) -> list[re.Match[str]]:
    """The lines of a chat between people that a text quotes, if somebody asks something in it, or before."""
    if len(text) > _LONGEST_TALK or "\n" not in text or not (pending or "?" in text or _ASKING_LINE.search(text)):
        return []
    lines = list(_LINE_OF_TALK.finditer(text))
    return lines if len(lines) > 1 else []


def last_words(message: Message) -> str:
    """The end of what a message says, as the other side reads it before it answers."""
    for key in reversed(CONTENTS):
        if content := message.get(key):
            for text in (content,) if isinstance(content, str) else reversed(list(strings_of(content))):
                if last := text[-2 * QUESTION :].strip() or text.strip():
                    return last[-QUESTION:]
    return ""
