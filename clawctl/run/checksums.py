"""Detects damaged files: a checksum in JSON, in a Parquet footer, and for each file of a folder.

CRC-32 detects every change of up to three bits in files of this size and misses one in four billion larger ones. It is not a
signature: anyone who can write to the run directory can write a checksum. A file without a checksum, such as one that you edited,
is read without a check.
"""

import re
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import Damaged
from clawctl.run.names import below

_SEAL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\s*\Z')
_LONGEST_SEAL = 32  # bytes, including the newline after it
_FOOTER_MARK = b"CLAWCRC1"
_CHUNK = 1 << 20


def sealed(json_object: bytes) -> bytes:
    """Return a JSON object with `"crc32"` as its last key: the checksum of everything before it. The object must have at least one
    key.
    """
    head = json_object[: json_object.rindex(b"}")].rstrip()
    return b'%b,"crc32":"%08x"}' % (head, zlib.crc32(head))


def read_sealed(data: bytes) -> Any:
    """Return the JSON value in `data`, without its checksum. Raises Damaged. A value without a checksum is not checked."""
    seal = _SEAL.search(data, max(0, len(data) - _LONGEST_SEAL))
    if seal is not None and zlib.crc32(memoryview(data)[: seal.start()]) != int(seal[1], 16):
        raise Damaged("its checksum does not match: it has changed since it was written")
    if seal is None and _has_damaged_seal(data[-_LONGEST_SEAL:].rstrip()):
        raise Damaged("its checksum is damaged: it has changed since it was written")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"not JSON: {error}") from error
    if seal is not None:
        del value["crc32"]
    return value


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, without its checksum. None if the file is missing, damaged or not an object."""
    try:
        value = read_sealed(path.read_bytes())
    except (FileNotFoundError, Damaged):
        return None
    return value if isinstance(value, dict) else None


def _has_damaged_seal(end: bytes) -> bool:
    """Whether a JSON text ends in a checksum with one or two damaged characters."""
    seal = end[-20:-10] + end[-2:]
    return len(seal) == 12 and sum(a != b for a, b in zip(seal, b',"crc32":""}', strict=True)) <= 2


# ---- YAML ---------------------------------------------------------------------------------------------------------------

_YAML_HEAD = b"# Written by clawctl, its checksum is the last line. Whoever edits this file deletes both lines.\n"
_YAML_SEAL = re.compile(rb"# crc32 ([0-9a-f]{8})\n\Z")


def sealed_yaml(text: bytes) -> bytes:
    """Return a YAML document with a first line that marks it as checked and a last line with the checksum of everything before
    it.
    """
    body = _YAML_HEAD + text.rstrip(b"\n") + b"\n"
    return b"%b# crc32 %08x\n" % (body, zlib.crc32(body))


def check_yaml(data: bytes) -> None:
    """Raises Damaged if a document with a checksum has changed or is truncated. A document without a checksum is not checked, but
    must not be empty.
    """
    seal = _YAML_SEAL.search(data)
    if seal is not None and zlib.crc32(data[: seal.start()]) != int(seal[1], 16):
        raise Damaged("its checksum does not match: it has changed since clawctl wrote it")
    if seal is None and data.startswith(_YAML_HEAD):
        raise Damaged("its last line, the checksum, is missing or damaged")
    if seal is None and _YAML_HEAD.startswith(data.strip()):
        raise Damaged("it is empty")


def is_sealed_yaml(data: bytes) -> bool:
    """Whether clawctl wrote the document, not a person."""
    return data.startswith(_YAML_HEAD)


# ---- Parquet -------------------------------------------------------------------------------------------------------------


def seal_footer(path: Path) -> None:
    """Write the footer's checksum before the footer, where Parquet leaves space. Pages have their own checksums."""
    with path.open("r+b") as file:
        offset, footer = _footer(file)
        file.seek(offset)
        file.write(_FOOTER_MARK + zlib.crc32(footer).to_bytes(4, "big") + footer)


def check_footer(path: Path) -> None:
    """Raises Damaged if the footer has changed. A footer without a checksum is not checked."""
    with path.open("rb") as file:
        offset, footer = _footer(file)
        file.seek(max(0, offset - 12))
        mark = file.read(min(12, offset))
    if mark[:8] == _FOOTER_MARK and zlib.crc32(footer) != int.from_bytes(mark[8:], "big"):
        raise Damaged("the footer's checksum does not match: it has changed since it was written")


def _footer(file: Any) -> tuple[int, bytes]:
    """Return the offset of the footer in an open Parquet file, and the bytes from there to the end."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    end = file.read(8)
    offset = size - 8 - int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or offset < 4:
        raise Damaged("not a Parquet file, or its end is missing")
    file.seek(offset)
    return offset, file.read()


# ---- folders -------------------------------------------------------------------------------------------------------------


def checksums_of(folder: Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """Return the CRC-32 of each file below `folder`, by relative path. `leave_out` names files and folders directly in it."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    files = sorted(path for path in paths if path.relative_to(folder).parts[0] not in leave_out)
    with ThreadPoolExecutor(4) as threads:  # zlib releases the GIL
        return dict(zip((str(path.relative_to(folder)) for path in files), threads.map(_checksum, files), strict=True))


def check_folder(folder: Path, checksums: dict[str, str]) -> None:
    """Raises Damaged if a file of `wanted` is missing or has changed."""
    if not isinstance(checksums, dict):
        raise Damaged("its list of files is missing or damaged")
    paths = {name: below(folder, name) for name in checksums}
    missing = sorted(name for name, path in paths.items() if not path.is_file())
    if missing:
        raise Damaged(f"{missing[0]} is missing")
    with ThreadPoolExecutor(4) as threads:
        for name, checksum in zip(paths, threads.map(_checksum, paths.values()), strict=True):
            if checksum != checksums[name]:
                raise Damaged(f"{name} has changed since it was written: its checksum does not match")


def _checksum(path: Path) -> str:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"
