from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawctl.collect.merging import merge_shards
from clawctl.privacy.rewriting import rewrite_parquet
from clawctl.run.rows import Turn, Verdict
from clawctl.run.shards import (
    Origin,
    UnreadableShard,
    merged_from,
    read_columns,
    read_each,
    read_origin,
    read_pieces,
    read_table,
    read_turn_ids,
    read_turns,
    read_values,
    read_verdicts,
    write_table,
    write_turns,
    write_verdicts,
)

TURN = Turn(
    turn_id="t1", session_id="s1", parent_turn_id=None, turn_index=0, kind="main", source="serve", task_id=None, group_id=None,
    user="default", created_at=1.5, messages=[{"role": "user", "content": "2 + 2? é"}], tools=None,
    response={"role": "assistant", "content": "4"}, next_state=[{"role": "user", "content": "thanks"}], prompt_ids=[1, 2, 3],
    completion_ids=[4, 5], logprobs=[-0.5, -0.25], policy_version=3, policy_version_end=4, temperature=1.0, top_p=1.0, top_k=0,
    finish_reason="stop", outcome_reward=None, feedback=None, trainable=True, untrainable_reason=None,
)  # fmt: skip
VERDICT = Verdict("t1", -1.0, [-1, None, -1], "Say how.", ["Say how.", "Show steps."], "crafts@0 prompt 1", None, 0.2)


def test_turns_and_verdicts_come_back_as_they_were_written(tmp_path: Path) -> None:
    bare = replace(
        TURN, turn_id="t0", response=None, next_state=None, prompt_ids=None, completion_ids=None, logprobs=None,
        policy_version=None, trainable=False, untrainable_reason="no token ids",
    )  # fmt: skip
    write_turns(tmp_path / "a.parquet", [TURN, bare])
    assert read_turns(tmp_path / "a.parquet") == [TURN, bare]
    write_verdicts(tmp_path / "b.parquet", [VERDICT])
    assert read_verdicts(tmp_path / "b.parquet") == [VERDICT]


