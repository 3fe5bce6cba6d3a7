"""Turns and verdicts as Parquet: published whole, never edited, read whole or piece by piece.

The module follows a shard: its columns, `write_turns` and `write_verdicts`, reading it whole or piece by piece, and the migration
of older shards.
"""

import errno
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clawctl.run.checksums import check_footer, seal_footer
from clawctl.run.directory import publish, published
from clawctl.run.names import named
from clawctl.run.rows import DEFAULT_POLICY, SHARD_VERSIONS, Turn, Verdict, newer

_JSON = pa.string()  # a chat message is open-ended: JSON keeps everything that the client sent
_TURN = pa.schema([
    ("turn_id", pa.string()), ("session_id", pa.string()), ("parent_turn_id", pa.string()), ("turn_index", pa.int32()),
    ("kind", pa.string()), ("source", pa.string()), ("task_id", pa.string()), ("group_id", pa.string()), ("user", pa.string()),
    ("created_at", pa.float64()), ("messages", _JSON), ("tools", _JSON), ("response", _JSON), ("next_state", _JSON),
    ("prompt_ids", pa.list_(pa.int32())), ("completion_ids", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32())),
    ("policy_version", pa.int64()), ("policy_version_end", pa.int64()), ("temperature", pa.float64()), ("top_p", pa.float64()),
    ("top_k", pa.int32()), ("finish_reason", pa.string()), ("outcome_reward", pa.float64()), ("feedback", pa.float64()),
    ("trainable", pa.bool_()), ("untrainable_reason", pa.string()), ("parent_evidence", pa.string()),
    ("allowed", pa.string()), ("redacted_by", pa.string()), ("policy_name", pa.string()),
    ("step_reward", pa.float64()), ("episode", _JSON), ("images", _JSON), ("notes", _JSON),
])  # fmt: skip
_VERDICT = pa.schema([
    ("turn_id", pa.string()), ("reward", pa.float64()), ("votes", pa.list_(pa.int8())), ("hint", pa.string()),
    ("hints", pa.list_(pa.string())), ("judge", pa.string()), ("reason", pa.string()), ("latency_s", pa.float64()),
])  # fmt: skip
# Rows of a session repeat their prompt and are adjacent. Plain values in large pages let zstd find the repetition. The packed
# indices of a dictionary would hide it, so only columns with few distinct values use one.
_FEW_VALUES = [
    "session_id", "kind", "source", "task_id", "group_id", "user", "finish_reason", "untrainable_reason", "judge", "reason",
    "parent_evidence", "redacted_by", "policy_name",
]  # fmt: skip
_COMPRESSION = {"compression": "zstd", "compression_level": 3, "use_dictionary": _FEW_VALUES, "data_page_size": 8 << 20}
# A merged shard is written once and rarely read: Brotli's entropy coder saves 4 % over zstd -9 in the same time. Log-probabilities
# never repeat. Only their sign and exponent bytes do, so the bytes are stored side by side.
_LOGPROBS = "logprobs.list.element"
_MERGED = {**_COMPRESSION, "compression": "brotli", "compression_level": 5, "column_encoding": {_LOGPROBS: "BYTE_STREAM_SPLIT"}}
_SCHEMAS = {"turns": _TURN, "verdicts": _VERDICT}
_ARRAYS = {pa.list_(pa.int32()): "i", pa.list_(pa.float32()): "f"}  # typecodes for packing long lists of numbers
_TRANSIENT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES)
# Columns that older shards may lack; their value is then None.
_OPTIONAL_COLUMNS = frozenset(("parent_evidence", "allowed", "redacted_by", "step_reward", "episode", "notes"))
_JSON_FIELDS = ("messages", "tools", "response", "next_state", "episode", "images", "notes")
ROWS_AT_ONCE = 64  # as Python objects, rows take about five times their size in a table


T = TypeVar("T")


class UnreadableShard(Exception):
    """The file is not a readable shard of clawctl. The message gives the reason, and the caller quarantines the file."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the ids and logprobs in a shard of turns come from, as far as its writer knew; stored in the file's metadata."""

    base_model: str | None = None  # as the recipe names it
    tokenizer: str | None = None  # `model_files.tokenizer_fingerprint`
    architecture: str | None = None  # the base model's size
    weights: str | None = None  # fingerprint of the base model's weights


