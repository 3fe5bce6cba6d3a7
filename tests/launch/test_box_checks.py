"""What `clawctl doctor` finds in a model's files and at a judge's server."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from safetensors.torch import load_file, save_file

from clawctl.cli.judge_checks import check_judge_lines
from clawctl.config import Recipe
from clawctl.launch.box_checks import driver_version
from clawctl.launch.model_checks import check_model_files, weight_problems
from tests import forked
from tests.named_models import TEXT_MODEL
from tests.stub_http import StubHandler, StubServer, running

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(TEXT_MODEL, tmp_path / "model")


def lines_of(model: Path, **sections: Any) -> dict[str, tuple[str, bool]]:
    lines = check_model_files(Recipe.model_validate({"model": {"path": str(model)}, **sections}))
    return {line.partition(":")[0]: (line, is_bad) for line, is_bad in lines}


def test_whole_weights_are_named_with_their_size(model: Path) -> None:
    line, is_bad = lines_of(model)["weights"]
    assert (line.endswith(" GB"), is_bad) == (True, False)


def in_shards(model: Path) -> list[Path]:
    tensors = load_file(model / WEIGHTS)
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, model / file)
    placed = {name: file for file, held in parts.items() for name in held}
    (model / INDEX).write_bytes(orjson.dumps({"weight_map": placed}))
    (model / WEIGHTS).unlink()
    return [model / file for file in parts]


def test_shards_that_the_index_names_are_looked_at_one_by_one(model: Path) -> None:
    first, second = in_shards(model)
    assert weight_problems(model) == []
    whole = second.read_bytes()
    second.write_bytes(whole[:-100])
    assert weight_problems(model) == [f"{second.name} has {len(whole) - 100:,} bytes, and {len(whole):,} by its header"]
    second.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert weight_problems(model) == [f"{second.name} has no header of safetensors"]
    shutil.copy(first, second)
    assert "lacks" in weight_problems(model)[0]
    second.unlink()
    assert weight_problems(model) == [f"{second.name} is missing"]
    (model / INDEX).write_text("[]")
    assert weight_problems(model)[0].startswith(f"{INDEX} cannot be read")


def test_a_folder_without_weights_is_no_model_and_an_adapter_is_none_either(model: Path) -> None:
    (model / WEIGHTS).rename(model / "adapter_model.safetensors")
    assert weight_problems(model) == [f"{model} has an adapter, and no model"]
    (model / "adapter_model.safetensors").unlink()
    line, is_bad = lines_of(model)["weights"]
    assert "has no *.safetensors; download the model again" in line
    assert is_bad


@pytest.mark.parametrize("content", [b"GGUF" + bytes(100), b"<html>not found</html>"])
def test_a_damaged_gguf_file_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    line, is_bad = lines_of(tmp_path / "model.gguf")["model"]
    assert is_bad
    assert "model.gguf" in line


def test_the_parser_of_tool_calls_is_named_or_what_it_means_that_none_is_known(model: Path) -> None:
    vllm: dict[str, Any] = {"engine": "vllm"}
    assert "vLLM reads tool calls with its parser hermes" in lines_of(model, serve=vllm)["model"][0]
    file = next(
        file for file in (model / "chat_template.jinja", model / "tokenizer_config.json") if "<tool_call>" in file.read_text()
    )
    file.write_text(file.read_text().replace("tool_call>", "function_call>"))
    line, is_bad = lines_of(model, serve=vllm)["model"]
    assert "agents cannot call tools; name one: serve.engine_args" in line
    assert not is_bad
    with_parser = {**vllm, "engine_args": ["--tool-call-parser=mistral"]}
    assert "parser mistral" in lines_of(model, serve=with_parser)["model"][0]


def test_the_version_of_the_driver_is_read_as_the_kernel_states_it(tmp_path: Path) -> None:
    stated = tmp_path / "version"
    stated.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12\n")
    assert driver_version(stated) == "580.65.06"
    stated.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    assert driver_version(stated) == "535.104.05"
    assert driver_version(tmp_path / "absent") is None


class _Judge(StubHandler):
    """Offers one model, whose votes are all the same."""

    status = 200

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "big"}]}, self.status)

    def do_POST(self) -> None:
        self.sent()
        message = {"role": "assistant", "content": "\\boxed{1}"}
        self.answer({"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": {}})


class _Refusing(_Judge):
    status = 401


class _Starting(_Judge):
    status = 503


@contextmanager
def judged(handler: type[StubHandler], **judge: Any) -> Iterator[Recipe]:
    with running(StubServer(handler)) as server:
        settings = {"endpoint": f"{server.url}/v1", "model": "big", **judge}
        yield Recipe.model_validate({"model": {"path": "crafts"}, "judge": settings})


@pytest.mark.parametrize(
    ("handler", "judge", "problem"),
    [
        (_Refusing, {}, "refuses the key (401); correct judge.api_key"),
        (_Starting, {}, "answers 503"),
        (_Judge, {"model": "other"}, "does not offer other; set judge.model to one of big"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_named_with_the_reason(
    tmp_path: Path, handler: type[StubHandler], judge: dict[str, Any], problem: str
) -> None:
    with judged(handler, **judge) as recipe:
        [(line, is_bad)] = check_judge_lines(recipe, tmp_path / "run", again=False)
    assert problem in line
    assert is_bad


def test_each_server_that_judges_is_looked_at(tmp_path: Path) -> None:
    with judged(_Refusing) as refusing, judged(_Judge, endpoint=None) as recipe, judged(_Starting) as starting:
        urls = [refusing.judge.endpoint, starting.judge.endpoint]
        several = Recipe.model_validate({"model": {"path": "crafts"}, "judge": {"endpoints": urls, "model": "big"}})
        lines = list(check_judge_lines(several, tmp_path / "run", again=False))
        assert recipe.judge.endpoint is None
    assert [is_bad for _, is_bad in lines] == [True, True]
    assert ["401" in lines[0][0], "503" in lines[1][0]] == [True, True]


def test_an_unfit_judge_fails_the_command_before_the_first_run(tmp_path: Path) -> None:
    with judged(_Judge) as recipe:
        lines = list(check_judge_lines(recipe, tmp_path / "run", again=False))
        assert [is_bad for _, is_bad in lines] == [False, True]
        assert "big is not used as the judge" in lines[1][0]
        settings = {"model": {"path": "crafts"}, "serve": {"port": 0}, "judge": recipe.judge.model_dump(exclude_none=True)}
        (tmp_path / "mine.yaml").write_bytes(orjson.dumps(settings))
        done = forked.run("doctor", "--run", tmp_path / "run", "--recipe", tmp_path / "mine.yaml", timeout_s=240)
    assert done.returncode == 1
    assert "NOT ok  judge: big is not used as the judge" in done.stdout
    assert not (tmp_path / "run").exists()
