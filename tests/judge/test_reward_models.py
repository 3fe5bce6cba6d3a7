"""Judges other than chat models: sequence classification, and user code."""

import asyncio
import logging
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification

from clawctl.config import JudgeConfig, Recipe
from clawctl.errors import ClawError
from clawctl.judge.custom import CustomJudge, load_reward_model
from clawctl.judge.prm import PRMJudge
from clawctl.judge.view import view_turn
from clawctl.judge.worker import judge
from clawctl.run.directory import published
from clawctl.run.shards import read_verdicts
from tests.judge.made_turns import reply, shard
from tests.named_models import TEXT_MODEL


def verdicts_of(run) -> list:
    return [verdict for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]


def make_prm(folder: Path, labels: int) -> Path:
    """A tiny random classifier over the tiny model's vocabulary."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(TEXT_MODEL)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=512, num_labels=labels, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("labels", [1, 2, 3])
def test_a_sequence_classifier_judges_and_its_batches_change_nothing(tmp_path, labels) -> None:
    path = make_prm(tmp_path / "prm", labels)
    turns = [reply(text) for text in ("thanks", "no, that is wrong", "thanks " * 300, "hm")]
    views = [view_turn(turn, 0) for turn in turns]
    together = PRMJudge(str(path), JudgeConfig()).scores(views)
    alone = [PRMJudge(str(path), JudgeConfig()).scores([view])[0] for view in views]
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(-1 <= score <= 1 for score in together)
    assert len(set(together)) == 4


def test_the_score_is_the_mean_of_the_labels_on_a_line_and_one_label_is_a_logit(tmp_path) -> None:
    from clawctl.judge.prm import mean_label

    assert mean_label(torch.tensor([[0.0], [math.log(3)]])) == pytest.approx([0.0, 0.5])  # p = 1/2 and 3/4
    assert mean_label(torch.tensor([[0.0, math.log(3)]])) == pytest.approx([0.5])  # 3/4 - 1/4
    assert mean_label(torch.tensor([[0.0, 0.0, math.log(2)]])) == pytest.approx([0.25])  # -1/4 + 0 + 1/2


def test_scores_beyond_the_threshold_are_rewards_and_the_rest_is_neutral(run, tmp_path) -> None:
    path = make_prm(tmp_path / "prm", 1)
    turns = [reply(text) for text in ("thanks", "no", "hm", "ok then")]
    shard(run, "1-a", turns)
    scores = PRMJudge(str(path), JudgeConfig()).scores([view_turn(turn, 4000) for turn in turns])
    middle = sorted(map(abs, scores))[1] + 1e-6  # two lie within
    judge(run, Recipe.model_validate({"judge": {"prm": str(path), "prm_threshold": middle, "prm_batch": 3}}), once=True)
    expected = [0.0 if abs(score) < middle else 1.0 if score > 0 else -1.0 for score in scores]
    verdicts = verdicts_of(run)
    assert expected.count(0.0) == 2
    assert [verdict.reward for verdict in verdicts] == expected
    assert {verdict.judge for verdict in verdicts} == {f"{path} sequence classification"}


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: TEXT_MODEL])
def test_a_model_that_is_no_sequence_classifier_is_refused_before_any_work(run, tmp_path, make) -> None:
    with pytest.raises(ClawError, match="not a sequence-classification model") as refused:
        judge(run, Recipe.model_validate({"judge": {"prm": str(make(tmp_path))}}), once=True)
    assert refused.value.exit_code == 2


def broken_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def anothers_tokenizer(folder: Path) -> None:
    config = Qwen3Config.from_pretrained(folder)
    config.vocab_size, config.pad_token_id = 20, 0
    Qwen3ForSequenceClassification(config).save_pretrained(folder)


def strict_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('this model is asked by systems only') }}")


def not_a_number(folder: Path) -> None:
    model = Qwen3ForSequenceClassification.from_pretrained(folder)
    torch.nn.init.constant_(model.score.weight, math.nan)
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (broken_weights, "not a sequence-classification model"),
        (no_tokenizer, "cannot score a turn|not a sequence-classification model"),
        (anothers_tokenizer, "cannot score a turn: index out of range"),
        (strict_template, "cannot score a turn: this model is asked by systems only"),
        (not_a_number, "returned a score that is not a number"),
    ],
)
def test_a_classifier_that_cannot_score_is_refused_before_any_work(run, tmp_path, harm, problem) -> None:
    harm(make_prm(tmp_path / "prm", 1))
    shard(run, "1-a", [reply("thanks")])
    with pytest.raises(ClawError, match=problem) as refused:
        judge(run, Recipe.model_validate({"judge": {"prm": str(tmp_path / "prm")}}), once=True)
    assert refused.value.exit_code == 2
    assert verdicts_of(run) == []


@pytest.mark.parametrize("name", ["gone", "prm.bin"])
def test_a_path_that_is_no_folder_is_not_looked_for_elsewhere(tmp_path, name) -> None:
    (tmp_path / "prm.bin").write_bytes(b"x")
    with pytest.raises(ClawError, match="there is no folder"):
        PRMJudge(str(tmp_path / name), JudgeConfig())


def test_a_classifier_that_fails_at_a_later_turn_ends_the_worker_and_loses_nothing(run, tmp_path) -> None:
    path = make_prm(tmp_path / "prm", 1)
    template = (
        "{% for m in messages %}{{ m['content'] }}{% if 'odd' in m['content'] %}{{ raise_exception('odd') }}{% endif %}{% endfor %}"
    )
    (path / "chat_template.jinja").write_text(template)
    shard(run, "1-a", [reply("thanks") for _ in range(20)] + [reply("odd"), *[reply("hm") for _ in range(20)]])
    with pytest.raises(ClawError, match="cannot score a turn: odd"):
        judge(run, Recipe.model_validate({"judge": {"prm": str(path), "prm_batch": 4}}), once=True)
    assert verdicts_of(run) == []


# ---- the user's own --------------------------------------------------------------------------------------------------------

CUSTOM = """
class CustomPRM:
    reward_range = (-1, 1)

    def __init__(self, config=None):
        self.votes = getattr(config, "votes", None)

    def score(self, prompt, response, next_state):
        if next_state == "crash":
            raise RuntimeError("no")
        if next_state == "abstain":
            return None
        if next_state == "nonsense":
            return float("nan")
        return 1.0 if "thanks" in next_state and prompt == "2+2?" and response == "4" else -0.25

