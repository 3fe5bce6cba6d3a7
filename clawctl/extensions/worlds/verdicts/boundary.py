"""Keeps the text of the graded code out of the programs that judge it. Standard library only; runs in the sandbox of the tests.

A program or module of the graded code runs in its own sandbox. Text that the tests' interpreters would run is the tests' own if it
is written there, or the graded code's. What can be neither separated nor told apart runs, but clawctl is told first (`mark`),
and the verdict is then unverified.
"""

import builtins
import contextlib
import importlib.util
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from crossing import SOCKET  # type: ignore[import-not-found]  # beside this file

_TOOLS = os.path.dirname(os.path.abspath(__file__))
_PREFIXES = [real for path in (sys.prefix, sys.base_prefix) for real in (path, os.path.realpath(path))]
TRUSTED = list(dict.fromkeys([_TOOLS, "/tests", "/usr", *_PREFIXES]))  # folders of programs and modules that run beside the tests
_OWN: dict[str, list[str]] = {}  # what `tests.json` says
Origin = Literal["tests", "mixed", "graded"]
_GAP = re.compile(r"\$\{[^}]*\}|\$\((?:[^()]|\([^()]*\))*\)|\$\w+|\$[@*#?!]|`[^`]*`|\{[^{}\s]*\}|%[sdr]")
_COMPARES = re.compile(r"[<>=!]=|[<>]|\b(?:is|in|and|or)\b")
_INERT, _INERT_QUOTED = re.compile(r"[\w./:+-]*"), re.compile(r"[^'\"\\\n{}$`]*")
_HEARD = (
    *("compile", "exec", "function.__new__", "os.exec", "os.posix_spawn"),
    *("ctypes.dlopen", "marshal.load", "marshal.loads", "pickle.find_class"),
)
_LIBRARY = f"{os.path.dirname(os.__file__)}/"
_GENERATE = ("ast.py", "collections/__init__.py", "dataclasses.py", "gettext.py", "unittest/mock.py")  # execute texts of their own
_HINT = re.compile(r"[\w.,|\[\]\s'\"]*")  # a type, which calls nothing
_OF_LOGGING = re.compile(r"logging\.(handlers\.)?\w+|(ext://)?sys\.std(out|err)")
_PLAIN: dict[str, tuple[str, ...]] = {  # classes that a pickle may name, by module
    "builtins": (
        "set", "frozenset", "complex", "bytearray", "range", "slice", "list", "dict", "tuple", "str", "int", "float", "object",
    ),
    "collections": ("OrderedDict", "defaultdict", "Counter", "deque"), "decimal": ("Decimal",), "fractions": ("Fraction",),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"), "uuid": ("UUID",), "copyreg": ("_reconstructor",),
    "pathlib": ("PosixPath", "PurePosixPath", "Path"), "_codecs": ("encode",),
}  # fmt: skip
_ESCAPED = re.compile(r'\\(["$`\\\n])')


def is_graded(path: object) -> bool:
    """Whether this is a file that the graded code may have written. A copy of a test is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not os.path.isfile(text):
        return False
    real = os.path.realpath(text)
    if real.startswith(tuple(f"{folder}/" for folder in TRUSTED)) or real in own("tests"):
        return False
    same = [path for path in _paths() if path.stat().st_size == os.path.getsize(real)]
    return not any(path.read_bytes() == Path(real).read_bytes() for path in same)


def own(name: str) -> list[str]:
    """A list that clawctl gives to the sandbox: `tests`, test files among the graded code, or `languages` of the graded code."""
    if not _OWN:
        _OWN.update(json.loads(Path(_TOOLS, "tests.json").read_text(encoding="utf-8")))
    return _OWN.get(name, [])


def mark(reason: str) -> None:
    """Tell clawctl, before it happens, that graded code runs beside the tests. Nothing that it does can take this back."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        connection.sendall(json.dumps({"mark": reason[:200]}).encode())
        connection.recv(1)


def origin(code: str) -> Origin:
    """Where a program's text is from.

    `tests`: it is a file, a quoted text or a here-document of the tests, in which expansions have values that cannot change its
    meaning. `mixed`: other values, or most of its lines are the tests'.
    """
    if not code.strip():
        return "tests"
    most: Origin = "graded"
    for text in _texts():
        plain = _ESCAPED.sub(r"\1", text)
        if code.strip() == text.strip() or any(f"{quote}{code}{quote}" in plain for quote in "'\""):
            return "tests"
        if f"\n{code.strip()}\n" in text and "<<" in text:
            return "tests"
        for written in _written(plain):
            filled = _filled(written, code)
            if filled == "tests":
                return filled
            most = filled or most
        lines = [line for line in code.splitlines() if line.strip()]
        if sum(f"\n{line}\n" in f"\n{text}\n" for line in lines) * 2 > len(lines) > 1:
            most = "mixed"
    return most


