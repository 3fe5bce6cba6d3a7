"""Responses stored for `previous_response_id` continue unchanged, within their limits."""

from typing import Any

import pytest

from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.serve.dialects import responses
from clawctl.serve.stored_responses import StoredResponses

SAID = {"role": "assistant", "content": "yes"}


def asked(text: str, **body: Any) -> GenerationRequest:
    return responses.read({"input": text, **body}, "tiny")


def name_of(number: int) -> str:
    return f"resp{number:024}"


def kept(stored: StoredResponses, numbers: range, key: str = "me", text: str = "hello") -> list[int]:
    """Those of the responses that are there."""
    for number in numbers:
        stored.store(key, asked(text), {"id": name_of(number), "output": []}, SAID)
    return [number for number in numbers if is_there(stored, number, key)]


def is_there(stored: StoredResponses, number: int, key: str = "me") -> bool:
    try:
        return bool(stored.get(key, name_of(number)))
    except Refusal:
        return False


def test_a_stored_conversation_continues_unchanged() -> None:
    stored = StoredResponses()
    stored.store("me", asked("2 + 2?", instructions="be kind"), {"id": name_of(1)}, SAID)
    on = stored.continued("me", asked("sure?", previous_response_id=name_of(1)))
    assert [(message["role"], message["content"]) for message in on.sent_messages] == [
        ("user", "2 + 2?"),
        ("assistant", "yes"),
        ("user", "sure?"),
    ]
    with pytest.raises(Refusal, match="not found"):
        stored.continued("other", asked("sure?", previous_response_id=name_of(1)))


def test_the_one_unused_for_longest_goes_first_and_each_key_has_its_own_room() -> None:
    stored = StoredResponses(max_count=3)
    assert kept(stored, range(3)) == [0, 1, 2]
    assert is_there(stored, 0)
    assert kept(stored, range(7, 8), "other") == [7]
    kept(stored, range(3, 4))
    assert [number for number in range(4) if is_there(stored, number)] == [0, 2, 3]


def test_bytes_are_those_that_are_held() -> None:
    """`{"id":"resp…","output":[]}` of 49 bytes and a conversation of 1,000 letters with 103 bytes around them: two are 2,304."""
    stored = StoredResponses(max_bytes=2304)
    assert kept(stored, range(5), text="x" * 1000) == [3, 4]
    stored.forget("me", name_of(3))
    assert kept(stored, range(5, 6), text="x" * 1000) == [5]
    assert is_there(stored, 4)
    assert kept(StoredResponses(max_bytes=2303), range(5), text="x" * 1000) == [4]