def get_reward_model(config):
    assert config.votes
    return CustomPRM(config)

class Waits:
    reward_range = (-1, 1)

    async def score(self, prompt, response, next_state):
        return 0.5

ready = CustomPRM()
too_few = type("TooFew", (), {"score": lambda self, prompt: 1.0})
fails = lambda config: 1 / 0
number = 3

def direct(prompt, response, next_state):
    return 1 if "thanks" in next_state else -1

async def direct_later(prompt, response, next_state):
    return 0.5

direct_later.reward_range = (-1, 1)

class Gives:
    def score(self, prompt, response, next_state):
        import numpy, torch
        return {
            "float32": numpy.float32(0.5), "tensor": torch.tensor(-0.5), "text": "1", "many": torch.ones(2), "true": True,
            "inf": numpy.inf, "huge": 10**400,
        }[next_state]
"""


@pytest.fixture
def custom(tmp_path) -> Path:
    path = tmp_path / "my_rm.py"
    path.write_text(CUSTOM)
    return path


@pytest.mark.parametrize("name", ["CustomPRM", "get_reward_model", "ready"])
def test_a_class_a_maker_and_a_ready_object_judge(run, custom, name) -> None:
    shard(run, "1-a", [reply("thanks"), reply("hm")])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{custom}:{name}"}}), once=True)
    verdicts = verdicts_of(run)
    assert [(verdict.reward, verdict.judge) for verdict in verdicts] == [
        (1.0, f"custom my_rm.py:{name}"),
        (-0.25, f"custom my_rm.py:{name}"),
    ]


def test_the_judge_of_the_examples_judges_by_thanks_and_by_length(run) -> None:
    example = Path(__file__).parents[2] / "examples" / "brevity.py"
    shard(run, "1-a", [reply("Thank you!"), reply("hm")])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{example}:Brevity"}}), once=True)
    thanked, other = verdicts_of(run)
    assert (thanked.reward, thanked.judge) == (1.0, "custom brevity.py:Brevity")
    assert 0.5 < other.reward < 1


def test_an_async_score_is_awaited(run, custom) -> None:
    shard(run, "1-a", [reply("thanks")])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{custom}:Waits"}}), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [0.5]


def test_a_bug_in_a_reward_model_costs_its_turn_only_and_is_logged_with_its_traceback(run, custom, caplog) -> None:
    shard(run, "1-a", [reply("crash"), reply("abstain"), reply("nonsense"), reply("thanks"), reply("crash")])
    with caplog.at_level(logging.WARNING):
        judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{custom}:CustomPRM"}}), once=True)
    name = "custom my_rm.py:CustomPRM"
    crashed, nonsense = f"{name} raised RuntimeError", f"{name} gave nan instead of a finite number"
    assert [verdict.reason for verdict in verdicts_of(run)] == [crashed, "abstains", nonsense, None, crashed]
    messages = [
        record.message for record in caplog.records if crashed in record.message and "a later line reports" in record.message
    ]
    assert len(messages) == 1
    assert "my_rm.py" in messages[0]
    assert "in score" in messages[0]


def test_the_text_of_an_exception_may_quote_a_conversation_and_is_not_logged(run, tmp_path, caplog) -> None:
    path = tmp_path / "quotes.py"
    path.write_text(
        "class RM:\n    def score(self, prompt, response, next_state):\n        raise ValueError('cannot score ' + next_state)\n"
    )
    shard(run, "1-a", [reply("my name is zebra")])
    with caplog.at_level(logging.DEBUG):
        judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{path}:RM"}}), once=True)
    assert [verdict.reason for verdict in verdicts_of(run)] == ["custom quotes.py:RM raised ValueError"]
    assert "zebra" not in caplog.text


def test_a_reward_model_that_calls_exit_costs_its_turn_only(run, tmp_path) -> None:
    path = tmp_path / "quits.py"
    path.write_text("import sys\ndef score(prompt, response, next_state):\n    sys.exit(3)\n")
    shard(run, "1-a", [reply("thanks")])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{path}:score"}}), once=True)
    assert [verdict.reason for verdict in verdicts_of(run)] == ["custom quits.py:score raised SystemExit"]


def test_numbers_of_numpy_and_torch_are_rewards_and_other_values_are_not(run, custom) -> None:
    texts = ["float32", "tensor", "text", "many", "true", "inf", "huge"]
    shard(run, "1-a", [reply(text) for text in texts])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{custom}:Gives"}}), once=True)
    verdicts = verdicts_of(run)
    assert [verdict.reward for verdict in verdicts] == [0.5, -0.5, None, None, None, None, None]
    gave = [(verdict.reason or "").partition(" gave ")[2] for verdict in verdicts]
    numbers = ["str", "Tensor", "bool", "inf", "int"]
    assert [line.split()[0] for line in gave[2:]] == numbers


@pytest.mark.parametrize(("name", "rewards"), [("direct", [1.0, -1.0]), ("direct_later", [0.5, 0.5])])
def test_a_plain_function_judges(run, custom, name, rewards) -> None:
    shard(run, "1-a", [reply("thanks"), reply("hm")])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{custom}:{name}"}}), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == rewards


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Missing", "has no 'Missing'"),
        ("too_few", r"no score\(prompt, response, next_state\)"),
        ("fails", "cannot be created: ZeroDivisionError"),
        ("number", r"no score\(prompt"),
        ("a b", "is not file.py:name"),
    ],
)
def test_an_invalid_reward_model_is_refused_at_start(custom, name, problem) -> None:
    with pytest.raises(ClawError, match=problem) as refused:
        load_reward_model(f"{custom}:{name}", JudgeConfig())
    assert refused.value.exit_code == 2


def test_an_error_of_the_users_code_is_answered_with_what_to_correct(tmp_path) -> None:
    path, missing = tmp_path / "mine.py", tmp_path / "none"
    path.write_text("class RM:\n    def __init__(self, model_path: str): open(model_path)\n    def score(self, p, r, n): ...\n")
    with pytest.raises(ClawError) as refused:
        load_reward_model(f"{path}:RM", JudgeConfig(prm=str(missing), custom_rm=f"{path}:RM"))
    assert f"there is no {missing}" in refused.value.fix
    path.write_text("def get_reward_model(config): raise ValueError('no')\n")
    with pytest.raises(ClawError) as refused:
        load_reward_model(f"{path}:get_reward_model", JudgeConfig())
    assert refused.value.fix == f"correct {path}"
    with pytest.raises(ClawError, match="there is no file missing"):
        load_reward_model("missing.py", JudgeConfig())


def test_a_file_that_is_not_there_or_breaks_is_refused_at_start(tmp_path) -> None:
    (tmp_path / "broken.py").write_text("1 +")
    for spec, problem in ((f"{tmp_path}/no.py:x", "no file"), (f"{tmp_path}/broken.py:x", "SyntaxError"), ("name", "file.py:name")):
        with pytest.raises(ClawError, match=problem):
            load_reward_model(spec, JudgeConfig())


def test_a_slow_plain_score_does_not_hold_up_the_others(run, tmp_path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(
        "import threading\nbarrier = threading.Barrier(3)\n"
        "class RM:\n    reward_range = (-1, 1)\n"
        "    def score(self, prompt, response, next_state):\n        barrier.wait(20)\n        return 1.0\n"
    )
    shard(run, "1-a", [reply("hm") for _ in range(3)])
    judge(run, Recipe.model_validate({"judge": {"custom_rm": f"{path}:RM"}}), once=True)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0] * 3


def test_recipes_of_others_name_the_same_settings() -> None:
    elsewhere = {
        "majority_vote_n": 5,
        "majority_vote_threshold": 0.7,
        "judge_model": "m",
        "num_judge_workers": 4,
        "hint_extraction_model": "h",
    }
    config = Recipe.model_validate({"judge": elsewhere}).judge
    assert (config.votes, config.threshold, config.model, config.concurrency, config.hint_model) == (5, 0.7, "m", 4, "h")
    assert Recipe.model_validate({"judge": {"num_judges": 5, "votes": 1}}).judge.votes == 1


@pytest.mark.parametrize(
    "code",
    [
        "class Model:\n    def __call__(self, prompt, response, next_state):\n        return 0.5\nscore = Model()\n",
        "class Model:\n    async def __call__(self, prompt, response, next_state):\n        return 0.5\nscore = Model()\n",
        "import functools\ndef f(k, prompt, response, next_state):\n    return k\nscore = functools.partial(f, 0.5)\n",
        "import functools\nasync def f(k, prompt, response, next_state):\n    return k\nscore = functools.partial(f, 0.5)\n",
        "async def f(prompt, response, next_state):\n    return 0.5\ndef score(prompt, response, next_state):\n"
        "    return f(prompt, response, next_state)\n",
    ],
)
def test_any_callable_with_three_texts_is_a_reward_model_and_awaitable_results_are_awaited(tmp_path: Path, code: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(code)
    judge_of = CustomJudge(f"{path}:score", JudgeConfig(custom_rm=f"{path}:score", custom_rm_range=[-1, 1]))
    assert asyncio.run(judge_of.judge(reply("thanks"))).reward == 0.5
