"""Stands in for the modules under test in the process that runs the tests. Standard library only.

The graded code runs in another sandbox (`graded_code.py`). Functions are called there, and plain results are compared here. An
object that is no plain data is represented by a stand-in (`stand_ins.py`).
"""

import base64
import builtins
import collections.abc
import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import logging
import os
import random
import re
import socket
import sys
import threading
import warnings
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from importlib import import_module
from operator import is_not
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

from boundary import mark, own  # type: ignore[import-not-found]  # beside this file
from crossing import FOLDERS, MUTABLE, OF_THE_TESTS, SOCKET, SharedFiles, contents, decode, digests, encode  # type: ignore[import-not-found]
from numbers_in_shell import is_executed, is_file_executed, variables_of  # type: ignore[import-not-found]
from stand_ins import OWN, RemoteModule, RemoteObject, RemoteType  # type: ignore[import-not-found]

_READS = re.compile(r"\{\w*(?:\.\w+|\[[^\]{}\"]*\])*\.__\w+")  # such as "{0.__init__.__globals__}"
_ENDS = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "CancelledError", "SkipTest")  # a runner or a loop swallows them
_SPECIAL = ("__iter__", "__next__", "__len__", "__getitem__", "__enter__", "__exit__")  # of objects of the tests
_OBJECTS = (io.IOBase, random.Random, SimpleNamespace)  # of the standard library, whose methods reach nothing else
_MOST_GIVEN = 32
_ARGV = list(sys.argv)
_PLAIN = (str, int, float, tuple, frozenset, bytes, list, dict, set)


class GradedCodeEnded(Exception):
    """The process of the graded code is gone."""


class Marks(list[str]):
    """Claims in a process that reports no tests, such as a checker, of which clawctl is told at once."""

    def append(self, claim: str) -> None:
        mark(f"a test believes {claim}")


