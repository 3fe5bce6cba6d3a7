"""The sessions of the training benchmark, and its GPU case at tiny dimensions on the CPU."""

from pathlib import Path

import pytest
import torch

from clawctl.trainers.local.trees import build_trie, make_branch
from scripts.benchmarks.train_gpu import QWEN3_4B, SETTINGS, make_model, session_of
from scripts.benchmarks.train_ours import run_job
from scripts.benchmarks.train_turns import make_session, make_single_turns

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}


def test_reasoning_is_kept_during_tool_results_and_stripped_at_a_user_message() -> None:
    session = make_session(5, system=10, vocabulary=50)
    (first, said), (second, _), (third, answer), (fourth, _), (fifth, _) = session
    assert [len(prompt) for prompt, _ in session] == [50, 130, 210, 310, 370]  # 10 + 40; + 80 a turn, + 100 behind a tool call
    assert second[:50] == first
    assert second[50:90] == said[20:]
    assert fourth[:270] == third + answer
    assert fifth[210:250] == answer[20:]
    assert len(build_trie([make_branch(prompt, said, 1.0) for prompt, said in session]).ids_T) < 0.6 * sum(
        len(p) + 60 for p, _ in session
    )


def test_single_turns_share_nothing() -> None:
    turns = make_single_turns(4, prompt=16, vocabulary=50)
    assert [len(prompt) for prompt, _ in turns] == [12, 15, 17, 20]
    assert len({prompt[0] for prompt, _ in turns}) == 4


def test_the_gpu_sessions_fill_their_tries() -> None:
    for setting in SETTINGS:
        session = session_of(setting.tokens, 1000)
        laid = len(build_trie([make_branch(prompt, said, 1.0) for prompt, said in session]).ids_T)
        assert 0.85 * setting.tokens < laid < 1.15 * setting.tokens


@pytest.mark.parametrize("merge", ["tree", "none"])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_gpu_case_runs_on_the_cpu_at_tiny_dimensions(setting, merge: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = make_model(tmp_path / "model", {**QWEN3_4B, **TINY, "head_dim": 16, "vocab_size": 2048})
    job = {
        "model": str(model), "dtype": "bfloat16", "threads": 1, "repeats": 1, "turns": session_of(700, 2000), "merge": merge,
        "lora": setting.lora, "tokens_per_microbatch": 2000,
    }  # fmt: skip
    found = run_job(job, torch.device("cpu"))
    assert len(found["seconds"]) == 1
    assert found["grown_bytes"] >= 0
    assert found["saving"] == 1.0 if merge == "none" else found["saving"] > 1.2
    assert found["flops"] > 0
