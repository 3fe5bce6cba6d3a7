"""Values as plain data, between tests and graded code in two sandboxes. Standard library only; runs in both.

Plain are the types in `PLAIN` alone, not their subclasses, because a subclass may redefine how it compares.
"""

import base64
import collections
import contextlib
import datetime
import decimal
import fractions
import hashlib
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SOCKET = os.environ.get("CLAWCTL_SOCKET", "/run/model.sock")
# What one side writes below these, the other side sees. Without namespaces, both sides have the same files.
FOLDERS = () if "CLAWCTL_SOCKET" in os.environ else tuple(os.environ.get("CLAWCTL_FOLDERS", "/tmp").split(":"))
with contextlib.suppress(OSError), open(f"{os.path.dirname(os.path.abspath(__file__))}/tests.json", encoding="utf-8") as _file:
    FOLDERS = FOLDERS and tuple(json.load(_file)["folders"])  # where tests run, whatever the variables of the process are
# Files that change how tests run. The agent's versions are replaced by the original ones, and none crosses while tests run.
OF_THE_TESTS = {
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
    *(".coveragerc", "sitecustomize.py", "usercustomize.py"),
}
_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
_MAPPINGS: dict[str, Any] = {"dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter}
MUTABLE = (list, dict, set, collections.deque, collections.OrderedDict, collections.Counter)
_TEXTS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {  # type, to JSON, from JSON
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "bytearray": (bytearray, lambda value: base64.b64encode(value).decode(), lambda text: bytearray(base64.b64decode(text))),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (fractions.Fraction, str, fractions.Fraction),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (datetime.timedelta, lambda value: value / datetime.timedelta(microseconds=1),
                  lambda count: datetime.timedelta(microseconds=count)),
    "path": (type(pathlib.Path()), str, pathlib.Path),
    "pure path": (pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "slice": (slice, lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)),
}  # fmt: skip
_SINGLE = {type(NotImplemented): "NotImplemented", type(Ellipsis): "Ellipsis"}
_BASES = (str, int, float, tuple, list, dict, set, frozenset, bytes)


def encode(value: Any, reference: Callable[[Any], dict[str, Any]]) -> Any:
    """The value as JSON. `reference` describes what is no plain data."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    for name, made in _CONTAINERS.items():
        if kind is made:
            return {name: [encode(inner, reference) for inner in value]}
    for name, made in _MAPPINGS.items():
        if kind is made:
            return {name: [[encode(key, reference), encode(inner, reference)] for key, inner in value.items()]}
    for name, (made, to_json, _) in _TEXTS.items():
        if kind is made:
            return {name: to_json(value)}
    return {"single": _SINGLE[kind]} if kind in _SINGLE else reference(value)


def decode(value: Any, from_reference: Callable[[dict[str, Any]], Any]) -> Any:
    """The value that `encode` described."""
    if not isinstance(value, dict):
        return value
    if "object" in value or "callable" in value or "passed" in value:
        return from_reference(value)
    ((name, inner),) = value.items()
    if name in _CONTAINERS:
        return _CONTAINERS[name](decode(item, from_reference) for item in inner)
    if name in _MAPPINGS:
        return _MAPPINGS[name]({decode(key, from_reference): decode(item, from_reference) for key, item in inner})
    if name == "single":
        return Ellipsis if inner == "Ellipsis" else NotImplemented
    return _TEXTS[name][2](inner)


def plain_base(value: Any) -> type | None:
    """The plain type that the value's type extends: tuple for a named tuple."""
    return next((base for base in _BASES if isinstance(value, base)), None)


class SharedFiles:
    """The files in FOLDERS that have changed since the other side saw them."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, int]] = {}
        self.changed()

    def changed(self) -> dict[str, str | None]:
        """New contents by path, in base64 after "=". "": a folder. None: the file is gone."""
        stamps = {path: stamp for folder in FOLDERS for path, stamp in _stamps(folder)}
        before, self.seen = self.seen, stamps
        changes: dict[str, str | None] = {path: None for path in before if path not in stamps}
        for path, stamp in stamps.items():
            if before.get(path) != stamp:
                changes[path] = "" if stamp == (-1, -1) else "=" + _text_of(path)
        return changes

    def write(self, changes: dict[str, str | None]) -> None:
        """Apply the changes of the other side, in FOLDERS alone."""
        for path, text in changes.items():
            if not os.path.realpath(path).startswith(tuple(f"{folder}/" for folder in FOLDERS)):
                continue
            with contextlib.suppress(OSError):
                if text is None:
                    os.rmdir(path) if os.path.isdir(path) else os.remove(path)
                elif text == "":
                    os.makedirs(path, exist_ok=True)
                else:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(base64.b64decode(text[1:]))
        if changes:
            self.changed()


def digests() -> dict[str, str]:
    """A digest of each file in FOLDERS."""
    return {path: _digest(path) for folder in FOLDERS for path, stamp in _stamps(folder) if stamp != (-1, -1)}


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def contents(paths: Iterable[str]) -> dict[str, str | None]:
    """The contents of files, as `SharedFiles.write` takes them."""
    return {path: "=" + _text_of(path) for path in paths if os.path.isfile(path)}


def _stamps(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for parent, folders, names in os.walk(folder):
        yield from ((os.path.join(parent, name), (-1, -1)) for name in folders)
        for path in (os.path.join(parent, name) for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                stat = os.stat(path)
                yield path, (stat.st_mtime_ns, stat.st_size)


def _text_of(path: str) -> str:
    with open(path, "rb") as file:
        return base64.b64encode(file.read(8 << 20)).decode()
