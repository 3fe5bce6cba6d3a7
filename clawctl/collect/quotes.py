"""Detects requests that quote another conversation: a title, tags or a summary that a client requests separately.

Such a request contains text of the other conversation. A quotation only labels a request that nothing continued. It links
nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clawctl.collect.canonical import answer_text, role_of, text_of
from clawctl.run.rows import Message

SHORTEST = 8  # characters of a line that can be quoted; of an answer that is found again, four times as many
LONGEST = 120  # characters that are compared
MOST_LINES = 256  # that are kept of each user
MOST_MESSAGES = 6  # at the end of a request, that are remembered
MOST_TREES = 3  # that a line is known to stand in
LONGEST_PART = 8 << 10  # characters of a message whose lines are looked at
MOST_READ = 64 << 10  # characters of a request that are searched


@dataclass(slots=True)
class Line:
    """The place of a line."""

    trees: set[int] = field(default_factory=set)  # at most MOST_TREES
    said: bool = False  # by a user, not answered
    with_tools: bool = False  # in a request with tools


class Quotes:
    """The longest line of each recent message and answer, by user."""

    def __init__(self) -> None:
        self._lines: dict[str, OrderedDict[str, Line]] = {}

    def note(self, user: str, tree: int, messages: Sequence[Message], response: Message | None, with_tools: bool) -> None:
        """Remember the last messages of a user, each part separately, and the answer."""
        said = [message for message in messages[-MOST_MESSAGES:] if role_of(message) == "user"]
        lines = [(_longest_line(text), True) for message in said for text in _parts(message)]
        if response is not None:
            lines.append((_longest_line(answer_text(response)), False))
        known = self._lines.setdefault(user, OrderedDict())
        for text, is_said in lines:
            if len(text) >= SHORTEST:
                line = known.setdefault(text, Line())
                known.move_to_end(text)
                line.said, line.with_tools = line.said or is_said, line.with_tools or with_tools
                if len(line.trees) < MOST_TREES:
                    line.trees.add(tree)
        while len(known) > MOST_LINES:
            known.popitem(last=False)

    def are_about(self, user: str, tree: int, messages: Sequence[Message], response: Message | None) -> bool:
        """Whether a request without tools quotes another tree, or a user message of another tree quotes its answer.

        It quotes a line if more user text surrounds it, or if the other tree has tools. A line of several trees proves nothing: it
        may be a text of the client, or a prompt that is sent repeatedly.
        """
        texts = [part for message in messages if role_of(message) in ("user", "system") for part in _parts(message)]
        said = sum(len(part) for message in messages if role_of(message) == "user" for part in _parts(message))
        searched = "\n".join(texts)[-MOST_READ:]
        answered = _longest_line(answer_text(response)) if response is not None else ""
        for text, line in self._lines.get(user, {}).items():
            if len(line.trees - {tree}) == 1 and (
                (text in searched and (line.with_tools or said >= len(text) + 2 * SHORTEST)) or (line.said and text == answered)
            ):
                return True
        return False

    def forget(self, user: str) -> None:
        self._lines.pop(user, None)


def samples_of(response: Message | None) -> tuple[str, ...]:
    """Three pieces of an answer, to find it in another text; none for a short one."""
    text = answer_text(response) if response is not None else ""
    size = 4 * SHORTEST
    if len(text) < size:
        return ()
    return tuple(dict.fromkeys(text[at : at + size] for at in (len(text) // 4, len(text) // 2, len(text) - size)))


def holds(messages: Iterable[Message], samples: Sequence[str]) -> bool:
    """Whether a user or system message contains an answer, or most of it."""
    for message in messages:
        if role_of(message) in ("user", "system"):
            text = text_of(message.get("content"))[:MOST_READ]
            if 2 * sum(sample in text for sample in samples) > len(samples):
                return True
    return False


def _parts(message: Message) -> list[str]:
    content = message.get("content")
    return [text_of([part]) for part in content] if isinstance(content, list) else [text_of(content)]


def _longest_line(text: str) -> str:
    return max((line.strip() for line in text[:LONGEST_PART].splitlines()), key=len, default="")[:LONGEST]
