"""The described system's own files run as they are, by the commands that docs/coming-from.md gives, where they are beside the
checkout. Its variables and options work, or are refused with what to write instead."""

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest

from clawctl.cli.commands import understand
from clawctl.collect.imports import read_turns_of
from clawctl.config import JudgeConfig
from clawctl.config.variables import VARIABLES, check_variables, options_of_variables
from clawctl.environments import Outcome, create
from clawctl.environments.rollouts import environment_of, is_rollout, outcome_of
from clawctl.errors import ClawError
from clawctl.extensions.migrate.convert import convert
from clawctl.judge.custom import CustomJudge, load_reward_model
from clawctl.plugins import load_object
from clawctl.run.endpoint import Endpoint
from tests.judge.made_turns import reply
from tests.judge.test_reward_models import make_prm
from tests.test_elsewhere import clawctl

DESCRIBED = Path(__file__).parents[4] / "shared" / "described"


def described(name: str) -> Path:
    if not (DESCRIBED / name).exists():
        pytest.skip("the described system's examples are not here")
    return DESCRIBED / name


RUN = {
    "custom_loss.py", "custom_opd_loss.py", "hybrid_loss.py", "custom_rm.py", "custom_reward_filled.py", "terminal_rollout.py",
    "env.sh", "training_config.yaml", "voting.yaml", "rollout_config.json", "manual.json",
}  # fmt: skip
REFUSED = {"custom_reward.py"}  # it calls `load_reward_model`, which it leaves to the reader


def test_every_described_file_runs_as_it_is_or_is_refused_with_the_name_that_it_lacks() -> None:
    """The other tests named `described`, here, in `test_migrate.py` and in `test_custom_loss.py`, run them."""
    described("env.sh")
    assert {path.name for path in DESCRIBED.iterdir() if path.is_file()} == RUN | REFUSED
    page = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text()
    assert f"Of {len(RUN | REFUSED)} example files, {len(RUN)} run as they are" in page


def test_the_described_manual_data_is_imported_as_it_is() -> None:
    main, side = read_turns_of(described("manual.json"), None)
    assert (main.kind, side.kind, main.session_id) == ("main", "side", side.session_id)
    assert main.response is not None
    assert main.response["content"].startswith("Here's the refactored version")
    assert "perfect, thanks" in str(main.next_state)
    assert (main.untrainable_reason, side.untrainable_reason) == ("text only", "side turn")


def test_described_data_given_as_a_recipe_is_named_as_data() -> None:
    with pytest.raises(ClawError, match="is a conversation, not a recipe") as caught:
        convert(described("manual.json"))
    assert "clawctl import" in caught.value.fix


def test_the_described_rollout_asks_the_judge_three_times() -> None:
    recipe, text, _ = convert(described("rollout_config.json"))
    assert recipe.judge.votes == 3
    assert "votes: 3" in text


# ---- variables and options -----------------------------------------------------------------------------------------------


