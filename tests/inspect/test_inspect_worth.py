"""The readers compute the same worth of a turn as the trainer."""

from dataclasses import replace

from clawctl.inspect.rows import read_rows
from clawctl.inspect.sessions import SessionTable
from clawctl.inspect.turns import as_dict
from clawctl.inspect.why import explain
from clawctl.run.directory import RunDir, open_run
from clawctl.run.feedback import FeedbackFile
from clawctl.run.reward import OUTCOME
from clawctl.run.rows import Feedback
from clawctl.run.shards import write_turns, write_verdicts
from tests.inspect.example_run import turn, verdict
from tests.train.feeding import rate


def test_an_outcome_is_shown_once_and_a_rating_in_its_place(tmp_path) -> None:
    run: RunDir = open_run(tmp_path / "run")
    turns = [turn(f"t{i}", index=i, outcome_reward=outcome) for i, outcome in enumerate((1.0, -1.0, -1.0))]
    write_turns(run.trajectories / "a.parquet", turns)
    said = [replace(verdict("t0", 1.0), judge=OUTCOME), replace(verdict("t1", -1.0), judge=OUTCOME), verdict("t2", 1.0)]
    write_verdicts(run.verdicts / "a.parquet", said)
    rate(run, "t1", 1.0)
    rows = (joined := read_rows(run)).rows.with_texts()
    shown = [as_dict(row) for row in rows]
    assert [row["reward"] for row in shown] == [1.0, 1.0, 0.0]
    assert [explain(row, None, None)["worth"] for row in rows] == [
        "+1 by outcome",
        "+1 by rating",
        "0 = outcome -1, crafts@0 prompt 1 +1",
    ]
    assert [row["why_not_trained"] for row in shown] == ["waiting for the trainer"] * 3
    assert [session["mean_reward"] for session in SessionTable(joined)[:]] == [2 / 3]


def test_the_worth_of_a_trained_turn_uses_only_ratings_from_before_its_policy(run: RunDir) -> None:
    """t1 and t2 were trained by the policy of second 4000."""
    ratings = FeedbackFile(run.feedback)
    ratings.append(Feedback("before", 3000.0, "default", "t1", 0.5, None))
    ratings.append(Feedback("after", 5000.0, "default", "t2", -1.0, None))
    worths = {row.turn["turn_id"]: row.worth.text for row in read_rows(run).rows}
    assert (worths["t1"], worths["t2"]) == ("+0.5 by rating", "+1 by crafts@0 prompt 1")


def test_a_rating_of_0_takes_a_turn_out_although_its_environment_liked_it(tmp_path) -> None:
    run: RunDir = open_run(tmp_path / "run")
    write_turns(run.trajectories / "a.parquet", [turn("t0", outcome_reward=1.0)])
    write_verdicts(run.verdicts / "a.parquet", [replace(verdict("t0", 1.0), judge=OUTCOME)])
    rate(run, "t0", 0.0)
    (row,) = read_rows(run).rows
    assert (row.worth.text, row.why_not) == ("0 by rating", "neutral")


def test_a_turn_that_its_sampling_keeps_out_names_the_recipe_keys_that_cure_it(tmp_path) -> None:
    run: RunDir = open_run(tmp_path / "run")
    cut = turn("copilot", reason="greedy", temperature=0.0, top_p=0.95)
    write_turns(
        run.trajectories / "a.parquet", [cut, turn("biased", index=1, reason="min_p"), turn("side", index=2, reason="side turn")]
    )
    cures = {row.turn["turn_id"]: explain(row, None, None)["cure"] for row in read_rows(run).rows.with_texts()}
    assert "serve.sampling.temperature: {at_least: 0.7} and serve.sampling.ignore: [top_p]" in cures["copilot"]
    assert "serve.sampling.ignore: [min_p]" in cures["biased"]
    assert cures["side"] is None
