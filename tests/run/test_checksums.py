"""A flipped bit or a truncated file is never read as valid data."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawctl.errors import Damaged
from clawctl.run.checksums import check_folder, checksums_of, read_sealed, sealed
from clawctl.run.rows import Verdict
from clawctl.run.shards import UnreadableShard, read_table, read_turn_ids, read_verdicts, write_verdicts

VERDICTS = [Verdict(f"t{i}", 1.0, [1, None, 1], "Say how.", ["Say how."], "crafts@0", None, 0.2) for i in range(8)]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@pytest.mark.parametrize(
    "text", [b'{"turn_id":"t1","reward":1.0}', b'{\n  "offsets": {\n    "a.jsonl": 12\n  }\n}', b'{"a":{"b":{}}}']
)
def test_no_flipped_bit_and_no_cut_of_a_sealed_object_reads_as_something_else(text: bytes) -> None:
    data = sealed(text)
    value = read_sealed(data)
    assert "crc32" not in value
    assert read_sealed(text) == value
    read: list[object] = []
    for damaged in [*(flipped(data, bit) for bit in range(8 * len(data))), *(data[:end] for end in range(len(data)))]:
        try:
            content = read_sealed(damaged)
        except Damaged:
            continue
        read.append({key: content[key] for key in value})
    assert all(result == value for result in read)  # only the seal's own name or a space was hit


def test_a_handwritten_object_is_read_as_it_is() -> None:
    assert read_sealed(b'{"a": 1}\n') == {"a": 1}
    with pytest.raises(Damaged, match="not JSON"):
        read_sealed(b'{"a": 1')
    with pytest.raises(Damaged, match="not JSON"):
        read_sealed(b"\xff\xfe")


@pytest.mark.parametrize("read", [read_verdicts, read_turn_ids])
def test_no_flipped_bit_of_a_shard_reads_as_something_else(tmp_path: Path, read: Callable[[Path], list[object]]) -> None:
    path = tmp_path / "a.parquet"
    write_verdicts(path, VERDICTS)
    good, want = path.read_bytes(), read(path)
    refused = 0
    for bit in random.Random(1).sample(range(8 * len(good)), 1500):
        path.write_bytes(flipped(good, bit))
        try:
            assert read(path) == want, f"bit {bit} of {8 * len(good)}"
        except UnreadableShard:
            refused += 1
    assert refused > 500  # the others are in columns that were not read, and in places without a meaning


def test_a_shard_from_before_there_were_checksums_is_read_and_any_reader_reads_ours(tmp_path: Path) -> None:
    table = pa.table({"turn_id": ["a", "b"]})
    pq.write_table(table, tmp_path / "old.parquet")
    assert read_table(tmp_path / "old.parquet").equals(table)
    write_verdicts(tmp_path / "new.parquet", VERDICTS)
    assert pq.read_table(tmp_path / "new.parquet").num_rows == 8


def test_a_changed_folder_is_reported_with_the_changed_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "deep" / "b").write_bytes(b"second")
    wanted = checksums_of(tmp_path)
    check_folder(tmp_path, wanted)
    (tmp_path / "deep" / "b").write_bytes(b"secone")
    with pytest.raises(Damaged, match="deep/b has changed since it was written"):
        check_folder(tmp_path, wanted)
    (tmp_path / "a").unlink()
    with pytest.raises(Damaged, match="a is missing"):
        check_folder(tmp_path, wanted)
