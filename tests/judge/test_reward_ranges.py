"""The scale of a reward model is declared, detected or refused, and never guessed."""

import logging
import math
from pathlib import Path

import pytest
import torch
from test_reward_models import make_prm, verdicts_of
from transformers import Qwen3ForSequenceClassification

from clawctl.config import JudgeConfig, Recipe
from clawctl.errors import ClawError
from clawctl.judge.prm import PRMJudge, in_range
from clawctl.judge.reward_range import FILE, RewardRange
from clawctl.judge.view import view_turn
from clawctl.judge.worker import judge
from tests.judge.made_turns import reply, shard

READS = "def score(prompt, response, next_state):\n    return float(next_state)\n"


@pytest.fixture
def reads(tmp_path: Path) -> Path:
    """A reward model that gives what came back as a number."""
    path = tmp_path / "reads.py"
    path.write_text(READS)
    return path


def work(run, path: Path, **settings: object) -> None:
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{path}:score", **settings}}), once=True)


def rewards_of(run) -> list[float | None]:
    return [verdict.reward for verdict in verdicts_of(run)]


@pytest.mark.parametrize(
    "given",
    [
        [0.1] * 18,  # a probability, or a little praise
        [0.9, 0.8, 1.0],  # a run whose first turns are all good
        [1.0, 1.0],  # good, or one star of five
        [0.0, 1.0],  # neutral or bad
        [-0.1, -0.7],  # log-probabilities, or a run whose first turns are all bad
        [0.0],
        [-0.02, 0.1, 0.9],  # a regression on probabilities that overshoots a little
    ],
)
def test_rewards_that_could_be_on_another_scale_are_refused_and_no_turn_is_lost(run, reads, given, caplog) -> None:
    shard(run, "1-a", [reply(str(number)) for number in given])
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(
            ClawError,
            match=r"depends on the scale, which is not known -> set its scale, then the turns are judged: judge.custom_rm",
        ),
    ):
        work(run, reads)
    assert "good" not in "".join(record.message for record in caplog.records if "turns judged" in record.message)
    assert verdicts_of(run) == []
    assert not list(run.verdicts.iterdir())
    low, high = (-1, 1) if min(given) < 0 else (0, 1)
    work(run, reads, custom_rm_range=[low, high])  # the same turns, judged once the scale is declared
    assert rewards_of(run) == pytest.approx([2 * (number - low) / (high - low) - 1 for number in given])


@pytest.mark.parametrize("given", [7.0, -3.0, 1.5])
def test_a_reward_beyond_1_shows_that_the_scale_is_another(run, reads, given) -> None:
    shard(run, "1-a", [reply(str(number)) for number in (-0.5, 0.5, given)])
    with pytest.raises(ClawError, match=f"returned {given:g}, so its rewards are not on a scale from -1 to 1"):
        work(run, reads)
    assert verdicts_of(run) == []


def test_a_scale_is_found_out_by_a_reward_on_either_side_of_0_and_stays_so_for_later_workers(run, reads) -> None:
    shard(run, "1-a", [reply("0.5"), reply("1")])
    shard(run, "2-b", [reply("-0.25")])
    work(run, reads)
    assert rewards_of(run) == [0.5, 1.0, -0.25]
    shard(run, "3-c", [reply("0.25")])  # alone it would be refused
    work(run, reads)
    assert rewards_of(run)[-1] == 0.25
    reads.write_text(READS.replace("float(next_state)", "float(next_state) / 2"))  # another model: nothing is known of it
    shard(run, "4-d", [reply("0.5")])
    with pytest.raises(ClawError, match=r"only rewards from 0.25 to 0.25 so far"):
        work(run, reads)


def test_rewards_that_were_in_doubt_are_counted_once_their_scale_is_known(run, reads, caplog) -> None:
    shard(run, "1-a", [reply("0.5"), reply("0.5"), reply("-0.5")])
    with caplog.at_level(logging.INFO):
        work(run, reads)
    assert "3 turns judged" in caplog.text
    assert "2 good, 0 neutral, 1 bad" in caplog.text


def test_a_following_worker_also_refuses_a_long_shard_with_ambiguous_rewards(run, reads) -> None:
    shard(run, "1-a", [reply("0.5") for _ in range(64)])
    with pytest.raises(ClawError, match=r"only rewards from 0.5 to 0.5 so far"):
        judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{reads}:score"}}), once=False)
    assert verdicts_of(run) == []


def test_a_damaged_note_of_the_scale_is_found_out_anew(run, reads) -> None:
    (run.verdicts / FILE).write_bytes(b"{}")
    shard(run, "1-a", [reply("0.5")])
    with pytest.raises(ClawError, match=r"depends on the scale"):
        work(run, reads)


def test_a_reward_outside_the_declared_range_costs_its_turn_and_is_counted(run, reads, caplog) -> None:
    shard(run, "1-a", [reply(text) for text in ("0", "0.5", "1", "1.0000001", "1.2", "-0.1")])
    with caplog.at_level(logging.INFO):
        work(run, reads, custom_rm_range=[0, 1])
    assert rewards_of(run) == [-1.0, 0.0, 1.0, 1.0, None, None]
    assert verdicts_of(run)[4].reason == "custom reads.py:score gave a reward outside its declared range"
    assert "2 good, 1 neutral, 1 bad" in caplog.text
    assert "2 custom reads.py:score gave a reward outside its declared range" in caplog.text


