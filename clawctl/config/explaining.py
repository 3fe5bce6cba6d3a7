"""The explainer seam: what clawctl should say about keys and options that it does not have.

An explainer is asked only about unknown names. Announce it as an entry point of the group `clawctl.explainers`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clawctl.registry import Registry


@dataclass(frozen=True, slots=True)
class Equivalent:
    """The equivalent of an unknown key. One of `key` and `dropped` is set; `near` is the suggestion for a dropped key."""

    key: str | None = None
    dropped: str | None = None  # why clawctl has no such key
    near: str | None = None

    @property
    def suggestion(self) -> str | None:
        return self.key or self.near


@dataclass(frozen=True, slots=True)
class Option:
    """An option that clawctl does not have.

    `is_now` returns the equivalent command-line words for its value. If it returns None, the option is refused, and `instead` is
    the fix. Beside one of the options `unless`, it is left out.
    """

    is_now: Callable[[str], Sequence[str] | None]
    instead: str
    takes_value: bool = True
    unless: tuple[str, ...] = ()


class Explainer(Protocol):
    """Knows names that clawctl does not have; the registry contains these."""

    def key(self, parts: Sequence[str], similar: bool = False) -> Equivalent | None:
        """The equivalent of the recipe key with these parts, or with `similar` that of the most similar key."""

    def cure(self, path: Path | None, data: Mapping[Any, Any], strange: Sequence[str]) -> str | None:
        """What to do about a recipe for another system; None if it is written for clawctl. `strange` are its unknown sections."""

    def options(self, command: str) -> Mapping[str, Option]:
        """Options by name, with dashes, for the command ("inspect sessions")."""


EXPLAINERS: Registry[Explainer] = Registry("explainer", "clawctl.explainers", {})


def explainers() -> list[Explainer]:
    return [EXPLAINERS.load(name, "unknown names") for name in EXPLAINERS.names()]


def equivalent(parts: Sequence[str], similar: bool = False) -> Equivalent | None:
    """The first explainer's equivalent of an unknown key."""
    return next((here for explainer in explainers() if (here := explainer.key(parts, similar)) is not None), None)


def options_elsewhere(command: str) -> dict[str, Option]:
    """Options that all explainers translate for a command."""
    return {name: option for explainer in explainers() for name, option in explainer.options(command).items()}
