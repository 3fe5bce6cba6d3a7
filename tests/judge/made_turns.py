"""Handmade turns and shards for the judge."""

import itertools
from collections.abc import Sequence
from typing import Any

from clawctl.run.directory import RunDir
from clawctl.run.rows import Turn
from clawctl.run.shards import write_turns

_numbers = itertools.count(1)


def turn(messages: list[dict], response: str | dict, next_state: list[dict] | None, **changes: Any) -> Turn:
    """One turn; trainable unless `untrainable_reason` is given."""
    number = next(_numbers)
    reason = changes.get("untrainable_reason")
    values: dict[str, Any] = {
        "turn_id": f"t{number:04d}", "session_id": f"s{number:04d}", "parent_turn_id": None, "turn_index": 0, "kind": "main",
        "source": "serve", "task_id": None, "group_id": None, "user": "default", "created_at": float(number), "messages": messages,
        "tools": None, "response": {"role": "assistant", "content": response} if isinstance(response, str) else response,
        "next_state": next_state, "prompt_ids": [1], "completion_ids": [2], "logprobs": [-0.5], "policy_version": 0,
        "policy_version_end": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "finish_reason": "stop", "outcome_reward": None,
        "feedback": None, "trainable": reason is None, "untrainable_reason": None,
    }  # fmt: skip
    return Turn(**{**values, **changes})


def reply(text: str, **changes: Any) -> Turn:
    """A turn whose next state is the user message `words`."""
    return turn([{"role": "user", "content": "2+2?"}], "4", [{"role": "user", "content": text}], **changes)


def shard(run: RunDir, stem: str, turns: Sequence[Turn]) -> None:
    write_turns(run.trajectories / f"{stem}.parquet", turns)