def test_a_model_may_declare_its_own_range_and_the_recipe_outranks_it(run, tmp_path) -> None:
    path = tmp_path / "stars.py"
    path.write_text(READS + "score.reward_range = (1, 5)\n")
    shard(run, "1-a", [reply("1"), reply("4")])
    work(run, path)
    assert rewards_of(run) == [-1.0, 0.5]
    shard(run, "2-b", [reply("1"), reply("4")])
    work(run, path, custom_rm_range=[0, 4])
    assert rewards_of(run)[2:] == [-0.5, 1.0]


@pytest.mark.parametrize("given", ["(1, 0)", "(0, 1, 2)", "3", "'ab'", "(0, float('nan'))"])
def test_an_invalid_range_is_refused_at_start(run, tmp_path, given) -> None:
    path = tmp_path / "odd.py"
    path.write_text(READS + f"score.reward_range = {given}\n")
    with pytest.raises(ClawError, match=r"the range of custom odd.py:score is") as refused:
        work(run, path)
    assert refused.value.exit_code == 2


def test_a_range_from_minus_1_to_1_changes_no_reward() -> None:
    scale = RewardRange("m", Path("none"), (-1, 1), None)
    assert [scale.reward(number) for number in (-1.0, 0.1, -0.3, 0.7)] == [-1.0, 0.1, -0.3, 0.7]


def test_turns_that_a_person_rated_wait_for_no_scale(run, reads) -> None:
    shard(run, "1-a", [reply("0.5", feedback=-1.0)])
    work(run, reads)
    assert rewards_of(run) == [-1.0]


# ---- classifiers -----------------------------------------------------------------------------------------------------------


def make_labelled(folder: Path, *labels: str, **config: object) -> Path:
    make_prm(folder, len(labels))
    model = Qwen3ForSequenceClassification.from_pretrained(folder)
    model.config.id2label, model.config.label2id = dict(enumerate(labels)), {label: at for at, label in enumerate(labels)}
    for name, value in config.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("labels", "turned"),
    [
        (("LABEL_0", "LABEL_1"), False),
        (("bad", "good"), False),
        (("POSITIVE", "NEGATIVE"), True),
        (("is_correct", "incorrect"), True),
        (("1", "-1"), True),
        (("5 stars", "1 star"), True),
        (("alpha", "beta"), False),  # as documented, and logged
    ],
)
def test_labels_are_ordered_by_their_names(tmp_path, labels, turned) -> None:
    views = [view_turn(reply(text), 0) for text in ("thanks", "no, that is wrong")]
    plain = PRMJudge(str(make_prm(tmp_path / "plain", 2)), JudgeConfig()).scores(views)
    named = PRMJudge(str(make_labelled(tmp_path / "named", *labels)), JudgeConfig()).scores(views)
    assert named == pytest.approx([-score if turned else score for score in plain], abs=1e-5)


@pytest.mark.parametrize("labels", [("good", "fine"), ("good", "correct"), ("not good", "good")])
def test_labels_whose_order_is_unclear_are_refused(tmp_path, labels) -> None:
    with pytest.raises(ClawError, match=r"it is not clear which label of .* is the best"):
        PRMJudge(str(make_labelled(tmp_path / "named", *labels)), JudgeConfig())


def test_a_score_that_is_no_logit_needs_a_range_and_is_mapped_from_it(tmp_path) -> None:
    path = str(make_labelled(tmp_path / "prm", "LABEL_0", problem_type="regression"))
    with pytest.raises(ClawError, match=r"not a logit -> set its worst and best score: judge.prm_range: \[0, 1\]"):
        PRMJudge(path, JudgeConfig())
    views = [view_turn(reply("thanks"), 0)]
    (score,) = PRMJudge(path, JudgeConfig(prm=path, prm_range=(-50, 50))).scores(views)
    (logit,) = PRMJudge(str(make_prm(tmp_path / "same", 1)), JudgeConfig()).scores(views)
    assert score == pytest.approx(2 * math.atanh(logit) / 50, abs=1e-4)
    with pytest.raises(ClawError, match=r"outside judge.prm_range"):
        PRMJudge(path, JudgeConfig(prm=path, prm_range=(40, 50)))
    assert in_range([0.0, 0.25, 1.0, 1.0005, 1.5], (0.0, 1.0))[:4] == [-1.0, -0.5, 1.0, 1.0]
    assert math.isnan(in_range([1.5], (0.0, 1.0))[0])


def test_scores_that_do_not_exclude_one_another_are_refused(tmp_path) -> None:
    path = make_labelled(tmp_path / "prm", "bad", "good", problem_type="multi_label_classification")
    torch.manual_seed(0)
    with pytest.raises(ClawError, match=r"2 independent scores"):
        PRMJudge(str(path), JudgeConfig())
