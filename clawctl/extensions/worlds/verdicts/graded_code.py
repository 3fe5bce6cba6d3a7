"""Runs the graded code, in a sandbox of its own, for tests that run in another one (`remote_modules.py`). Standard library only.

    graded_code.py

Each connection gets a process. It receives requests as JSON lines: import a module, read an attribute, call an object. Values are
answered as plain data (`crossing.py`). Everything here can be changed by the graded code, so nothing that it answers is more than
a value: the comparison is on the other side.
"""

import base64
import contextlib
import dataclasses
import enum
import errno
import importlib
import importlib.util
import inspect
import io
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from types import ModuleType
from typing import Any

OWN = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, OWN)

from crossing import SOCKET, SharedFiles, contents, decode, digests, encode, plain_base  # type: ignore[import-not-found]  # noqa: E402
from given import Handler, Input, passed, refuse  # type: ignore[import-not-found]  # noqa: E402

_GIVEN = sys.stdlib_module_names | {"builtins"}


def main() -> None:
    sys.path[:] = [path for path in sys.path if path != OWN]
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(SOCKET)
        if not connection.recv(1, socket.MSG_PEEK):
            return
        if os.fork() == 0:
            GradedProcess(connection).serve()
            os._exit(0)
        connection.close()


class GradedProcess:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = connection.makefile("rw", encoding="utf-8", newline="\n")
        self.objects: dict[int, Any] = {}
        self.files = SharedFiles()
        self.loop: Any = None  # of what is awaited
        self.argv = list(sys.argv)
        self.given: dict[int, tuple[Any, Any]] = {}  # containers of the tests, and what they held, encoded
        self.passed: dict[int, Any] = {}  # what the tests gave, by its number
        self.logged: list[dict[str, Any]] = []  # records and warnings, for the tests
        self.warned: list[list[Any]] = []
        self.original: dict[tuple[str, str], Any] = {}  # what the tests have replaced in modules of the standard library
        logging.basicConfig(handlers=[Handler(self.logged)], level=1)
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: self.warned.append([category, str(message)])
        sys.stdin = Input(self.from_reference({"callable": 0, "name": "readline"}))

    def serve(self) -> None:
        while line := self.lines.readline():
            self.answer(self.result(json.loads(line)))

    def answer(self, message: dict[str, Any]) -> None:
        self.lines.write(json.dumps({**message, "files": self.files.changed()}) + "\n")
        self.lines.flush()

    def result(self, request: dict[str, Any]) -> dict[str, Any]:
        self.files.write(request["files"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[:] = self.argv if request["argv"] is None else request["argv"]
        with contextlib.suppress(OSError):
            os.chdir(request["folder"])
        self.replace(request["replaced"])
        for number, content in request["changed"]:
            self.keep(number, self.decoded(content))
        for holder, name, content in map(self.decoded, request["contents"]):
            container = getattr(holder, name)
            container.clear()
            container.update(content) if hasattr(container, "update") else container.extend(content)
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            try:
                message = {"value": self.encoded(self.do(request))}
            except BaseException as error:  # noqa: BLE001 the graded code's, also SystemExit
                message = {"raised": self.encoded(error)}
        states = self.states(request) if request["do"] in ("call", "special", "set", "delete") else []
        given = [[number, now] for number, (value, then) in self.given.items() if (now := self.content(value)) not in (None, then)]
        self.given |= {number: (self.given[number][0], now) for number, now in given}
        noted = {
            "given": given,
            "logged": [self.encoded(record) for record in self.logged],
            "warned": [self.encoded(warning) for warning in self.warned],
        }
        self.logged.clear()
        self.warned.clear()
        return {**message, **noted, "states": states, "printed": [printed.getvalue(), errors.getvalue()]}

    def replace(self, replaced: list[Any]) -> None:
        """Have functions of the standard library replaced as the tests have."""
        wanted = {(module, name): self.decoded(value) for module, name, value in replaced}
        for module, name in {*self.original, *wanted}:
            place: Any = importlib.import_module(module)
            before = self.original.setdefault((module, name), getattr(place, name, None))
            setattr(place, name, wanted.get((module, name), before))
        self.original = {key: value for key, value in self.original.items() if key in wanted}

    def states(self, request: dict[str, Any]) -> list[Any]:
        """The attributes of the objects that the request may have changed, which the tests compare with what they make later."""
        targets = [self.decoded(value) for value in (*request["arguments"], *request.get("options", {}).values())]
        targets += [getattr(target, "__self__", None) for target in targets]
        states = {id(target): self.state(target) for target in targets if id(target) in self.objects}
        return [[number, state] for number, state in states.items() if state is not None]

    def content(self, container: Any) -> Any:
        with contextlib.suppress(Exception):
            return self.encoded(container)

    def keep(self, number: int, container: Any) -> Any:
        """The container of the tests, which is the same object whenever they give it."""
        kept, _ = self.given.get(number, (container, None))
        if kept is not container:
            kept.clear()
            kept.update(container) if hasattr(kept, "update") else kept.extend(container)
        self.given[number] = kept, self.content(kept)
        return kept

    def state(self, value: Any) -> Any:
        """The attributes of an object, encoded. None if they are no plain data."""
        if isinstance(value, type | ModuleType) or inspect.isroutine(value):
            return None
        try:
            return encode(attributes(value), refuse)
        except Exception:  # noqa: BLE001 the graded code's
            return None

    def do(self, request: dict[str, Any]) -> Any:
        what, arguments = request["do"], [self.decoded(value) for value in request["arguments"]]
        for at, number in request["given"]:
            arguments[at] = self.keep(number, arguments[at])
        if what == "import":
            sys.path[:0] = [path for path in arguments[1] if path not in sys.path]
            return importlib.import_module(arguments[0])
        if what == "load":
            spec: Any = importlib.util.spec_from_file_location(*arguments)
            sys.modules[arguments[0]] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        if what == "subclass":
            return type(*arguments)
        if what == "reload":
            return importlib.reload(*arguments)
        if what in ("digests", "write", "read", "program"):
            return getattr(self, what)(*arguments)
        target, *arguments = arguments
        if what == "get":
            return getattr(target, *arguments)
        if what == "set":
            return setattr(target, *arguments)
        if what == "delete":
            return delattr(target, *arguments)
        if what == "state":
            return attributes(target)
        if what == "plain":
            base = plain_base(target)
            return None if base is None else base(target)
        if what == "special":
            name, *arguments = arguments
            if name in ("__exit__", "__aexit__"):
                arguments = [None if arguments[0] is None else type(arguments[0]), arguments[0], None]
            if isinstance(target, type) and name == "__iter__":
                return iter(list(target))  # type: ignore[call-overload]
            if not hasattr(type(target), name):
                raise TypeError(f"{type(target).__name__!r} object does not support {name}")
            return self.waited(getattr(type(target), name)(target, *arguments))
        options = {name: self.decoded(value) for name, value in request.get("options", {}).items()}
        return self.waited(target(*arguments, **options))

    def waited(self, result: Any) -> Any:
        """The result, also of something that is awaited. All of it shares one event loop."""
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            return await result

        import asyncio  # half of the start of this process, and little code awaits

        self.loop = self.loop or asyncio.new_event_loop()
        return self.loop.run_until_complete(wait())

    def digests(self) -> dict[str, str]:
        by_path: dict[str, str] = digests()
        return by_path

    def write(self, changes: dict[str, str | None]) -> None:
        self.files.write(changes)

    def read(self, paths: list[str]) -> dict[str, str | None]:
        by_path: dict[str, str | None] = contents(paths)
        return by_path

    def program(self, arguments: list[str], given: str, may_run: list[str]) -> int:
        """Run a program and send its output. Returns its exit code. It ends with the connection."""
        for path in may_run:
            os.chmod(path, 0o755)
        options: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        process: Any
        try:
            try:
                process = subprocess.Popen(arguments, **options)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                process = subprocess.Popen(["/bin/bash", *arguments], **options)  # as a shell runs a script without `#!`
        except OSError as error:
            self.lines.write(json.dumps({"stream": "err", "data": _coded(f"{error}\n".encode()), "files": {}}) + "\n")
            return 126 if isinstance(error, PermissionError) else 127
        threading.Thread(target=_feed, args=(process, base64.b64decode(given)), daemon=True).start()
        with selectors.DefaultSelector() as streams:
            streams.register(process.stdout, selectors.EVENT_READ, "out")
            streams.register(process.stderr, selectors.EVENT_READ, "err")
            streams.register(self.connection, selectors.EVENT_READ, "end")
            while len(streams.get_map()) > 1:
                ready, has_ended = streams.select(0.2), process.poll() is not None
                if has_ended and not ready:
                    break  # a process that it left behind still has its output open
                for key, _ in ready:
                    data = b"" if key.data == "end" else os.read(key.fd, 1 << 16)
                    if key.data == "end":  # nobody waits for the program
                        os.killpg(process.pid, signal.SIGKILL)
                        os._exit(0)
                    if not data:
                        streams.unregister(key.fileobj)
                        continue
                    self.lines.write(json.dumps({"stream": key.data, "data": _coded(data), "files": {}}) + "\n")
                    self.lines.flush()
        return int(process.wait())

    def decoded(self, value: Any) -> Any:
        return decode(value, self.from_reference)

    def from_reference(self, reference: dict[str, Any]) -> Any:
        if "object" in reference:
            return self.objects[reference["object"]]

        def ask(attribute: str | None, *arguments: Any, **options: Any) -> Any:
            encoded = {name: self.encoded(value) for name, value in options.items()}
            called = {"callback": reference["callable"], "attribute": attribute}
            self.answer({**called, "arguments": list(map(self.encoded, arguments)), "options": encoded})
            while "do" in (reply := json.loads(self.lines.readline())):  # what the tests ask before they answer
                self.answer(self.result(reply))
            self.files.write(reply["files"])
            if "raised" in reply:
                raise self.decoded(reply["raised"])
            return self.decoded(reply["value"])

        number = reference["callable"]
        if number not in self.passed:
            self.passed[number] = passed(reference, ask)
        return self.passed[number]

    def encoded(self, value: Any) -> Any:
        return encode(value, self.reference)

    def reference(self, value: Any) -> dict[str, Any]:
        """How an object is described that is no plain data: by a number, and by what the other side needs to stand in for it."""
        if (number := next((number for number, passed in self.passed.items() if passed is value), None)) is not None:
            return {"passed": number}
        self.objects[id(value)] = value
        described: dict[str, Any] = {"object": id(value)}
        if isinstance(value, ModuleType):
            return {**described, "module": value.__name__}
        if isinstance(value, type):
            bases = [self.encoded(base) for base in value.__bases__ if base is not object]
            at, plain = next((at, base) for at, base in enumerate(value.__mro__) if base.__module__ == "builtins")
            hiding = [name for base in value.__mro__[:at] for name in vars(base) if name[0] != "_" and hasattr(plain, name)]
            is_enum = isinstance(value, enum.EnumMeta)
            if value.__module__.split(".")[0] in _GIVEN and issubclass(value, BaseException):
                described |= {"given": [value.__module__, value.__qualname__]}
            fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else None
            abstract = [base.__name__ for base in value.__mro__ if base.__module__ == "collections.abc"]
            described |= {"abstract": abstract, "hiding": hiding, "fields": fields}
            return {**described, "class": value.__name__, "plain": plain.__name__, "bases": bases, "enum": is_enum}
        if inspect.isroutine(value):
            more = [name for name in dir(value) if name[0] != "_" and callable(getattr(value, name))]  # of `lru_cache`
            described |= {"async": inspect.iscoroutinefunction(value), "functions": more}
            return {**described, "function": getattr(value, "__name__", "?")}
        described |= {"type": self.encoded(type(value)), "callable": callable(value)}
        if (state := self.state(value)) is not None:
            described["state"] = state
        if isinstance(value, BaseException):
            chain = [value.__cause__, list(getattr(value, "__notes__", ())), value.__suppress_context__]
            described |= {"exception": [self.encoded(argument) for argument in value.args], "chain": self.encoded(chain)}
        if isinstance(value, enum.Enum):
            described["member"] = value.name
        base = plain_base(value)
        if base is not None and (base not in (list, dict, set) or type(value).__module__.split(".")[0] in _GIVEN):
            described["plain"] = self.encoded(base(value))
        return described


def attributes(value: Any) -> dict[str, Any]:
    return dict(vars(value)) if hasattr(value, "__dict__") else {name: getattr(value, name) for name in value.__slots__}


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _feed(process: "subprocess.Popen[bytes]", given: bytes) -> None:
    with contextlib.suppress(OSError), process.stdin:  # type: ignore[union-attr]
        process.stdin.write(given)  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
