"""Implementations of a seam: built in by name, `file.py:name`, or the entry point of an extension or an installed package.

An implementation is imported only when a user names it. A name that clawctl or one of its extensions has always means theirs: no
installed package can replace it. An extension whose folder is removed takes its names with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Generic, TypeVar, cast

from clawctl.errors import ClawError
from clawctl.plugins import load_object

T = TypeVar("T")


def is_file(name: str) -> bool:
    """Whether `name` is `file.py:name`, or a file alone."""
    return name.endswith(".py") or ".py:" in name


@dataclass(frozen=True)
class Registry(Generic[T]):
    """One seam. `built_in` maps names to `module:attribute`; `group` is the group of entry points (`clawctl.suites`)."""

    what: str  # "suite", for messages
    group: str
    built_in: Mapping[str, str]

    def names(self) -> list[str]:
        """All names that `load` accepts without a file: built-in names first, then those of extensions and installed packages."""
        return [*self.built_in, *sorted(points(self.group).keys() - self.built_in.keys())]

    def check(self, name: str, option: str) -> None:
        """Raises ClawError (exit code 2) for an unknown name. Does not import or read anything."""
        if not is_file(name) and name not in self.names():
            raise self._unknown(name, option)

    def load(self, name: str, option: str) -> T:
        """The implementation. `option` is the option or recipe key that the user set. Raises ClawError (exit code 2) if it cannot
        be loaded."""
        if name in self.built_in:
            return cast(T, resolve_name(self.built_in[name]))
        if is_file(name):
            return cast(T, load_object(name, option))
        point = points(self.group).get(name)
        if point is None:
            raise self._unknown(name, option)
        try:
            return cast(T, point.load())
        except Exception as error:
            if is_extension(point):
                raise
            problem = f"{option}: {self.what} {name} of the installed package {point.value!r} cannot be imported: {error!r}"
            raise ClawError(problem, "update or reinstall that package", 2) from error

    def _unknown(self, name: str, option: str) -> ClawError:
        names = self.names()
        problem = f"there is no {self.what} {name!r}" if names else f"no {self.what} is installed, so there is no {name!r}"
        choice = f"use {'one of ' if names else ''}{', '.join([*names, 'a file.py:name'])}"
        fix = f"{choice}, or install a package with the entry point {self.group}: {name}"
        return ClawError(f"{option}: {problem}", fix, 2)


def points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name. Those of clawctl's extensions take precedence. Every copy of clawctl's metadata is read,
    because a checkout may contain an outdated one (`clawctl.egg-info`) that hides the others."""
    announced = [point for copy in distributions(name="clawctl") for point in copy.entry_points.select(group=group)]
    points = [*(point for point in entry_points(group=group) if not is_extension(point)), *filter(is_extension, announced)]
    return {point.name: point for point in points if not is_extension(point) or _has_folder(point)}


def is_extension(point: EntryPoint) -> bool:
    """Whether an entry point is that of an extension: clawctl announces it, and it names code of clawctl."""
    return point.dist is not None and point.dist.name == "clawctl" and point.module.startswith("clawctl.extensions.")


def _has_folder(point: EntryPoint) -> bool:
    try:
        return find_spec(".".join(point.module.split(".")[:3])) is not None
    except ModuleNotFoundError:  # all extensions were removed
        return False
