"""What `clawctl doctor` finds out about this box for one recipe: what was found, what it is for, and how to mend it."""

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from clawctl.config import Recipe
from clawctl.config.environment import environment_of_program
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed, fetch
from clawctl.launch import PAGE_PORT
from clawctl.launch.model_checks import check_model_files
from clawctl.launch.plan import plan_memory
from clawctl.memory import GIB, box_at_hand
from clawctl.run.box_disk import probe
from clawctl.run.directory import open_run
from clawctl.run.policies import check_policy, live_version

Line = tuple[str, bool]  # the text, and whether the recipe cannot run like this
_VLLM = (0, 32)  # what clawctl/engines/vllm/control.py needs
_SLOW = 50e6  # bytes a second: a checkpoint of a large model would take minutes
_SKEW_S = 2.0


def check_box(recipe: Recipe, folder: Path) -> Iterator[Line]:
    """Check this machine for `recipe`, with a run directory in `folder`."""
    yield from _gpu(recipe)
    yield from _engine(recipe)
    yield from check_model_files(recipe)
    yield from _quantised(recipe)
    yield from _policy(folder)
    yield from _memory(recipe)
    yield from _ports(recipe)
    yield from _disk(folder)


def _gpu(recipe: Recipe) -> Iterator[Line]:
    import torch

    build = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    if (driver := driver_version()) is not None:
        build += f", driver {driver}"
    if torch.cuda.is_available():
        for gpu in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(gpu)
            yield f"gpu {gpu}: {torch.cuda.get_device_name(gpu)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free; {build}", False
    elif Path("/dev/nvidiactl").exists():
        cure = "install a build of torch for this driver (`nvidia-smi` shows its CUDA version)"
        yield f"gpu: there is one, but torch cannot use it; {build}; {cure}", True
    else:
        wanted = recipe.serve.engine == "vllm" or recipe.train.local.device_memory_gb is not None
        yield f"gpu: none; {build}; " + ("this recipe is for a card" if wanted else "serving and training run on the CPU"), wanted


def driver_version(stated: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's driver, or None if there is none."""
    try:
        version = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", stated.read_text())
    except OSError:
        return None
    return version and version[1]


def _engine(recipe: Recipe) -> Iterator[Line]:
    if recipe.serve.upstream is not None or recipe.serve.engine != "vllm":
        yield f"engine: {'an upstream' if recipe.serve.upstream else recipe.serve.engine}; nothing to install", False
        return
    python = recipe.serve.engine_python or sys.executable
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment_of_program()
        )
        version = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    wanted = ".".join(map(str, _VLLM))
    if not version:
        yield f"engine: {python} has no vLLM; install vLLM {wanted} or newer, or set serve.engine_python", True
        return
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    cure = "" if parts >= _VLLM else f"; swaps and scores need {wanted}: update it"
    yield f"engine: vLLM {version}{cure}", parts < _VLLM


def _quantised(recipe: Recipe) -> Iterator[Line]:
    lora = recipe.train.lora
    if lora is not None and lora.quantize is not None and importlib.util.find_spec("bitsandbytes") is None:
        yield "4 bits: bitsandbytes is missing; pip install 'clawctl[quantize]', or remove train.lora.quantize", True


def _policy(folder: Path) -> Iterator[Line]:
    """The files of the version that serves."""
    if not (folder / "run.json").exists():
        return
    run = open_run(folder, create=False)
    version = live_version(run)
    try:
        if version is not None:
            check_policy(run, version)
            yield f"policy: the files of version {version} are whole", False
    except ClawError as error:
        yield f"policy: {error.problem}; {error.fix}", True


def _memory(recipe: Recipe) -> Iterator[Line]:
    try:
        plan = plan_memory(recipe, box_at_hand())
    except ClawError as error:
        yield f"memory: not planned, because {error.problem}; {error.fix}", True
        return
    needs = ", ".join(f"{'host' if gpu is None else f'GPU {gpu}'} {plan.need(gpu) / GIB:.1f} GiB" for gpu in plan.memories)
    cure = f"; {'; '.join(plan.problems)}: `clawctl up --estimate RECIPE --fit`" if plan.problems else "; it fits"
    yield f"memory: the stages need {needs}{cure}", bool(plan.problems)
    yield from ((f"note: {note}", False) for note in plan.notes)


def _ports(recipe: Recipe) -> Iterator[Line]:
    address = f"{recipe.serve.host}:{recipe.serve.port}"
    refusal = _refusal(recipe.serve.host, recipe.serve.port)
    if refusal is None:
        yield f"port: {address} is free", False
    elif _answers(f"http://{address}/health"):
        yield f"port: a server answers at {address}; it must be this run's", False
    else:
        yield f"port: {address} cannot be used ({refusal}); stop what listens there, or set serve.port", True
    pages = f"pages: 127.0.0.1:{PAGE_PORT}"
    taken = _refusal("127.0.0.1", PAGE_PORT) is not None
    yield (
        (f"{pages} is taken; `clawctl start` uses another port, or the one of --page-port" if taken else f"{pages} is free"),
        False,
    )


def _refusal(host: str, port: int) -> str | None:
    """Why nothing can listen there; None if it can."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return str(error.strerror)
    return None


def _answers(url: str) -> bool:
    try:
        return fetch("GET", url, timeout_s=5.0).status == 200
    except RequestFailed:
        return False


def _disk(folder: Path) -> Iterator[Line]:
    """Space, speed, clock and locks of the filesystem that will hold the run."""
    while not folder.exists():
        folder = folder.parent
    try:
        speed, skew, locks = probe(folder)
    except OSError as error:
        yield f"disk: {folder} cannot be used: {error.strerror}; choose another --run", True
        return
    free = shutil.disk_usage(folder).free
    slow = "" if speed >= _SLOW else ": checkpoints will be slow, choose a local disk"
    yield f"disk: {free / GIB:.0f} GiB free in {folder}, {speed / 1e6:.0f} MB/s{slow}", False
    if not locks:
        yield f"locks: {folder} does not keep them, so two workers could run at once; choose another filesystem", True
    if skew > _SKEW_S:
        yield f"clock: {folder} differs from this machine by {skew:.0f} s; synchronise both (NTP)", True
    if locks and skew <= _SKEW_S:
        yield "locks and clock: as they should be", False