def _paths() -> list[Path]:
    return [path for path in Path("/tests").rglob("*") if path.is_file()]


def _texts() -> Iterator[str]:
    for path in [*_paths(), *map(Path, own("tests"))]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield path.read_text(encoding="utf-8")


def _written(text: str) -> Iterator[str]:
    """Texts with expansions that are between two quotes, or in a here-document."""
    for quote in "\"'":
        parts = text.split(quote)
        # between two quotes that are not next to each other, as in "python -c "x['$A']"", at most two quotes lie
        for size in (1, 3, 5):
            yield from (quote.join(parts[start : start + size]) for start in range(1, len(parts) - size))
    yield from (match[2] for match in re.finditer(r"<<-?\s*[\"']?(\w+)[\"']?[^\n]*\n(.*?)\n\s*\1\b", text, re.DOTALL))


def _filled(written: str, code: str) -> Origin | None:
    gaps = list(_GAP.finditer(written))
    if not gaps or len(gaps) > 20:
        return None
    ends = [0, *(gap.end() for gap in gaps)]
    between = [written[end:start] for end, start in zip(ends, [*(gap.start() for gap in gaps), len(written)], strict=True)]
    if sum(len(part.strip()) for part in between) < 6 and not any(map(_COMPARES.search, between)):  # "$CODE" can be anything
        return None
    match = re.fullmatch("(.*)".join(map(re.escape, between)), code.rstrip("\n") if not written.endswith("\n") else code, re.DOTALL)
    if match is None:
        return None
    quoted = [before[-1:] in "'\"" and before[-1:] == after[:1] != "" for before, after in itertools.pairwise(between)]
    values = zip(match.groups(), quoted, strict=True)
    return "tests" if all(_INERT.fullmatch(value) or (q and _INERT_QUOTED.fullmatch(value)) for value, q in values) else "mixed"


def program(name: str) -> str | None:
    """clawctl's program of this name, which decides where the real one runs."""
    short = os.path.basename(name)
    path = f"{_TOOLS}/bin/{'python3' if re.fullmatch(r'python[0-9.]*', short) else short}"
    return path if os.path.isfile(path) else None


