"""Products with matrices of bfloat16 numbers by `kernels.c`, where a C compiler and AVX-512 are at hand.

They replace FBGEMM's `linear_dynamic_fp16`, whose calls take 0.65 to 0.7 of a decode step. On an AMD EPYC (Zen 4), the products of
a step of SmolLM2 take 0.60 of FBGEMM's time for one row, 0.57 for 4, 0.85 for 16 and 0.87 for 64.
"""

import ctypes
import hashlib
import logging
import math
import subprocess
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from shutil import which
from typing import Any

import torch
from torch import Tensor

from clawctl.config.environment import model_cache
from clawctl.errors import ClawError
from clawctl.run.directory import publish

_log = logging.getLogger("clawctl.serve")
_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-O3", "-mavx512f", "-mfma", "-mtune=native", "-fopenmp", "-shared", "-fPIC")
_COMPILE_S = 60.0
_CHECKSUM = 32  # bytes at the end of the compiled file
_OUTPUTS, _LANES = 4, 16  # as in kernels.c
_TRIED, _TRIED_ROWS, _TRIALS = (2048, 576), (1, 16), 7  # the matrix, rows and rounds of the comparison with FBGEMM
_ALLOWED = 1e-4  # error of a sum of 576 products of normal numbers; a wrong one is larger than 1


class PairedMatrix:
    """A linear layer: [T, I] to [T, O]. A word has inputs i and i + 16 of one output, and 16 words of 4 outputs each lie side by
    side."""

    def __init__(self, multiply: Callable[..., None], weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self._multiply, self._bias_O = multiply, bias_O
        self._outputs, self._inputs = weight_OI.shape
        blocks = weight_OI.unflatten(1, (-1, 2, _LANES)).unflatten(0, (-1, _OUTPUTS))  # [O / 4, 4, I / 32, 2, 16]
        self._weights = blocks.permute(0, 2, 1, 4, 3).contiguous()
        self._address = self._weights.data_ptr()

    def __call__(self, rows_TI: Tensor) -> Tensor:
        rows_TI = rows_TI.contiguous()
        out_TO = rows_TI.new_empty(len(rows_TI), self._outputs)
        addresses = self._address, rows_TI.data_ptr(), out_TO.data_ptr()
        self._multiply(*addresses, len(rows_TI), self._inputs, self._outputs, torch.get_num_threads())
        return out_TO if self._bias_O is None else out_TO.add_(self._bias_O)


def can_pair(weight_OI: Tensor) -> bool:
    """Whether kernels.c multiplies with matrices of this type and shape."""
    outputs, inputs = weight_OI.shape
    return weight_OI.dtype == torch.bfloat16 and outputs % _OUTPUTS == 0 and inputs % (2 * _LANES) == 0


@cache
def compiled() -> Callable[..., None] | None:
    """`multiply` of kernels.c. None if it cannot be compiled on this machine, or is not faster than FBGEMM."""
    compiler = which("cc")
    if compiler is None or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    try:
        multiply: Any = ctypes.CDLL(str(_library(compiler))).multiply
    except (OSError, subprocess.SubprocessError, ClawError) as error:
        _log.info("FBGEMM computes the products, because kernels.c cannot be compiled: %s", error)
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    multiply.argtypes, multiply.restype = [pointer, pointer, pointer, count, count, count, ctypes.c_int], None
    return multiply if _is_faster(multiply) else None


def _library(compiler: str) -> Path:
    """The compiled file, which later starts find in the cache."""
    source = _SOURCE.read_bytes()
    digest = hashlib.sha256(source + " ".join(_FLAGS).encode()).hexdigest()
    library = model_cache() / "kernels" / f"{digest[:16]}.so"
    if not _is_whole(library):
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        publish(library, partial(_compile, compiler))
    return library


def _compile(compiler: str, draft: Path) -> None:
    command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(draft)]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_COMPILE_S)
    content = draft.read_bytes()
    draft.write_bytes(content + hashlib.sha256(content).digest())  # the loader reads nothing behind the sections
    ctypes.CDLL(str(draft))  # a compiler may succeed and write something else


def _is_whole(library: Path) -> bool:
    """Whether a library ends in its checksum: a damaged one would end the process when it is loaded."""
    content = library.read_bytes() if library.exists() else b""
    return content[-_CHECKSUM:] == hashlib.sha256(content[:-_CHECKSUM]).digest()


@torch.inference_mode()
def _is_faster(multiply: Callable[..., None]) -> bool:
    """Whether the products are right, and take less time than FBGEMM's. Takes some 20 ms."""
    weight_OI = _numbers(*_TRIED).bfloat16()
    matrix, packed = PairedMatrix(multiply, weight_OI), torch.ops.quantized.linear_prepack_fp16(weight_OI.float(), None)
    ours = theirs = 0.0
    for count in _TRIED_ROWS:
        rows_TI = _numbers(count, _TRIED[1])
        if float((matrix(rows_TI) - rows_TI.double() @ weight_OI.double().T).abs().max()) > _ALLOWED:
            _log.warning("FBGEMM computes the products, because those of the compiled kernels.c are wrong")
            return False
        sides = partial(matrix, rows_TI), partial(torch.ops.quantized.linear_dynamic_fp16, rows_TI, packed)
        rounds = [[_seconds(side) for side in sides] for _ in range(_TRIALS)]
        ours += min(mine for mine, _ in rounds)
        theirs += min(other for _, other in rounds)
    if ours >= theirs:
        _log.info("FBGEMM computes the products, which took it %.1f ms, and kernels.c %.1f ms", 1e3 * theirs, 1e3 * ours)
    return ours < theirs


def _numbers(*shape: int) -> Tensor:
    """Different numbers; a generator of random ones is not there before all of torch is imported."""
    return torch.arange(math.prod(shape)).sin().view(shape)


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
