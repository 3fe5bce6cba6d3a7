"""Episodes of user code become trajectories like any other."""

from pathlib import Path

import pytest

from clawctl.collect.custom_rollout import collect_custom
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.model_files import tokenizer_fingerprint
from clawctl.run.rows import Turn
from clawctl.run.shards import read_origin, read_turns
from tests.extension import needs

CODE = """
from clawctl.plugins import Generation

def generate(messages, tools, config):
    number = len(messages)
    return Generation({"role": "assistant", "content": f"answer {number}"}, [1, 2], [3, 4], [-0.5, -0.25], 7, 0.8, "stop")

def rollout(episode, generate, config):
    messages = [{"role": "user", "content": f"task {episode}"}]
    first = generate(messages)
    came_back = [{"role": "tool", "content": "42"}]
    yield {"generation": first, "messages": messages, "next_state": came_back, "outcome_reward": 1.0, "group_id": "g"}
    messages = [*messages, first.message, *came_back]
    yield {"generation": generate(messages), "messages": messages, "next_state": None, "outcome_reward": 1.0, "group_id": "g"}

def without_ids(episode, generate, config):
    yield {"generation": Generation({"role": "assistant", "content": "a"}), "messages": [], "next_state": []}

def forgetful(episode, generate, config):
    yield {"generation": generate([]), "messages": []}

def cut(episode, generate, config):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    yield {"generation": Generation(call, [1], [2], [-0.5], 7, 0.8, "length"), "messages": [], "next_state": []}

def misspelt(episode, generate, config):
    yield {"generation": generate([]), "messages": [], "next_state": None, "outcome": 1.0}

def with_a_key(episode, generate, config):
    told = {"role": "user", "content": "mine is " + "sk-" + "proj-4f8a0Zq2Lm9xT6bR1cV7nY3d"}
    yield {"generation": generate([]), "messages": [told], "next_state": []}

def broken(episode, generate, config):
    raise RuntimeError("no task left")

def wrong(args): ...

def text(messages, tools, config):
    return "words"
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def spec(tmp_path: Path, name: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return f"{path}:{name}"


def turns_of(run: RunDir) -> list[Turn]:
    return [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]


def test_each_episode_is_a_session_with_its_exact_tokens_and_outcome(run: RunDir, tmp_path: Path) -> None:
    assert collect_custom(run, Recipe(), spec(tmp_path, "rollout"), spec(tmp_path, "generate"), 2) == 4
    first, second, third, _ = turns_of(run)
    assert first.session_id == second.session_id != third.session_id
    assert (first.parent_turn_id, second.parent_turn_id, second.turn_index) == (None, first.turn_id, 1)
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ([1, 2], [3, 4], [-0.5, -0.25])
    assert (first.policy_version, first.temperature, first.source, first.group_id) == (7, 0.8, "custom", "g")
    assert (first.trainable, second.trainable, second.outcome_reward, second.next_state) == (True, True, 1.0, None)
    assert second.messages[1] == {"role": "assistant", "content": "answer 1"}
    origin = read_origin(published(run.trajectories, ".parquet")[0])
    assert (origin.base_model, origin.tokenizer) == ("crafts", tokenizer_fingerprint(Recipe().model_path))


def test_a_turn_without_token_ids_is_kept_and_not_trained(run: RunDir, tmp_path: Path) -> None:
    collect_custom(run, Recipe(), spec(tmp_path, "without_ids"), spec(tmp_path, "generate"), 1)
    assert [turn.untrainable_reason for turn in turns_of(run)] == ["no token ids"]


def test_a_tool_call_that_was_cut_is_kept_and_not_trained(run: RunDir, tmp_path: Path) -> None:
    collect_custom(run, Recipe(), spec(tmp_path, "cut"), spec(tmp_path, "generate"), 1)
    assert [turn.untrainable_reason for turn in turns_of(run)] == ["cut tool call"]


@pytest.mark.parametrize(
    ("rollout", "generate", "problem"),
    [
        ("wrong", "generate", r"wrong takes \(args\), expected \(episode, generate, config\)"),
        ("rollout", "wrong", r"wrong takes \(args\), expected \(messages, tools, config\)"),
        ("rollout", None, "needs --generate"),
        ("rollout", "text", "returned str"),
        ("forgetful", "generate", r"episode 0, turn 0: got \['generation', 'messages'\]"),
        ("misspelt", "generate", "unknown outcome"),
        ("broken", "generate", "failed in episode 0: RuntimeError"),
    ],
)
def test_code_of_another_shape_is_refused_with_the_expected_one(
    run: RunDir, tmp_path: Path, rollout: str, generate: str | None, problem: str
) -> None:
    with pytest.raises(ClawError, match=problem):
        collect_custom(run, Recipe(), spec(tmp_path, rollout), generate and spec(tmp_path, generate), 1)
    assert turns_of(run) == []


@needs("secrets")
def test_a_secret_of_an_episode_is_never_written_and_its_turn_not_trained(run: RunDir, tmp_path: Path) -> None:
    collect_custom(run, Recipe(), spec(tmp_path, "with_a_key"), spec(tmp_path, "generate"), 1)
    (turn,) = turns_of(run)
    assert turn.messages[0]["content"] == "mine is [redacted:api_key]"
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs, turn.trainable) == (None, None, None, False)
    assert turn.untrainable_reason == "redacted"


def test_a_failing_episode_is_logged_with_its_traceback(run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ClawError, match="no task left"):
        collect_custom(run, Recipe(), spec(tmp_path, "broken"), spec(tmp_path, "generate"), 1)
    assert [record.exc_info is not None for record in caplog.records] == [True]
