"""Models in their dtypes."""

from pathlib import Path

import torch

from clawctl.trainers.local.loading import in_float32, load_causal

CPU = torch.device("cpu")


def test_a_model_of_16_bits_computes_in_float32_and_keeps_16_bits(model_path: Path) -> None:
    ids_BT = torch.tensor([[3, 7, 11, 5]])
    wide, narrow = load_causal(str(model_path), CPU, torch.bfloat16).float(), load_causal(str(model_path), CPU, torch.bfloat16)
    with torch.no_grad():
        expected, rounded = wide(input_ids=ids_BT).logits, narrow(input_ids=ids_BT).logits
        with in_float32(narrow):
            computed = narrow(input_ids=ids_BT).logits
        assert torch.equal(narrow(input_ids=ids_BT).logits, rounded)
    assert torch.equal(computed, expected)
    assert not torch.equal(rounded.float(), expected)
    assert {weight.dtype for weight in narrow.parameters()} == {torch.bfloat16}
