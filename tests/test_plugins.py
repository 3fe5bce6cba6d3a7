"""Plugins from the examples of other systems work, or are refused with the change that they need."""

from pathlib import Path

import pytest

from clawctl.config import CollectConfig, JudgeConfig, TrainConfig
from clawctl.errors import ClawError
from clawctl.judge.custom import CustomJudge, load_reward_model
from clawctl.plugins import GENERATE, LOSS, ROLLOUT, USUAL, LossSettings, load_function
from tests.extension import needs


def write(folder: Path, code: str) -> str:
    path = folder / "mine.py"
    path.write_text(code)
    return str(path)


@needs("migrate")
def test_a_section_is_read_like_a_mapping_and_by_the_names_of_other_systems() -> None:
    judge, prm = JudgeConfig(votes=5), JudgeConfig(prm="there")
    assert judge["votes"] == judge.get("votes") == judge["majority_vote_n"] == judge["num_judges"] == judge.votes == 5
    assert prm["prm_model_path"] == prm.get("prm_model_path") == "there"
    assert (judge.get("xyzzy"), judge.get("xyzzy", 3), "votes" in judge, "xyzzy" in judge) == (None, 3, True, False)
    for wrong, said in (("xyzzy", "has no setting"), ("learning_rate", "train.lr"), ("multi_turn", "always on")):
        with pytest.raises(KeyError, match=said):
            judge[wrong]
    train = TrainConfig.model_validate({"lora": {"rank": 4}})
    assert (train["learning_rate"], train["lora_rank"], train["lora"]["rank"], train["lora"].get("r", 1)) == (1e-5, 4, 4, 1)
    assert CollectConfig()["session_timeout"] == 3600


@needs("migrate")
def test_the_settings_of_a_loss_are_read_in_the_same_ways() -> None:
    settings = LossSettings(TrainConfig(lr=0.5), None, None, None, 7, 1)  # type: ignore[arg-type]
    assert (settings["count"], settings.get("learning_rate"), settings.lr, settings["lr"]) == (7, 0.5, 0.5, 0.5)
    assert settings.get("clip_ratio", 0.2) == 0.2  # not set
    assert settings.get("kl_coef", 0.02) == 0.02
    with pytest.raises(AttributeError, match="no setting"):
        _ = settings.xyzzy


@needs("migrate")
@pytest.mark.parametrize(
    "code",
    [
        "class CustomRewardModel:\n    def __init__(self, config):\n        self.path = config['prm_model_path']\n"
        "    def compute_reward(self, prompt, response, next_state):\n        return 1.0",
        "class CustomPRM:\n    def __init__(self, config):\n        self.votes = config.get('num_judges', 1)\n"
        "    def score(self, prompt, response, next_state):\n        return 1.0",
        "class M:\n    def compute_reward(self, prompt, response, next_state):\n        return 1.0\n"
        "def get_reward_model(config):\n    return M()",
        "def compute_reward(prompt, response, next_state):\n    return 1.0",
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_reward_models_as_other_systems_write_them_are_loaded(tmp_path: Path, code: str, named: bool) -> None:
    file = write(tmp_path, code)
    name = next(name for name in USUAL["--custom-rm"] if f"class {name}" in code or f"def {name}(" in code)
    model = load_reward_model(f"{file}:{name}" if named else file, JudgeConfig(prm="there"))
    assert model.score("p", "r", "n") == 1.0
    assert CustomJudge(file, JudgeConfig(prm="there")).name == f"custom mine.py:{name}"


@pytest.mark.parametrize(
    ("code", "option", "parameters", "problem", "cure"),
    [
        ("def generate(args, sample, sampling_params): ...", "--generate", GENERATE, "takes", "def generate(messages, tools"),
        ("async def generate(messages, tools, config): ...", "--generate", GENERATE, "async", "def generate(messages"),
        ("def generate_rollout(args, rollout_id, data_buffer, evaluation=False): ...", "play", ROLLOUT, "takes", "episode"),
        ("def other(): ...\ndef another(): ...", "train.custom_loss", LOSS, "has none of compute_loss", ":NAME"),
    ],
)
def test_functions_of_other_shapes_are_refused_with_the_expected_one(
    tmp_path: Path, code: str, option: str, parameters: tuple[str, ...], problem: str, cure: str
) -> None:
    with pytest.raises(ClawError, match=problem) as caught:
        load_function(write(tmp_path, code), option, parameters)
    assert cure in caught.value.fix
    assert caught.value.exit_code == 2


def test_a_module_path_is_answered_with_the_file_and_the_name() -> None:
    with pytest.raises(ClawError, match="is a module path") as caught:
        load_function("my.plugins.compute_loss", "train.custom_loss", LOSS)
    assert "my/plugins.py:compute_loss" in caught.value.fix


@needs("migrate")
def test_a_loss_is_found_by_its_usual_name(tmp_path: Path) -> None:
    code = "def compute_loss(policy_logits, reference_logits, rewards, advantages, config):\n    return config['learning_rate']"
    assert load_function(write(tmp_path, code), "train.custom_loss", LOSS)(0, 0, 0, 0, TrainConfig()) == 1e-5
