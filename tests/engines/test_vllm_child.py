"""The arguments of vLLM, and the causes that its log gives for its end, without vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clawctl.config import Recipe
from clawctl.engines.vllm import inside
from clawctl.engines.vllm.child import SERVER, SERVERS, api_servers, arguments, check_vllm, command, environment, read_cause
from clawctl.errors import ClawError
from tests.named_models import TEXT_MODEL
from tests.serve.served import recipe_data


def recipe(**serve: object) -> Recipe:
    return Recipe.model_validate(recipe_data(TEXT_MODEL, engine="vllm", **serve))


def test_the_key_is_no_argument_and_the_recipes_own_arguments_come_last() -> None:
    made = recipe(engine_args=["--dtype", "bfloat16"])
    assert "secret" not in " ".join(arguments(made))
    assert environment(made, "secret")["VLLM_API_KEY"] == "secret"
    assert arguments(made)[-2:] == ["--dtype", "bfloat16"]
    assert "--logprobs-mode" in arguments(made)
    assert "hermes" in arguments(made)  # the tiny model's template speaks of <tool_call>


def test_it_follows_clawctls_grammars_unless_the_recipe_chooses_another_library() -> None:
    made = recipe()
    assert "guidance" in arguments(made)
    assert environment(made, "secret")["VLLM_ENFORCE_STRICT_TOOL_CALLING"] == "0"
    other = recipe(engine_args=["--structured-outputs-config.backend", "xgrammar"])
    assert "guidance" not in arguments(other)
    assert "VLLM_ENFORCE_STRICT_TOOL_CALLING" not in environment(other, "secret")


def test_lora_is_enabled_only_where_adapters_are_trained() -> None:
    assert "--enable-lora" not in arguments(recipe())
    data = {**recipe_data(TEXT_MODEL, engine="vllm"), "train": {"lora": {"rank": 12}}}
    chosen = arguments(Recipe.model_validate(data))
    assert chosen[chosen.index("--max-lora-rank") + 1] == "16"  # the next that vLLM allows


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 1),
        (["--api-server-count", "2"], 2),
        (["-tp", "2", "--api_server_count=3", "--enforce-eager"], 3),
        (["-asc", "4"], 4),
        (["--api-server-count", "many"], 1),
        (["--api-server-count"], 1),
    ],
)
def test_several_api_servers_start_as_vllms_own_command_starts_them(arguments: list[str], count: int) -> None:
    made = recipe(engine_args=arguments)
    assert api_servers(made) == count
    assert (SERVERS if count > 1 else SERVER) in command(made, 1)
    assert ("VLLM_ALLOW_RUNTIME_LORA_UPDATING" in environment(made, "secret")) == (count == 1)  # vLLM takes not both


@pytest.mark.parametrize(("arguments", "lora"), [(["--enable-lora"], None), ([], {"rank": 8})])
def test_adapters_with_several_api_servers_are_refused_with_the_cure(arguments: list[str], lora: object) -> None:
    data = {**recipe_data(TEXT_MODEL, engine="vllm", engine_args=["--api-server-count", "2", *arguments]), "train": {"lora": lora}}
    with pytest.raises(ClawError, match="cannot swap adapters with 2 API servers") as raised:
        check_vllm(Recipe.model_validate(data))
    assert raised.value.exit_code == 2
    assert "--api-server-count" in raised.value.fix


def test_a_python_without_vllm_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="cannot be run") as raised:
        check_vllm(recipe(engine_python=str(tmp_path / "nothing")))
    assert raised.value.exit_code == 2
    assert "serve.engine_python" in raised.value.fix


@pytest.mark.parametrize(
    ("said", "problem", "cure", "code"),
    [
        ("api_server.py: error: unrecognized arguments: --x", "unrecognized arguments: --x", "serve.engine_args", 2),
        ("(EngineCore pid=7) ERROR 11-21 12:00:00 [core.py:1] CUDA out of memory", "out of memory", "--max-model-len", 1),
        ("of safetensors it was said\nit was ended by SIGKILL", "it was ended by SIGKILL", "what killed it", 1),
        ("noise\nValueError: something else\nbye", "ValueError: something else", "has the details", 1),
        ("", "it printed nothing", "has the details", 1),
    ],
)
def test_an_end_is_reported_with_its_cause_and_cure(tmp_path: Path, said: str, problem: str, cure: str, code: int) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("of an earlier start: out of memory\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write(said)
    cause = read_cause(log, start)
    assert problem in cause.problem
    assert cure in cause.fix
    assert cause.exit_code == code


def test_the_keeper_reports_that_its_command_was_killed() -> None:
    keeper = [sys.executable, str(Path(inside.__file__).with_name("clawctl_keeper.py")), str(os.getpid())]
    done = subprocess.run([*keeper, "sh", "-c", "kill -9 $$"], capture_output=True, text=True, start_new_session=True, check=False)
    assert done.stderr == "it was ended by SIGKILL\n"
    done = subprocess.run([*keeper, "true"], capture_output=True, text=True, start_new_session=True, check=False)
    assert done.stderr == ""
