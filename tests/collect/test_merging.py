"""Merging any pieces gives the same rows, and no piece exceeds its size limit."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clawctl.collect.merging import cut_pieces, merge_shards
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import UnreadableShard, merged_from, read_pieces, read_turns, read_verdicts, write_turns, write_verdicts

STEMS = ("a", "b", "c")


def turn(name: str, session: str, index: int, tokens: int = 20) -> Turn:
    return Turn(
        turn_id=name, session_id=session, parent_turn_id=None, turn_index=index, kind="main", source="serve", task_id=None,
        group_id=None, user="default", created_at=float(index), messages=[{"role": "user", "content": name}], tools=None,
        response={"role": "assistant", "content": "ok"}, next_state=None, prompt_ids=[index] * tokens, completion_ids=[1, 2],
        logprobs=[-0.5, -0.25], policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0, top_k=0, finish_reason="stop",
        outcome_reward=None, feedback=None, trainable=True, untrainable_reason=None,
    )  # fmt: skip


def publish_parts(folder: Path, tokens: int = 20) -> tuple[list[Path], list[Turn]]:
    """Six sessions of six turns; each part has two turns of each."""
    turns = [turn(f"{session}{index}", f"s{session}", index, tokens) for index in range(6) for session in range(6)]
    paths = [folder / f"{stem}.parquet" for stem in STEMS]
    for number, path in enumerate(paths):
        rows = turns[12 * number : 12 * number + 12]
        random.Random(number).shuffle(rows)
        write_turns(path, rows)
    return paths, sorted(turns, key=lambda row: (row.session_id, row.turn_index))


def damage_middle_of(path: Path) -> None:
    """Changes a byte of the messages. The header of a page has bytes that change nothing."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = (group.column(index) for index in range(group.num_columns))
    messages = next(chunk for chunk in chunks if chunk.path_in_schema == "messages")
    data = bytearray(path.read_bytes())
    data[messages.data_page_offset + messages.total_compressed_size - 4] ^= 4
    path.write_bytes(data)


def test_a_damaged_part_is_found_before_anything_is_written(tmp_path: Path) -> None:
    paths, _ = publish_parts(tmp_path)
    damage_middle_of(paths[1])
    with pytest.raises(UnreadableShard, match=r"b\.parquet"):
        merge_shards("turns", paths, tmp_path / "m.parquet", piece_bytes=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet", "c.parquet"]
    assert [len(read_turns(path)) for path in (paths[0], paths[2])] == [12, 12]


def test_parts_of_another_kind_or_whose_columns_do_not_fit_are_not_merged(tmp_path: Path) -> None:
    paths, _ = publish_parts(tmp_path)
    with pytest.raises(UnreadableShard, match="expected a shard of verdicts, found turns"):
        merge_shards("verdicts", paths, tmp_path / "m.parquet")
    for path, values in zip(paths, (["x"] * 12, [1] * 12, [2] * 12), strict=True):
        table = pq.read_table(path)
        pq.write_table(table.append_column("mood", [values]), path)
    with pytest.raises(UnreadableShard, match="its parts do not match"):
        merge_shards("turns", paths, tmp_path / "m.parquet")
    assert not (tmp_path / "m.parquet").exists()


@pytest.mark.parametrize("piece_bytes", [1, 700, 2000, 1 << 20])
def test_merged_in_any_pieces_the_rows_are_the_same(tmp_path: Path, piece_bytes: int) -> None:
    paths, expected = publish_parts(tmp_path)
    merge_shards("turns", paths, tmp_path / "m.parquet", piece_bytes)
    assert read_turns(tmp_path / "m.parquet") == expected
    assert merged_from(tmp_path / "m.parquet") == list(STEMS)
    pieces = [piece.table() for piece in read_pieces(tmp_path / "m.parquet")]
    assert len(pieces) == {1: 36, 700: 18, 2000: 6, 1 << 20: 1}[piece_bytes]  # some 300 bytes a row


def test_verdicts_keep_their_order_and_null_values(tmp_path: Path) -> None:
    paths = [tmp_path / f"{stem}.parquet" for stem in STEMS]
    verdicts = [
        Verdict(f"t{n}", None if n % 2 else 1.0, [1, None], None if n % 3 else "Say how.", [], "j", None, None) for n in range(9)
    ]
    for number, path in enumerate(paths):
        write_verdicts(path, verdicts[3 * number : 3 * number + 3])
    merge_shards("verdicts", paths, tmp_path / "m.parquet", piece_bytes=100)
    assert read_verdicts(tmp_path / "m.parquet") == verdicts
    assert read_verdicts(tmp_path / "m.parquet", of={"t7", "t2", "none"}) == [verdicts[2], verdicts[7]]


def test_no_piece_is_larger_than_it_may_be_and_a_session_is_whole_unless_it_is_larger_itself() -> None:
    #           s0         s1      s2 (9 bytes)    s3
    sessions = [0, 0, 0, 1, 1, 2, 2, 2, 3]
    sizes = [2.0, 2.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 1.0]
    assert list(cut_pieces(sessions, sizes, 7)) == [slice(0, 5), slice(5, 7), slice(7, 9)]  # 7, 6 of s2, 3 of s2 and s3
    assert list(cut_pieces(sessions, sizes, 6)) == [
        slice(0, 3),
        slice(3, 5),
        slice(5, 7),
        slice(7, 9),
    ]  # s1 alone: s2 would tear it no less
    assert list(cut_pieces(sessions, sizes, 2)) == [slice(n, n + 1) for n in (0, 1)] + [slice(2, 3), slice(3, 5)] + [
        slice(n, n + 1) for n in (5, 6, 7, 8)
    ]
    assert list(cut_pieces(sessions, sizes, 100)) == [slice(0, 9)]
    assert list(cut_pieces([], [], 7)) == []


def test_a_growing_session_counts_by_the_size_of_its_rows_not_by_their_average(tmp_path: Path) -> None:
    """Small rows around large ones: each piece is within the limit all the same."""
    rows = [replace(turn(f"t{n}", f"s{n:02d}", 0), prompt_ids=[1] * (5000 if n % 8 == 0 else 5)) for n in range(32)]
    for number in range(2):
        write_turns(tmp_path / f"{STEMS[number]}.parquet", rows[16 * number : 16 * number + 16])
    merge_shards("turns", [tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "m.parquet", piece_bytes=50_000)
    sizes = [piece.table().nbytes for piece in read_pieces(tmp_path / "m.parquet")]
    assert len(sizes) == 2  # two large rows and the rows between them: 40 kB
    assert max(sizes) < 55_000
    assert read_turns(tmp_path / "m.parquet") == rows
