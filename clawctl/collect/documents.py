"""Reads a text file as JSON values: JSONL or one JSON document, plain, gzip or zstd. Errors name the line."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa

from clawctl.errors import ClawError

NOTHING = "nothing was imported"
_MAX_GROWTH = 100  # as a multiple of its size; JSON compresses to between a tenth and a thirtieth
_MIN_LIMIT = 32 << 20  # bytes to which any file may decompress
_PIECE = 1 << 20  # bytes
_BOM = b"\xef\xbb\xbf"


def read_file(file: Path) -> bytes:
    """Return the file's text in UTF-8, decompressed and without a byte order mark. Raises ClawError."""
    try:
        data = _unpacked(file, file.read_bytes()).removeprefix(_BOM)
    except FileNotFoundError as error:
        raise ClawError(f"there is no file {file}", "check the path", 2) from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise ClawError(f"{file} cannot be read: {error}", "pass a complete JSONL file: plain, gzip or zstd", 2) from error
    if data[:4] == b"PAR1":
        raise ClawError(f"{file} is Parquet", "convert it to JSONL; use `clawctl export` for the shards of a run", 2)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ClawError(f"{file}, line {line}: not UTF-8", f"convert it (`iconv -t UTF-8`); {NOTHING}", 2) from error
    if not data.strip():
        raise ClawError(f"{file} is empty", f"{NOTHING}; `clawctl docs data` describes the format", 2)
    return data


def _unpacked(file: Path, data: bytes) -> bytes:
    """Return the data, decompressed as a stream. Raises ClawError if the result becomes implausibly large."""
    stream: IO[bytes] | pa.CompressedInputStream
    if data[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        stream = pa.CompressedInputStream(pa.BufferReader(data), "zstd")
    else:
        return data
    limit = max(_MIN_LIMIT, _MAX_GROWTH * len(data))
    pieces, size = list[bytes](), 0
    while piece := bytes(stream.read(_PIECE)):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            problem = f"{file} decompresses to more than {limit >> 20} MB, over {size // len(data)} times its size"
            raise ClawError(problem, "if you trust the file, decompress it yourself and import the plain file", 2)
    return b"".join(pieces)


def values(file: Path, data: bytes) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, "line 7", value) for JSONL, or (number, "item 7", value) for a document. Raises ClawError.

    A document is one list, or one object over several lines.
    """
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    try:
        first = orjson.loads(lines[0][1])
    except orjson.JSONDecodeError as error:
        yield from _document(file, data, lines, error)
        return
    if isinstance(first, list) and len(lines) == 1:
        yield from ((number, f"item {number}", value) for number, value in enumerate(first, 1))
        return
    for number, line in lines:
        try:
            yield number, f"line {number}", orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise _json_error(file, number, error) from error


def _document(
    file: Path, data: bytes, lines: list[tuple[int, bytes]], in_first: orjson.JSONDecodeError
) -> Iterator[tuple[int, str, Any]]:
    try:
        whole = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        opened = lines[0][1].strip() in (b"[", b"{") or in_first.msg.startswith("unexpected end")
        number, cause = (error.lineno, error) if opened and len(lines) > 1 else (lines[0][0], in_first)
        raise _json_error(file, number, cause) from error
    for number, value in enumerate(whole if isinstance(whole, list) else [whole], 1):
        yield number, f"item {number}", value


def _json_error(file: Path, number: int, error: orjson.JSONDecodeError) -> ClawError:
    problem = f"{file}, line {number}: not JSON at column {error.colno}: {error.msg}"
    return ClawError(problem, f"fix or remove this line; {NOTHING}", 2)
