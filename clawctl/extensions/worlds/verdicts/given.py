"""What the tests give to the graded code or take from it besides plain data: their functions, objects and input, and log records.

Standard library only; runs in the process of the graded code.
"""

import builtins
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

from crossing import encode  # type: ignore[import-not-found]  # beside this file


class Handler(logging.Handler):
    """Collects records as plain data."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)  # sets `exc_text`
        kept = {name: value for name, value in vars(record).items() if name not in ("args", "exc_info") and is_plain(value)}
        error = record.exc_info[1] if record.exc_info else None
        self.records.append({**kept, "msg": record.getMessage(), "error": error})


class Input(io.TextIOBase):
    """The standard input of the tests."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return str(self.ask())

    def read(self, size: int | None = -1) -> str:
        return "".join(self)


def passed(reference: dict[str, Any], ask: Callable[..., Any]) -> Any:
    """What stands in for a function, an iterator, an error or another object of the tests."""
    if "error" in reference:
        name, base, text = reference["error"]
        return type(name, (getattr(builtins, base),), {})(text)

    def callback(*arguments: Any, **options: Any) -> Any:
        return ask(None, *arguments, **options)

    async def callback_later(*arguments: Any, **options: Any) -> Any:
        return callback(*arguments, **options)

    called = callback_later if reference.get("async") else callback
    if reference["name"] is None:
        special = {name: _special(name) for name in reference["special"]}
        return type("Given", (_Given,), {**special, "__call__": staticmethod(called)})(ask)
    if reference.get("iterates"):
        return _iterate(ask)
    called.__name__ = called.__qualname__ = reference["name"]
    return called


def _special(name: str) -> Callable[..., Any]:
    def call(self: "_Given", *arguments: Any) -> Any:
        return self.__dict__["_ask"](name)(*arguments)

    return call


def _iterate(ask: Callable[..., Any]) -> Iterator[Any]:
    while True:
        try:
            value = ask(None)
        except StopIteration:
            return
        yield value


class _Given:
    """An object of the tests."""

    def __init__(self, ask: Any) -> None:
        self.__dict__["_ask"] = ask

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__dict__["_ask"](name)


def is_plain(value: Any) -> bool:
    try:
        encode(value, refuse)
    except TypeError:
        return False
    return True


def refuse(value: Any) -> Any:
    raise TypeError("not plain data")
