"""A base model in 8 bits on any device, as bitsandbytes makes one on CUDA: only its own layers can compute with its integers."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

NAME = "pretended"


@register_quantization_config(NAME)
class PretendedConfig(QuantizationConfigMixin):
    def __init__(self, **_: Any) -> None:
        self.quant_method: Any = NAME


@register_quantizer(NAME)
class PretendedQuantizer(HfQuantizer):
    requires_calibration = False
    is_trainable = True

    def is_serializable(self) -> bool:
        return False

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        head = model.get_output_embeddings()
        for name, layer in list(model.named_modules()):
            if type(layer) is nn.Linear and layer is not head:
                model.set_submodule(name, IntegerLinear(layer))


class IntegerLinear(nn.Linear):
    """Rows of integers from -127 to 127, each with its scale."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        weight_OI = layer.weight.detach()
        scale_O = weight_OI.abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale_O", scale_O)
        self.weight, self.bias = nn.Parameter((weight_OI / scale_O).round().to(torch.int8), requires_grad=False), layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, (self.weight * self.scale_O).to(x.dtype), self.bias)