UNKNOWN = Origin()


# ---- a shard is published ------------------------------------------------------------------------------------------------


def write_turns(path: Path, turns: Sequence[Turn], origin: Origin = UNKNOWN) -> None:
    """Publish one trajectory shard with its rows sorted by (session, turn), so that zstd finds the repetition within a session."""
    ordered = sorted(turns, key=lambda turn: (turn.session_id, turn.turn_index, turn.created_at))
    _write(path, "turns", ordered, {name: value for name, value in asdict(origin).items() if value is not None})


def write_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Publish one verdict shard. It has the same stem as the trajectory shard that it judges."""
    _write(path, "verdicts", verdicts, {})


def _write(path: Path, kind: str, rows: Sequence[Turn] | Sequence[Verdict], marks: Mapping[str, str]) -> None:
    schema = schema_of(kind, marks)
    columns = [_column(field, [getattr(row, field.name) for row in rows]) for field in schema]
    publish_pieces(path, schema, [pa.table(columns, schema=schema)])


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    if field.name in _JSON_FIELDS:
        return pa.array([None if value is None else orjson.dumps(value) for value in values], field.type)
    try:
        return _packed(values, _ARRAYS[field.type])
    except (KeyError, TypeError):  # other columns, or a list with a value that is not a number
        return pa.array(values, field.type)


def _packed(values: list[Sequence[float] | None], typecode: str) -> pa.Array:
    """Return lists of numbers as Arrow data, several times as fast as `pa.array`. Raises TypeError if a list contains None."""
    flat: array[Any] = array(typecode)
    ends = [0]
    for value in values:
        flat.extend(value or ())
        ends.append(len(flat))
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.asarray(flat)), mask=missing)


def publish_pieces(path: Path, schema: pa.Schema, pieces: Iterable[pa.Table], anew: bool = False) -> None:
    """Publish a shard piece by piece. Each piece is a row group that can be read alone. A merged shard is marked in the
    metadata.
    """
    options = _MERGED if b"merged" in (schema.metadata or {}) and "messages" in schema.names else _COMPRESSION

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema, write_page_checksum=True, **options) as writer:
            for piece in pieces:
                writer.write_table(piece)
                del piece  # free it before the next one is made
        seal_footer(temporary)

    publish(path, write, anew)


def rewrite_shard(path: Path, select: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a shard by the rows that `select` returns for each piece, in the same layout. Raises UnreadableShard."""
    pieces = (kept for piece in read_pieces(path) if (kept := select(piece.table())).num_rows)
    publish_pieces(path, read_schema(path), pieces, anew=True)


def write_table(path: Path, table: pa.Table, **options: Any) -> None:
    """Write a Parquet file with checksums for its pages and footer, to be published by the caller."""
    pq.write_table(table, path, write_page_checksum=True, **options)
    seal_footer(path)


def schema_of(kind: str, marks: Mapping[str, str] = MappingProxyType({})) -> pa.Schema:
    """Return the columns of a shard of `kind` ("turns", "verdicts"), with `marks` and the identifying keys as metadata."""
    return _SCHEMAS[kind].with_metadata({"schema_version": str(SHARD_VERSIONS[kind]), "kind": kind, **marks})


# ---- reading a shard whole -----------------------------------------------------------------------------------------------


def read_turns(path: Path) -> list[Turn]:
    """Return all turns of a shard. Raises UnreadableShard."""
    with _reading(path):
        return [Turn(**row) for row in _rows("turns", read_shard(path, "turns"))]


def read_verdicts(path: Path, of: Collection[str] | None = None) -> list[Verdict]:
    """Return all verdicts of a shard, or those of the turns in `of`. Raises UnreadableShard."""
    with _reading(path):
        table = read_shard(path, "verdicts")
        if of is not None:
            table = table.filter(pc.is_in(table.column("turn_id"), value_set=pa.array(sorted(of), pa.string())))
        return [Verdict(**row) for row in _rows("verdicts", table)]


