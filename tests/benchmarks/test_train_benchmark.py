"""The sessions of the training benchmark."""

from clawctl.trainers.local.trees import build_trie, make_branch
from scripts.benchmarks.train_turns import make_session, make_single_turns


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