class GradedSession:
    """The connection to the graded code."""

    def __init__(self, claims: list[str] | None = None) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(SOCKET)
        self._lines = connection.makefile("rw", encoding="utf-8", newline="\n")
        self._objects: dict[int, Any] = {}
        self._callables: list[Any] = [_line_of_input]  # functions and objects of the tests
        self._containers: dict[tuple[int, str], tuple[Any, Any, Any]] = {}  # of attributes: holder, container, what it held
        self._given: dict[int, tuple[Any, list[int]]] = {}  # containers of the tests that the graded code has, and what they held
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # a test may have several threads
        self._standard = {name: dict(vars(sys.modules[name])) for name in sys.stdlib_module_names if name in sys.modules}
        self._files = SharedFiles()
        self.claims = [] if claims is None else claims  # what the graded code claimed since this list was cleared
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
        with self._lock:
            value = self._ask(what, *arguments, **options)
            if what == "get" and type(value) in MUTABLE:
                self._containers[id(arguments[0]), arguments[1]] = (arguments[0], value, value.copy())
            return value

    def _ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        encoded = {name: self._encoded(value) for name, value in options.items()}
        changed = {key: held for key, held in self._containers.items() if held[1] != held[2]}
        self._containers |= {key: (holder, value, value.copy()) for key, (holder, value, _) in changed.items()}
        contents = [self._encoded((holder, name, value)) for (_, name), (holder, value, _) in changed.items()]
        self._send({"do": what, "arguments": list(map(self._encoded, arguments)), "options": encoded, "contents": contents,
                    "replaced": list(self._replaced()), "environment": dict(os.environ), "folder": os.getcwd(),
                    "given": self._numbered(arguments), "changed": self._changed(),
                    "argv": None if sys.argv == _ARGV else list(map(str, sys.argv))})  # fmt: skip
        while "value" not in (reply := self._receive()) and "raised" not in reply:
            if "callback" in reply:
                self._send(self._called_back(reply))
            else:
                self._show(1 if reply["stream"] == "out" else 2, base64.b64decode(reply["data"]))
        self._touched += 1
        is_block = what == "special" and arguments[1] in ("__enter__", "__exit__")
        if "raised" in reply or reply["value"] is None or is_block:  # what returns something is judged by that alone
            self._take_contents(reply.get("given", []))
        for number, state in reply.get("states", []):
            if (known_object := self._objects.get(int(number))) is not None and isinstance(known_object, RemoteObject):
                known_object.__dict__[f"{OWN}state"] = (self._touched, self._decoded(state))
        out, errors = reply.get("printed", ("", ""))
        sys.stdout.write(out)
        sys.stderr.write(errors)
        for record in map(self._decoded, reply.get("logged", [])):
            if (error := record.pop("error", None)) is not None:
                record["exc_info"] = type(error), error, None
            if (logger := logging.getLogger(record["name"])).isEnabledFor(record["levelno"]):
                logger.handle(logging.makeLogRecord(record))
        for category, text in map(self._decoded, reply.get("warned", [])):
            warnings.warn(text, category, stacklevel=3)
        if "raised" in reply:
            raised = self._decoded(reply["raised"])
            is_iterated = what == "special" and arguments[1] in ("__next__", "__anext__")
            if not is_iterated and any(kind.__name__ in _ENDS for kind in type(raised).__mro__):
                self.claims.append(f"{type(raised).__name__}, which may end a test without an error")
            raise raised if isinstance(raised, BaseException) else RuntimeError(str(raised))
        return self._decoded(reply["value"])

    def _numbered(self, arguments: Sequence[Any]) -> list[list[int]]:
        """The containers among the arguments, by position and number."""
        containers = [(at, value) for at, value in enumerate(arguments) if type(value) in MUTABLE]
        numbered = [[at, self._number_of(value)] for at, value in containers]
        for number in list(self._given)[:-_MOST_GIVEN]:
            del self._given[number]
        return numbered

    def _number_of(self, container: Any) -> int:
        number = next((number for number, (given, _) in self._given.items() if given is container), None)
        if number is None:
            number = next(self._numbers)
        self._given[number] = container, _held(container)
        return number

    def _changed(self) -> list[list[Any]]:
        """What the containers hold that the tests have changed since the graded code was given them."""
        changed = {number: value for number, (value, held) in self._given.items() if _held(value) != held}
        self._given |= {number: (value, _held(value)) for number, value in changed.items()}
        return [[number, self._encoded(value)] for number, value in changed.items()]

    def _take_contents(self, given: list[list[Any]]) -> None:
        """Take over what the graded code has added to containers of the tests, or its order. It cannot empty them."""
        for number, described in given:
            (container, _), content = self._given.get(int(number), (None, [])), self._decoded(described)
            if type(container) is type(content) and all(item in content for item in container) and len(container) <= len(content):
                container.clear()
                container.update(content) if hasattr(container, "update") else container.extend(content)
                self._given[int(number)] = container, _held(container)

    def _replaced(self) -> Iterator[list[Any]]:
        """Functions of the standard library that the tests have replaced by their own, or by mocks."""
        for module, before in self._standard.items():
            now = vars(sys.modules[module])
            if len(now) == len(before) and not any(map(is_not, now.values(), before.values())):
                continue
            for name, value in list(now.items()):
                if value is not before.get(name, value) and not name.startswith("_") and (_is_given(value) or _is_function(value)):
                    yield [module, name, self._encoded(value)]

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
            line = self._lines.readline()
            if _READS.search(line):
                mark("a text of the graded code would read the tests' objects when it is formatted")
            reply: dict[str, Any] = json.loads(line)
            self._take(reply["files"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise GradedCodeEnded("the process of the graded code has ended, or answers nothing readable") from error
        return reply

    def _called_back(self, reply: dict[str, Any]) -> dict[str, Any]:
        try:
            options = {name: self._decoded(value) for name, value in reply["options"].items()}
            called = self._callables[reply["callback"]]
            if (name := reply["attribute"]) is not None:
                is_of_mocks = _is_mock(called) and hasattr(type(called), name)
                if (name.startswith("_") and name not in _SPECIAL) or is_of_mocks or not _is_given(called):
                    raise AttributeError(name)
                return {"value": self._encoded(getattr(called, name))}
            if isinstance(called, Iterator) and not _is_given(called):
                called = called.__next__
            value = called(*map(self._decoded, reply["arguments"]), **options)
            return {"value": self._encoded(_finished(value) if inspect.iscoroutine(value) else value)}
        except Exception as error:  # noqa: BLE001 the test's own, which the graded code may expect
            return {"raised": self._encoded(error)}

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._reference)

    def _reference(self, value: Any) -> dict[str, Any]:
        number = value.__dict__.get(f"{OWN}id") if hasattr(value, "__dict__") else None
        if number is not None:
            return {"object": number}
        is_error = isinstance(value, BaseException)
        if not callable(value) and not _is_given(value) and not is_error and not isinstance(value, Iterator):
            raise TypeError(f"a value of {type(value).__name__} cannot be given to the graded code")
        at = next((at for at, passed in enumerate(self._callables) if _is_same(passed, value)), len(self._callables))
        self._callables[at:] = self._callables[at:] or [value]
        reference: dict[str, Any] = {
            "callable": at,
            "name": None if _is_given(value) else str(getattr(value, "__name__", "callback")),
            "async": inspect.iscoroutinefunction(value),
        }
        if is_error:
            base = next(kind for kind in type(value).__mro__ if getattr(builtins, kind.__name__, None) is kind)
            return reference | {"error": [type(value).__name__, base.__name__, str(value)]}
        special = [name for name in _SPECIAL if hasattr(type(value), name)] if _is_given(value) and not _is_mock(value) else []
        return reference | {"special": special, "iterates": isinstance(value, Iterator)}

    def _decoded(self, value: Any) -> Any:
        return decode(value, self._stand_in)

    def _stand_in(self, described: dict[str, Any]) -> Any:
        if "passed" in described:  # what the tests gave, and only what the graded code could not have made equal to anything
            passed = self._callables[int(described["passed"])]
            return passed if isinstance(passed, BaseException) or _is_function(passed) else None
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
            arguments = list(map(self._decoded, described["exception"]))
            instance = made.__new__(made, *arguments)
            if not isinstance(made, RemoteType):
                with contextlib.suppress(TypeError):  # one with further arguments
                    instance.__init__(*arguments)
            instance.__dict__[f"{OWN}id"] = number
            cause, notes, is_suppressed = self._decoded(described["chain"])
            instance.__cause__ = cause if isinstance(cause, BaseException) else None
            instance.__suppress_context__ = bool(is_suppressed)
            if notes:
                instance.__dict__["__notes__"] = notes
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
                return _Exit if standard is SystemExit else standard
        plain = getattr(builtins, described["plain"], object)
        bases: tuple[Any, ...] = tuple(base for base in map(self._decoded, described["bases"]) if isinstance(base, type))
        if plain in _PLAIN and not any(issubclass(base, plain) for base in bases):
            bases = (*(base for base in bases if base is not RemoteObject), plain)
        if not any(issubclass(base, RemoteObject) for base in bases):
            bases = (*bases, RemoteObject) if plain in _PLAIN else (RemoteObject, *bases)
        attributes: dict[str, Any] = {f"{OWN}id": number, f"{OWN}session": self, f"{OWN}enum": described["enum"]}
        if any(issubclass(base, SystemExit) for base in bases):
            attributes["code"] = _Exit.code
        for name in map(str, described["hiding"]):  # `count`, a field of a named tuple, is also a method of every tuple
            attributes.setdefault(name, property(partial(RemoteObject.__getattr__, name=name)))
        if described["fields"] is not None:  # for `asdict` and `replace`
            made: Any = dataclasses.make_dataclass("Fields", map(str, described["fields"]))
            attributes["__dataclass_fields__"] = made.__dataclass_fields__
        try:
            made = RemoteType(str(described["class"]), bases, attributes)
            for name in set(described["abstract"]) & set(collections.abc.__all__):
                getattr(collections.abc, name).register(made)
            return made
        except TypeError:  # bases that cannot be combined here
            return RemoteType(str(described["class"]), (RemoteObject,), attributes)

    def _function(self, number: int, described: dict[str, Any]) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            return self.ask("call", function, *arguments, **options)

        async def call_later(*arguments: Any, **options: Any) -> Any:
            return call(*arguments, **options)

        function = call_later if described["async"] else call

        def call_inner(name: str, *arguments: Any, **options: Any) -> Any:
            return self.ask("call", self.ask("get", function, name), *arguments, **options)

        function.__dict__.update({name: partial(call_inner, name) for name in described["functions"] if name[:1] != "_"})
        function.__name__ = str(described["function"])
        function.__dict__[f"{OWN}id"] = number
        return function


class _Exit(SystemExit):
    """An exit of the graded code. It ends no checker with code 0."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        code = self.args[0] if self.args else None
        return code if sys._getframe().f_back is not None else code or 1  # without a caller, Python is about to end


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"


def _line_of_input() -> str:
    """A line of what a test has put in the place of the standard input."""
    return "" if sys.stdin is sys.__stdin__ else sys.stdin.readline()


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine of the test that waits for nothing but other coroutines. The loop of the test cannot run now."""
    try:
        while (waits_for := coroutine.send(None)) is None:  # `asyncio.sleep(0)`
            pass
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise TypeError(f"a function of the test that waits for {waits_for!r} cannot be given to the graded code")


def _held(container: Any) -> list[int]:
    """What a container holds, by identity: objects of the graded code are not asked whether they are equal."""
    return [*map(id, container), *(map(id, container.values()) if isinstance(container, dict) else ())]


def _is_same(passed: Any, value: Any) -> bool:
    """Whether two values are one. A bound method is made anew each time it is read."""
    return passed is value or (type(passed) is type(value) is MethodType and bool(passed == value))


def _is_given(value: Any) -> bool:
    """Whether this is a mock, an object of the tests, or a file, whose methods the graded code may call."""
    if isinstance(value, _OBJECTS):
        return True
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    return _is_mock(value) or file.startswith("/tests/") or file in own("tests")


def _is_mock(value: Any) -> bool:
    mock = sys.modules.get("unittest.mock")  # not imported for this: it takes a quarter of the start
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _is_function(value: Any) -> bool:
    file = getattr(getattr(value, "__code__", None), "co_filename", "")
    return file.startswith("/tests/") or file in own("tests")
