"""A device that pretends to be a card: the CPU computes, and an operation that would mix both devices raises `Mixup`.

PyTorch counts its devices at a process's first backward pass, so `on_card` forks a process for what is to be computed there.

PyTorch lets Python register a backend, so autograd, optimizers and storage treat it as any other device. Like CUDA, it takes
indices and numbers without dimensions from the CPU.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from pretended_quantiser import PretendedConfig
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from clawctl.trainers.local.attention import KERNELS
from clawctl.trainers.local.loading import QUANTISERS
from tests.forked import CONTEXT

T = TypeVar("T")
NAME = "card"
_aten = torch.ops.aten
_TAKE_BOTH = {
    _aten.copy_.default, _aten._to_copy.default, _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default,
    _aten._index_put_impl_.default,
}  # fmt: skip


class Mixup(RuntimeError):
    """A tensor of the card and one of the CPU were to be computed together."""


class CardTensor(Tensor):
    """A tensor of the card. `data_of_cpu` has its numbers."""

    data_of_cpu: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> "CardTensor":
        made: CardTensor = Tensor._make_wrapper_subclass(
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(), dtype=data.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.data_of_cpu = data
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


def _is_card(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _computed(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_card = any(isinstance(tensor, CardTensor) for tensor in tensors)
    if on_card and func not in _TAKE_BOTH and any(not isinstance(tensor, CardTensor) and tensor.dim() for tensor in tensors):
        places = [("card" if isinstance(tensor, CardTensor) else "CPU", tuple(tensor.shape)) for tensor in tensors]
        raise Mixup(f"{func} of {places}")

    def of_cpu(value: Any) -> Any:
        if isinstance(value, CardTensor):
            return value.data_of_cpu
        return torch.device("cpu") if isinstance(value, torch.device) and _is_card(value) else value

    device = kwargs.get("device")
    result = func(*tree_map(of_cpu, args), **tree_map(of_cpu, dict(kwargs)))
    if func is _aten.copy_.default:
        return args[0]
    if not (_is_card(device) if device is not None else on_card):
        return result
    wrapped = tree_map(lambda value: CardTensor(value) if isinstance(value, Tensor) else value, result)
    return return_and_correct_aliasing(func, args, dict(kwargs), wrapped) if on_card else wrapped


class _Factories(TorchDispatchMode):
    """Operations without a tensor of the card, such as `zeros(device=…)` and `to(…)`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _OutsideOfDispatch(TorchFunctionMode):
    """What PyTorch does with the memory itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_card(kwargs.get("device")):
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if args and isinstance(args[0], CardTensor):
            if func is Tensor.tolist:
                return args[0].cpu().tolist()
            if func in (Tensor.untyped_storage, Tensor.data_ptr):
                return func(args[0].data_of_cpu)
        return func(*args, **kwargs)


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@contextmanager
def _pretended_card() -> Iterator[torch.device]:
    """The device, for the time of this context, once in a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    with _Factories(), _OutsideOfDispatch():
        yield torch.device(NAME, 0)


def on_card(function: Callable[..., T], *arguments: Any) -> T:
    """The result of `function(card, *arguments)`, in a process of its own."""
    return _in_a_process(_on_card, function, *arguments)


def on_cpu(function: Callable[..., T], *arguments: Any) -> T:
    """The same on the CPU, where models are quantised as on the card."""
    return _in_a_process(_on_cpu, function, *arguments)


def _in_a_process(run: Callable[..., T], *arguments: Any) -> T:
    with ProcessPoolExecutor(1, CONTEXT) as process:
        return process.submit(run, *arguments).result()


def _on_card(function: Callable[..., T], *arguments: Any) -> T:
    KERNELS[NAME] = dense_attention
    QUANTISERS[NAME] = lambda kind: PretendedConfig()
    with _pretended_card() as card:
        return function(card, *arguments)


def _on_cpu(function: Callable[..., T], *arguments: Any) -> T:
    QUANTISERS["cpu"] = lambda kind: PretendedConfig()
    return function(torch.device("cpu"), *arguments)


def dense_attention(query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: float) -> Tensor:
    """FlexAttention by its definition, from the mask of single tokens. It is compiled for CUDA only."""
    query, key, value = (blocks.flatten(2, 3) for blocks in (query, key, value))
    repeats, places_T = query.shape[1] // key.shape[1], torch.arange(query.shape[2], device=query.device)
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    seen_TT = block_mask.mask_mod(None, None, places_T[:, None], places_T[None, :])
    return (query @ key.transpose(-1, -2) * scale).masked_fill(~seen_TT, float("-inf")).softmax(-1) @ value
