"""A small run directory in the form that the stages write."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.run.directory import RunDir, open_run, publish_bytes
from clawctl.run.policies import ensure_base_policy, move_live, publish_policy
from clawctl.run.rows import Policy, Turn, Verdict
from clawctl.run.shards import write_turns, write_verdicts

HOSTILE = "[judge] [red]boo[/red] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \u202egnp.exe <script>alert(1)</script> " + "x" * 5000


def turn(turn_id: str, session: str = "s1", index: int = 0, reason: str | None = None, **changes: Any) -> Turn:
    came_back = [{"role": "user", "content": f"reaction {turn_id}"}]
    fields: dict[str, Any] = {
        "turn_id": turn_id, "session_id": session, "parent_turn_id": None, "turn_index": index, "kind": "main", "source": "serve",
        "task_id": None, "group_id": None, "user": "default", "created_at": 1000.0 + index,
        "messages": [{"role": "user", "content": f"question {turn_id}"}], "tools": None,
        "response": {"role": "assistant", "content": f"answer {turn_id}"}, "next_state": came_back,
        "prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5], "policy_version": 0, "policy_version_end": 0,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "finish_reason": "stop", "outcome_reward": None, "feedback": None,
        "trainable": reason is None, "untrainable_reason": reason,
    }  # fmt: skip
    return Turn(**{**fields, **changes})


def verdict(turn_id: str, reward: float | None, hint: str | None = None, reason: str | None = None) -> Verdict:
    votes = [] if reward is None else [int(reward), int(reward), None]
    return Verdict(turn_id, reward, votes, hint, [hint] if hint else [], "crafts@0 prompt 1", reason, 0.5)


def eval_record(
    version: int, satisfaction: float, correctness: float, promote: bool | None, reply: str = "**1.** bold"
) -> dict[str, Any]:
    numbers = {
        "satisfaction": {"mean": satisfaction, "ci95": [max(0, satisfaction - 0.1), min(1, satisfaction + 0.1)], "n": 36},
        "correctness": {"mean": correctness, "ci95": [max(0, correctness - 0.1), min(1, correctness + 0.1)], "n": 36},
    }
    example = {
        "task_id": "student-eval-0-0",
        "role": "student",
        "prompt": "2 + 2?",
        "reply": reply,
        "satisfaction": 0.0,
        "correct": True,
    }
    decision = {"promote": promote, "reason": "because", "against": 0}
    return {"version": version, "suites": {"ability": {**numbers, "by_role": {}}}, "examples": [example], "decision": decision}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Seven turns of three sessions: two trained in step 1, the others not, each for a reason of its own."""
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    write_turns(run.trajectories / "a.parquet", [
        turn("t1"), turn("t2", index=1), turn("t3", index=2), turn("t4", index=3),
        turn("t5", index=4, reason="no next state", next_state=None),
    ])  # fmt: skip
    write_turns(run.trajectories / "b.parquet", [
        turn("t6", "s2", kind="side", reason="side turn", created_at=2000.0),
        turn("t7", "s3", created_at=3000.0, user="other"),
    ])  # fmt: skip
    write_verdicts(run.verdicts / "a.parquet", [
        verdict("t1", -1.0, "Write plain sentences."), verdict("t2", 1.0), verdict("t3", 0.0), verdict("t4", 1.0),
        verdict("t5", None, reason="not trainable: no next state"),
    ])  # fmt: skip
    publish_policy(run, Policy(1, 0, 1, "combine", "full", "crafts", ["t1", "t2"], None, {}, 4000.0), lambda folder: None)
    ledger = run.train / "ledger"
    ledger.mkdir()
    publish_bytes(ledger / "1.json", orjson.dumps({"step": 1, "outcome": "trained", "reason": None, "turns": {"a": ["t1", "t2"]}}))
    (run.train / "steps.jsonl").write_bytes(orjson.dumps({"step": 1, "version": 1, "loss": 0.25, "grad_norm": 1.5}) + b'\n{"ste')
    publish_bytes(run.eval / "0.json", orjson.dumps(eval_record(0, 0.2, 0.8, None)))
    publish_bytes(run.eval / "1.json", orjson.dumps(eval_record(1, 0.7, 0.85, True, "4, because 2 + 2 = 4")))
    move_live(run, 1)
    return run