def variables_of(text: str) -> dict[str, str]:
    words = [word for line in text.splitlines() for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_every_variable_of_the_described_system_is_followed_or_named_at_once(tmp_path: Path) -> None:
    given = variables_of(described("env.sh").read_text())
    assert len(given) >= 29
    for command in (["train", "--run", str(tmp_path)], ["judge", "--run", str(tmp_path)], ["collect", "--run", str(tmp_path)]):
        done = clawctl(*command, **given)
        concerned = {name for name in given if name in VARIABLES and command[0] in VARIABLES[name].commands}
        followed = set(options_of_variables(command[0], given)) | {"GRAD_ACCUM_STEPS"}
        assert [name for name in concerned - followed if name not in done.stderr] == []
    assert {name for name in given if name not in VARIABLES} == {"OPENCLAW_FOO"}  # it is named as unknown
    assert "OPENCLAW_FOO" in str(check_variables("serve", given))


def test_an_option_of_a_variable_is_used_and_printed_and_the_command_line_precedes_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {path: crafts}\n")
    variables = {"USE_LORA": "true", "LORA_RANK": "4", "LEARNING_RATE": "5e-7", "BATCH_SIZE": "2", "GRAD_ACCUM_STEPS": "3"}
    assert options_of_variables("train", variables) == {
        "LEARNING_RATE": ["--lr", "5e-7"], "BATCH_SIZE": ["--batch-turns", "6"], "USE_LORA": ["--lora"],
        "LORA_RANK": ["--lora-rank", "4"],
    }  # fmt: skip
    done = clawctl("train", "--recipe", str(recipe), "--estimate", **variables)
    assert "LEARNING_RATE (--lr 5e-7)" in done.stderr
    assert done.stdout.splitlines()[0] != clawctl("train", "--recipe", str(recipe), "--estimate").stdout.splitlines()[0]
    assert options_of_variables("train", {"USE_LORA": "false", "LORA_RANK": "4"}) == {}
    with pytest.raises(ClawError, match="USE_LORA is 'maybe', which is neither true nor false"):
        options_of_variables("train", {"USE_LORA": "maybe"})
    assert options_of_variables("train", {"LORA_ARGS": "--use-lora --lora-rank 64"}) == {
        "LORA_ARGS": ["--use-lora", "--lora-rank", "64"]
    }
    wrong = clawctl("train", "--recipe", str(recipe), "--estimate", "--lr", "fast", LEARNING_RATE="5e-7")
    assert "fast" in wrong.stderr  # not 5e-7


def test_all_refused_variables_are_named_in_one_message() -> None:
    done = clawctl("train", LORA_ALPHA="16", CLIP_GRAD_NORM="0.5", CKPT_ARGS="--save-interval 100", USE_GRADIENT_CHECKPOINTING="0")
    assert done.returncode == 2
    for said in (
        "LORA_ALPHA: `train.lora.alpha`",
        "CLIP_GRAD_NORM: `train.clip_grad`",
        "CKPT_ARGS: ",
        "checkpoint after each step",
    ):
        assert said in done.stderr
    assert "USE_GRADIENT_CHECKPOINTING" not in done.stderr  # off is the default
    done = clawctl("up", LEARNING_RATE="5e-7", PRM_MODEL_PATH="/x")
    assert (done.returncode, "recipe" in done.stderr, "PRM_MODEL_PATH" in done.stderr) == (2, True, True)


FLAGS = {
    "serve": "--model-path --port --backend --enable-rl-intercept --rl-buffer-dir --tensor-parallel-size --max-concurrent-sessions",
    "collect": "--api-endpoint --output-dir --session-aware --parallel-envs --max-steps --task-type --env-type --tools-config "
    "--swe-bench-path --screenshot-backend --num-rollouts-per-prompt --rollout-function-path --custom-generate-function-path",
    "judge": "--majority-vote-n --majority-vote-threshold --num-judge-workers --custom-rm-path --prm-model-path --judge-model-path",
    "train": "--use-lora --lora --lora-rank --lora-alpha --lora-dropout --lora-target-modules --lr --learning-rate --batch-size "
    "--rollout-batch-size --save-interval --resume --custom-loss-function-path --clip-grad --ppo-clip-ratio --value-clip "
    "--gradient-checkpointing --use-gradient-checkpointing --warmup-steps --num-epochs --kl-coef --weight-decay --grad-accum-steps "
    "--resume-ckpt --ckpt-save-dir --method --num-rollout --eps-clip --opd-weight --binary-weight",
    "eval": "--model-path --eval-tasks",
}


@pytest.mark.parametrize(("command", "flag"), [(command, flag) for command, flags in FLAGS.items() for flag in flags.split()])
def test_a_flag_of_the_described_system_is_ours_or_refused_with_what_to_write(command: str, flag: str) -> None:
    shown = clawctl_options(command)
    fix = ""
    try:
        understand(command, [flag, "7"], shown, shown)
    except ClawError as error:
        fix = error.fix
    assert "--help lists" not in fix


_OPTIONS: dict[str, set[str]] = {}


def clawctl_options(command: str) -> set[str]:
    if command not in _OPTIONS:
        words = clawctl(command, "--help").stdout.replace(",", " ").split()
        _OPTIONS[command] = {word for word in words if word.startswith("--")}
    return _OPTIONS[command]


# ---- reward models -------------------------------------------------------------------------------------------------------

PRM = """
class CustomPRM:
    def __init__(self, {parameter}):
        self.path = {value}
    def score(self, prompt, response, next_state):
        return 1.0
"""


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("config", "config['prm_model_path']"), ("checkpoint_path: str", "checkpoint_path"), ("model_path", "model_path")],
)
def test_a_reward_model_gets_the_path_of_its_classifier_and_is_refused_without_one(
    tmp_path: Path, parameter: str, value: str
) -> None:
    file = tmp_path / "rm.py"
    file.write_text(PRM.format(parameter=parameter, value=value))
    settings = JudgeConfig(prm="there", custom_rm=str(file))
    assert settings.kind == "custom_rm"
    assert load_reward_model(f"{file}:CustomPRM", settings).path == "there"
    with pytest.raises(ClawError, match="prm_model_path is not set") as caught:
        load_reward_model(f"{file}:CustomPRM", JudgeConfig())
    assert "PRM_MODEL_PATH" in caught.value.fix


