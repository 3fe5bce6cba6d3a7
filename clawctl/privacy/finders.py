"""The finder seam: finders locate secrets, and `Redactor` (`redaction.py`) replaces what they find.

To add a finder, write a `Finder` and name it in `privacy.finders`, as `file.py:name` or as an entry point of the group
`clawctl.finders`:

    class Badges(Finder):
        def find(self, text, kinds):
            for match in re.finditer(r"badge-[0-9]{6}", text):
                yield Secret(*match.span(), "token", "the number of a badge")

    BADGES = Badges()
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, get_args

from clawctl.config.privacy import Kind, PrivacyConfig
from clawctl.errors import ClawError
from clawctl.registry import Registry, is_file

KINDS: tuple[Kind, ...] = get_args(Kind)
DEFAULT = tuple(PrivacyConfig().finders)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret in a text: `text[start:end]`."""

    start: int
    end: int
    kind: Kind
    rule: str = ""  # why it is a secret, as `inspect health` shows it
    # The evidence: the form of the text itself, the words around it, or a name such as `password` beside it. Plain words in static
    # text can be exempt unless their form is the evidence (`static_text.py`).
    by: Literal["form", "words", "name"] = "form"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A part of a text that encodes another text, such as base64. The other text is searched as well."""

    start: int
    end: int
    text: str


class Finder(Protocol):
    """One way to find secrets; the registry contains these. A finder may be called from several threads."""

    def find(self, text: str, kinds: frozenset[Kind]) -> Iterable[Secret | Encoded]:
        """The secrets of these kinds in a piece of text of about 10,000 characters at most. Of two that overlap, the first kind
        counts."""

    def is_password(self, name: str, value: str, beside: Collection[str]) -> bool:
        """Whether a value in JSON is a secret because of its name. `beside` has the other keys if the object pairs a name with a
        value: {"name": "DB_PASSWORD", "value": "…"}."""
        return False

    def asks(self, text: str, role: str) -> bool:
        """Whether a message of this role asks for a secret, so that the next one may be it: `Please enter your PIN.`"""
        return False

    def continues(self, text: str) -> bool:
        """Whether a message asks for what was asked for before, and names nothing: `And the rest?`"""
        return False

    def find_answer(self, question: str, text: str) -> Iterable[Secret]:
        """The secrets in a text that follows such a question, beyond what `find` finds in both together."""
        return ()


FINDERS: Registry[Finder] = Registry("finder", "clawctl.finders", {})


@lru_cache
def load_finder(name: str) -> Finder:
    """The finder with this name. Raises ClawError (exit code 2) if there is none."""
    if name in DEFAULT and name not in FINDERS.names():
        raise ClawError(
            f"secrets cannot be redacted, because the finder {name!r} is not installed",
            "reinstall clawctl with clawctl/extensions/secrets, name your own finder in privacy.finders, "
            "or turn redaction off: privacy.redact: []",
            2,
        )
    return FINDERS.load(name, "privacy.finders")


def check_finders(privacy: PrivacyConfig) -> None:
    """Raises ClawError (exit code 2) if redaction is on and a finder is missing. Imports nothing."""
    for name in privacy.finders if privacy.redact else []:
        if not is_file(name):
            load_finder(name)


def default_finders() -> tuple[str, ...]:
    """The default finders that are installed, for logs and metrics: they are redacted if possible."""
    return tuple(name for name in DEFAULT if name in FINDERS.names())
