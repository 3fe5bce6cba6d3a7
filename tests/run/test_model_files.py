"""A model is identified by its size and some bytes of its weights."""

from pathlib import Path
from shutil import copytree

import orjson
from safetensors.torch import load_file, save_file

from clawctl.run.model_files import origin_of
from clawctl.run.shards import UNKNOWN, Origin
from tests.named_models import TEXT_MODEL


def test_equal_weights_are_the_same_model_in_however_many_files(tmp_path: Path) -> None:
    demo = origin_of("crafts", str(TEXT_MODEL))
    copied = copytree(TEXT_MODEL, tmp_path / "copy")
    tensors = load_file(copied / "model.safetensors")
    names = sorted(tensors)
    (copied / "model.safetensors").unlink()
    save_file({name: tensors[name] for name in names[:3]}, copied / "model-00002-of-00002.safetensors", {"format": "pt"})
    save_file({name: tensors[name] for name in names[3:]}, copied / "model-00001-of-00002.safetensors")
    assert origin_of("crafts", str(copied)) == demo
    assert None not in (demo.tokenizer, demo.architecture, demo.weights)


def test_other_weights_of_the_same_size_are_another_model(tmp_path: Path) -> None:
    demo = origin_of("crafts", str(TEXT_MODEL))
    copied = copytree(TEXT_MODEL, tmp_path / "copy")
    tensors = load_file(copied / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in tensors.items()}, copied / "model.safetensors")
    origin = origin_of("crafts", str(copied))
    assert (origin.tokenizer, origin.architecture) == (demo.tokenizer, demo.architecture)
    assert origin.weights != demo.weights


def test_the_size_is_that_of_the_text_model(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_bytes(orjson.dumps({"text_config": text, "hidden_size": 7}))
    assert origin_of("mine", str(tmp_path)) == Origin("mine", None, "3 layers of 64 in 4 heads", None)


def test_nothing_is_known_about_missing_or_unreadable_models(tmp_path: Path) -> None:
    assert origin_of("mine", "nobody/such-a-model-that-was-never-loaded") == Origin("mine")
    assert origin_of("mine", str(tmp_path)) == Origin("mine") != UNKNOWN
    for damaged in (b"", b"\xff" * 4, b"\x00" * 8, b"\x02" + b"\x00" * 7 + b"[]", b"\xff" * 8 + b"{}"):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        (tmp_path / "config.json").write_bytes(damaged)
        assert origin_of("mine", str(tmp_path)) == Origin("mine")
