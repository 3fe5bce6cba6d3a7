"""Merges several shards into one with bounded memory: one part and one piece of the new shard are decoded at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from clawctl.run.shards import Origin, UnreadableShard, publish_pieces, read_shard, schema_of

PIECE_BYTES = 16 << 20  # decoded; about the memory that a reader of a merged shard needs at a time

_Numbers = np.ndarray[Any, np.dtype[Any]]


def merge_shards(kind: str, paths: Sequence[Path], target: Path, piece_bytes: int = PIECE_BYTES) -> None:
    """Publish one shard with the rows of several, and their stems in its metadata.

    Rows of a session become adjacent and ordered, at the position of the session's first row. Verdicts stay as they are. Every part
    is read once to find its rows, then again for each piece that contains rows of it. A session is split only if it exceeds a
    piece. Raises UnreadableShard; nothing is published then.
    """
    contents = _Contents(kind)
    for path in paths:
        contents.add(read_shard(path, kind))
    schema = contents.schema(target, [path.stem for path in paths])
    parts, rows, pieces = contents.arranged(piece_bytes)
    publish_pieces(target, schema, (_gathered(kind, paths, parts[piece], rows[piece], schema) for piece in pieces))


class _Contents:
    """The rows in the parts of a merge: the session of each row, its order in the session and its size."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._schemas: list[pa.Schema] = []
        self._numbers: dict[str, int] = {}  # number of each session, in order of appearance
        self._sessions: list[_Numbers] = []  # one array per part, here and below
        self._order: list[tuple[_Numbers, _Numbers]] = []
        self._sizes: list[_Numbers] = []

    def add(self, table: pa.Table) -> None:
        self._schemas.append(table.schema)
        self._sizes.append(_row_sizes(table))
        if self._kind == "turns":
            names = table.column("session_id").to_pylist()
            sessions = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
            order = table.column("turn_index").to_numpy(), table.column("created_at").to_numpy()
        else:
            begin = sum(map(len, self._sessions))
            sessions, zeros = list(range(begin, begin + table.num_rows)), np.zeros(table.num_rows)
            order = zeros, zeros
        self._sessions.append(np.array(sessions, np.int64))
        self._order.append(order)

    def schema(self, target: Path, stems: Sequence[str]) -> pa.Schema:
        """Return the known columns, columns that a newer clawctl added to a part, and the origin that all parts share."""
        marked = schema_of(self._kind)
        metadata = [schema.metadata or {} for schema in self._schemas]
        added = [pa.schema([field for field in schema if field.name not in marked.names]) for schema in self._schemas]
        try:
            all_added = pa.unify_schemas(added)
        except pa.ArrowException as error:
            raise UnreadableShard(f"{target.name}: its parts do not match: {error}") from error
        names = [field.name.encode() for field in fields(Origin) if field.name.encode() in metadata[0]]
        same = {name: metadata[0][name] for name in names if all(part.get(name) == metadata[0][name] for part in metadata)}
        return pa.schema([*marked, *all_added], {**same, **marked.metadata, b"merged": orjson.dumps(list(stems))})

    def arranged(self, piece_bytes: int) -> tuple[_Numbers, _Numbers, list[slice]]:
        """Return for each row to write, in order, its part and its row number there, and the division into pieces."""
        parts = np.repeat(np.arange(len(self._sizes)), list(map(len, self._sizes)))
        rows = np.concatenate([np.arange(len(sizes)) for sizes in self._sizes])
        sessions, sizes = np.concatenate(self._sessions), np.concatenate(self._sizes)
        indices, times = (np.concatenate(column) for column in zip(*self._order, strict=True))
        order = np.lexsort((times, indices, sessions))
        return parts[order], rows[order], list(cut_pieces(sessions[order].tolist(), sizes[order].tolist(), piece_bytes))


def cut_pieces(sessions: Sequence[int], sizes: Sequence[float], limit: int) -> Iterator[slice]:
    """Yield pieces of at most `limit` bytes, but at least one row. Cuts are between sessions, or within a session larger than a
    piece.
    """
    start = border = 0
    piece_size = session_size = 0.0  # bytes since `start`, and since `border`
    for index, (session, size) in enumerate(zip(sessions, sizes, strict=True)):
        if index and session != sessions[index - 1]:
            border, session_size = index, 0.0
        while piece_size + size > limit and index > start:
            cut = border if border > start else index
            yield slice(start, cut)
            start, piece_size = cut, session_size if cut == border else 0.0
        piece_size, session_size = piece_size + size, session_size + size
    if sessions:
        yield slice(start, len(sessions))


def _gathered(kind: str, paths: Sequence[Path], parts: _Numbers, rows: _Numbers, schema: pa.Schema) -> pa.Table:
    """Return these rows of these parts, in this order. Raises UnreadableShard."""
    tables, positions = [], []
    pa.default_memory_pool().release_unused()  # memory of the previous piece
    for part in np.unique(parts):
        indices = np.flatnonzero(parts == part)
        tables.append(_fitted(read_shard(paths[part], kind).take(rows[indices]), schema))
        positions.append(indices)
    return pa.concat_tables(tables).take(np.argsort(np.concatenate(positions)))


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    size, names = len(table), set(table.schema.names)
    columns = [table.column(field.name).cast(field.type) if field.name in names else pa.nulls(size, field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _row_sizes(table: pa.Table) -> _Numbers:
    """Estimate the bytes that each row takes in memory."""
    sizes = np.zeros(table.num_rows)
    for column in table.columns:
        if pa.types.is_string(column.type):
            lengths, width = pc.binary_length(column), 1
        elif pa.types.is_list(column.type) and pa.types.is_primitive(column.type.value_type):
            lengths, width = pc.list_value_length(column), column.type.value_type.bit_width // 8
        else:
            sizes += column.nbytes / max(1, table.num_rows)
            continue
        sizes += width * pc.fill_null(lengths, 0).to_numpy()
    return sizes
