"""`clawctl train --gpus 2,3`: become torchrun, which starts the same command once for each GPU."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

from clawctl.config import Nodes, environment_with, nodes
from clawctl.errors import ClawError

Gpus = Sequence[int] | Literal["all"]


def become_torchrun(gpus: Gpus | None, processes: int | None, words: Sequence[str], check_world: Callable[[int], None]) -> NoReturn:
    """Replace this process by torchrun. `words` are its own arguments, which every rank parses again. With `processes` the ranks
    compute on the CPU. Raises ClawError (exit code 2) if the GPUs or nodes do not match, or if `check_world` refuses the number of
    ranks."""
    # Otherwise restarted ranks connect to addresses of dead ones.
    where, changes = nodes(), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    changes["PYTHONSAFEPATH"] = "1"  # users who can write to the ranks' start folder must not be able to run code
    if processes:
        changes["OMP_NUM_THREADS"] = "1"
    if processes is not None:
        changes["CUDA_VISIBLE_DEVICES"] = ""
        count = processes
    else:
        names = chosen(gpus or "all", visible_gpus(), where.gpus)
        changes["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        count = len(names)
    check_world(count * where.count)
    command = [
        sys.executable,
        "-P",
        "-m",
        "clawctl.trainers.local.quiet_torchrun",
        *rendezvous_options(where),
        "--nproc-per-node",
        str(count),
    ]
    os.execve(sys.executable, [*command, "-m", "clawctl", *torchrun_words(words)], environment_with(changes))


def parse_gpus(text: str) -> Gpus:
    """Parse `2,3` or `all`. Raises ClawError (exit code 2)."""
    if text == "all":
        return "all"
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        ids = []
    if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
        raise ClawError(f"--gpus {text!r} is not a list of GPUs", "write GPU numbers, as in --gpus 2,3, or --gpus all", 2)
    return ids


def visible_gpus() -> list[str]:
    """The GPUs that CUDA shows, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    named = [name for name in (environment_with({}).get("CUDA_VISIBLE_DEVICES") or "").split(",") if name]
    count = torch.cuda.device_count()
    return named[:count] if len(named) >= count else [str(i) for i in range(count)]


def chosen(gpus: Gpus, visible: Sequence[str], a_node: int | None) -> list[str]:
    """The names of the selected GPUs. `a_node` is the number that the scheduler assigned to each node. Raises ClawError (exit code
    2)."""
    if not visible:
        raise ClawError("--gpus needs GPUs, but CUDA shows none", "use --processes N to train in N processes on the CPU", 2)
    ids = list(range(a_node or len(visible))) if gpus == "all" else list(gpus)
    missing = [i for i in ids if i >= len(visible)]
    if missing:
        named = ", no GPU ".join(map(str, missing))
        raise ClawError(f"there is no GPU {named}: this machine has {len(visible)}", f"choose from 0 to {len(visible) - 1}", 2)
    if a_node is not None and len(ids) != a_node:
        raise ClawError(f"GPUS_PER_NODE is {a_node}, but --gpus names {len(ids)}", "use the same number, or --gpus all", 2)
    return [visible[i] for i in ids]


def rendezvous_options(where: Nodes) -> list[str]:
    """The options with which the nodes find each other."""
    if where.count == 1:
        return ["--standalone"]
    if where.address is None:
        raise ClawError(f"NNODES is {where.count}, but MASTER_ADDR is not set", "set it to the address of the first node", 2)
    result = ["--nnodes", str(where.count), "--node-rank", str(where.rank)]
    return [*result, "--master-addr", where.address, "--master-port", str(where.port)]


def torchrun_words(words: Sequence[str]) -> list[str]:
    """The arguments with `--run-dir` instead of `--run`, because torchrun reads `--run` as an abbreviation of its own option."""
    return ["--run-dir" + word.removeprefix("--run") if word == "--run" or word.startswith("--run=") else word for word in words]
