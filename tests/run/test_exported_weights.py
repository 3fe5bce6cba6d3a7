"""A version's weights, written for other programs."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.exported_weights import export_weights
from clawctl.run.policies import ensure_base_policy, move_live, publish_policy
from clawctl.run.rows import Policy
from tests import forked
from tests.run.tiny_gguf import write_gguf
from tests.train.tiny import make_model

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = "The weather today is fine, and 2 + 3 = 5."


def folder_model(tmp_path: Path) -> Path:
    """A tiny Qwen3, whose tokenizer splits words as Qwen's does. It has fewer tokens than the model has rows."""
    folder = make_model(tmp_path / "tiny", vocabulary=330)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    split = pre_tokenizers.Split(Regex(QWEN), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
    tokenizer.save_pretrained(folder)
    return folder


def gguf_model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", size=0.5)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The GGUF file, which is the same in all tests, is converted once: that takes ten seconds, mostly of imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAWCTL_MODEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=[folder_model, gguf_model], ids=["qwen3-folder", "llama-gguf"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RunDir, Any]:
    """A run whose version 1 is an adapter with random weights."""
    return make_run(tmp_path, request.param(tmp_path))


def make_run(tmp_path: Path, model: Path, size: float = 0.3) -> tuple[RunDir, Any]:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    run = open_run(tmp_path / "run")
    run.recipe.write_text(yaml.safe_dump({"model": {"path": str(model), "name": "tiny"}, "serve": {"temperature": 0.5}}))
    recipe = load_recipe(run.recipe)
    ensure_base_policy(run, str(model))
    base = AutoModelForCausalLM.from_pretrained(recipe.model_path, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "k_proj", "up_proj"]))
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    policy = Policy(1, 0, 1, None, "adapter", str(model), [], None, {}, time.time())
    publish_policy(run, policy, lambda folder: adapted.save_pretrained(folder))
    return run, recipe


def likely(folder: str, version: Path | None = None, **settings: Any) -> torch.Tensor:
    """Log-probabilities over the whole vocabulary, by the libraries alone."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **settings)
    if version is not None:
        model = PeftModel.from_pretrained(model, str(version))
    names = {"gguf_file": settings["gguf_file"]} if "gguf_file" in settings else {}
    ids = AutoTokenizer.from_pretrained(folder, **names)(TEXT, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits[0].log_softmax(-1)


@pytest.mark.parametrize("form", ["peft", "merged", "gguf"])
def test_an_exported_version_is_loaded_elsewhere_with_the_same_logprobs(
    trained: tuple[RunDir, Any], tmp_path: Path, form: Any
) -> None:
    run, recipe = trained
    target = tmp_path / "exported"
    line = export_weights(run, recipe, "1", form, target, ollama=form == "gguf")
    assert line.startswith(f"version 1 is in {target} ({form})")
    expected, untrained = likely(recipe.model_path, run.version_folder(1)), likely(recipe.model_path)
    assert (expected - untrained).abs().max() > 0.3  # the adapter matters
    if form == "peft":
        logprobs = likely(recipe.model_path, target)
    elif form == "merged":
        logprobs = likely(str(target))
    else:
        from transformers import GgufConfig

        settings = {"gguf_file": "tiny.gguf", "quantization_config": GgufConfig(dequantize=True)}
        logprobs = likely(str(target), head_dim=16 if recipe.model.path.endswith("tiny") else 8, **settings)
        assert sorted(path.name for path in target.iterdir()) == ["Modelfile", "tiny.gguf"]
        lines = (target / "Modelfile").read_text().splitlines()
        assert lines[:2] == ["FROM ./tiny.gguf", "PARAMETER temperature 0.5"]
        assert "PARAMETER stop <|im_end|>" in lines
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=0.05 if form == "gguf" else 1e-4)


def test_a_gguf_file_keeps_tokenizer_and_settings_of_the_file_that_its_base_came_from(tmp_path: Path) -> None:
    from gguf import GGUFReader

    source = gguf_model(tmp_path)
    run, recipe = make_run(tmp_path, source)
    export_weights(run, recipe, "1", "gguf", tmp_path / "exported", ollama=False)
    before, after = GGUFReader(source), GGUFReader(tmp_path / "exported" / "tiny.gguf")
    kept = [key for key in before.fields if not key.startswith("GGUF.")]
    assert {key: after.fields[key].contents() for key in kept} == {key: before.fields[key].contents() for key in kept}
    assert {tensor.name for tensor in after.tensors} == {tensor.name for tensor in before.tensors}


def test_weights_that_compute_something_else_are_an_error(tmp_path: Path) -> None:
    run, recipe = make_run(tmp_path, folder_model(tmp_path), size=1e6)  # the largest number of 16 bits is 65504
    with pytest.raises(ClawError, match="computes something else"):
        export_weights(run, recipe, "1", "gguf", tmp_path / "exported", ollama=False)


def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run, recipe = make_run(tmp_path, folder_model(tmp_path))
    target = tmp_path / "exported"
    with pytest.raises(ClawError, match="version 0 is no adapter"):
        export_weights(run, recipe, None, "peft", target, ollama=False)
    with pytest.raises(ClawError, match="--ollama needs a GGUF file"):
        export_weights(run, recipe, "1", "peft", target, ollama=True)
    with pytest.raises(ClawError, match="is not a policy"):
        export_weights(run, recipe, "newest", "peft", target, ollama=False)
    with pytest.raises(ClawError, match="exists already"):
        export_weights(run, recipe, "1", "peft", run.root, ollama=False)
    assert not target.exists()


def test_the_live_version_is_exported_from_the_command_line(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, folder_model(tmp_path))
    move_live(run, 1)
    command = ["export", tmp_path / "exported", "--run", run.root]
    done = forked.run(*command, "--adapter", "peft")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("version 1 is in")
    refused = forked.run(*command, "--ollama")
    assert refused.returncode == 2
    assert "name a form with --adapter" in refused.stderr