def read_columns(path: Path, kind: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of each row of a shard of `kind` ("turns", "verdicts"). Raises UnreadableShard."""
    with _reading(path):
        return _rows(kind, read_shard(path, kind, columns), columns)


def read_values(path: Path, kind: str, columns: Sequence[str]) -> dict[str, list[Any]]:
    """The same as lists by column, with equal strings as one object."""
    with _reading(path):
        return _values(kind, read_shard(path, kind, columns), columns)


def read_each(folder: Path, read: Callable[[Path], T], skip_damaged: bool = False) -> Iterator[tuple[Path, T]]:
    """Each shard of a folder with what `read` makes of it. The rows of a shard that merging replaces meanwhile come from the file
    that has them now, so a row may come twice. Raises UnreadableShard, unless damaged shards are skipped."""
    done, gone = set[Path](), True
    while gone:
        gone = False
        for path in published(folder, ".parquet"):
            if path in done:
                continue
            try:
                result = read(path)
            except UnreadableShard:
                if path.exists() and not skip_damaged:
                    raise
                gone = gone or not path.exists()
            else:
                yield path, result
            done.add(path)


def read_turn_ids(path: Path) -> list[str]:
    """Return the turn ids without decoding the other columns. Raises UnreadableShard."""
    with _reading(path):
        return [str(turn_id) for turn_id in read_table(path, ["turn_id"]).column("turn_id").to_pylist()]


def read_parents(path: Path) -> dict[str, str | None]:
    """Return the parent of each turn without decoding the other columns. Raises UnreadableShard."""
    with _reading(path):
        table = read_table(path, ["turn_id", "parent_turn_id"])
        return dict(zip(table.column("turn_id").to_pylist(), table.column("parent_turn_id").to_pylist(), strict=True))


def read_origin(path: Path) -> Origin:
    """Return the origin that the writer of a shard recorded; its fields are None if it recorded none. Raises UnreadableShard."""
    with _reading(path):
        metadata = read_schema(path).metadata or {}
        recorded = {field.name: metadata.get(field.name.encode()) for field in fields(Origin)}
        return Origin(**{name: value.decode() for name, value in recorded.items() if value is not None})


def merged_from(path: Path) -> list[str]:
    """Return the stems of the shards that were merged into this one. Raises UnreadableShard."""
    with _reading(path):
        metadata = read_schema(path).metadata or {}
        return [named(stem) for stem in orjson.loads(metadata.get(b"merged", b"[]"))]


def read_shard(path: Path, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a shard of `kind` ("turns", "verdicts") in this clawctl's schema. Raises UnreadableShard."""
    if columns is not None:
        present = set(read_schema(path).names)
        columns = [name for name in columns if name in present]
    return _migrated(path, kind, read_table(path, columns))


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table from a file that `write_table` wrote. Raises UnreadableShard for any other file."""
    with _reading(path):
        check_footer(path)
        return pq.read_table(path, columns=None if columns is None else list(columns), page_checksum_verification=True)


def read_schema(path: Path) -> pa.Schema:
    """Return the columns of a shard, including those from a newer clawctl, and its metadata. Raises UnreadableShard."""
    with _reading(path):
        check_footer(path)
        return pq.read_schema(path)


def _rows(kind: str, table: pa.Table, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a shard, or these `columns` of them, with their JSON parsed. A column that only a newer clawctl knows is
    ignored and stays in the file. A column that an older clawctl did not know is None."""
    of = _values(kind, table, columns)
    return [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]  # twice as fast as `Table.to_pylist`


def _values(kind: str, table: pa.Table, columns: Sequence[str] | None) -> dict[str, list[Any]]:
    present = [name for name in (_SCHEMAS[kind].names if columns is None else columns) if name in table.column_names]
    lacking = set(columns or ()).difference(present)
    if not lacking <= _OPTIONAL_COLUMNS:
        raise LookupError(f"no column {min(lacking - _OPTIONAL_COLUMNS)}")
    of: dict[str, list[Any]] = {}
    for name in present:
        values = table.column(name).to_pylist()
        if name in _JSON_FIELDS:
            values = [None if value is None else orjson.loads(value) for value in values]
        elif pa.types.is_string(table.schema.field(name).type):
            values = [None if value is None else sys.intern(value) for value in values]
        of[name] = values
    return of | {name: [None] * table.num_rows for name in lacking}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert every error from the bytes of a damaged file to UnreadableShard.

    Other errors are raised unchanged: running out of file descriptors, for example, must not quarantine a good file.
    """
    try:
        yield
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRORS:
            raise
        raise UnreadableShard(f"{path.name}: {error}") from error


# ---- reading a shard piece by piece --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of an open shard, decoded separately."""

    _path: Path
    _file: pq.ParquetFile
    _group: int

    @property
    def num_rows(self) -> int:
        return int(self._file.metadata.row_group(self._group).num_rows)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the piece as a table. Raises UnreadableShard."""
        with _reading(self._path):
            return self._file.read_row_group(self._group, None if columns is None else list(columns))

    def rows(self, kind: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Like `read_columns`, for this piece."""
        present = [name for name in columns if name in self._file.schema_arrow.names]
        with _reading(self._path):
            return _rows(kind, _migrated(self._path, kind, self.table(present)), columns)

    def some_rows(self, kind: str, columns: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Like `rows`, for these row indices of the piece only."""
        present = [name for name in columns if name in self._file.schema_arrow.names]
        with _reading(self._path):
            table = self.table(present).take(pa.array(indices, pa.int64()))
            return _rows(kind, _migrated(self._path, kind, table), columns)

    def turns(self, indices: Sequence[int]) -> Iterator[Turn]:
        """Yield the turns at these row indices of the piece. At most ROWS_AT_ONCE of them are Python objects at a time.

        Raises UnreadableShard before the first turn if the piece is damaged.
        """
        table = _migrated(self._path, "turns", self.table())
        if len(indices) < table.num_rows:
            table = table.take(pa.array(indices, pa.int64()))

        def few_at_a_time() -> Iterator[Turn]:
            for begin in range(0, len(indices), ROWS_AT_ONCE):
                with _reading(self._path):
                    turns = [Turn(**row) for row in _rows("turns", table.slice(begin, ROWS_AT_ONCE))]
                yield from turns

        return few_at_a_time()


def rows_at(path: Path, kind: str, columns: Sequence[str], places: Sequence[int]) -> list[dict[str, Any]]:
    """Return these columns of the rows at these ascending places, as far as the shard has them. Raises UnreadableShard."""
    rows, begin = list[dict[str, Any]](), 0
    for piece in read_pieces(path):
        if indices := [index - begin for index in places if 0 <= index - begin < piece.num_rows]:
            rows += piece.some_rows(kind, columns, indices)
        begin += piece.num_rows
    return rows


def read_pieces(path: Path) -> Iterator[Piece]:
    """Yield the row groups of a shard, in order. The file may be removed or replaced meanwhile. Raises UnreadableShard."""
    with _reading(path):
        check_footer(path)
        file = pq.ParquetFile(path, page_checksum_verification=True)
    with file:
        yield from (Piece(path, file, group) for group in range(file.num_row_groups))


# ---- shards of older versions --------------------------------------------------------------------------------------------


def _migrated(path: Path, kind: str, table: pa.Table) -> pa.Table:
    """Return the table in this clawctl's schema of `kind`. Raises UnreadableShard if its kind differs or its version is newer."""
    metadata, current = table.schema.metadata or {}, SHARD_VERSIONS[kind]
    stored_kind, version = (metadata.get(name, b"").decode(errors="replace") for name in (b"kind", b"schema_version"))
    if stored_kind != kind or not version.isdigit():
        raise UnreadableShard(f"{path.name}: expected a shard of {kind}, found {stored_kind or 'something else'}")
    if int(version) > current:
        raise UnreadableShard(f"{path.name}: {newer(version, current)}")
    if int(version) == current:
        return table
    for step in range(int(version), current):
        table = MIGRATIONS[kind, step](table)
    return table.replace_schema_metadata({**metadata, **schema_of(kind).metadata})


def _add_policy_name(turns: pa.Table) -> pa.Table:
    """Migrate from version 1 to 2: there was only one policy, and it had no name."""
    return turns.append_column("policy_name", pa.repeat(pa.scalar(DEFAULT_POLICY), turns.num_rows))


def _add_images(turns: pa.Table) -> pa.Table:
    """Migrate from version 2 to 3: the positions of images in the ids were unknown, and such turns were not trained.

    The version had to change because an older clawctl would train the ids of version 3 without the images.
    """
    return turns.append_column("images", pa.nulls(turns.num_rows, _JSON))


# Functions that convert a shard of version v to version v + 1, by kind and v. They must work on any selection of the columns.
MIGRATIONS: dict[tuple[str, int], Callable[[pa.Table], pa.Table]] = {("turns", 1): _add_policy_name, ("turns", 2): _add_images}
