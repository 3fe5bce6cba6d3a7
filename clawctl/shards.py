"""Turns and verdicts as Parquet: written whole, read whole, never edited."""

import errno
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from clawctl.checksums import check_footer, seal_footer
from clawctl.run_dir import publish
from clawctl.types import SCHEMA_VERSION, Turn, Verdict, newer

# An older shard's rows pass through MIGRATIONS[v] for v = its version … SCHEMA_VERSION - 1; each takes and returns plain dicts.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_JSON = pa.string()  # a chat message is open-ended: JSON keeps what the client sent
_TURN = pa.schema([
    ("turn_id", pa.string()), ("session_id", pa.string()), ("parent_turn_id", pa.string()), ("turn_index", pa.int32()),
    ("kind", pa.string()), ("source", pa.string()), ("task_id", pa.string()), ("group_id", pa.string()), ("user", pa.string()),
    ("created_at", pa.float64()), ("messages", _JSON), ("tools", _JSON), ("response", _JSON), ("next_state", _JSON),
    ("prompt_ids", pa.list_(pa.int32())), ("completion_ids", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32())),
    ("policy_version", pa.int64()), ("policy_version_end", pa.int64()), ("temperature", pa.float64()), ("top_p", pa.float64()),
    ("top_k", pa.int32()), ("finish_reason", pa.string()), ("outcome_reward", pa.float64()), ("feedback", pa.float64()),
    ("trainable", pa.bool_()), ("untrainable_reason", pa.string()),
])  # fmt: skip
_VERDICT = pa.schema([
    ("turn_id", pa.string()), ("reward", pa.float64()), ("votes", pa.list_(pa.int8())), ("hint", pa.string()),
    ("hints", pa.list_(pa.string())), ("judge", pa.string()), ("reason", pa.string()), ("latency_s", pa.float64()),
])  # fmt: skip
# A session's rows repeat their prompt, and lie together. Plain values in pages that hold many rows let zstd find the repetition;
# a dictionary's packed indices would hide it, so only columns with few values have one.
_FEW_VALUES = [
    "session_id", "kind", "source", "task_id", "group_id", "user", "finish_reason", "untrainable_reason", "judge", "reason",
]  # fmt: skip
_COMPRESSION = {"compression": "zstd", "compression_level": 3, "use_dictionary": _FEW_VALUES, "data_page_size": 8 << 20}
# A merged shard is written once and seldom read: Brotli's entropy coder takes 4 % off what zstd -9 leaves in the same time.
# Log-probabilities never repeat; of their bytes only sign and exponent do, so these are laid side by side.
_LOGPROBS = "logprobs.list.element"
_MERGED = {**_COMPRESSION, "compression": "brotli", "compression_level": 5, "column_encoding": {_LOGPROBS: "BYTE_STREAM_SPLIT"}}
_ARRAYS = {pa.list_(pa.int32()): "i", pa.list_(pa.float32()): "f"}  # how long lists of numbers are packed
_NOT_THE_FILES_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES)
_JSON_FIELDS = ("messages", "tools", "response", "next_state")


class UnreadableShard(Exception):
    """The file is not a shard of ours that we can read; the message says why. The caller quarantines it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose ids and logprobs a shard of turns has, as far as its writer knew: kept in the file's metadata."""

    base_model: str | None = None  # as the recipe names it
    tokenizer: str | None = None  # `tokenizer_files.tokenizer_fingerprint`


UNKNOWN = Origin()


def write_turns(path: Path, turns: Sequence[Turn], origin: Origin = UNKNOWN) -> None:
    """Publish one trajectory shard, rows sorted by (session, turn): rows of a session lie together so that zstd sees repetition."""
    ordered = sorted(turns, key=lambda turn: (turn.session_id, turn.turn_index, turn.created_at))
    _write(path, ordered, _TURN, "turns", {name: told for name, told in asdict(origin).items() if told is not None})


def read_origin(path: Path) -> Origin:
    """What a shard's writer knew; nothing where it did not say. Raises UnreadableShard."""
    with _reading(path):
        check_footer(path)
        metadata = pq.read_schema(path).metadata or {}
        told = {field.name: metadata.get(field.name.encode()) for field in fields(Origin)}
        return Origin(**{name: value.decode() for name, value in told.items() if value is not None})


def merge_shards(kind: str, paths: Sequence[Path], target: Path, order: Sequence[str]) -> None:
    """Publish one shard with the rows of several, sorted by the columns `order`, and the stems that it holds in its metadata.

    Raises UnreadableShard: nothing is published then. Shards of an older schema are not merged.
    """
    tables = [read_table(path) for path in paths]
    schema = _TURN if kind == "turns" else _VERDICT
    marks = {"schema_version": str(SCHEMA_VERSION), "kind": kind}
    told = [{key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()} for table in tables]
    if any({key: each.get(key) for key in marks} != marks for each in told):
        raise UnreadableShard(f"{target.name}: its parts are not all shards of {kind} of this schema")
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()  # a column that a newer clawctl added is kept
    if order:
        table = table.sort_by([(name, "ascending") for name in order])
    for field in schema:
        table = table.set_column(table.schema.get_field_index(field.name), field, table.column(field.name).cast(field.type))
    names = [field.name for field in fields(Origin) if field.name in told[0]]
    same = {name: told[0][name] for name in names if all(each.get(name) == told[0][name] for each in told)}
    stems = orjson.dumps([path.stem for path in paths]).decode()
    table = table.replace_schema_metadata({**same, **marks, "merged": stems})
    how = _MERGED if kind == "turns" else _COMPRESSION
    publish_table(target, table, **how)


