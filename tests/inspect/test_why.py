"""`inspect why`: the numbers are those of the trainer."""

import math
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawctl.errors import ClawError
from clawctl.inspect.why import quantiles, show_why, token_texts
from clawctl.run.directory import RunDir

RECORD: dict[str, Any] = {
    "turn_id": "t1", "session_id": "s1", "step": 1, "method": "combine", "shard": "a", "reward": -1.0, "credit": None,
    "baseline": 0.25, "temperature": 0.7, "policy_version": 0, "policy_version_end": 1, "staleness": 0, "completion_ids": [3, 4],
    "policy_logprobs": [math.log(0.5), math.log(0.25)], "sampler_logprobs": [math.log(0.25), math.log(0.25)],
    "teacher_logprobs": [-0.5, -1.0],
    "terms": [
        {"name": "binary", "weight": 0.5, "tokens": 10, "advantages": [-1.25, -1.25], "acting": [False, True], "divergences": None},
        {"name": "opd", "weight": 1.0, "tokens": 2, "advantages": [0.25, -0.75], "acting": [True, True], "divergences": None},
    ],
}  # fmt: skip


def keep(run: RunDir) -> None:
    (run.train / "turns").mkdir()
    pq.write_table(pa.Table.from_pylist([RECORD]), run.train / "turns" / "1.parquet")


def told(capsys: pytest.CaptureFixture[str], run: RunDir, turn: str, tokens: bool = False) -> dict[str, Any]:
    show_why(run, turn, tokens, as_json=True)
    answer: dict[str, Any] = orjson.loads(capsys.readouterr().out)
    return answer


def test_a_trained_turn_shows_its_verdict_its_step_and_its_part_in_each_term(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(run)
    report = told(capsys, run, "t1")
    assert report["turn"]["reward"] == -1.0
    assert report["turn"]["trained_in_step"] == 1
    assert (report["step"]["loss"], report["step"]["grad_norm"], report["step"]["lr"]) == (0.25, 1.5, None)
    numbers = report["numbers"]
    assert (numbers["baseline"], numbers["policy_version"], numbers["policy_version_end"]) == (0.25, 0, 1)
    assert numbers["ratio_quantiles"][0] == pytest.approx(1.0)
    assert numbers["ratio_quantiles"][-1] == pytest.approx(2.0)
    assert numbers["terms"]["binary"] == {
        "weight": 0.5, "tokens_of_step": 10, "advantage_mean": -1.25, "advantage_quantiles": [-1.25] * 5, "masked_tokens": 1,
    }  # fmt: skip
    assert numbers["terms"]["opd"]["advantage_mean"] == -0.25
    assert "tokens" not in report


def test_a_damaged_tokenizer_leaves_the_ids(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    (run.root / "recipe.yaml").write_text(f"model: {{path: {tmp_path / 'model'}}}\n")
    assert token_texts(run, [3, 4]) == ["<3>", "<4>"]


def test_it_shows_how_off_policy_tokens_counted_and_where_the_gradient_was_clipped(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(run)
    row = {"step": 1, "loss": 0.25, "grad_norm": 1.5, "clip_grad": 1.0, "correction": {"surrogate": "dppo", "threshold": 0.2}}
    (run.train / "steps.jsonl").write_bytes(orjson.dumps(row) + b"\n")
    assert told(capsys, run, "t1")["step"]["correction"] == row["correction"]
    show_why(run, "t1", False, as_json=False)
    shown = capsys.readouterr().out
    for part in ("grad_norm 1.5, clip_grad 1", "correction: surrogate dppo, threshold 0.2"):
        assert part in shown, part


def test_each_token_has_its_own_line(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    keep(run)
    first, second = told(capsys, run, "t1", tokens=True)["tokens"]
    assert (first["id"], second["id"]) == (3, 4)
    assert first["ratio"] == pytest.approx(2.0)
    assert first["terms"] == {"binary": {"advantage": -1.25, "acts": False}, "opd": {"advantage": 0.25, "acts": True}}
    show_why(run, "t1", True, as_json=False)
    shown = capsys.readouterr().out
    for part in ("version 0 to 1", "reward -1, baseline 0.25", "term binary", "1 tokens masked", "(-1.25)", "question t1"):
        assert part in shown, part


def test_why_explains_untrained_turns_and_trained_ones_without_stored_numbers(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    report = told(capsys, run, "t3")
    assert (report["turn"]["why_not_trained"], report["numbers"], report["step"]) == ("neutral", None, None)
    assert told(capsys, run, "t1")["numbers"] is None
    show_why(run, "t1", False, as_json=False)
    assert "no longer stored" in capsys.readouterr().out


def test_a_record_that_cannot_be_read_is_a_problem_and_no_end(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (run.train / "turns").mkdir()
    (run.train / "turns" / "1.parquet").write_bytes(b"not parquet")
    report = told(capsys, run, "t1")
    assert report["numbers"] is None
    assert any("turns/1.parquet" in problem for problem in report["problems"])


def test_an_id_that_no_turn_or_that_several_have_is_refused(run: RunDir) -> None:
    for turn in ("nobody", "t"):
        with pytest.raises(ClawError, match="begins with"):
            show_why(run, turn, False, as_json=True)


def test_quantiles_are_values_that_occur() -> None:
    assert quantiles([5.0, 1.0, 3.0]) == [1.0, 1.0, 3.0, 5.0, 5.0]
