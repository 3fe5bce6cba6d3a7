"""What `clawctl doctor` finds out about this box for one recipe: what was found, what it is for, and how to mend it."""

import importlib.util
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
from clawctl.launch.plan import plan_memory
from clawctl.memory import GIB, box_at_hand
from clawctl.run.box_disk import probe
from clawctl.run.hint_places import with_hint

Line = tuple[str, bool]  # the text, and whether the recipe cannot run like this
_VLLM = (0, 32)  # what clawctl/engines/vllm/control.py needs
_SLOW = 50e6  # bytes a second: a checkpoint of a large model would take minutes
_SKEW_S = 2.0


def check_box(recipe: Recipe, folder: Path) -> Iterator[Line]:
    """Check this machine for `recipe`, with a run directory in `folder`."""
    yield from _gpu(recipe)
    yield from _engine(recipe)
    yield from _model(recipe)
    yield from _memory(recipe)
    yield from _port(recipe)
    yield from _disk(folder)
    yield from _judge(recipe)


def _gpu(recipe: Recipe) -> Iterator[Line]:
    import torch

    build = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
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


def _model(recipe: Recipe) -> Iterator[Line]:
    from transformers import AutoTokenizer

    try:
        path = recipe.model_path
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (ClawError, OSError, ValueError) as error:
        yield f"model: {recipe.model.path} cannot be read: {str(error).splitlines()[0]}; download it, or correct model.path", True
        return
    if not tokenizer.chat_template:
        yield f"model: {path} has no chat template, which chat APIs need; choose an instruction-tuned model", True
        return
    marker = "clawctl looks for this"
    hinted = with_hint([{"role": "user", "content": "hello"}], marker)
    placed = marker in str(tokenizer.apply_chat_template(hinted, tokenize=False, add_generation_prompt=True))
    tools = "tools" in str(tokenizer.chat_template)
    parts = ["hints can be placed" if placed else "hints cannot be placed: use train.method binary"]
    parts.append("tools have a form in its template" if tools else "its template has no tools, so agents cannot call any")
    yield f"model: {path}; {'; '.join(parts)}", recipe.train.uses_hints and not placed
    lora = recipe.train.lora
    if lora is not None and lora.quantize is not None and importlib.util.find_spec("bitsandbytes") is None:
        yield "4 bits: bitsandbytes is missing; pip install 'clawctl[quantize]', or remove train.lora.quantize", True


def _memory(recipe: Recipe) -> Iterator[Line]:
    try:
        plan = plan_memory(recipe, box_at_hand())
    except ClawError as error:
        yield f"memory: not planned, because {error.problem}; {error.fix}", True
        return
    needs = ", ".join(f"{'host' if gpu is None else f'GPU {gpu}'} {plan.need(gpu) / GIB:.1f} GiB" for gpu in plan.memories)
    cure = f"; {'; '.join(plan.problems)}: `clawctl up --estimate RECIPE --fit`" if plan.problems else "; it fits"
    yield f"memory: the stages need {needs}{cure}", bool(plan.problems)


def _port(recipe: Recipe) -> Iterator[Line]:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((recipe.serve.host, recipe.serve.port))
        except OSError as error:
            address = f"{recipe.serve.host}:{recipe.serve.port}"
            if _answers(f"http://{address}/health"):
                yield f"port: a server answers at {address}; it must be this run's", False
                return
            yield f"port: {address} cannot be used ({error.strerror}); stop what listens there, or set serve.port", True
            return
    yield f"port: {recipe.serve.host}:{recipe.serve.port} is free", False


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


def _judge(recipe: Recipe) -> Iterator[Line]:
    url = recipe.judge.endpoint
    if url is None:
        return
    try:
        fetch("GET", f"{url.rstrip('/')}/models", key=recipe.judge.api_key, timeout_s=5.0)
    except RequestFailed as error:
        yield f"judge: {url} does not answer ({error}); start it, or correct judge.endpoint", True
        return
    yield f"judge: {url} answers; `clawctl doctor --judge --run RUN` asks it planted turns", False