def rewrite_shard(path: Path, table: pa.Table) -> None:
    """Publish the rows that are left of a shard in its place, laid out as it was."""
    how = _MERGED if b"merged" in (table.schema.metadata or {}) and "messages" in table.schema.names else _COMPRESSION
    publish_table(path, table, **how)


def merged_from(path: Path) -> list[str]:
    """The stems of the shards that were merged into this one. Raises UnreadableShard."""
    with _reading(path):
        check_footer(path)
        metadata = pq.read_schema(path).metadata or {}
        return list(orjson.loads(metadata.get(b"merged", b"[]")))


def read_turns(path: Path) -> list[Turn]:
    """Raises UnreadableShard."""
    rows = _read(path, "turns")
    with _reading(path):
        for row in rows:
            for name in _JSON_FIELDS:
                row[name] = None if row[name] is None else orjson.loads(row[name])
        return [Turn(**row) for row in rows]


def read_columns(path: Path, kind: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Some columns of each row of a shard of `kind` ("turns", "verdicts"), for readers that need no token ids: those are most of
    a shard. Raises UnreadableShard."""
    rows = _read(path, kind, columns)
    with _reading(path):
        for row in rows:
            for name in (name for name in _JSON_FIELDS if row.get(name) is not None):
                row[name] = orjson.loads(row[name])
        return rows


def read_turn_ids(path: Path) -> list[str]:
    """The turn ids alone, without decoding the rest. Raises UnreadableShard."""
    with _reading(path):
        return [str(turn_id) for turn_id in read_table(path, ["turn_id"]).column("turn_id").to_pylist()]


def read_parents(path: Path) -> dict[str, str | None]:
    """The parent of each turn, without decoding the rest. Raises UnreadableShard."""
    with _reading(path):
        table = read_table(path, ["turn_id", "parent_turn_id"])
        return dict(zip(table.column("turn_id").to_pylist(), table.column("parent_turn_id").to_pylist(), strict=True))


def write_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Publish one verdict shard; its stem is that of the trajectory shard it judges."""
    _write(path, verdicts, _VERDICT, "verdicts")


def read_verdicts(path: Path) -> list[Verdict]:
    """Raises UnreadableShard."""
    with _reading(path):
        return [Verdict(**row) for row in _read(path, "verdicts")]


def _write(
    path: Path, rows: Sequence[Turn] | Sequence[Verdict], schema: pa.Schema, kind: str, told: dict[str, str] | None = None
) -> None:
    marked = schema.with_metadata({"schema_version": str(SCHEMA_VERSION), "kind": kind, **(told or {})})
    table = pa.table([_column(field, [getattr(row, field.name) for row in rows]) for field in marked], schema=marked)
    publish_table(path, table, **_COMPRESSION)


def publish_table(path: Path, table: pa.Table, **how: Any) -> None:
    """Publish a Parquet file whose pages and footer carry checksums."""
    publish(path, lambda temporary: write_table(temporary, table, **how))


def write_table(path: Path, table: pa.Table, **how: Any) -> None:
    """As `publish_table`, for a file that is published as part of a folder."""
    pq.write_table(table, path, write_page_checksum=True, **how)
    seal_footer(path)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """What `write_table` wrote, and nothing else. Raises UnreadableShard."""
    with _reading(path):
        check_footer(path)
        return pq.read_table(path, columns=None if columns is None else list(columns), page_checksum_verification=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever the bytes of a damaged file lead to, an UnreadableShard tells. What is no fault of the file is raised as it is: who
    lacks a descriptor must not put a good file into quarantine."""
    try:
        yield
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _NOT_THE_FILES_FAULT:
            raise
        raise UnreadableShard(f"{path.name}: {error}") from error


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    if field.name in _JSON_FIELDS:
        return pa.array([None if value is None else orjson.dumps(value) for value in values], field.type)
    try:
        return _packed(values, _ARRAYS[field.type])
    except (KeyError, TypeError):  # other columns, and a list with something in it that is no number
        return pa.array(values, field.type)


def _packed(values: list[Sequence[float] | None], typecode: str) -> pa.Array:
    """Lists of numbers, a few times as fast as `pa.array` takes them. Raises TypeError where one is missing in a list."""
    flat: array[Any] = array(typecode)
    ends = [0]
    for value in values:
        flat.extend(value or ())
        ends.append(len(flat))
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.asarray(flat)), mask=missing)


def _read(path: Path, kind: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows as plain dicts. Columns that a newer clawctl of the same schema version added are passed over; they stay in the file."""
    table = read_table(path, columns)
    metadata = table.schema.metadata or {}
    found, version = (metadata.get(name, b"").decode(errors="replace") for name in (b"kind", b"schema_version"))
    if found != kind or not version.isdigit():
        raise UnreadableShard(f"{path.name}: expected a shard of {kind}, found {found or 'something else'}")
    if int(version) > SCHEMA_VERSION:
        raise UnreadableShard(f"{path.name}: {newer(version)}")
    if int(version) == SCHEMA_VERSION:
        known = (_TURN if kind == "turns" else _VERDICT).names
        table = table.select([name for name in table.schema.names if name in known])
    rows: list[dict[str, Any]] = table.to_pylist()
    for step in range(int(version), SCHEMA_VERSION):
        rows = [MIGRATIONS[step](row) for row in rows]
    return rows
