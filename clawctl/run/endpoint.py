"""Address and key of this run's server. Serve writes both, and the other stages read them."""

import errno
import logging
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.config.environment import from_environment
from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.policies import PolicyId, live_version, read_policy

_log = logging.getLogger(__name__)
QUIET = {"X-Capture": "off", "X-Notes": "off"}  # headers of clawctl's own questions: not captured, and without anybody's notes
_ALL_ADDRESSES = ("0.0.0.0", "::", "")
_ONE_VERSION_FIX = (
    "set judge.endpoint and judge.model to another server (a gate needs eval.endpoint too), or train an adapter (train.lora), "
    "of which vLLM serves several versions"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str  # "http://127.0.0.1:30000/v1"
    api_key: str
    model: str  # the name to ask for
    # Headers of each call: they name the episode, or exclude the call from the captures
    headers: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # request fields to add: {"temperature": 1.0}
    deadline: float | None = None  # unix seconds; for an episode: the server rejects calls after it


def own_api_key(run: RunDir, recipe: Recipe) -> str:
    """Return the key of this run's server, which only serve creates. Raises ClawError if it is not known here."""
    configured = recipe.serve.api_key or from_environment("API_KEY")
    if configured:
        return configured
    if run.api_key.exists():
        return _stored_key(run)
    problem = f"the key of this run's server is not known here: {run.api_key} does not exist"
    raise ClawError(problem, "set CLAWCTL_API_KEY as for the server, or serve.api_key in the recipe")


def key_for_another_server(run: RunDir, recipe: Recipe) -> str:
    """Return the key for a server that the recipe names; without a key, a text that a server without keys ignores."""
    try:
        return own_api_key(run, recipe)
    except ClawError:
        return "none"


def server_api_key(run: RunDir, recipe: Recipe) -> tuple[str, bool]:
    """Return the key for the server of this run, and whether it was just created (then the caller shows it once)."""
    try:
        return own_api_key(run, recipe), False
    except ClawError:
        if run.api_key.exists():
            raise
    key = f"claw-{secrets.token_urlsafe(24)}"
    publish_bytes(run.api_key, f"{key}\n".encode())
    return key, True


def where_the_key_is(run: RunDir, key: str) -> str:
    """Say where a client finds the key that this server accepts."""
    in_file = run.api_key.exists() and _stored_key(run) == key
    return "it is in RUN/api_key" if in_file else "it is the one in the server's CLAWCTL_API_KEY or serve.api_key"


def _stored_key(run: RunDir) -> str:
    path = run.api_key
    try:
        return path.read_text(encoding="ascii").strip()
    except ValueError as error:
        raise ClawError(f"{path} contains no key: {error}", "restore it, or delete it so that serve creates a new one") from error


def announce(run: RunDir, host: str, port: int) -> None:
    """Write the address of the server."""
    publish_bytes(run.server, sealed(orjson.dumps({"url": own_url(host, port), "pid": os.getpid()})))


def own_url(host: str, port: int) -> str:
    """The address of a server of this machine. If it listens on all addresses, the one that other machines can reach."""
    return f"http://{own_address() if host in _ALL_ADDRESSES else host}:{port}/v1"


def registered_url(run: RunDir) -> str:
    """Return the address of the server that registered last. Raises ClawError if none can be read."""
    try:
        return str(read_sealed(run.server.read_bytes())["url"])
    except (OSError, LookupError, TypeError, Damaged) as error:
        raise ClawError(f"no server has registered in {run.root}", "start `clawctl serve --intercept` on it first") from error


def own_address() -> str:
    """Return the address at which other machines reach this one: the source address of its route, else its host name. Nothing is
    sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation (RFC 5737)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def own_endpoint(run: RunDir, recipe: Recipe, version: int | None = None) -> Endpoint:
    """Return this run's server for the live policy or for one `version`. Raises ClawError if serve has never started."""
    name = recipe.model_name if version is None else f"{recipe.model_name}@{PolicyId(run.policy, version)}"
    return Endpoint(url=registered_url(run), api_key=own_api_key(run, recipe), model=name)


def unserved_versions(recipe: Recipe) -> str | None:
    """Return the requests that this run's server cannot serve because it holds one version of full weights at a time, or None."""
    if recipe.train.lora is not None or (recipe.serve.engine != "vllm" and recipe.serve.upstream is None):
        return None
    judge, unserved = recipe.judge, []
    if not (judge.endpoint or judge.endpoints or judge.prm or judge.custom_rm):
        models = {judge.model or f"{recipe.model_name}@0", judge.hint_model or ""}
        unserved = [f"{model} (judge)" for model in sorted(models) if model.startswith(f"{recipe.model_name}@")]
    if recipe.waits_for_gate and recipe.eval.endpoint is None:
        unserved.append("the gate's candidates (eval)")
    return ", ".join(unserved) or None


def one_version_error(names: str) -> ClawError:
    return ClawError(
        f"when all weights are trained, this run's server holds one version at a time and cannot serve {names}", _ONE_VERSION_FIX, 2
    )


def warn_of_unserved_versions(recipe: Recipe) -> None:
    """Warn at start about versions that other stages will request but the server cannot serve."""
    if unserved := unserved_versions(recipe):
        error = one_version_error(unserved)
        _log.warning("%s, once trained weights are live: %s", error.problem, error.fix)


def check_unserved_versions(run: RunDir, recipe: Recipe) -> None:
    """Like `warn_of_unserved_versions`, but raise ClawError if trained weights are already live."""
    unserved, live = unserved_versions(recipe), live_version(run)
    if unserved and live and read_policy(run, live).kind == "full":
        raise one_version_error(unserved)
    warn_of_unserved_versions(recipe)


def cannot_listen(host: str, port: int, error: OSError) -> ClawError:
    """Return the error that explains why the address is not available."""
    if error.errno == errno.EADDRINUSE:
        return ClawError(
            f"port {port} on {host} is already in use", "stop the process that uses it, or choose another port with --port"
        )
    return ClawError(
        f"cannot listen on {host} port {port}: {error.strerror or error}", "choose another address with --host and --port"
    )
