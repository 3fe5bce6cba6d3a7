"""Implementations of a seam: built in by name, `file.py:name`, or the entry point of an installed package.

An implementation is imported only when a user names it. A built-in name always means clawctl's own implementation: no installed
package can replace it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
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
        """All names that `load` accepts without a file: built-in names first, then those of installed packages."""
        installed = {point.name for point in entry_points(group=self.group)}
        return [*self.built_in, *sorted(installed - set(self.built_in))]

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
        for point in entry_points(group=self.group, name=name):
            try:
                return cast(T, point.load())
            except Exception as error:  # the package's own code
                problem = f"{option}: {self.what} {name} of the installed package {point.value!r} cannot be imported: {error!r}"
                raise ClawError(problem, "update or reinstall that package", 2) from error
        raise self._unknown(name, option)

    def _unknown(self, name: str, option: str) -> ClawError:
        known = ", ".join(self.names())
        return ClawError(
            f"{option}: there is no {self.what} {name!r}",
            f"use one of {known}, a file.py:name, or install a package with the entry point {self.group}: {name}",
            2,
        )
