"""Rows of the tables that say what becomes of each field of a request, see `clawctl.serve.dialects.tables`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from clawctl.serve.sampling import ENGINE_FIELDS, beyond_embedded

Treatment = Literal["honoured", "passed on", "no effect", "a note", "never called", "ignored", "refused"]
Engine = Literal["embedded", "vllm", "upstream"]
MEANING: Final[dict[Treatment, str]] = {
    "honoured": "It does what its documentation says.",
    "passed on": "The engine gets it and does it.",
    "no effect": "It is accepted and has no effect. The note says why that does no harm.",
    "a note": "The model cannot read it. The prompt says what was left out.",
    "never called": "It is accepted. Only its vendor can run it, so the model is not offered it.",
    "ignored": "It is accepted, and would have an effect elsewhere. The answer names it, as it names an unknown field.",
    "refused": "Status 400. The message names the field and the cure.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One field, or one kind of object. `name` may be a pattern: `bash_*`."""

    name: str
    treatment: Treatment
    note: str = ""  # what it does; of a refused one: what to do instead
    of: str = ""  # name of the table of its objects; without one the row speaks for all that is below
    engines: Mapping[Engine, Treatment] = field(default_factory=dict)  # where an engine differs
    unless: tuple[Any, ...] = ()  # of a refused or ignored one: values that ask for nothing, besides null

    def at(self, engine: Engine) -> Treatment:
        return self.engines.get(engine, self.treatment)


@dataclass(frozen=True, slots=True)
class Table:
    """Fields of one object or, with `by`, kinds of objects that this field of theirs names."""

    title: str
    rows: tuple[Row, ...]
    by: str = ""
    otherwise: str = ""  # the kind of an object that does not name one

    _named: dict[str, Row] = field(init=False, repr=False, compare=False)
    _patterns: tuple[Row, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", {row.name: row for row in self.rows})
        object.__setattr__(self, "_patterns", tuple(row for row in self.rows if "*" in row.name))

    def row(self, name: str) -> Row | None:
        found = self._named.get(name)
        return found or next((row for row in self._patterns if fnmatchcase(name, row.name)), None)


def rows(treatment: Treatment, names: str, note: str = "", **more: Any) -> list[Row]:
    return [Row(name, treatment, note, **more) for name in names.split()]


def done(names: str, note: str = "", **more: Any) -> list[Row]:
    return rows("honoured", names, note, **more)


def idle(names: str, note: str = "") -> list[Row]:
    return rows("no effect", names, note)


def noted(names: str, note: str = "") -> list[Row]:
    return rows("a note", names, note)


def never(names: str, note: str = "") -> list[Row]:
    return rows("never called", names, note)


def ignored(names: str, note: str, **more: Any) -> list[Row]:
    return rows("ignored", names, note, **more)


def refused(names: str, cure: str, **more: Any) -> list[Row]:
    return rows("refused", names, cure, **more)


def together(*parts: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(row for part in parts for row in part)


JUDGED: Final[dict[str, Any]] = {  # a value of each field that `beyond_embedded` judges, to ask whether the engine lacks it
    "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 2, "logit_bias": {"1": 1}, "min_p": 0.5, "min_tokens": 1,
    "bad_words": ["x"], "allowed_token_ids": [1], "ignore_eos": True, "response_format": {"type": "json_object"},
    "structured_outputs": {"json_object": True}, "guided_json": {"type": "object"}, "guided_regex": "x", "guided_choice": ["x"],
    "guided_grammar": "x", "stop_token_ids": [1],
}  # fmt: skip
_SHARED: Final = ("cache_salt",)  # the embedded engine shares the prefixes of all requests
_SAID: Final[dict[str, str]] = {
    "seed": "each answer of `n` gets the next one",
    "parallel_tool_calls": "false: at most one call is shown",
    "reasoning_effort": "what the template makes of it; `none` switches thinking off where the template can",
    "cache_salt": "only requests with the same salt share cached prefixes",
    "chat_template_kwargs": "the switches of the model's template; any other name is refused",
    "response_format": "such turns are trained only where the embedded engine answered",
}


def embedded_lacks(name: str) -> bool:
    return name in JUDGED and beyond_embedded(None, {name: JUDGED[name]}, True) is not None


def forced_choice_note() -> str:
    lacks = beyond_embedded("required", {}, True) is not None
    return "a forced call needs guided decoding" + (", which the embedded engine lacks: there it is refused" if lacks else "")


def of_engines(without: str = "") -> list[Row]:
    """The fields of `clawctl.serve.sampling`, which says what each engine can."""
    return [
        Row(
            name,
            "passed on",
            _SAID.get(name, "such turns are not trained" if each.reason else ""),
            engines={"embedded": "refused" if embedded_lacks(name) or name in _SHARED else "honoured"},
        )
        for name, each in ENGINE_FIELDS.items()
        if name not in without.split()
    ]
