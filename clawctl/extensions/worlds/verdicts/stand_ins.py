"""The objects and modules of the graded code, in the process that runs the tests (`remote_modules.py`). Standard library only.

The attributes of a stand-in are read, and its methods called, in the process of the graded code. What a test then believes is the
graded code's own claim if it compares the object itself, or if a method answers yes or no although the test never made the object.
Such a test is not verified (`GradedSession.claims`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import Any

OWN = "_clawctl_"  # what the names of a stand-in's own attributes begin with
# Special methods that an object forwards. What the second group answers decides a test by itself.
_FORWARDED = (
    *("len", "iter", "next", "getitem", "setitem", "delitem", "call", "enter", "exit", "str", "format", "reversed", "bytes"),
    *("fspath", "int", "float", "index", "complex", "round", "abs", "neg", "pos", "invert", "trunc", "floor", "ceil", "divmod"),
    *(f"{side}{name}" for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow") for side in ("", "r", "i")),
    *("lshift", "rshift", "and", "or", "xor", "aiter"),
)
_CLAIMS = ("lt", "le", "gt", "ge")
_LONGEST = 1000  # items that are counted before the graded code says whether one is among them


class RemoteType(type):
    """A class of the graded code. Its instances are made there, and so is a subclass that a test defines."""

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        session = next((base._clawctl_session for base in bases if isinstance(base, RemoteType) and base is not RemoteObject), None)
        if f"{OWN}id" in members or session is None:
            return super().__new__(mcs, name, bases, members)
        kept = {key: value for key, value in members.items() if key not in ("__qualname__", "__module__", "__classcell__")}
        return session.ask("subclass", name, bases, kept)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = cls._clawctl_session.ask("call", cls, *arguments, **options)
        if not isinstance(made, cls) or (isinstance(made, tuple) and tuple(made)[: len(arguments)] != arguments):
            cls._clawctl_session.claims.append(f"what {cls.__name__} makes")
        elif type(made) is cls and not cls._clawctl_enum:
            made.__dict__ |= {f"{OWN}given": (arguments, options), f"{OWN}made": cls._clawctl_session._touched}
        return made

    def __getattr__(cls, name: str) -> Any:
        if name.startswith(OWN):
            raise AttributeError(name)
        session: Any = cls._clawctl_session
        count = len(session._objects)
        value = session.ask("get", cls, name)
        if isinstance(value, RemoteObject):
            names = value.__dict__.get(f"{OWN}name"), value.__dict__.get(f"{OWN}member")
            if len(session._objects) == count and name not in names:  # one object under every name would be any of them
                session.claims.append(f"that an earlier object is {cls.__name__}.{name}")
            value.__dict__ |= {f"{OWN}name": name, f"{OWN}named": type(value) is cls}
        if isinstance(value, RemoteObject) and value.__dict__.get(f"{OWN}member") not in (None, name):
            value.__dict__[f"{OWN}member"] = None  # an alias: what it equals is the graded code's claim
        return value

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("__"):
            return super().__setattr__(name, value)
        cls._clawctl_session.ask("set", cls, name, value)

    def __iter__(cls) -> Iterator[Any]:
        return iter(list(cls._clawctl_session.ask("special", cls, "__iter__")))

    def __getitem__(cls, name: Any) -> Any:
        value = cls._clawctl_session.ask("special", cls, "__getitem__", name)
        if type(value) is cls:
            value.__dict__[f"{OWN}named"] = True
        return value


class RemoteObject(metaclass=RemoteType):
    """An object of the graded code that is no plain data."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith((OWN, "__pytest", "_pytest")):
            raise AttributeError(name)
        session: Any = type(self)._clawctl_session
        value = session.ask("get", self, name)
        if f"{OWN}given" not in self.__dict__ and not self.__dict__.get(f"{OWN}named"):  # any other may say yes to everything
            if isinstance(value, bool):
                session.claims.append(f"the attribute {name} of an object")
            elif isinstance(value, RemoteObject):
                value.__dict__[f"{OWN}inner"] = True
            elif callable(value) and not isinstance(value, type):
                return _watched(session, value, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # the context of an exception
            return super().__setattr__(name, value)
        type(self)._clawctl_session.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        type(self)._clawctl_session.ask("delete", self, name)

    def __hash__(self) -> int:
        """What the graded code answers, so that equal objects meet in a set. Whether they are equal is what `__eq__` finds."""
        try:
            return hash(type(self)._clawctl_session.ask("special", self, "__hash__"))
        except Exception:  # noqa: BLE001 it has no hash there
            return id(self)

    def __bool__(self) -> bool:
        session: Any = type(self)._clawctl_session
        for name in ("__bool__", "__len__"):
            if session.ask("get", type(self), name, None) is not None:
                return bool(session.ask("special", self, name))
        return True

    def __contains__(self, item: Any) -> bool:
        session: Any = type(self)._clawctl_session
        items = _items(self)  # before the graded code is told which one is sought
        answer = bool(session.ask("special", self, "__contains__", item))
        if items is None or isinstance(item, RemoteObject) or (item in items) is not answer:
            session.claims.append(f"contains of an object of {type(self).__name__}")
        return answer

    def __repr__(self) -> str:
        return str(type(self)._clawctl_session.ask("special", self, "__repr__"))

    def __eq__(self, other: object) -> bool:
        session: Any = type(self)._clawctl_session
        if self is other and self.__dict__.get(f"{OWN}member"):
            return True
        plain = session.ask("plain", self)
        if plain is not None and not isinstance(other, RemoteObject):
            return bool(plain == other)
        are_same = _are_same(self, other) if type(self) is type(other) else None
        if are_same:
            return True
        answer = session.ask("special", self, "__eq__", other) is True
        if are_same is answer:
            return False
        session.claims.append(f"an object of {type(self).__name__} is {'equal' if answer else 'not equal'}")
        return answer

    def __ne__(self, other: object) -> bool:
        return not self == other


def _items(value: Any) -> list[Any] | None:
    """What an object holds, if it can be iterated anew and all of it is plain."""
    try:
        iterator = iter(value)
        items = [] if iterator is value else list(islice(iterator, _LONGEST))
    except Exception:  # noqa: BLE001 the graded code's
        return None
    return None if iterator is value or len(items) == _LONGEST or any(isinstance(item, RemoteObject) for item in items) else items


def _are_same(first: Any, second: Any) -> bool | None:
    """Whether two objects have the same attributes, one of which the test made itself, after the other one had got its own. None
    if that is not known.

    The graded code could give an object that is made later the attributes that the test gave to the first. It cannot if the test
    gave both the same number of arguments, and they have them.
    """
    given = [value.__dict__.get(f"{OWN}given", ((), {})) for value in (first, second)]
    if len({(len(arguments), *sorted(options)) for arguments, options in given}) == 1 and given[0] != ((), {}):
        states = [_state(value) for value in (first, second)]
        if None not in states:
            return bool(states[0] == states[1])
    for made, other in ((first, second), (second, first)):
        at, state = other.__dict__.get(f"{OWN}state", (0, None))
        if at <= made.__dict__.get(f"{OWN}made", -1) and state is not None and None not in (_state(made), _state(other, state)):
            return bool(_state(made) == state)
    return None


def _state(value: Any, state: Any = None) -> dict[str, Any] | None:
    """The attributes of an object. None if they are not plain, or lack what the test gave to make the object."""
    try:
        state = type(value)._clawctl_session.ask("state", value) if state is None else state
    except Exception:  # noqa: BLE001 an object without attributes
        return None
    arguments, options = value.__dict__.get(f"{OWN}given", ((), {}))
    if not isinstance(state, dict) or any(isinstance(inner, RemoteObject) for inner in state.values()) or not state:
        return None
    values = list(state.values())
    has_all = values[: len(arguments)] == list(arguments) or values[:1] in ([arguments], [list(arguments)])  # or as `*arguments`
    kept = has_all and all(state.get(name) == options[name] for name in options)
    return state if kept else None


def _watched(session: Any, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        if isinstance(result, bool):
            session.claims.append(f"the method {name} of an object")
        return result

    call.__dict__.update(function.__dict__)
    return call


def _forward(name: str, is_claim: bool) -> Callable[..., Any]:
    def call(self: RemoteObject, *arguments: Any, **options: Any) -> Any:
        session: Any = type(self)._clawctl_session
        if is_claim:
            session.claims.append(f"{name} of an object of {type(self).__name__}")
        if name == "__call__":
            result = session.ask("call", self, *arguments, **options)
            if isinstance(result, bool) and self.__dict__.get(f"{OWN}inner"):
                session.claims.append("a call of an object that another one holds")
            return result
        if name == "__exit__":
            return _ended(session, session.ask("special", self, name, arguments[1]), arguments)
        return session.ask("special", self, name, *arguments)

    return call


def _ended(session: Any, answer: Any, arguments: Sequence[Any]) -> bool:
    """Whether a context manager ends the error with which its block ended. A test that goes on then believes it."""
    if answer and arguments[0] is not None:
        session.claims.append(f"that {arguments[0].__name__} is no error")
    return bool(answer)


for _name in (*_FORWARDED, *_CLAIMS):
    type.__setattr__(RemoteObject, f"__{_name}__", _forward(f"__{_name}__", _name in _CLAIMS))


def _forward_later(name: str) -> Callable[..., Any]:
    async def call(self: RemoteObject, *arguments: Any) -> Any:
        session: Any = type(self)._clawctl_session
        if name == "__aexit__":
            return _ended(session, session.ask("special", self, name, arguments[1]), arguments)
        return session.ask("special", self, name, *arguments)

    return call


for _name in ("__aenter__", "__aexit__", "__anext__"):
    type.__setattr__(RemoteObject, _name, _forward_later(_name))


class RemoteModule(ModuleType):
    """A module of the graded code."""

    def __init__(self, name: str, session: Any, number: int) -> None:
        super().__init__(name)
        self.__dict__.update({f"{OWN}id": number, f"{OWN}session": session, "__path__": []})

    def __getattr__(self, name: str) -> Any:
        if name.startswith((OWN, "__pytest")) or name in ("__file__", "__wrapped__"):
            raise AttributeError(name)
        session: Any = self.__dict__[f"{OWN}session"]
        if name == "load_tests":  # what unittest looks for in a module with tests
            session.claims.append("the tests of a module of the graded code")
        value = session.ask("get", self, name)
        if name != name.upper() and name[0].isupper() and not isinstance(value, type):
            session.claims.append(f"{name} is not a class")  # what the test makes with it is whatever the graded code wants
        if isinstance(value, RemoteObject) and value.__dict__.setdefault(f"{OWN}name", name) != name:
            session.claims.append(f"that {name} is an object with another name")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, ModuleType):
            self.__dict__[name] = value
        else:
            self.__dict__[f"{OWN}session"].ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__[f"{OWN}session"].ask("delete", self, name)
