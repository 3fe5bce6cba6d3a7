"""Stands in for the modules under test in the process that runs the tests. Standard library only.

The graded code runs in another sandbox (`graded_code.py`). Functions are called there, and plain results are compared here. An
object that is no plain data is represented by a stand-in (`stand_ins.py`).
"""

import base64
import builtins
import importlib.abc
import importlib.machinery
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from boundary import mark  # type: ignore[import-not-found]  # beside this file
from crossing import FOLDERS, OF_THE_TESTS, SOCKET, SharedFiles, contents, decode, digests, encode  # type: ignore[import-not-found]
from numbers_in_shell import is_executed, is_file_executed, variables_of  # type: ignore[import-not-found]
from stand_ins import OWN, RemoteModule, RemoteObject, RemoteType  # type: ignore[import-not-found]

_PLAIN = (str, int, float, tuple, frozenset, bytes, list, dict, set)


class GradedCodeEnded(Exception):
    """The process of the graded code is gone."""


class GradedSession:
    """The connection to the graded code."""

    def __init__(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(SOCKET)
        self._lines = connection.makefile("rw", encoding="utf-8", newline="\n")
        self._objects: dict[int, Any] = {}
        self._callables: list[Callable[..., Any]] = []
        self._files = SharedFiles()
        self.claims: list[str] = []  # what the graded code claimed since this list was cleared
        self._sent: dict[str, str] = {}  # digests of the files that the graded code has
        self._touched = 0  # grows with each reply
        self._end_of_output = b""
        self._variables = variables_of(path.read_text(errors="replace") for path in Path("/tests").rglob("*.sh"))
        if len(FOLDERS) > 1:
            self.send_files()

    def send_files(self) -> None:
        """Let the graded code have the files that the tests have changed."""
        theirs, ours = self.ask("digests"), digests()
        gone: dict[str, str | None] = {path: None for path in theirs if path not in ours}
        self.ask("write", contents(path for path in ours if theirs.get(path) != ours[path]) | gone)
        self._sent = ours

    def fetch_files(self) -> None:
        """Take over the files that the graded code has changed, as data that is not executable."""
        theirs = self.ask("digests")
        gone: dict[str, str | None] = {path: None for path in self._sent if path not in theirs}
        self._take(self.ask("read", [path for path in theirs if self._sent.get(path) != theirs[path]]) | gone)

    def _take(self, files: dict[str, str | None]) -> None:
        """Take over files of the graded code, without those that change how tests run."""
        kept = {path: text for path, text in files.items() if os.path.basename(path) not in OF_THE_TESTS}
        contents_by_path = {path: base64.b64decode(text[1:]) for path, text in kept.items() if text and len(FOLDERS) > 1}
        if any(is_file_executed(path, content, self._variables) for path, content in contents_by_path.items()):
            mark("a file of the graded code has a text that a shell would execute where it expects a number")
        self._files.write(kept)

    def ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Let the graded code do something. Raises what it raises."""
        encoded = {name: self._encoded(value) for name, value in options.items()}
        self._send({"do": what, "arguments": list(map(self._encoded, arguments)), "options": encoded,
                    "environment": dict(os.environ), "folder": os.getcwd()})  # fmt: skip
        while "value" not in (reply := self._receive()) and "raised" not in reply:
            if "callback" in reply:
                self._send(self._called_back(reply))
            else:
                self._show(1 if reply["stream"] == "out" else 2, base64.b64decode(reply["data"]))
        self._touched += 1
        for number, state in reply.get("states", []):
            if (known_object := self._objects.get(int(number))) is not None and isinstance(known_object, RemoteObject):
                known_object.__dict__[f"{OWN}state"] = (self._touched, self._decoded(state))
        out, errors = reply.get("printed", ("", ""))
        sys.stdout.write(out)
        sys.stderr.write(errors)
        if "raised" in reply:
            raised = self._decoded(reply["raised"])
            raise raised if isinstance(raised, BaseException) else RuntimeError(str(raised))
        return self._decoded(reply["value"])

    def _show(self, stream: int, data: bytes) -> None:
        if is_executed(self._end_of_output + data, self._variables):
            mark("a program of the graded code prints a text that a shell would execute where it expects a number")
        self._end_of_output = (self._end_of_output + data)[-500:]
        os.write(stream, data)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._lines.write(json.dumps({**message, "files": self._files.changed()}) + "\n")
            self._lines.flush()
        except OSError as error:
            raise GradedCodeEnded("the process of the graded code has ended") from error

    def _receive(self) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = json.loads(self._lines.readline())
            self._take(reply["files"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise GradedCodeEnded("the process of the graded code has ended, or answers nothing readable") from error
        return reply

    def _called_back(self, reply: dict[str, Any]) -> dict[str, Any]:
        try:
            options = {name: self._decoded(value) for name, value in reply["options"].items()}
            called = self._callables[reply["callback"]]
            return {"value": self._encoded(called(*map(self._decoded, reply["arguments"]), **options))}
        except Exception as error:  # noqa: BLE001 the test's own, which the graded code may expect
            return {"raised": [type(error).__name__, str(error)]}

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._reference)

    def _reference(self, value: Any) -> dict[str, Any]:
        number = value.__dict__.get(f"{OWN}id") if hasattr(value, "__dict__") else None
        if number is not None:
            return {"object": number}
        if not callable(value):
            raise TypeError(f"a value of {type(value).__name__} cannot be given to the graded code")
        self._callables.append(value)
        return {"callable": len(self._callables) - 1}

    def _decoded(self, value: Any) -> Any:
        return decode(value, self._stand_in)

    def _stand_in(self, described: dict[str, Any]) -> Any:
        number = int(described["object"])
        if number not in self._objects:
            self._objects[number] = self._made(number, described)
        return self._objects[number]

    def _made(self, number: int, described: dict[str, Any]) -> Any:
        if "module" in described:
            return sys.modules.get(described["module"]) or RemoteModule(described["module"], self, number)
        if "class" in described:
            return self._class(number, described)
        if "function" in described:
            return self._function(number, described)
        made = self._decoded(described["type"])
        if "exception" in described:
            instance = made.__new__(made, *map(self._decoded, described["exception"]))
        elif "plain" in described:
            instance = made.__new__(made, self._decoded(described["plain"]))
            if isinstance(instance, list | dict | set):
                mutable: Any = next(kind for kind in (list, dict, set) if isinstance(instance, kind))
                mutable.__init__(instance, self._decoded(described["plain"]))
        else:
            instance = object.__new__(made)
        instance.__dict__.update({f"{OWN}id": number, f"{OWN}member": described.get("member")})
        if "state" in described:
            instance.__dict__[f"{OWN}state"] = (self._touched, self._decoded(described["state"]))
        return instance

    def _class(self, number: int, described: dict[str, Any]) -> Any:
        if "given" in described:  # an exception of the standard library is its own type here as well
            module, name = described["given"]
            standard = getattr(import_module(module), name, None) if module in sys.stdlib_module_names else None
            if isinstance(standard, type) and issubclass(standard, BaseException):
                return standard
        plain = getattr(builtins, described["plain"], object)
        bases: tuple[Any, ...] = tuple(base for base in map(self._decoded, described["bases"]) if isinstance(base, type))
        if plain in _PLAIN and not any(issubclass(base, plain) for base in bases):
            bases = (*(base for base in bases if base is not RemoteObject), plain)
        if not any(issubclass(base, RemoteObject) for base in bases):
            bases = (*bases, RemoteObject) if plain in _PLAIN else (RemoteObject, *bases)
        attributes = {f"{OWN}id": number, f"{OWN}session": self, f"{OWN}enum": described["enum"]}
        try:
            return RemoteType(str(described["class"]), bases, attributes)
        except TypeError:  # bases that cannot be combined here
            return RemoteType(str(described["class"]), (RemoteObject,), attributes)

    def _function(self, number: int, described: dict[str, Any]) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            return self.ask("call", function, *arguments, **options)

        async def call_later(*arguments: Any, **options: Any) -> Any:
            return call(*arguments, **options)

        function = call_later if described["async"] else call
        function.__name__ = str(described["function"])
        function.__dict__[f"{OWN}id"] = number
        return function


class _LoaderOfFile(importlib.abc.Loader):
    def __init__(self, finder: "GradedFinder", path: str) -> None:
        self._finder, self._path = finder, path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self._finder.session = self._finder.session or GradedSession()
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
        if all(location.startswith(self._trusted) or location in self._tests for location in locations):
            return spec
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=spec.submodule_search_locations, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self.session = self.session or GradedSession()
        folders = [path or os.getcwd() for path in sys.path if not f"{path or os.getcwd()}/".startswith(self._trusted)]
        module: ModuleType = self.session.ask("import", spec.name, folders)
        module.__dict__[f"{OWN}folders"] = list(spec.loader_state or ())
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass

    def at(self, path: str) -> importlib.abc.Loader:
        """A loader of the module in this file of the graded code."""
        return _LoaderOfFile(self, path)

    def take_claims(self) -> list[str]:
        """What the graded code has claimed since the last call."""
        claims = [] if self.session is None else self.session.claims[:]
        if self.session is not None:
            self.session.claims.clear()
        return claims
