"""Where this run's server listens and which key opens it: serve writes both, the other stages read them."""

import os
import secrets
from dataclasses import dataclass

import orjson

from clawctl.checksums import Damaged, read_sealed, sealed
from clawctl.config import Recipe, from_environment
from clawctl.errors import ClawError
from clawctl.run_dir import RunDir, publish_bytes


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str  # "http://127.0.0.1:30000/v1"
    api_key: str
    model: str  # the name to ask for


def own_api_key(run: RunDir, recipe: Recipe) -> tuple[str, bool]:
    """The key of this run's server, and whether it was made just now (then the caller shows it, once)."""
    given = recipe.serve.api_key or from_environment("API_KEY")
    if given:
        return given, False
    path = run.root / "api_key"
    if path.exists():
        try:
            return path.read_text(encoding="ascii").strip(), False
        except ValueError as error:
            raise ClawError(f"{path} holds no key: {error}", "restore it, or delete it: serve makes a new one") from error
    key = f"claw-{secrets.token_urlsafe(24)}"
    publish_bytes(path, f"{key}\n".encode())
    return key, True


def announce(run: RunDir, host: str, port: int) -> None:
    """Serve says where it listens."""
    publish_bytes(run.root / "serve.json", sealed(orjson.dumps({"url": f"http://{host}:{port}/v1", "pid": os.getpid()})))


def own_endpoint(run: RunDir, recipe: Recipe, version: int | None = None) -> Endpoint:
    """This run's server, asked for the live policy or for one `version`. Raises ClawError before serve has started."""
    try:
        url = str(read_sealed((run.root / "serve.json").read_bytes())["url"])
    except (OSError, LookupError, TypeError, Damaged) as error:
        raise ClawError(f"no server has announced itself in {run.root}", "start `clawctl serve --intercept` on it first") from error
    name = recipe.model_name if version is None else f"{recipe.model_name}@{version}"
    return Endpoint(url=url, api_key=own_api_key(run, recipe)[0], model=name)
