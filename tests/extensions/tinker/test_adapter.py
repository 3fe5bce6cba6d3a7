"""The files of an adapter, as a service sends them."""

import io
import tarfile

import orjson
import pytest
import torch
from safetensors.torch import save

from clawctl.config import LoraConfig
from clawctl.errors import ClawError
from clawctl.extensions.tinker.adapter import CONFIG, WEIGHTS, files_of, members_of

LORA = LoraConfig(rank=2, alpha=32.0, targets=["q_proj"])
TENSORS = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 4),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(4, 2),
}


def archive(tensors: dict[str, torch.Tensor] = TENSORS, **config: object) -> bytes:
    files = {CONFIG: orjson.dumps({"r": 2, "lora_alpha": 32.0, "target_modules": None, **config}), WEIGHTS: save(tensors)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"some/folder/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_missing_target_modules_are_taken_from_the_tensors() -> None:
    files = files_of(members_of(archive()), LORA, "crafts")
    config = orjson.loads(files[CONFIG])
    assert (config["target_modules"], config["base_model_name_or_path"], config["lora_alpha"]) == (["q_proj"], "crafts", 32.0)
    assert files[WEIGHTS] == save(TENSORS)


A, B = TENSORS


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (archive(lora_alpha=16.0), "rank 2 and alpha 16"),
        (archive({A: TENSORS[A]}), "lacks a matrix"),
        (archive({A: TENSORS[A], B: TENSORS[B] * torch.inf}), "not finite"),
        (archive({A: torch.ones(3, 4), B: TENSORS[B]}), "another rank"),
        (archive({**TENSORS, "model.embed_tokens.weight": torch.ones(2, 2)}), "does not know"),
        (archive({name.replace("q_proj", "up_proj"): value for name, value in TENSORS.items()}), "trains up_proj"),
        (b"no archive", "not a tar archive"),
    ],
)
def test_an_adapter_that_differs_from_the_recipe_is_refused(packed: bytes, problem: str) -> None:
    with pytest.raises(ClawError, match=problem):
        files_of(members_of(packed), LORA, "crafts")
