"""Where a hint stands in a prompt."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.hint_places import PLACES, PUBLISHED, after_reply, read_hint_place, used_hint_place, with_hint, without_hint

NOTE = "Answer in one short sentence."
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text(max_size=40)}),
    min_size=1,
    max_size=5,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


@given(messages=MESSAGES, hint=st.text(min_size=1, max_size=40), place=st.sampled_from(PLACES))
def test_taking_a_hint_out_gives_the_messages_that_it_was_put_into(messages: list[Any], hint: str, place: Any) -> None:
    hinted = with_hint(messages, hint, place)
    assert hinted != messages
    assert without_hint(hinted, hint, place) == messages


@given(messages=MESSAGES, hint=st.text(min_size=1, max_size=40), place=st.sampled_from(PLACES))
def test_only_the_last_message_of_the_user_changes(messages: list[Any], hint: str, place: Any) -> None:
    changed = [before["role"] for before, after in zip(messages, with_hint(messages, hint, place), strict=True) if before != after]
    assert changed == (["user"] if any(message["role"] == "user" for message in messages) else [messages[-1]["role"]])


def test_each_place_has_its_form() -> None:
    texts = {place: with_hint([{"role": "user", "content": "Why?"}], NOTE, place)[0]["content"] for place in PLACES}
    assert texts == {
        "line": f"Why? {NOTE}",
        "below": f"Why?\n\n{NOTE}",
        "above": f"{NOTE}\n\nWhy?",
        "block": f"Why?\n\n[user's hint / instruction]\n{NOTE}",
    }


@pytest.mark.parametrize("place", PLACES)
def test_a_hint_that_does_not_stand_there_is_not_taken_out(place: Any) -> None:
    plain = [{"role": "user", "content": "Why?"}]
    assert without_hint(plain, NOTE, place) is None
    assert without_hint([], NOTE, place) is None
    for other in set(PLACES) - {place}:
        standing = with_hint(plain, NOTE, other)
        assert without_hint(standing, NOTE, place) in (None, [{"role": "user", "content": "Why?\n"}]), "line is a part of below"


@pytest.mark.parametrize("place", PLACES)
def test_a_message_of_parts_keeps_its_image_and_gets_a_part_of_text(place: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "image:abc"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "Why?"}]}]
    (hinted,) = with_hint(messages, NOTE, place)
    texts = [part["text"] for part in hinted["content"] if part["type"] == "text"]
    assert (image in hinted["content"], len(texts), NOTE in "".join(texts)) == (True, 2, True)
    assert texts.index("Why?") == (1 if place == "above" else 0)
    assert without_hint([hinted], NOTE, place) is None, "the trainer does not rewrite a message of parts"


def test_a_message_without_content_gets_the_hint_alone() -> None:
    assert with_hint([{"role": "user", "content": None}], NOTE, "above")[0]["content"] == f"{NOTE}\n\n"


def test_auto_is_the_recorded_place_and_before_there_is_a_record_the_published_one(run: RunDir) -> None:
    assert (used_hint_place(run, "above"), used_hint_place(run, "auto")) == ("above", "block")
    run.hint_place.write_bytes(b'{"place": "line"}')
    assert (used_hint_place(run, "above"), used_hint_place(run, "auto")) == ("above", "line")


def test_the_recorded_place_is_read(run: RunDir) -> None:
    assert read_hint_place(run) is None
    run.hint_place.write_bytes(b'{"place": "line", "followed": {}}')
    assert read_hint_place(run) == "line"
    assert PUBLISHED == "block"


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"place": "beside"}', b'{"place": ["line"]}', b'{"place": "li'])
def test_a_damaged_record_is_named_with_its_cure(run: RunDir, content: bytes) -> None:
    run.hint_place.write_bytes(content)
    with pytest.raises(ClawError, match=r"hint_place\.json") as raised:
        read_hint_place(run)
    assert raised.value.fix == "delete it; the next practice tries again"


def test_a_reply_stands_between_the_answer_and_the_request_again() -> None:
    system, request, reply = (
        {"role": role, "content": text} for role, text in (("system", "s"), ("user", "Why?"), ("user", "Too long"))
    )
    answer, result = {"role": "assistant", "content": "Because."}, {"role": "tool", "content": "0"}
    assert after_reply([system, request], answer, [reply]) == [system, request, answer, reply, request]
    assert after_reply([request, answer, result], answer, [reply]) is None, "it answered a tool's result"
    assert after_reply([request], {**answer, "tool_calls": [{}]}, [reply]) is None
    for came_back in (None, [], [result], [result, reply]):
        assert after_reply([request], answer, came_back) is None
    assert after_reply([request], None, [reply]) is None
    assert after_reply([], answer, [reply]) is None
