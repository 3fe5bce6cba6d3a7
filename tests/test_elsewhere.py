"""Users of other systems: their variables work, or are refused with clawctl's name for them. Unknown names get suggestions."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clawctl.cli import app
from clawctl.config.variables import SAME, VARIABLES, check_variables, first_set, gpu_numbers
from clawctl.errors import ClawError

DOCS = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command, run in this process."""

    returncode: int
    stdout: str
    stderr: str


def clawctl(*arguments: str, **environment: str) -> Done:
    done = CliRunner().invoke(app, list(arguments), env=environment)
    if isinstance(done.exception, ClawError):
        return Done(done.exception.exit_code, done.stdout, f"{done.stderr}{done.exception.problem}\n{done.exception.fix}")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


# ---- variables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_is_followed_warned_of_or_refused_with_its_name_here(name: str) -> None:
    variable, environment = VARIABLES[name], {name: "7"}
    for command in variable.commands:
        if variable.effect == "refused":
            with pytest.raises(ClawError, match=re.escape(f"{name} is set")) as caught:
                check_variables(command, environment)
            assert variable.meaning in caught.value.fix
            assert caught.value.exit_code == 2
        elif variable.effect == "warned":
            assert f"{name} (in clawctl: {variable.meaning})" in str(check_variables(command, environment))
        else:
            assert check_variables(command, environment) is None
    assert check_variables("inspect health", environment) is None
    assert check_variables("serve", {name: ""}) is None


def test_the_page_describes_each_variable_as_the_code_uses_it() -> None:
    page = (DOCS / "coming-from.md").read_text()
    for name, variable in VARIABLES.items():
        assert f"| `{name}` | {variable.effect} | {variable.meaning} |" in page


def test_an_unknown_variable_with_clawctls_prefix_is_reported_once_with_a_suggestion() -> None:
    warnings = check_variables("serve", {"OPENCLAW_HOTS": "x", "CLAWCTL_XYZZY": "1", "OPENCLAW_GATEWAY_TOKEN": "t", "HOME": "/"})
    assert warnings is not None
    assert "OPENCLAW_HOTS (did you mean OPENCLAW_HOST?)" in warnings
    assert "CLAWCTL_XYZZY" in warnings
    assert "GATEWAY" not in warnings
    assert "\n" not in warnings


@pytest.mark.parametrize("name", SAME)
def test_each_name_of_a_setting_sets_it_and_names_of_others_may_not_disagree(name: str) -> None:
    for variable in SAME[name]:
        assert first_set(name, {variable: "a"}) == (variable, "a")
    ours, *theirs = SAME[name]
    for other in theirs:
        assert first_set(name, {ours: "a", other: "b"}) == (ours, "a")
        assert f"{other} ({ours} is set as well)" in str(check_variables(VARIABLES[other].commands[0], {ours: "a", other: "b"}))
    if len(theirs) > 1:
        with pytest.raises(ClawError, match="differ in the environment"):
            first_set(name, {theirs[0]: "a", theirs[1]: "b"})


def test_gpus_are_numbers_and_a_lone_one_may_be_a_count() -> None:
    assert gpu_numbers("TRAIN_GPUS", "2, 3") == [2, 3]
    assert gpu_numbers("TRAIN_GPUS", "2,") == [2]
    for text in ("4", "all", ",", "a,b"):
        with pytest.raises(ClawError, match="TRAIN_GPUS"):
            gpu_numbers("TRAIN_GPUS", text)


def test_commands_follow_the_variables(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    served = clawctl("serve", "--run", run, BASE_MODEL_PATH=str(tmp_path / "base"))
    assert (served.returncode, f"there is no model in {tmp_path / 'base'}" in served.stderr) == (2, True)
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {path: crafts}\n")
    begun = clawctl("up", str(recipe), "--run", run, MODEL_PATH=str(tmp_path / "other"))
    assert (begun.returncode, f"there is no model in {tmp_path / 'other'}" in begun.stderr) == (2, True)
    level = clawctl("collect", "--run", run, ROLLOUT_LOG_LEVEL="loud")
    assert "there is no log level 'loud'" in level.stderr
    refused = clawctl("train", "--run", run, OPENCLAW_COMBINE_W_RL="0.5")
    assert (refused.returncode, "`train.weight_binary`" in refused.stderr) == (2, True)
    nodes = clawctl("train", "--estimate", TRAIN_GPUS="4")
    assert "TRAIN_GPUS is '4'" in nodes.stderr
    assert not (tmp_path / "run").exists()


# ---- without the extension `migrate` ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["train", "--learning-rate", "1"], "has no option --learning-rate"),
        (["train", "--metod", "opd"], "did you mean --method?"),
        (["collect", "--port", "1"], "set serve.port in the recipe"),
        (["recipe", "check", "key.yaml"], "docs/reference/recipes.md lists the keys; did you mean train.method?"),
        (["recipe", "check", "other.yaml"], "there is no key training"),
        (["recipe", "convert", "other.yaml"], "No such command 'convert'"),
    ],
)
def test_without_the_extension_unknown_names_get_the_ordinary_message(tmp_path: Path, arguments: list[str], problem: str) -> None:
    (tmp_path / "key.yaml").write_text("train: {methd: opd}\n")
    (tmp_path / "other.yaml").write_text("training: {learning_rate: 1e-6}\n")
    code = "import sys; sys.modules['clawctl.extensions.migrate'] = None; from clawctl.cli import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
