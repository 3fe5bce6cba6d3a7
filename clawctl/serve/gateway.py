"""Entry point of `clawctl serve`. Refuses invalid settings before it imports anything heavy."""

import logging
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from clawctl.config import Recipe
from clawctl.config.environment import is_stage_of_up
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import cannot_listen, server_api_key, warn_of_unserved_versions
from clawctl.run.keys import begin_policies
from clawctl.run.policies import ensure_base_policy, list_versions

if TYPE_CHECKING:
    from clawctl.engines import Engine

_NAME_A_MODEL = "set --model or model.path to a Hugging Face model directory, a GGUF file, or smollm2"
_HUB_S = 10.0


def serve(run: RunDir, recipe: Recipe, intercept: bool, pin: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish. With `pin`, serve that version regardless of LIVE.

    Raises ClawError.
    """
    with bind(recipe.serve.host, recipe.serve.port) as listener:
        ensure_base_policy(run, recipe.model.path)
        if recipe.policies.per_person:
            begin_policies(run)
        if pin is not None and pin not in list_versions(run):
            raise ClawError(f"policy {pin} is not published", f"pin one of {list_versions(run)}", 2)
        if intercept:
            warn_of_unserved_versions(recipe)
        key, is_new = server_api_key(run, recipe)
        if is_new:
            shown = f": {key}" if sys.stderr.isatty() or is_stage_of_up() else ""  # not into a file or the journal
            print(f"API key, created now and stored in {run.api_key}{shown}", file=sys.stderr)
        _without_torch()
        start = _engine(recipe)
        importing = Thread(target=import_module, args=["clawctl.serve.server"], daemon=True)
        importing.start()  # while the engine's process loads the model
        engine = start(run, recipe)
        importing.join()
        from clawctl.serve.server import run_server

        run_server(engine, run, recipe, intercept, listener, key, pin)


def _engine(recipe: Recipe) -> "Callable[[RunDir, Recipe], Engine]":
    """The function that starts the engine that the recipe names (`serve.upstream`, else `serve.engine`), with version 0. It raises
    ClawError."""
    if recipe.serve.upstream is not None:
        from clawctl.engines.upstream import engine, pool

        return pool.start if recipe.serve.upstream.others else engine.start
    if recipe.serve.engine != "vllm" and recipe.serve.engine_args:
        logging.getLogger("clawctl.serve").warning("serve.engine_args has no effect: it needs `--engine vllm`")
    from clawctl.engines import ENGINES

    return ENGINES.load(recipe.serve.engine, "serve.engine")


def _without_torch() -> None:
    """Block imports of torch. Models run in other processes, and this one needs only the tokenizers of transformers."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    logging.getLogger("transformers").addFilter(lambda record: not record.getMessage().startswith("PyTorch was not found"))


def check_engine(recipe: Recipe) -> None:
    """Raises ClawError if the model or the engine is known to be missing. Called before a run directory is created."""
    if recipe.serve.upstream is None:
        check_model(recipe)
        from clawctl.engines import ENGINES

        ENGINES.check(recipe.serve.engine, "serve.engine")
        if recipe.serve.engine == "vllm":
            from clawctl.engines.vllm.child import check_vllm

            check_vllm(recipe)
    elif recipe.serve.upstream.others and recipe.train.lora is None:
        raise ClawError("a pool of servers loads adapters only, and this recipe trains all weights", "set train.lora: {}", 2)


def vllm_tool_parser(recipe: Recipe) -> str | None:
    """The parser with which vLLM would read tool calls, by clawctl's choice for the template or by the recipe's."""
    from clawctl.engines.vllm.child import arguments

    words = [word for argument in arguments(recipe) for word in argument.split("=", 1)]
    return next((value for name, value in reversed([*pairwise(words)]) if name == "--tool-call-parser"), None)


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to the address, without listening yet. Raises ClawError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def check_model(recipe: Recipe) -> None:
    """Raises ClawError (exit code 2) if the recipe names a local folder without a model, or an unknown name."""
    path = recipe.model_path
    local = Path(path).is_absolute() or path.startswith((".", "~")) or path.count("/") != 1
    if local or Path(path).exists():
        if not (Path(path) / "config.json").is_file():
            raise ClawError(f"there is no model in {path}", _NAME_A_MODEL, 2)
    elif recipe.serve.engine == "transformers":  # vLLM resolves the name itself
        check_hub(path)


def check_hub(name: str) -> None:
    """Check once that a model that is not cached exists on the hub, because the download itself retries many times before it fails.
    Raises ClawError."""
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import build_hf_headers

    from clawctl.http_client import RequestFailed, fetch

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    absent = f"{name} is not on this machine"
    if constants.HF_HUB_OFFLINE:
        raise ClawError(f"{absent}, and HF_HUB_OFFLINE prevents a download", _NAME_A_MODEL, 2)
    try:
        response = fetch("HEAD", hf_hub_url(name, "config.json"), headers=build_hf_headers(), timeout_s=_HUB_S)
    except RequestFailed as error:
        problem = f"{absent}, and {constants.ENDPOINT} cannot be reached: {error}"
        raise ClawError(problem, f"check the network (HTTPS_PROXY, HF_ENDPOINT), or {_NAME_A_MODEL}") from error
    if response.status in (401, 403, 404):
        cure = "correct the name; for a gated model, accept its licence there and run `hf auth login`"
        raise ClawError(f"{absent}, and {constants.ENDPOINT} has no model of that name ({response.status})", cure, 2)
