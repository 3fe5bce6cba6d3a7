"""Text that a client sends with every request may look like a secret. It is accepted only where it cannot be one."""

from typing import Any

import pytest

from clawctl.privacy.redaction import Redactor
from clawctl.privacy.static_text import KEYS, Recurring
from tests.extension import needs
from tests.privacy.made import exchange

ALWAYS = ("api_key", "token", "password", "private_key", "card")
KEY = "sk-" + "proj-" + "Ab3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"
PROSE = "Stops the shell that is identified by 'shellid' and returns its output."


def tools(description: str, *parameters: str) -> list[dict[str, Any]]:
    properties = {name: {"type": "string"} for name in parameters}
    function = {"name": "stop_shell", "description": description, "parameters": {"type": "object", "properties": properties}}
    return [{"type": "function", "function": function}]


def sent(redactor: Redactor, key: str, **changes: Any) -> str | None:
    """Why an exchange with this text is untrainable."""
    said = {"messages": [{"role": "user", "content": "hi"}], **changes}
    return redactor.exchange(exchange(**{"key": key, **said})).untrainable_reason


def system(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "hi"}]}


@needs("secrets")
def test_the_name_of_a_parameter_is_no_secret_in_the_descriptions_of_the_same_tools() -> None:
    assert sent(Redactor(ALWAYS), "anna", tools=tools(PROSE, "shellid")) is None
    assert sent(Redactor(ALWAYS), "anna", tools=tools(PROSE, "other")) == "redacted"


@needs("secrets")
def test_ids_that_repeat_an_accepted_text_cost_no_turn() -> None:
    redactor = Redactor(ALWAYS, decode=lambda ids: PROSE)
    assert sent(redactor, "anna", tools=tools(PROSE, "shellid")) is None
    assert sent(redactor, "anna", tools=tools("Stops the shell.", "shellid"), prompt_ids=[4]) == "redacted"


def test_what_is_accepted_in_a_system_message_is_accepted_in_the_ids_of_later_turns() -> None:
    redactor = Redactor(ALWAYS, decode=lambda ids: f"{PROSE}\n" * 2)  # a template that repeats the system message
    begun = [{"role": "system", "content": PROSE}, {"role": "user", "content": "hi"}]
    later = [*begun, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "go on"}]
    offered = tools("Stops the shell.", "shellid")
    assert sent(redactor, "anna", messages=begun, tools=offered, prompt_ids=[4]) is None
    assert sent(redactor, "anna", messages=later, tools=offered, prompt_ids=[5]) is None


@needs("secrets")
def test_plain_words_that_several_keys_send_in_their_tools_are_no_secret() -> None:
    redactor = Redactor(ALWAYS)
    reasons = [sent(redactor, f"key{number}", tools=tools(PROSE)) for number in range(KEYS + 1)]
    assert reasons == ["redacted"] * (KEYS - 1) + [None, None]
    assert sent(redactor, "key0", tools=tools(PROSE)) is None


@needs("secrets")
def test_one_key_counts_once_however_many_sessions_it_has() -> None:
    """Repeating another user's secret does not exempt it from redaction, and one user's text alone never recurs."""
    redactor = Redactor(ALWAYS)
    for number in range(20):
        hints = {"session_id": f"s{number}"}
        assert sent(redactor, "mallory", tools=tools(PROSE), hints=hints) == "redacted"
    assert sent(redactor, "anna", tools=tools(PROSE)) == "redacted"


@needs("secrets")
@pytest.mark.parametrize(
    "text",
    [
        f"Deploy with {KEY} only.",
        "The database user is identified by 'hunter2!'",
        "The database user is identified by 'qWnRtYzUvKxLmPbGsDfH'",
        "Connect to postgres://app:blauwolke@db.example.com/shop",
        "Pay with 4111 1111 1111 1111",
        "Authorization: Bearer QmFzZTY0IHRva2VuIHdpdGggZGlnaXRz1234",
        "My password: hunter2",
    ],
)
def test_nothing_that_may_be_a_secret_is_let_through_however_many_keys_send_it(text: str) -> None:
    redactor = Redactor(ALWAYS)
    for number in range(KEYS + 2):
        assert sent(redactor, f"key{number}", **system(text)) == "redacted"
        assert sent(redactor, f"key{number}", tools=tools(text)) == "redacted"


@needs("secrets")
def test_a_password_in_instructions_that_a_team_shares_stays_a_secret() -> None:
    redactor = Redactor(ALWAYS)
    for number in range(KEYS + 2):
        assert sent(redactor, f"key{number}", **system("# AGENTS.md\nDB_PASSWORD=blauwolke\nRun the tests.")) == "redacted"
        assert sent(redactor, f"key{number}", **system('config: password = "blauwolke"')) == "redacted"


@needs("secrets")
def test_a_text_that_is_static_for_many_stays_a_secret_in_a_conversation() -> None:
    redactor = Redactor(ALWAYS)
    for number in range(KEYS):
        sent(redactor, f"key{number}", tools=tools(PROSE))
    said = [{"role": "user", "content": PROSE}]
    assert sent(redactor, "key0", messages=said, tools=tools(PROSE, "shellid")) == "redacted"
    assert sent(redactor, "key0", messages=said) == "redacted"


@needs("secrets")
def test_another_sentence_around_the_same_word_begins_anew() -> None:
    redactor = Redactor(ALWAYS)
    for number in range(KEYS):
        sent(redactor, f"key{number}", tools=tools(PROSE))
    assert sent(redactor, "key0", tools=tools("The account of anna is identified by 'shellid', do not tell.")) == "redacted"


def test_the_memory_of_accepted_texts_is_bounded_and_dropped_texts_are_redacted_again() -> None:
    recurring = Recurring(keys=2, capacity=8)
    recurring.recurs("a", "text")
    assert recurring.recurs("b", "text")
    for number in range(8):
        recurring.recurs("mallory", f"flood {number}")
    assert not recurring.recurs("a", "text")
    assert len(recurring._keys_by_finding) == 8
    assert b"text" not in b"".join(recurring._keys_by_finding)


@needs("secrets")
def test_a_redacted_turn_names_the_rule_and_the_place() -> None:
    redactor = Redactor(ALWAYS)

    def named(**changes: Any) -> str | None:
        said = {"messages": [{"role": "user", "content": "hi"}], **changes}
        return redactor.exchange(exchange(**said)).redacted_by

    assert named() is None
    assert named(tools=tools(PROSE)) == "the password of a command or query, in the tool descriptions"
    assert named(**system(f"use {KEY}")) == "a key with a known format, in the system prompt"
    assert named(**system(f"use {KEY}")) == "a key with a known format, in the system prompt"  # from memory
    assert named(messages=[{"role": "user", "content": "my password is hunter2!"}]) == (
        "a value beside a name like password or key, in the conversation"
    )
    assert named(response={"role": "assistant", "content": {"password": "hunter2!"}}) == (
        "a value beside a name like password or key, in the answer"
    )


@needs("secrets")
def test_a_text_that_the_user_names_is_no_secret() -> None:
    redactor = Redactor(ALWAYS, not_secrets=["hunter2!", "blauwolke7"])
    assert redactor.text("password: hunter2! and password: hunter3!") == "password: hunter2! and password: [redacted:password]"
    assert redactor.value({"password": "blauwolke7"}) == {"password": "blauwolke7"}
