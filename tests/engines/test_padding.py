"""Linear layers on padded rows compute the same, for few different numbers of rows."""

import pytest
import torch

from clawctl.engines.patches.padding import PaddedLinear, pad_linears, padded_rows


def test_up_to_a_whole_batch_there_are_thirty_numbers_of_rows() -> None:
    assert [padded_rows(rows) for rows in (1, 2, 3, 5, 7, 100, 129, 193, 256, 257, 1100)] == [
        *(1, 2, 3, 6, 8, 128, 192, 256, 256, 384, 1152)
    ]
    assert len({padded_rows(rows) for rows in range(1, 2049)}) == 30
    assert all(rows <= padded_rows(rows) < 1.5 * rows for rows in range(1, 5000))


class Small(torch.nn.Module):
    """Has the attributes of transformers' models."""

    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dtype = dtype
        self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(24, 8, bias=False)
        self.to(dtype)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        told: torch.Tensor = self.second(torch.nn.functional.silu(self.first(inputs)))
        return told


@pytest.mark.parametrize("shape", [(0, 16), (1, 16), (5, 16), (1, 77, 16), (2, 3, 16)])
def test_padding_changes_nothing_but_rounding(shape: tuple[int, ...]) -> None:
    model, inputs = Small(torch.bfloat16), torch.randn(shape).to(torch.bfloat16)
    with torch.no_grad():
        expected, weights = model(inputs), set(model.state_dict())
        pad_linears(model)
        told = model(inputs)
    assert type(model.first) is type(model.second) is PaddedLinear
    assert set(model.state_dict()) == weights
    assert told.shape == expected.shape
    torch.testing.assert_close(told, expected, rtol=0.02, atol=0.01)  # bfloat16 has 8 bits


def test_layers_without_kernels_are_unchanged() -> None:
    model = Small(torch.float32)
    pad_linears(model)
    assert type(model.first) is torch.nn.Linear
