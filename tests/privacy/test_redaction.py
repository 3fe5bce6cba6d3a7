"""No secret is written, other text is unchanged, and a conversation is still recognised."""

from collections import Counter
from typing import Any

import orjson
import pytest

from clawctl.collect.canonical import message_digest
from clawctl.collect.sessions import Sessions
from clawctl.config import Recipe
from clawctl.privacy.finders import KINDS
from clawctl.privacy.memory import Memories
from clawctl.privacy.redaction import RedactionFailed, Redactor
from scripts.benchmarks.labelled_lines import labelled_lines
from tests.extension import needs
from tests.privacy.made import exchange

KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2
PASSWORD = "hunter" + "2!"
ALWAYS = Recipe().privacy.redact


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(content: Any, arguments: str) -> dict[str, Any]:
    call = {"id": "c", "function": {"name": "login", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


# ---- exchanges -------------------------------------------------------------------------------------------------------------


def test_an_exchange_without_a_secret_is_written_as_it_is() -> None:
    plain = exchange([user("what is 2 + 2?")], response={"role": "assistant", "content": "4"})
    assert Redactor(ALWAYS).exchange(plain) is plain


@needs("secrets")
@pytest.mark.parametrize("place", ["message", "response", "arguments", "tool result", "tools", "claim", "model"])
def test_a_secret_leaves_no_byte_wherever_it_is(place: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "login", "arguments": f'{{"key": "{KEY}"}}'}}
    changes: dict[str, dict[str, Any]] = {
        "message": {"messages": [user(f"use {KEY}")]},
        "response": {"response": {"role": "assistant", "content": f"I use {KEY}"}},
        "arguments": {"response": {"role": "assistant", "content": None, "tool_calls": [call]}},
        "tool result": {
            "messages": [user("hi"), {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": KEY}]}]
        },
        "tools": {"tools": [{"type": "function", "function": {"name": "f", "description": f"needs {KEY}"}}]},
        "claim": {"hints": {"session_id": "s1", "turn_type": KEY}},
        "model": {"model": KEY},
    }
    clean = Redactor(ALWAYS).exchange(exchange(**{"messages": [user("hi")], **changes[place]}))
    line = orjson.dumps(clean)
    assert KEY.encode() not in line
    assert KEY[10:30].encode() not in line
    assert (clean.prompt_ids, clean.completion_ids, clean.logprobs) == (None, None, None)
    assert clean.untrainable_reason == "redacted"


@needs("secrets")
def test_a_session_whose_name_looks_like_a_secret_gets_a_unique_replacement_and_is_trained() -> None:
    """Clients name sessions by random ids of many forms, and no name of a session enters the prompt."""
    redactor = Redactor(ALWAYS)
    first, again, other = (
        redactor.exchange(exchange([user("hi")], hints={"session_id": name, "turn_type": "main"}))
        for name in (KEY, KEY, KEY[:-1] + "x")
    )
    assert first.hints == again.hints != other.hints
    assert KEY[10:30].encode() not in orjson.dumps(first)
    assert (first.hints["turn_type"], first.untrainable_reason) == ("main", None)
    assert first.prompt_ids is not None


def test_tokens_with_unknown_text_are_not_written() -> None:
    failed = exchange([user("hi")], response=None, status="error", completion_ids=[7, 8], logprobs=[-1.0, -1.0])
    clean = Redactor(ALWAYS).exchange(failed)
    assert (clean.completion_ids, clean.logprobs, clean.untrainable_reason) == (None, None, None)


@needs("secrets")
def test_ids_are_removed_if_a_template_setting_holds_a_secret() -> None:
    original = exchange([user("hi")])
    clean = Redactor(ALWAYS).exchange(original, unwritten={"documents": [{"text": f"key {KEY}"}]})
    assert (clean.messages, clean.prompt_ids, clean.untrainable_reason) == (original.messages, None, "redacted")
    assert Redactor(ALWAYS).exchange(original, unwritten={"enable_thinking": False}) is original


@needs("secrets")
def test_the_allowed_tokens_are_removed_with_the_ids() -> None:
    original = exchange([user("hi")], allowed="c2V0cw==")
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": [KEY, "other"]}}}
    clean = Redactor(ALWAYS).exchange(original, unwritten=[{}, form])
    assert (clean.allowed, clean.prompt_ids, clean.untrainable_reason) == (None, None, "redacted")
    assert Redactor(ALWAYS).exchange(original, unwritten=[{}, None]).allowed == "c2V0cw=="


def test_without_kinds_nothing_is_looked_at() -> None:
    original = exchange([user(f"use {KEY}")])
    assert Redactor([]).exchange(original) is original


def test_a_failure_does_not_quote_the_redacted_text() -> None:
    broken = exchange([user(f"use {KEY}")], tools=[{"function": {1.5j: KEY}}])  # type: ignore[dict-item]
    with pytest.raises(RedactionFailed) as caught:
        Redactor(ALWAYS).exchange(broken)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None


# ---- conversations are still recognised --------------------------------------------------------------------------------------


@needs("secrets")
def test_a_message_that_comes_back_in_another_form_is_redacted_to_the_same_message() -> None:
    redactor = Redactor(ALWAYS)
    ours, theirs = f'{{"user":"ann","password":"{PASSWORD}"}}', f'{{ "password" : "{PASSWORD}", "user" : "ann" }}'
    sent = assistant(f"password: {PASSWORD} it is", ours)
    back = assistant([{"type": "text", "text": "password: "}, {"type": "text", "text": f"{PASSWORD} it is"}], theirs)
    first, second = redactor.value(sent), redactor.value(back)
    assert PASSWORD not in str(first)
    assert PASSWORD not in str(second)
    assert message_digest(first) == message_digest(second)


@needs("secrets")
def test_a_conversation_that_repeats_a_secret_is_still_one_conversation() -> None:
    """The user gives a password, the answer repeats it, and the client sends both again as text parts."""
    redactor, sessions = Redactor(ALWAYS), Sessions(3600)
    question = [user(f"my password is {PASSWORD}")]
    answered = {"role": "assistant", "content": f"Noted: password = '{PASSWORD}'"}
    again = [user([{"type": "text", "text": f"my password is {PASSWORD}"}]), answered, user("thanks")]
    for handle, messages, response in (("e1", question, answered), ("e2", again, {"role": "assistant", "content": "welcome"})):
        made = exchange(messages, response=response, exchange_id=handle, created_at=float(handle[1]), finished_at=float(handle[1]))
        sessions.add(redactor.exchange(made))
    sessions.tick(10_000.0)
    first, second = sorted(sessions.pop_rows(), key=lambda row: row.turn_id)
    assert second.parent_turn_id == first.turn_id
    assert second.session_id == first.session_id
    assert first.next_state == [user("thanks")]
    assert (first.untrainable_reason, second.untrainable_reason) == ("redacted", "redacted")
    assert PASSWORD not in repr((first, second))


def test_redacting_twice_changes_nothing_more() -> None:
    redactor = Redactor(KINDS)
    for line in labelled_lines(200, seed=3):
        once = redactor.text(line.text)
        assert redactor.text(once) == once


@needs("secrets")
def test_arguments_of_a_tool_stay_json_even_where_a_number_was_secret() -> None:
    card = int("42" * 8)
    clean = Redactor(ALWAYS).value({"arguments": f'{{"card": {card}, "amount": 12.5}}'})
    assert orjson.loads(clean["arguments"]) == {"card": "[redacted:card]", "amount": 12.5}


@needs("secrets")
def test_a_secret_cut_into_two_parts_of_one_message_is_found() -> None:
    parts = [{"type": "text", "text": f"use {KEY[:12]}"}, {"type": "image_url"}, {"type": "text", "text": KEY[12:] + " please"}]
    clean = Redactor(ALWAYS).value(user(parts))["content"]
    assert [part.get("text") for part in clean] == ["use [redacted:api_key] please", None, ""]


def test_memory_is_bounded_and_holds_no_secret() -> None:
    redactor = Redactor(ALWAYS, cache_size=10)
    for number in range(50):
        redactor.messages([user(f"{number} {KEY}")])
    assert [len(memory.values) for memory in redactor._memories.by_key.values()] == [10]
    assert KEY not in repr(redactor._memories.by_key)


def test_memory_of_one_key_holds_at_most_a_mebibyte_of_replacements() -> None:
    memory = Memories().of("ann")
    for number in range(40):
        memory.add(bytes([number]), ("x" * 100_000, Counter(), 100_000))
    assert (len(memory.values), memory.size) == (10, 1_000_000)
    for _ in range(30):  # threads that searched the same text at the same time
        memory.add(bytes([39]), ("x" * 100_000, Counter(), 100_000))
    assert (len(memory.values), memory.size) == (10, 1_000_000)
    memory.add(b"longer", ("x" * 2_000_000, Counter(), 2_000_000))
    assert memory.get(b"longer") is None
    assert memory.get(bytes([39])) is not None


@needs("secrets")
def test_json_nested_too_deeply_to_walk_is_looked_through_as_text() -> None:
    value: Any = KEY
    for _ in range(150):
        value = [value]
    assert KEY not in str(Redactor(ALWAYS).value(value))
