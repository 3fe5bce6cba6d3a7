"""Maps paths to routes, and explains why a route does not exist.

Clients write base URLs with `/v1`, without it, with it twice, or with a trailing slash. All of these are accepted.
"""

import re
import time
from pathlib import Path

import yaml
from starlette.requests import Request
from starlette.responses import Response

from clawctl.engines.requests import Refusal
from clawctl.serve.answer import new_handle
from clawctl.serve.dialects import chat, messages
from clawctl.serve.request_context import Envelope, RequestContext

_SLASHES = re.compile(r"/{2,}")
_VERSIONS = re.compile(r"^(/v1)+(?=/|$)")
_API = re.compile(r"^/(chat/completions|completions|responses|messages|models|feedback|outcome|notes|score)(/|$)")
_SAME = {"/healthz": "/health", "/livez": "/health/live", "/ping": "/health/live", "/readyz": "/health/ready"}
_SPOKEN = "POST /v1/chat/completions, /v1/responses, /v1/messages, /v1/completions, and GET /v1/models; docs: /openapi.json"
_ABSENT: dict[str, str] = yaml.safe_load((Path(__file__).parent / "absent.yaml").read_text("utf-8"))
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ANTHROPIC = ("/v1/messages", "/v1/complete")


def normalised_path(path: str) -> str:
    """The canonical path of a route: single slashes, `/v1` once, and no trailing slash."""
    path = _SLASHES.sub("/", path)
    path = path.rstrip("/") or "/"
    path = _VERSIONS.sub("/v1", path)
    if _API.match(path):
        path = f"/v1{path}"
    return _SAME.get(path, path)


def envelope_of(request: Request) -> Envelope:
    """The function that builds error bodies in the dialect of the request."""
    path = normalised_path(request.scope["path"])
    if path.startswith("/api/"):
        return lambda refusal: {"error": refusal.message}
    anthropic = any(path == root or path.startswith(f"{root}/") for root in _ANTHROPIC)
    return messages.envelope if anthropic or "anthropic-version" in request.headers else chat.envelope


def not_found(path: str) -> Refusal:
    """The refusal for a missing route. Its status is 404, not 501, because clients retry after a 5xx."""
    here = f"{normalised_path(path)}/"
    why = next((f": {reason}" for begin, reason in _ABSENT.items() if here.startswith(f"{begin.rstrip('/')}/")), "")
    return Refusal(404, f"{path[:200]} is not supported{why}. Supported: {_SPOKEN}", code="unknown_route")


def context_of(http_request: Request) -> RequestContext:
    """The context of a request that has just arrived."""
    given = http_request.headers.get("x-request-id", "")
    request_id = given if _SANE_ID.fullmatch(given) else f"req_{new_handle()}"
    return RequestContext(request_id, "none", envelope_of(http_request), time.time())


def presented_key(http_request: Request) -> str:
    """The API key that the client sent; "" if none."""
    scheme, _, bearer = http_request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else http_request.headers.get("x-api-key", "")


async def no_compaction(http_request: Request, context: RequestContext) -> Response:
    problem = "this server does not compact responses: ask for a summary in a message, and continue with the summary"
    raise Refusal(404, problem, code="unknown_route")
