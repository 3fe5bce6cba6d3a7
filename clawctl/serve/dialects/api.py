"""Checks a request's body against its table of refused, known and unknown fields."""

from typing import Any, Final

from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.serve.dialects.tables import TABLES, Engine, FieldRow, Table
from clawctl.serve.sampling import ENGINE_FIELDS

MAX_NAMED: Final = 64  # names of unknown fields that are reported per request
_LONGEST: Final = 64  # length of such a name
_DEEPEST: Final = 12  # levels of nested tables; documents may be nested without limit


def known_fields(api: str, body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields in the table of `api`, and the names of all unknown fields. Raises Refusal for refused fields."""
    table, unknown = TABLES[api], dict[str, None]()
    _check(table, body, "", unknown, 0)
    return {name: value for name, value in body.items() if table.row(name) is not None}, tuple(unknown)


def refuse_unsupported(request: GenerationRequest, engine: Engine) -> None:
    """Raises Refusal for a field that this engine does not support although others do. Fields that `clawctl.serve.sampling` checks
    by value are skipped."""
    for name in request.fields:
        row = TABLES[request.api].row(name)
        is_checked = name in ENGINE_FIELDS and ENGINE_FIELDS[name].test is not None
        if row is not None and not is_checked and row.at(engine) == "refused" != row.treatment:
            what = {"upstream": "this upstream", "embedded": "the embedded engine"}.get(engine, engine)
            raise Refusal(400, f"{what} does not support '{name}': remove it, or serve with another engine", name)


def _check(table: Table, value: Any, path: str, unknown: dict[str, None], depth: int) -> None:
    if isinstance(value, list):
        for element in value:
            if isinstance(element, dict):
                _check(table, element, f"{path}[]", unknown, depth)
    elif isinstance(value, dict) and depth <= _DEEPEST:
        if table.by:
            _check_kind(table, value, path, unknown, depth)
        else:
            _check_fields(table, value, path, unknown, depth)


def _check_kind(table: Table, value: dict[str, Any], path: str, unknown: dict[str, None], depth: int) -> None:
    kind = value.get(table.by) or table.otherwise
    if not isinstance(kind, str):
        return
    row = table.row(kind)
    if row is None or row.treatment == "ignored":
        _name(unknown, f"{path}[{kind}]")
    if row is None:
        return
    if row.treatment == "refused":
        _refuse(row, f"{path}.{table.by}", f"'{path}' of type {kind[:_LONGEST]!r}")
    if row.of:
        _check(TABLES[row.of], value, path, unknown, depth + 1)


def _check_fields(table: Table, value: dict[str, Any], path: str, unknown: dict[str, None], depth: int) -> None:
    for name, inner in value.items():
        row = table.row(name)
        if row is not None and (inner is None or (not row.of and row.treatment not in ("refused", "ignored"))):
            continue
        below = f"{path}.{name}" if path else name
        if row is None:
            _name(unknown, below)
        else:
            if inner not in row.unless:
                _refuse(row, below, f"'{below}'")
                if row.treatment == "ignored":
                    _name(unknown, below)
            if row.of:
                _check(TABLES[row.of], inner, below, unknown, depth + 1)


def _refuse(row: FieldRow, path: str, what: str) -> None:
    if row.treatment == "refused":
        raise Refusal(400, f"{what} is not supported here: {row.note}", path.replace("[]", ""))


def _name(unknown: dict[str, None], path: str) -> None:
    if len(unknown) < MAX_NAMED:
        unknown[printable(path)] = None


def printable(name: str) -> str:
    """A name from the client, cut and limited to printable ASCII for use in a header."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name[:_LONGEST])
