"""FieldRow types for the tables of request fields in `clawctl.serve.dialects.tables`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Literal

from clawctl.serve.sampling import ENGINE_FIELDS, beyond_embedded

Treatment = Literal["honoured", "passed on", "no effect", "a note", "never called", "ignored", "refused"]
Engine = Literal["embedded", "vllm", "upstream"]
MEANING: Final[dict[Treatment, str]] = {
    "honoured": "The field works as its API documents.",
    "passed on": "The engine receives the field and applies it.",
    "no effect": "The field is accepted and has no effect. The note gives the reason.",
    "a note": "The model cannot read this part. The prompt contains a note about what is missing.",
    "never called": "The tool is accepted but not offered to the model, because only its vendor can run it.",
    "ignored": "The field is accepted without effect, although other servers apply it. The answer names it like an unknown field.",
    "refused": "Status 400. The message names the field and the fix.",
}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field, or one kind of object. `name` may be a pattern: `bash_*`."""

    name: str
    treatment: Treatment
    note: str = ""  # what it does; for a refused field: what to do instead
    of: str = ""  # name of the table for its objects; without one, the row covers everything below it
    engines: Mapping[Engine, Treatment] = field(default_factory=dict)  # engines that differ
    unless: tuple[Any, ...] = ()  # for a refused or ignored field: accepted values besides null

    def at(self, engine: Engine) -> Treatment:
        return self.engines.get(engine, self.treatment)


class Table:
    """Fields of one object, or, with `by`, kinds of objects. `by` is the field that names the kind; `otherwise` is the kind of an
    object that names none."""

    def __init__(self, title: str, *parts: Iterable[FieldRow], by: str = "", otherwise: str = "") -> None:
        self.title, self.by, self.otherwise = title, by, otherwise
        self.rows = tuple(row for part in parts for row in part)
        self._by_name = {row.name: row for row in self.rows}
        self._patterns = [row for row in self.rows if "*" in row.name]

    def row(self, name: str) -> FieldRow | None:
        exact = self._by_name.get(name)
        return exact or next((row for row in self._patterns if fnmatchcase(name, row.name)), None)


def rows(treatment: Treatment, names: str, note: str = "", **more: Any) -> list[FieldRow]:
    return [FieldRow(name, treatment, note, **more) for name in names.split()]


honoured = partial(rows, "honoured")
no_effect = partial(rows, "no effect")
as_note = partial(rows, "a note")
never_called = partial(rows, "never called")
ignored = partial(rows, "ignored")
refused = partial(rows, "refused")


JUDGED: Final[dict[str, Any]] = {  # a value of each field that `beyond_embedded` checks, to find out whether the engine lacks it
    "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 2, "logit_bias": {"1": 1}, "min_p": 0.5, "min_tokens": 1,
    "bad_words": ["x"], "allowed_token_ids": [1], "ignore_eos": True, "response_format": {"type": "json_object"},
    "structured_outputs": {"json_object": True}, "guided_json": {"type": "object"}, "guided_regex": "x", "guided_choice": ["x"],
    "guided_grammar": "x", "stop_token_ids": [1],
}  # fmt: skip
_SHARED: Final = ("cache_salt",)  # the embedded engine shares cached prefixes among all requests
_NOTES: Final[dict[str, str]] = {
    "seed": "each further answer of `n` uses the next seed",
    "parallel_tool_calls": "false: the answer has at most one call",
    "reasoning_effort": "the chat template decides its effect; `none` disables thinking if the template can",
    "cache_salt": "only requests with the same salt share cached prefixes",
    "chat_template_kwargs": "switches of the model's template; unknown names are refused",
    "response_format": "turns with it are trained only if the embedded engine answered",
}


def embedded_lacks(name: str) -> bool:
    return name in JUDGED and beyond_embedded(None, {name: JUDGED[name]}, True) is not None


def forced_choice_note() -> str:
    lacks = beyond_embedded("required", {}, True) is not None
    return "a forced call needs guided decoding" + ("; the embedded engine has none and refuses it" if lacks else "")


def of_engines(without: str = "") -> list[FieldRow]:
    """The fields of `clawctl.serve.sampling`, which lists the abilities of each engine."""
    return [
        FieldRow(
            name,
            "passed on",
            _NOTES.get(name, "turns with it are not trained" if each.reason else ""),
            engines={"embedded": "refused" if embedded_lacks(name) or name in _SHARED else "honoured"},
        )
        for name, each in ENGINE_FIELDS.items()
        if name not in without.split()
    ]
