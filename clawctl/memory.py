"""Memory of a box: what is free, and what a part of clawctl says that it needs."""

import ctypes
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from clawctl.errors import ClawError

GB, GIB = 10**9, 2**30
CUDA_CONTEXT = 1 * GIB  # of each process: kernels, NCCL's buffers, and memory that the allocator cannot use
PROCESS = 1 * GIB  # of host memory, for a process with PyTorch
ONCE = "weights of the base model, kept once"  # `model.one_copy`: the stages that need them use the same memory


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a stage needs at its peak, by what they are for: {"weights": 8044936192, "KV cache": …}."""

    device: dict[str, int] = field(default_factory=dict)  # on each of its GPUs; on the host if it has none
    host: dict[str, int] = field(default_factory=dict)  # of all its processes on this machine together
    short: int = 0  # bytes that are missing within its own limits, even if the device has them
    problem: str | None = None  # why they are missing
    note: str | None = None  # what else a person should know before it starts


@dataclass(frozen=True, slots=True)
class Box:
    """Memory that is there for a run."""

    free: dict[int, int]  # bytes of each GPU by number; empty: no GPU
    total: dict[int, int]
    host: int | None  # bytes of host memory that are available; None: unknown


def box_at_hand() -> Box:
    """What is free on this machine now."""
    import torch

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    sizes = {gpu: torch.cuda.mem_get_info(gpu) for gpu in gpus}
    return Box({gpu: free for gpu, (free, _) in sizes.items()}, {gpu: total for gpu, (_, total) in sizes.items()}, available())


def box_of(card: str, gpus: set[int]) -> Box:
    """Empty cards such as `24gb`, of 10^9 bytes each: cards of this name have at least so much. Raises ClawError (exit code 2)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*gb", card.strip().lower())
    if match is None:
        raise ClawError(f"{card!r} is no size of a card", "write the memory of one card, as in --card 24gb", 2)
    sizes = dict.fromkeys(sorted(gpus), int(float(match[1]) * GB))
    return Box(sizes, dict(sizes), None)


def available() -> int:
    """Bytes of host memory that processes may still take, within the limit of this process's control group."""
    info = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line) if _is_linux() else {}
    if "MemAvailable" not in info:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = int(info["MemAvailable"].split()[0]) * 1024
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else min(free, max(0, limit - used))


def return_freed_heap() -> None:
    """Give back what this process has freed until now. Loading a model frees copies of its weights, which glibc would keep."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def return_freed_memory() -> None:
    """Make this process give large blocks back when they are freed. The pages of a run with a million turns take about 290 MB, and
    410 without: glibc and Arrow keep what each thread has used."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 18)  # M_MMAP_THRESHOLD
        libc.mallopt(-8, 1)  # M_ARENA_MAX


def _is_linux() -> bool:
    return Path("/proc/meminfo").exists()


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group, or `max`
        return None
