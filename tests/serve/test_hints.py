"""Clients' claims about their conversations, by header and by body."""

from typing import Any

import orjson
import pytest

from clawctl.serve.hints import read_claims, read_hints

ONE, TWO = "01a1fd2e-87a6-7c40-9641-22626fb3534e", "c73280f5-a909-4567-bf19-f70c44a26503"
TOLD = {"session_id": None, "turn_type": None, "session_done": False, "task_id": None, "group_id": None}


def hints(headers: dict[str, str] | None = None, body: dict[str, Any] | None = None, *messages: dict[str, Any]) -> dict[str, Any]:
    return read_hints(headers or {}, read_claims(body or {}, messages))


def test_a_client_without_hints_makes_no_claims() -> None:
    assert hints() == TOLD
    assert hints({}, {"metadata": 3, "session_id": True, "prompt_cache_key": ""}, {"role": "user", "content": [3]}) == TOLD


@pytest.mark.parametrize("name", ["x-session-id", "session_id", "session-id", "x-session-affinity", "x-claude-code-session-id"])
def test_a_header_names_the_session_before_the_body_does(name: str) -> None:
    assert hints({name: "h"}, {"session_id": "b", "prompt_cache_key": "c"}) == TOLD | {"session_id": "h"}


def test_the_body_names_the_session_in_many_ways_the_plainest_first() -> None:
    runtime = {"role": "user", "content": f"[Sat] Hi\n\nRuntime: agent=main | session=agent:main:main | sessionId={TWO} | host=vm"}
    user = {"user_id": orjson.dumps({"device_id": "d", "session_id": ONE}).decode()}
    claims: dict[str, Any] = {"session_id": "s", "prompt_cache_key": TWO, "metadata": user}
    assert hints({}, claims, runtime)["session_id"] == "s"
    assert hints({}, claims | {"session_id": None}, runtime)["session_id"] == TWO
    assert hints({}, {"metadata": user}, runtime)["session_id"] == ONE
    assert hints({}, {"metadata": {"user_id": f"user_ab_account__session_{ONE}"}}, runtime)["session_id"] == ONE
    assert hints({}, {}, runtime)["session_id"] == TWO
    assert hints({}, {}, {"role": "system", "content": runtime["content"]}, {"role": "user", "content": "x"})["session_id"] == TWO


def test_a_cache_key_names_a_session_only_if_it_looks_like_an_id() -> None:
    """Applications also send one key for all conversations that begin alike, or one for each user."""
    for shared in ("", "app-v1", "user-1234", "9" * 64, "my prompt", ONE + ONE):
        assert hints({}, {"prompt_cache_key": shared})["session_id"] is None
    for name in (ONE, "ses_40f8c5d61ffeXyZ12345aBcDeF", ONE.replace("-", ""), f"thread_{ONE}"):
        assert hints({}, {"prompt_cache_key": name})["session_id"] == name


def test_a_revision_is_separated_from_its_session_only_if_it_is_one() -> None:
    assert hints({}, {"prompt_cache_key": f"{TWO}:3"}) == TOLD | {"session_id": TWO, "session_rev": "3"}
    assert hints({"x-session-affinity": f"{TWO}:0"}) == TOLD | {"session_id": TWO, "session_rev": "0"}
    assert hints({"x-session-id": "mine:3"}) == TOLD | {"session_id": "mine:3"}


def test_codex_sends_its_turn_its_window_and_the_kind_of_request() -> None:
    def codex(kind: str) -> dict[str, Any]:
        metadata = orjson.dumps({"session_id": ONE, "turn_id": "t", "request_kind": kind}).decode()
        return hints({"x-codex-turn-metadata": metadata, "x-codex-window-id": f"{ONE}:2"})

    assert codex("turn") == TOLD | {"session_id": ONE, "session_rev": "2", "turn_of_client": "t"}  # so are its titles
    assert codex("compaction")["turn_type"] == "side"
    assert hints({"x-codex-turn-metadata": "{broken"}) == TOLD


def test_a_sub_agents_conversation_is_its_own() -> None:
    hinted = hints({"x-claude-code-session-id": ONE, "x-claude-code-agent-id": "a1"})
    assert hinted == TOLD | {"session_id": f"{ONE}.a1", "agent_id": "a1"}


def test_headers_of_the_older_training_extension_are_honoured() -> None:
    hinted = hints({"x-session-id": "s", "x-turn-type": " Side ", "x-session-done": "true", "x-task-id": "t", "x-group-id": "g"})
    assert hinted == {"session_id": "s", "turn_type": "side", "session_done": True, "task_id": "t", "group_id": "g"}
    assert hints({}, {"turn_type": "main", "session_done": True})["session_done"]


def test_a_claim_is_cut_to_a_sane_length() -> None:
    assert len(hints({}, {"session_id": "x" * 10_000})["session_id"]) == 256


def test_a_turn_type_that_can_be_no_word_is_kept_as_it_was_sent_so_that_a_key_in_it_is_known() -> None:
    assert hints({"x-turn-type": "AKI" + "AZ7YQ4XW3VBN2MQ5P"})["turn_type"].startswith("AKIAZ7")
