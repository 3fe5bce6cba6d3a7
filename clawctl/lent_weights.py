"""The weights of a base model on a GPU, which the process that serves them lends to one that trains an adapter over them.

CUDA maps the lender's memory into the borrower (`torch.multiprocessing.reductions`). The handles are in a file of this user's
cache, by model and GPU, which the lender keeps locked: its memory is gone when it ends. No part of this has run on a GPU.
"""

import fcntl
import hashlib
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson
import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from clawctl.config.environment import model_cache
from clawctl.errors import ClawError

_WAIT_S = 120.0  # the server may start at the same time
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Loan:
    """Weights by transformers' names, and the file that their lender keeps locked."""

    weights: Mapping[str, Tensor]
    file: IO[bytes]

    def check(self) -> None:
        """Raises ClawError if the lender has ended. What was computed until then holds if this is called afterwards."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise ClawError("the server that lent the base model's weights has ended", "start it again, then the trainer")


def loan_file(path: str, device: torch.device) -> Path:
    """The file for a model's weights on a GPU."""
    identity = f"{path}\0{torch.cuda.get_device_properties(device).uuid}"
    return model_cache() / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.lent"


def lend(weights: Mapping[str, Tensor], path: Path) -> IO[bytes]:
    """Offer weights on a GPU for as long as the returned file is open. An earlier offer loses its name, and stays valid."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    file = draft.open("wb+")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(orjson.dumps({name: _row(weight) for name, weight in weights.items()}))
    file.flush()
    draft.replace(path)
    return file


def borrow(path: Path, device: torch.device, wait_s: float = _WAIT_S) -> Loan:
    """The weights that a living process lends. Raises ClawError if there is none within `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        if path.exists():
            file = path.open("rb")
            loan = Loan({}, file)
            try:
                loan.check()
            except ClawError:
                file.close()
            else:
                rows = orjson.loads(file.read())
                return Loan({name: _weight(row, device) for name, row in rows.items()}, file)
        if time.monotonic() >= until:
            problem = "model.one_copy is always, but no server lends this model's weights on this GPU"
            raise ClawError(problem, "start clawctl serve with the same model and setting first, or set model.one_copy to auto")
        time.sleep(_LOOK_S)


def _row(weight: Tensor) -> list[Any]:
    """What `rebuild_cuda_tensor` takes, without types and device, as JSON."""
    _, size, stride, offset, _, dtype, _, *rest = reduce_tensor(weight)[1]
    plain = [b64encode(value).decode() if isinstance(value, bytes) else value for value in rest]
    return [list(size), list(stride), offset, str(dtype).removeprefix("torch."), *plain]


def _weight(row: list[Any], device: torch.device) -> Tensor:
    size, stride, offset, dtype, *plain = row
    rest = [b64decode(value) if isinstance(value, str) else value for value in plain]
    storage, kind = torch.storage.TypedStorage, getattr(torch, dtype)
    index = device.index or 0
    weight: Tensor = rebuild_cuda_tensor(Tensor, torch.Size(size), tuple(stride), offset, storage, kind, index, *rest)
    return weight