def test_the_described_reward_models_score_as_they_are(tmp_path: Path) -> None:
    path = make_prm(tmp_path / "prm", 2)
    settings = {"prm": str(path), "custom_rm_range": (0.0, 1.0)}
    for name in ("custom_rm.py", "custom_reward_filled.py"):
        file = str(described(name))
        if name == "custom_reward_filled.py":
            settings["custom_rm_range"] = (-1.0, 1.0)
        judge = CustomJudge(file, JudgeConfig.model_validate({**settings, "custom_rm": file}))
        opinion = asyncio.run(judge.judge(reply("thank you")))
        assert opinion.reward is not None
        assert -1 <= opinion.reward <= 1
    with pytest.raises(ClawError, match="load_reward_model"):  # a placeholder in the file
        CustomJudge(str(described("custom_reward.py")), JudgeConfig(prm=str(path)))


# ---- rollouts ------------------------------------------------------------------------------------------------------------

ROLLOUT = """
async def terminal_rollout(agent_model, task_description):
    trajectory = []
    for step in range(MAX_STEPS):
        command = await agent_model.generate(f"Task: {task_description}")
        trajectory.append({"command": command, "reward": reward_of(command)})
    return trajectory
"""
NAMES = """
def initialize_terminal(): return "empty"
def get_terminal_state(): return "changed"
def compute_terminal_reward(result, task): return 1.0 if result.returncode == 0 else -1.0
def task_completed(result, task): return result.returncode == 0
def reward_of(command): return 0.5
"""


def test_a_rollout_names_everything_that_it_needs_at_once(tmp_path: Path) -> None:
    file = tmp_path / "rollout.py"
    file.write_text(ROLLOUT)
    function = load_object(str(file), "play.env")
    assert is_rollout(function)
    with pytest.raises(ClawError, match="uses reward_of, which"):
        create(environment_of(function), "rollout.py", "play.env", {"task": "list the files"})
    with pytest.raises(ClawError, match="needs tasks"):
        create(environment_of(function), "rollout.py", "play.env")
    data, names = tmp_path / "tasks.jsonl", tmp_path / "names.py"
    data.write_text('{"task": {"instruction": "a"}}\n{"prompt": "b"}\n')
    names.write_text(NAMES)
    made = create(environment_of(function), "rollout.py", "play.env", {"data": str(data), "defines": str(names)})
    assert {task.spec for task in made.tasks("train", 5, 0)} == {"a", "b"}
    assert made.tasks("eval", 5, 0) == []


def test_the_outcome_of_a_rollout_has_the_reward_of_each_call() -> None:
    outcome = outcome_of([{"reward": -1.0}, {"reward": 0.5}], ["t1", "t2"])
    assert (outcome.reward, outcome.steps) == (0.5, {"t1": -1.0, "t2": 0.5})
    assert (outcome_of([{"reward": 1}], ["t1", "t2"]).steps, outcome_of(0.25, []).reward) == ({}, 0.25)
    assert (outcome_of({"reward": 1}, []).reward, outcome_of([], []).reward, outcome_of(None, []).reward) == (1.0, None, None)


@pytest.mark.parametrize("is_async", [True, False])
def test_the_described_rollout_plays_as_it_is_against_a_live_server(server: Any, tmp_path: Path, is_async: bool) -> None:
    file, names = tmp_path / "rollout.py", tmp_path / "names.py"
    text = described("terminal_rollout.py").read_text()
    file.write_text(text if is_async else text.replace("async def", "def").replace("await ", ""))
    names.write_text(NAMES.replace("result.returncode == 0", "len(result.args) > 0"))
    options = {"task": "list the files", "max_turns": 2, "defines": str(names)}
    made = create(environment_of(load_object(str(file), "play.env")), "rollout.py", "play.env", options)
    (task,) = made.tasks("train", 1, 0)
    outcome = made.play(task, Endpoint(server.url, "key", "tiny", sampling={"max_tokens": 4, "seed": 1}))
    assert isinstance(outcome, Outcome)
    assert (outcome.reward, list(outcome.steps.values())) in [(1.0, [1.0]), (-1.0, [-1.0, -1.0])]


def test_a_damaged_line_of_tasks_is_named(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('list the files\n{"task": "count them"\n')

    def rollout(agent_model: Any, task_description: str) -> list[Any]:
        return []

    with pytest.raises(ClawError, match=r"line 2 of .*tasks\.jsonl is damaged"):
        environment_of(rollout)(data=str(tasks))
