"""Invalid weights are refused before any engine loads them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clawctl.engines.weights import check_weights
from clawctl.errors import ClawError

Q = "model.layers.0.q_proj"
LORA = f"base_model.model.{Q}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return written(tmp_path / "base", {f"{Q}.weight": torch.ones(6, 4)})


def written(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


def adapter(folder: Path, a: torch.Tensor, b: torch.Tensor) -> Path:
    return written(folder / "policy", {f"{LORA}.lora_A.weight": a, f"{LORA}.lora_B.weight": b})


def test_an_adapter_that_fits_its_base_is_taken(tmp_path: Path, base: Path) -> None:
    check_weights(adapter(tmp_path, torch.ones(2, 4), torch.ones(6, 2)), base)


@pytest.mark.parametrize(("a", "b", "which"), [((2, 5), (6, 2), "lora_A"), ((2, 4), (5, 2), "lora_B")])
def test_an_adapter_of_other_shapes_is_refused(
    tmp_path: Path, base: Path, a: tuple[int, int], b: tuple[int, int], which: str
) -> None:
    with pytest.raises(ClawError, match=f"{which}.*does not match"):
        check_weights(adapter(tmp_path, torch.ones(a), torch.ones(b)), base)


def test_full_weights_of_other_shapes_are_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(ClawError, match=r"is \[5, 4\], but the base model's is \[6, 4\]"):
        check_weights(written(tmp_path / "policy", {f"{Q}.weight": torch.ones(5, 4)}), base)


def test_a_partial_layer_is_refused_and_weights_that_some_models_omit_are_not(tmp_path: Path) -> None:
    other, q = "model.layers.1.q_proj.weight", f"{Q}.weight"
    left_out = {"lm_head.weight": torch.ones(9, 4), "model.layers.0.inv_freq": torch.ones(2), other: torch.ones(6, 4)}
    base = written(tmp_path / "base", {q: torch.ones(6, 4), "model.layers.0.k_proj.weight": torch.ones(6, 4), **left_out})
    whole = {q: torch.ones(6, 4), "model.layers.0.k_proj.weight": torch.ones(6, 4)}
    check_weights(written(tmp_path / "policy", whole), base)
    with pytest.raises(ClawError, match=r"k_proj.* is missing"):
        check_weights(written(tmp_path / "policy", {q: torch.ones(6, 4)}), base)
    check_weights(written(tmp_path / "policy", {q: torch.ones(6, 4), "model.layers.0.kv_proj.weight": torch.ones(6, 4)}), base)


def test_a_truncated_file_is_reported(tmp_path: Path, base: Path) -> None:
    file = written(tmp_path / "policy", {f"{Q}.weight": torch.ones(6, 4)}) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ClawError, match="is incomplete"):
        check_weights(tmp_path / "policy", base)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_is_found_anywhere_in_the_weights(tmp_path: Path, base: Path, dtype: torch.dtype, value: float) -> None:
    weight = torch.full((6, 4), torch.finfo(dtype).max, dtype=dtype)  # the largest number is one
    check_weights(written(tmp_path / "policy", {f"{Q}.weight": weight}), base)
    weight[5, 3] = value
    with pytest.raises(ClawError, match=f"{Q}.weight contains infinite values or NaN"):
        check_weights(written(tmp_path / "policy", {f"{Q}.weight": weight}), base)


@pytest.mark.parametrize("content", [b"", b"x" * 100, (5).to_bytes(8, "little") + b"[1,2]", (2).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_no_safetensors_is_a_refusal_and_an_empty_one_is_none(tmp_path: Path, base: Path, content: bytes) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    if content.endswith(b"{}"):
        check_weights(folder, base)
        return
    with pytest.raises(ClawError, match="cannot be read"):
        check_weights(folder, base)


def test_tensors_without_a_number_and_bases_that_are_elsewhere_are_no_trouble(tmp_path: Path) -> None:
    folder = written(tmp_path / "policy", {"a": torch.ones(0, 4), "b": torch.ones(3, dtype=torch.int32)})
    check_weights(folder, tmp_path / "not here")
