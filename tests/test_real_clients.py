"""scripts/clients fails if a client fails, or if its turns are not those of its conversations."""

import sys
from pathlib import Path
from typing import Any

import pytest

from clawctl.errors import ClawError
from clawctl.run.rows import Turn
from scripts.client_place import Place
from scripts.real_clients import Client, Collected, row_of

TALKER = Client("talker", "nothing", lambda place: None, turns=3, sessions=1)
ENDS = "import sys; print('the port is taken'); sys.exit(3)"
NOWHERE = "http://127.0.0.1:9"  # the discard port: no server answers


def turn(name: str, parent: str | None = None, reason: str | None = None, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "turn_id": name, "session_id": "s", "parent_turn_id": parent, "turn_index": 0, "kind": "main", "source": "serve",
        "task_id": None, "group_id": None, "user": "default", "created_at": 1000.0, "messages": [{"role": "user", "content": "?"}],
        "tools": None, "response": {"role": "assistant", "content": "!"}, "next_state": [{"role": "user", "content": "so?"}],
        "prompt_ids": [1], "completion_ids": [2], "logprobs": [-0.5], "policy_version": 0, "policy_version_end": 0,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "finish_reason": "stop", "outcome_reward": None, "feedback": None,
        "trainable": reason is None, "untrainable_reason": reason,
    }  # fmt: skip
    return Turn(**{**fields, **changes})


def place(folder: Path) -> Place:
    home = folder / "home"
    home.mkdir()
    return Place(folder, home, folder / "run", "http://127.0.0.1:1/v1", "key", 20.0)


def test_the_last_turn_of_a_conversation_is_open_and_all_others_are_trainable() -> None:
    aside = turn("title", reason="side turn", kind="side")
    row = row_of(TALKER, Collected([turn("a"), turn("b", "a"), aside], open_turns=1, sessions=1), 0.1)
    assert (row["turns"], row["conversations"], row["trainable"], row["side"]) == (3, 1, 2, 1)


@pytest.mark.parametrize(
    "collected",
    [
        Collected([], 0, 0),
        Collected([turn("a")], 1, 1),  # a turn was lost
        Collected([turn("a"), turn("b")], 1, 1),  # the second does not continue the first
        Collected([turn("a"), turn("b", "a")], 2, 1),  # one answer was continued by nothing
        Collected([turn("a"), turn("b", "a", session_id="t")], 1, 2),  # collect took it for two
        Collected([turn("a"), turn("b", "a", reason="no token ids")], 1, 1),
    ],
)
def test_turns_that_are_not_its_conversations_fail_a_client(collected: Collected) -> None:
    with pytest.raises(ClawError, match="turns in"):
        row_of(TALKER, collected, 0.1)


def test_a_client_whose_server_ends_is_reported_at_once_with_its_output(tmp_path: Path) -> None:
    here, problem = place(tmp_path), r"ended with 3\s+Its server said: the port is taken"
    with pytest.raises(ClawError, match=problem), here.beside(sys.executable, "-c", ENDS) as server:
        here.until_ready(server, NOWHERE)


def test_a_failing_client_is_reported_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match=r"ended with 3: the port is taken"):
        place(tmp_path).run(sys.executable, "-c", ENDS)


def test_a_client_gets_no_settings_of_the_calling_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_CONFIG_PATH", "/of/mine")
    monkeypatch.setenv("OPENAI_API_KEY", "of-mine")
    seen = place(tmp_path).run(sys.executable, "-c", "import os; print(dict(os.environ))", OPENAI_BASE_URL="theirs")
    assert "mine" not in seen
    assert "theirs" in seen