def test_rows_of_a_session_lie_together_in_order(tmp_path: Path) -> None:
    rows = [
        replace(TURN, turn_id=name, session_id=session, turn_index=index)
        for name, session, index in [("b1", "b", 1), ("a1", "a", 1), ("b0", "b", 0), ("a0", "a", 0)]
    ]
    write_turns(tmp_path / "a.parquet", rows)
    assert read_turn_ids(tmp_path / "a.parquet") == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_a_damaged_shard_is_unreadable_and_nothing_worse(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    write_turns(path, [TURN])
    data = bytearray(path.read_bytes())
    damaged = {"truncated": data[: len(data) // 2], "flipped": data[:-20] + bytes(20), "empty": b"", "text": b"hello\n"}[damage]
    path.write_bytes(bytes(damaged))
    with pytest.raises(UnreadableShard, match=r"a\.parquet"):
        read_turns(path)
    with pytest.raises(UnreadableShard, match=r"a\.parquet"):
        read_turn_ids(path)


def test_a_shard_of_another_kind_or_a_newer_schema_is_unreadable(tmp_path: Path) -> None:
    write_verdicts(tmp_path / "v.parquet", [VERDICT])
    with pytest.raises(UnreadableShard, match="expected a shard of turns, found verdicts"):
        read_turns(tmp_path / "v.parquet")
    newer = pq.read_table(tmp_path / "v.parquet").replace_schema_metadata({"kind": "verdicts", "schema_version": "99"})
    pq.write_table(newer, tmp_path / "v.parquet")
    with pytest.raises(
        UnreadableShard, match="schema version 99, written by a newer clawctl; this clawctl reads version 1, so update it"
    ):
        read_verdicts(tmp_path / "v.parquet")


def as_version(path: Path, version: int) -> None:
    """The same shard as a clawctl of version 1 or 2 wrote it."""
    table, later = pq.read_table(path), {1: ["policy_name", "images"], 2: ["images"]}[version]
    table = table.drop_columns(later).replace_schema_metadata({**table.schema.metadata, b"schema_version": str(version).encode()})
    write_table(path, table)


def test_a_shard_of_version_2_has_no_images(tmp_path: Path) -> None:
    path, shown = tmp_path / "a.parquet", replace(TURN, images=[{"sha256": "a", "start": 0, "tokens": 1}])
    write_turns(path, [shown])
    assert read_turns(path) == [shown]
    as_version(path, 2)
    assert read_turns(path) == [TURN]
    assert read_columns(path, "turns", ("turn_id", "images")) == [{"turn_id": "t1", "images": None}]
    names = ("turn_id", "images", "messages")
    (row,) = read_columns(path, "turns", names)
    assert read_values(path, "turns", names) == {name: [row[name]] for name in names}


def test_a_shard_of_version_1_is_read_as_turns_of_the_default_policy_and_merged_with_later_ones(tmp_path: Path) -> None:
    older, newer = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_turns(older, [TURN])
    as_version(older, 1)
    later = replace(TURN, turn_id="t2", turn_index=1, policy_name="anna")
    write_turns(newer, [later])
    assert read_turns(older) == [TURN]
    assert read_columns(older, "turns", ("turn_id", "policy_name")) == [{"turn_id": "t1", "policy_name": "default"}]
    assert [turn for piece in read_pieces(older) for turn in piece.turns([0])] == [TURN]
    assert read_columns(older, "turns", ("user",)) == [{"user": "default"}]
    merge_shards("turns", [older, newer], tmp_path / "c.parquet")
    assert read_turns(tmp_path / "c.parquet") == [TURN, later]
    rewrite_parquet(older, {"none"})
    assert read_turns(older) == [TURN]


def test_a_shard_without_a_column_that_it_must_have_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_turns(path, [TURN])
    table = pq.read_table(path)
    write_table(path, table.drop_columns(["user"]))
    with pytest.raises(UnreadableShard, match=r"a\.parquet: .*user"):
        read_columns(path, "turns", ("turn_id", "user"))


def with_column(path: Path, name: str, values: list) -> None:
    """As a newer clawctl of the same schema version would have written it."""
    table = pq.read_table(path)
    pq.write_table(table.append_column(name, pa.array(values)).replace_schema_metadata(table.schema.metadata), path)


def test_a_column_that_a_newer_clawctl_added_is_passed_over_by_readers_and_kept_by_a_merge(tmp_path: Path) -> None:
    newer, older = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_turns(newer, [TURN])
    with_column(newer, "mood", ["fine"])
    write_turns(older, [replace(TURN, turn_id="t2", turn_index=1)])
    assert read_turns(newer) == [TURN]
    assert read_columns(newer, "turns", ("turn_id", "user")) == [{"turn_id": "t1", "user": "default"}]
    merge_shards("turns", [newer, older], tmp_path / "c.parquet")
    assert [turn.turn_id for turn in read_turns(tmp_path / "c.parquet")] == ["t1", "t2"]
    assert pq.read_table(tmp_path / "c.parquet").column("mood").to_pylist() == ["fine", None]
    write_verdicts(tmp_path / "v.parquet", [VERDICT])
    with_column(tmp_path / "v.parquet", "mood", [None])
    assert read_verdicts(tmp_path / "v.parquet") == [VERDICT]


def test_a_merged_shard_has_the_origin_that_all_its_parts_have(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path, tokenizer in zip(paths, ("t1", "t2"), strict=True):
        write_turns(path, [TURN], Origin("crafts", tokenizer))
    merge_shards("turns", paths, tmp_path / "c.parquet")
    assert read_origin(tmp_path / "c.parquet") == Origin("crafts", None)
    assert merged_from(tmp_path / "c.parquet") == ["a", "b"]


def test_rows_of_a_shard_that_is_merged_while_a_folder_is_read_are_not_lost(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "abz"]
    for path in paths:
        write_turns(path, [replace(TURN, turn_id=path.stem)])

    def read(path: Path) -> list[str]:
        if path.stem == "b" and path.exists():  # collect merges the first two after the listing, under a name before those to come
            merge_shards("turns", paths[:2], tmp_path / "aa.parquet")
            for part in paths[:2]:
                part.unlink()
        return read_turn_ids(path)

    rows = [turn_id for _, shard in read_each(tmp_path, read) for turn_id in shard]
    assert set(rows) == {"a", "b", "z"}
    (tmp_path / "y.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnreadableShard):
        list(read_each(tmp_path, read_turn_ids))
    rows = [turn_id for _, shard in read_each(tmp_path, read_turn_ids, skip_damaged=True) for turn_id in shard]
    assert sorted(rows) == ["a", "b", "z"]


def test_a_turn_that_is_trained_must_be_exact() -> None:
    with pytest.raises(ValueError, match="trainable without exact ids"):
        replace(TURN, logprobs=None)
    with pytest.raises(ValueError, match="logprobs do not match"):
        replace(TURN, logprobs=[-0.5])
    with pytest.raises(ValueError, match="trainable=True with reason 'side turn'"):
        replace(TURN, untrainable_reason="side turn")


def test_a_shard_that_lost_rows_is_as_dense_as_before(tmp_path: Path) -> None:
    """A session repeats its prompt in each row: the layout lets the compressor see it, and a rewrite must not give that up."""
    ids = [(7 * number * number) % 150_001 for number in range(20_000)]
    text = " ".join(f"word{number}" for number in ids[:5_000])
    turns = [
        replace(TURN, turn_id=f"t{index}", turn_index=index, prompt_ids=[*ids, index], messages=[{"role": "user", "content": text}])
        for index in range(12)
    ]
    write_turns(tmp_path / "a.parquet", turns[:6])
    write_turns(tmp_path / "b.parquet", turns[6:])
    merge_shards("turns", [tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "m.parquet")
    for name in ("a", "m"):
        path = tmp_path / f"{name}.parquet"
        before = path.stat().st_size
        assert rewrite_parquet(path, {"t0"}) == 1
        assert path.stat().st_size < 1.1 * before
    assert merged_from(tmp_path / "m.parquet") == ["a", "b"]
    assert read_turns(tmp_path / "m.parquet") == turns[1:]


def test_a_shard_that_lacks_a_later_column_has_nothing_in_it(tmp_path: Path) -> None:
    """Shards that were written before the evidence of a parent was kept, or before the rule that found a secret was."""
    write_turns(tmp_path / "now.parquet", [replace(TURN, parent_evidence="handle")])
    table = read_table(tmp_path / "now.parquet")
    write_table(tmp_path / "before.parquet", table.drop_columns(["parent_evidence", "redacted_by"]))
    write_table(tmp_path / "between.parquet", table.drop_columns(["redacted_by"]))
    assert read_turns(tmp_path / "between.parquet") == [replace(TURN, parent_evidence="handle")]
    assert read_columns(tmp_path / "between.parquet", "turns", ("parent_evidence", "redacted_by")) == [
        {"parent_evidence": "handle", "redacted_by": None}
    ]
    columns = ("turn_id", "parent_evidence")
    assert read_columns(tmp_path / "now.parquet", "turns", columns) == [{"turn_id": "t1", "parent_evidence": "handle"}]
    assert read_columns(tmp_path / "before.parquet", "turns", columns) == [{"turn_id": "t1", "parent_evidence": None}]
    assert read_turns(tmp_path / "before.parquet") == [TURN]