class _Popen(subprocess.Popen):
    """Starts programs of the graded code in their own sandbox."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        arguments = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        if options.get("shell"):
            options.setdefault("executable", f"{_TOOLS}/shell")
        elif arguments and is_graded(os.path.join(options.get("cwd") or "", os.fsdecode(arguments[0]))):
            args = [f"{_TOOLS}/bin/graded", *arguments]
        elif arguments and "executable" not in options and (replacement := program(os.fsdecode(arguments[0]))):
            args = [replacement, *arguments[1:]]
        super().__init__(args, *more, **options)


def install(finder: Any) -> None:
    """Keep this process apart from the graded code: what it starts, loads by a path or a name, or executes as a text."""
    subprocess.Popen = _Popen  # type: ignore[misc]
    os.system = lambda command: subprocess.call(command, shell=True)
    importlib.util.spec_from_file_location = _located(finder, importlib.util.spec_from_file_location)
    builtins.eval, builtins.exec = _told_apart(eval), _told_apart(exec)
    importlib.import_module, builtins.__import__ = _by_name(importlib.import_module), _by_name(__import__)
    import logging.config  # only here: it takes a sixth of the start of each program

    resolve: Callable[..., Any] = logging.config.BaseConfigurator.resolve

    def resolved(self: Any, name: str) -> Any:
        if not _OF_LOGGING.fullmatch(name) and not _is_named(name):
            mark(f"a test configures logging with {name}, which may be any function")
        return resolve(self, name)

    logging.config.BaseConfigurator.resolve = resolved  # type: ignore[method-assign, assignment]
    foreign, is_busy = set[str](), [False]  # names of compiled texts that are not the tests' own

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _HEARD or is_busy[0] or not arguments:
            return
        is_busy[0] = True
        try:
            caller = sys._getframe().f_back
            path = "" if caller is None else caller.f_code.co_filename
            if event == "compile":  # not yet executed: `ast.literal_eval` compiles as well
                if _is_foreign(arguments[0], path):
                    foreign.add("*" if arguments[1] is None else str(arguments[1]))
            elif event in ("marshal.load", "marshal.loads"):
                if not path.startswith("<frozen "):
                    foreign.add("*")  # as of a syntax tree, the code in it may have any name
                elif caller is not None and is_graded(str(caller.f_locals.get("bytecode_path"))):
                    mark("a test loads code of the graded code by a path")
            elif event in ("exec", "function.__new__"):
                if caller is not None and caller.f_back is not None and path == __file__:
                    path = caller.f_back.f_code.co_filename
                    if isinstance(caller.f_locals.get("source"), str | bytes):  # `told_apart` has checked it
                        return
                name = getattr(arguments[0], "co_filename", "")
                if is_graded(name) or (foreign & {name, "*"} and not path.startswith("<frozen ")):
                    mark("a test executes a text of the graded code")
            elif event in ("os.exec", "os.posix_spawn") and _is_beside(*arguments[:2]):
                mark("a test starts a program of the graded code beside itself")
            elif event == "ctypes.dlopen" and is_graded(arguments[0]):
                mark("a test loads a library of the graded code")
            elif event == "pickle.find_class" and not _is_plain(*arguments[:2]):
                mark(f"a test unpickles {arguments[0]}.{arguments[1]}, which may be any function")
        finally:
            is_busy[0] = False

    sys.addaudithook(hear)


def _told_apart(run: Callable[..., Any]) -> Callable[..., Any]:
    """`eval` or `exec`. A text that a test has it run may be what the graded code returned, such as the `repr` of an object."""

    def told_apart(source: Any, names: Any = None, local: Any = None, /, **options: Any) -> Any:
        frame = sys._getframe(1)
        if isinstance(source, str | bytes) and _is_foreign(source, frame.f_code.co_filename):
            mark("a test executes a text that it does not contain")
        if names is None:
            names, local = frame.f_globals, frame.f_locals if local is None else local
        return run(source, names, local, **options)

    return told_apart


def _by_name(load: Callable[..., Any]) -> Callable[..., Any]:
    """`import_module` or `__import__`. A name that the graded code returned may be that of any module beside the tests."""

    def by_name(name: str, given: Any = None, *more: Any, **options: Any) -> Any:
        module = load(name, given, *more, **options)
        if load.__name__ == "__import__" and given is not None:  # a statement
            return module
        path = sys._getframe(1).f_code.co_filename
        if path.startswith(_LIBRARY):
            is_checked = path.endswith(("/pkgutil.py", "/pydoc.py"))
        else:
            is_checked = _is_checked(path) and "_clawctl_id" not in vars(module)
        if is_checked and not _is_named(name):
            mark(f"a test loads the module {name}, which it does not name")
        return module

    return by_name


def _is_named(name: str) -> bool:
    """Whether a name stands in the tests, at the beginning of a quoted text. `f"{__name__}.x"` is one as well."""
    return any(re.search(rf"['\"]{re.escape(name)}['\".:]|__name__\}}", text) for text in _texts())


def _is_checked(path: str) -> bool:
    """Whether the module in this file may be given a text or a name of the graded code, and execute it. `<stdin>` may, as `-c`."""
    of_pytest = ("/_pytest/skipping.py", "/_pytest/monkeypatch.py")
    if path.startswith(("/tests/", "<st")) or path in own("tests") or path.endswith(of_pytest):
        return True
    return path.startswith(_LIBRARY) and "-packages/" not in path and not path.endswith(tuple(f"/{name}" for name in _GENERATE))


def _is_foreign(source: Any, path: str) -> bool:
    """Whether a program that the module in this file compiles or executes does not stand in the tests."""
    if not _is_checked(path):
        return False
    if not isinstance(source, str | bytes):
        return True  # a syntax tree
    code = source.decode(errors="replace") if isinstance(source, bytes) else str(source)
    if path.endswith(("/typing.py", "/inspect.py")) and _HINT.fullmatch(code):
        return False
    if path.endswith("/timeit.py") and code.startswith("\ndef inner(_it, _timer"):
        return False  # it has compiled the parts before
    return not _is_of_tests(code)


def _is_of_tests(code: str) -> bool:
    """Whether each line of a program stands in the tests: as a line, as an example, or between quotes."""
    if origin(code) == "tests":
        return True
    lines = {line.strip().removeprefix(">>> ").removeprefix("... ").strip() for text in _texts() for line in text.splitlines()}
    return all(line.strip() in ("", "pass", *lines) or origin(line.strip()) == "tests" for line in code.splitlines())


def _is_beside(path: object, words: Sequence[object]) -> bool:
    """Whether a program of the system, started by this process itself, would run a file of the graded code."""
    return not os.fsdecode(str(path)).startswith(f"{_TOOLS}/") and any(map(is_graded, words))


def _is_plain(module: str, name: str) -> bool:
    """Whether a pickle that names this class can only make data: one of a plain type, or one of the tests' own."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return name in _PLAIN.get(module, ()) or file.startswith("/tests/") or file in own("tests")


def _located(finder: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def spec_from_file_location(name: str, location: Any = None, **options: Any) -> Any:
        if options.get("loader") is None and location is not None and is_graded(location):
            return importlib.util.spec_from_loader(name, finder.at(os.path.abspath(location)))
        return original(name, location, **options)

    return spec_from_file_location
