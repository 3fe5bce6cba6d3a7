"""Reading captures/, and quarantining damaged lines."""

import orjson
import pytest
from made_exchanges import answer, append, asked, line, user

from clawctl.collect.captures import BadLine, Captures, parse_exchange
from clawctl.collect.rows import ClosedTurn
from clawctl.run.directory import RunDir, open_run
from clawctl.run.lines import CHUNK


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


def ids(captures: Captures) -> list[str]:
    return [entry.exchange.exchange_id for entry in captures.read()]


def test_lines_of_several_writers_come_in_the_order_of_time_and_each_once(run) -> None:
    exchanges = [asked([user(str(i))], answer("ok"), at=float(i)) for i in range(6)]
    append(run.captures / "a-0.jsonl", exchanges[0], exchanges[3])
    append(run.captures / "b-0.jsonl", exchanges[1], exchanges[2])
    captures = Captures(run)
    assert ids(captures) == [e.exchange_id for e in exchanges[:4]]
    append(run.captures / "b-0.jsonl", exchanges[5])
    append(run.captures / "b-1.jsonl", exchanges[4])
    assert ids(captures) == [e.exchange_id for e in exchanges[4:]]
    assert ids(captures) == []


def test_a_line_longer_than_a_chunk_is_one_line(run) -> None:
    exchanges = [asked([user(text)], answer("ok")) for text in ("short", "long " * CHUNK, "short")]
    append(run.captures / "a-0.jsonl", *exchanges)
    assert ids(Captures(run)) == [e.exchange_id for e in exchanges]


def test_a_line_without_its_end_waits_until_it_has_one(run) -> None:
    path = run.captures / "a-0.jsonl"
    whole = line(asked([user("hi")], answer("hello")))
    path.write_bytes(whole + whole[:40])
    captures = Captures(run)
    assert len(ids(captures)) == 1
    assert (ids(captures), captures.quarantined) == ([], 0)
    with path.open("ab") as file:
        file.write(whole[40:])
    assert len(ids(captures)) == 1


def test_a_torn_line_is_quarantined_and_later_lines_are_read(run) -> None:
    torn, following = asked([user("hi")], answer("hello")), asked([user("ho")], answer("ok"))
    path = run.captures / "a-0.jsonl"
    path.write_bytes(line(torn)[:60] + b"\n" + line(following))
    captures = Captures(run)
    assert (ids(captures), captures.quarantined) == ([following.exchange_id], 1)
    assert (run.quarantine / "a-0-0.jsonl").read_bytes() == line(torn)[:60] + b"\n"
    assert "a-0.jsonl at byte 0: not JSON" in (run.quarantine / "a-0-0.jsonl.reason.txt").read_text()


def test_an_exchange_glued_behind_a_torn_line_is_not_lost(run) -> None:
    torn, following = asked([user('say {"exchange_id": 1}')], answer("hello")), asked([user('{"exchange_id":"x"}')], answer("ok"))
    (run.captures / "a-0.jsonl").write_bytes(line(torn)[:-20] + line(following))
    captures = Captures(run)
    assert (ids(captures), captures.quarantined) == ([following.exchange_id], 1)
    assert "incomplete line" in (run.quarantine / "a-0-0.jsonl.reason.txt").read_text()


def test_a_restart_puts_the_same_line_aside_once(run) -> None:
    (run.captures / "a-0.jsonl").write_bytes(b"nonsense\n" + line(asked([user("hi")], answer("hello"))))
    for _ in range(2):
        assert len(ids(Captures(run))) == 1
    assert sorted(path.name for path in run.quarantine.iterdir()) == ["a-0-0.jsonl", "a-0-0.jsonl.reason.txt"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema_version": 99}, "schema version 99, written by a newer clawctl; this clawctl reads version 1, so update it"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"hints": None}, "hints"),
        ({"response": "hello"}, "response"),
        ({"completion_ids": [1]}, "1 completion ids but 2 logprobs"),
        ({"prompt_ids": ["1"]}, "prompt_ids"),
        ({"prompt_ids": [2**31]}, "prompt_ids"),
        ({"logprobs": [None, 0.0]}, "logprobs"),
        ({"created_at": "now"}, "created_at"),
        ({"finish_reason": 3}, "finish_reason"),
        ({"exchange_id": None}, "exchange_id"),
        ({"key": ""}, "empty"),
        ({"prompt_ids": [-1]}, "prompt_ids"),
        ({"policy_version": 2**63}, "policy_version"),
    ],
)
def test_a_line_of_another_shape_is_refused_with_the_reason(changes, reason) -> None:
    row = orjson.loads(line(asked([user("hi")], answer("hello"))))
    with pytest.raises(BadLine, match=reason):
        parse_exchange(orjson.dumps(row | changes))
    assert parse_exchange(orjson.dumps(row | {"schema_version": 1})).exchange_id == row["exchange_id"]


def test_a_line_that_lacks_a_field_or_is_no_object_is_refused() -> None:
    row = orjson.loads(line(asked([user("hi")], answer("hello"))))
    del row["key"]
    for bad in (orjson.dumps(row), b"[]", b"", b"\xff\xfe", b'{"messages":' + b"[" * 2000):
        with pytest.raises(BadLine):
            parse_exchange(bad)


def test_a_field_that_a_newer_serve_wrote_is_passed_over_and_the_line_stays_as_it_is(run) -> None:
    exchange = asked([user("hi")], answer("hello"))
    newer = orjson.dumps({**orjson.loads(line(exchange)), "colour": "red", "schema_version": 1}) + b"\n"
    (run.captures / "a-0.jsonl").write_bytes(newer)
    captures = Captures(run)
    assert (ids(captures), captures.quarantined) == ([exchange.exchange_id], 0)
    assert (run.captures / "a-0.jsonl").read_bytes() == newer


def test_a_line_without_a_field_that_every_exchange_has_is_refused() -> None:
    row = orjson.loads(line(asked([user("hi")], answer("hello"))))
    del row["prompt_ids"]
    with pytest.raises(BadLine, match="prompt_ids"):
        parse_exchange(orjson.dumps(row))


def test_the_allowed_tokens_are_stored_with_the_turn() -> None:
    exchange = parse_exchange(line(asked([user("hi")], answer("{}"), allowed="c2V0cw==")).rstrip())
    turn = ClosedTurn(exchange, "s1", None, 0, "main", [user("thanks")], repeated=False).row()
    assert (turn.allowed, turn.trainable) == ("c2V0cw==", True)
    with pytest.raises(BadLine, match="allowed"):
        parse_exchange(line(asked([user("hi")], answer("{}"), allowed=["sets"])).rstrip())
