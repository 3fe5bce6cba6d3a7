"""Engine and trainer keep the weights of a base model once: on a CPU in the memory of the model's files, on a GPU by a loan."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clawctl.config import Recipe
from clawctl.engines.embedded.llama import Llama
from clawctl.errors import ClawError
from clawctl.lent_weights import borrow, lend
from clawctl.trainers.local import head
from clawctl.trainers.local.batches import make_microbatch
from clawctl.trainers.local.loading import load_causal, put_lent
from clawctl.trainers.local.model import PolicyModel, load_policy
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.trees import make_branch
from tests.train.tiny import make_model

CPU = torch.device("cpu")
IDS = [5, 9, 200, 31, 8, 77, 140, 12, 63, 4]


@pytest.fixture(scope="module")
def model_16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16)


def policy_of(model: Path, one_copy: str, targets: Any = "all-linear") -> PolicyModel:
    """A policy whose adapter has the same drawn weights each time."""
    train = {"threads": 1, "lora": {"rank": 4, "targets": targets}}
    recipe = Recipe.model_validate({"model": {"path": str(model), "one_copy": one_copy}, "train": train})
    policy = load_policy(recipe, Ranks(0, 1, CPU))
    torch.manual_seed(1)
    for _, weight in policy.trained():
        nn.init.normal_(weight, std=0.1)
    return policy


def computed(policy: PolicyModel) -> list[Tensor]:
    """Logprobs with the adapter and without, and the gradients of the adapter."""
    batch = make_microbatch([make_branch(IDS[:3], IDS[3:], 1.0), make_branch(IDS[:3], IDS[5:], 0.5)], policy.merge, CPU)
    with torch.no_grad(), policy.without_adapter():
        frozen = policy.logprobs(batch)
    logprobs = policy.logprobs(batch)
    (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
    return [frozen, logprobs.detach(), *(weight.grad for _, weight in policy.trained() if weight.grad is not None)]


def is_in_files(weight: Tensor, model: Path) -> bool:
    """Whether a tensor's memory is a mapping of the model's files."""
    lines = [
        line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f"{model}/model.safetensors")
    ]
    spans = [[int(number, 16) for number in line[0].split("-")] for line in lines]
    return any(start <= weight.data_ptr() < stop for start, stop in spans)


def matrices(policy: PolicyModel) -> list[Tensor]:
    return [weight for weight in policy.module.parameters() if not weight.requires_grad and weight.ndim == 2]


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj"]])
def test_an_adapter_over_the_weights_in_the_files_has_the_bits_of_one_over_a_float32_copy(model_16: Path, targets: Any) -> None:
    shared, copied = (policy_of(model_16, one_copy, targets) for one_copy in ("auto", "never"))
    assert {weight.dtype for weight in matrices(shared)} == {torch.bfloat16}
    assert {weight.dtype for weight in matrices(copied)} == {torch.float32}
    for ours, theirs in zip(computed(shared), computed(copied), strict=True):
        assert torch.equal(ours, theirs)
    assert shared.canary() == copied.canary()


def test_a_large_head_of_16_bits_is_widened_in_pieces_and_has_the_logprobs_and_gradients_of_one_in_float32() -> None:
    torch.manual_seed(0)
    narrow, hidden = nn.Linear(64, 70_000, bias=False, dtype=torch.bfloat16).requires_grad_(False), torch.randn(3, 64)
    wide = nn.Linear(64, 70_000, bias=False)
    wide.weight = nn.Parameter(narrow.weight.float(), requires_grad=False)
    assert narrow.weight.numel() > head.WIDENED
    results = []
    for projection in (narrow, wide):
        states = hidden.clone().requires_grad_()
        logprobs = head.token_logprobs(states, projection, torch.tensor([1, 69_999, 7]), torch.tensor([1.0, 0.5, 1.0]))
        logprobs.sum().backward()
        results.append((logprobs.detach(), states.grad))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_the_matrices_stay_in_the_memory_of_the_files_after_passes_and_a_canary(model_16: Path) -> None:
    shared, copied = policy_of(model_16, "auto"), policy_of(model_16, "never")
    assert not any(is_in_files(weight, model_16) for weight in matrices(copied))
    assert all(is_in_files(weight, model_16) for weight in matrices(shared))
    computed(shared)
    shared.canary()
    assert all(is_in_files(weight, model_16) for weight in matrices(shared))


def test_a_write_to_the_weights_reaches_no_other_reader_of_the_files(model_16: Path) -> None:
    first, second = matrices(policy_of(model_16, "auto"))[0], matrices(policy_of(model_16, "auto"))[0]
    before = second.clone()
    with torch.no_grad():
        first.zero_()
    assert torch.equal(second, before)
    assert before.any()
    assert torch.equal(load_file(model_16 / "model.safetensors")["model.embed_tokens.weight"], before)


def test_files_with_numbers_of_32_bits_lose_none_of_them(model_16: Path, tmp_path: Path) -> None:
    tensors = load_file(model_16 / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    mixed = tensors | {name: tensors[name].float() * 1.0001}
    for file in model_16.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(mixed, tmp_path / "model.safetensors", {"format": "pt"})
    weights = dict(policy_of(tmp_path, "auto").causal.named_parameters())
    assert torch.equal(weights["model.layers.0.mlp.up_proj.base_layer.weight"], mixed[name])


def test_the_engine_computes_in_place_what_it_computes_with_packed_matrices_and_what_the_trainer_computes(model_16: Path) -> None:
    config, tensors = orjson.loads((model_16 / "config.json").read_bytes()), load_file(model_16 / "model.safetensors")
    packed, in_place = Llama(config, tensors, 2), Llama(config, tensors, 2, in_place=True)
    layer = in_place._layers[0]
    for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down, in_place._head):
        assert all(is_in_files(piece, model_16) for piece in matrix._pieces)  # type: ignore[attr-defined]
    policy = policy_of(model_16, "always")
    batch = make_microbatch([make_branch(IDS[:1], IDS[1:], 1.0)], policy.merge, CPU)
    with torch.no_grad(), policy.without_adapter():
        frozen = policy.logprobs(batch).tolist()
    assert in_place.score(IDS) == pytest.approx(packed.score(IDS), abs=1e-4)
    assert in_place.score(IDS) == pytest.approx(frozen, abs=1e-4)
    weights, scale = dict(policy.trained()), policy.module.peft_config["default"].lora_alpha / 4
    names = [name.removesuffix(".lora_A.default.weight") for name in weights if ".lora_A." in name]
    lora = {
        name.removeprefix("base_model.model.model."): (
            weights[f"{name}.lora_A.default.weight"].detach(), weights[f"{name}.lora_B.default.weight"].detach() * scale
        )
        for name in names
    }  # fmt: skip
    with torch.no_grad():
        trained = policy.logprobs(batch).tolist()
    assert max(abs(a - b) for a, b in zip(trained, frozen, strict=True)) > 0.01
    assert in_place.adapted(lora).score(IDS) == pytest.approx(trained, abs=1e-4)


def test_a_loan_stands_until_its_lender_ends_whatever_is_lent_later(tmp_path: Path) -> None:
    path = tmp_path / "model.lent"
    with pytest.raises(ClawError, match="no server lends"):
        borrow(path, CPU, wait_s=0)
    first = lend({}, path)
    loan = borrow(path, CPU, wait_s=0)
    second = lend({}, path)
    loan.check()
    first.close()
    with loan.file, pytest.raises(ClawError, match="has ended"):
        loan.check()
    with borrow(path, CPU, wait_s=0).file:
        second.close()
    with pytest.raises(ClawError, match="no server lends"):
        borrow(path, CPU, wait_s=0)


def test_the_trainer_computes_with_lent_weights_themselves_and_refuses_others(model_16: Path) -> None:
    lent = load_file(model_16 / "model.safetensors")
    matrices = {name: weight * 2 for name, weight in lent.items() if weight.ndim == 2}
    module = put_lent(load_causal(str(model_16), CPU, torch.bfloat16), matrices)
    assert all(weight.data_ptr() == matrices[name].data_ptr() for name, weight in module.named_parameters() if weight.ndim == 2)
    with pytest.raises(ClawError, match=r"torch\.float32"):
        put_lent(module, {name: weight.float() for name, weight in matrices.items()})
