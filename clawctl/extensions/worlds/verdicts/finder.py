"""Finds modules for the process that runs the tests; those of the graded code are loaded in the other sandbox.

Standard library only.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from boundary import is_graded  # type: ignore[import-not-found]  # beside this file
from remote_modules import GradedSession  # type: ignore[import-not-found]
from stand_ins import OWN  # type: ignore[import-not-found]


def _is_copied(path: str) -> bool:
    """Whether this is a copy of a test."""
    return os.path.isfile(path) and os.path.getsize(path) > 0 and not is_graded(path)


class _LoaderOfFile(importlib.abc.Loader):
    def __init__(self, finder: "GradedFinder", path: str) -> None:
        self._finder, self._path = finder, path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self._finder.session = self._finder.session or GradedSession(self._finder.claims)
        module: ModuleType = self._finder.session.ask("load", spec.name, self._path)
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


class GradedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules as Python does, and loads those of the graded code in the other sandbox.

    `trusted` are folders whose modules are loaded here, and `tests` files of the tests among the graded code.
    """

    def __init__(self, trusted: Sequence[str], tests: Sequence[str]) -> None:
        self.session: GradedSession | None = None
        self.claims: list[str] = []
        self._trusted, self._tests = tuple(f"{folder}/" for folder in trusted), frozenset(tests)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] in sys.stdlib_module_names:
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        folders = parent.__dict__.get(f"{OWN}folders", path) if parent is not None else path
        spec = importlib.machinery.PathFinder.find_spec(fullname, folders)
        if spec is None:
            return None
        locations = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        if all(location.startswith(self._trusted) or location in self._tests or _is_copied(location) for location in locations):
            return spec
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=spec.submodule_search_locations, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self.session = self.session or GradedSession(self.claims)
        folders = [path or os.getcwd() for path in sys.path if not f"{path or os.getcwd()}/".startswith(self._trusted)]
        module: ModuleType = self.session.ask("import", spec.name, folders)
        module.__dict__[f"{OWN}folders"] = list(spec.loader_state or ())
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self.session is not None and module.__dict__.get(f"{OWN}loaded"):
            self.session.ask("reload", module)
        module.__dict__[f"{OWN}loaded"] = True

    def at(self, path: str) -> importlib.abc.Loader:
        """A loader of the module in this file of the graded code."""
        return _LoaderOfFile(self, path)

    def take_claims(self) -> list[str]:
        """What the graded code has claimed since the last call."""
        claims = self.claims[:]
        self.claims.clear()
        return claims
