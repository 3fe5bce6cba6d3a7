"""Tables of all request fields and their treatment, per API. The data is in `fields.yaml`; the readers see only the fields in it.

A table named after an API covers the request body; its rows name the tables of nested objects. `docs/reference/api.md` is generated
from these tables, and `tests/serve/test_api_table.py` compares them with the request types of the official SDKs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml

from clawctl.serve.sampling import ENGINE_FIELDS, unsupported_field

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
    note: str = ""  # effect of the field; for a refused field: the alternative
    of: str = ""  # name of the table for its objects; without one, the row covers everything below it
    engines: Mapping[Engine, Treatment] = field(default_factory=dict)  # engines that treat it differently
    unless: tuple[Any, ...] = ()  # accepted values, besides null, of a refused or ignored field

    def at(self, engine: Engine) -> Treatment:
        return self.engines.get(engine, self.treatment)


class Table:
    """Fields of one object or, with `by`, kinds of objects. `by` is the field that names the kind; `otherwise` is the default
    kind."""

    def __init__(self, title: str, rows: Iterable[FieldRow], by: str = "", otherwise: str = "") -> None:
        self.title, self.by, self.otherwise = title, by, otherwise
        self.rows = tuple(rows)
        self._by_name = {row.name: row for row in self.rows}
        self._patterns = [row for row in self.rows if "*" in row.name]

    def row(self, name: str) -> FieldRow | None:
        exact = self._by_name.get(name)
        return exact or next((row for row in self._patterns if fnmatchcase(name, row.name)), None)


# ---- fields that an engine may honour -------------------------------------------------------------------------------------

_SHARED: Final = ("cache_salt",)  # the embedded engine shares cached prefixes among all requests


def _engine_rows() -> list[FieldRow]:
    """Rows for the fields of `clawctl.serve.sampling`, which lists the abilities of each engine."""
    rows = []
    for name, engine_field in ENGINE_FIELDS.items():
        test, note = engine_field.test, engine_field.note or ("turns with it are not trained" if engine_field.reason else "")
        unsupported = name in _SHARED or (test is not None and unsupported_field(None, {name: test}, True) is not None)
        rows.append(FieldRow(name, "passed on", note, engines={"embedded": "refused" if unsupported else "honoured"}))
    return rows


# ---- fields.yaml ----------------------------------------------------------------------------------------------------------


def read_tables(text: str) -> dict[str, Table]:
    """The tables of a text in the format of `fields.yaml`. Raises ValueError for a row in another format."""
    data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    groups = {"engine": _engine_rows()}
    for name, entries in data.get("groups", {}).items():
        groups[name] = [row for entry in entries for row in _rows(entry, groups)]
    return {
        name: Table(rows=[row for entry in table.pop("rows") for row in _rows(entry, groups)], **table)
        for name, table in data["tables"].items()
    }


def _rows(entry: dict[str, Any], groups: Mapping[str, list[FieldRow]]) -> list[FieldRow]:
    settings = dict(entry)
    if group := settings.pop("include", None):
        only, without = (settings.pop(choice, "").split() for choice in ("only", "without"))
        rows = [row for row in groups[group] if row.name not in without and (row.name in only or not only)]
    else:
        treatment, names = next(((key, settings.pop(key)) for key in entry if key in MEANING), (None, ""))
        engines = {engine: settings.pop(engine) for engine in get_args(Engine) if engine in entry}
        note, of, unless = settings.pop("note", ""), settings.pop("of", ""), tuple(settings.pop("unless", ()))
        if treatment is None or not MEANING.keys() >= {*engines.values()}:
            raise ValueError(f"there is no such treatment: {entry}")
        rows = [FieldRow(name, treatment, note, of, engines, unless) for name in names.split()]
    if settings:
        raise ValueError(f"fields.yaml has a row with unknown keys: {entry}")
    return rows


def _counting(messages: Table) -> Table:
    """The table for requests that count tokens. Fields that affect only an answer have no effect."""
    counted = ("model", "messages", "system", "tools", "tool_choice", "thinking", "chat_template_kwargs", "enable_thinking")
    idle = [row.treatment in ("honoured", "passed on") and row.name not in counted for row in messages.rows]
    rows = (
        FieldRow(row.name, "no effect", "answers only") if is_idle else row
        for row, is_idle in zip(messages.rows, idle, strict=True)
    )
    return Table("Counting: `POST /v1/messages/count_tokens`", rows)


TABLES: Final = read_tables((Path(__file__).parent / "fields.yaml").read_text(encoding="utf-8"))
TABLES["count_tokens"] = _counting(TABLES["messages"])
APIS: Final = ("chat", "responses", "messages", "count_tokens", "completions")  # the served APIs, in the order of the page
