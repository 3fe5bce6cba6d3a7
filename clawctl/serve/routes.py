"""Maps paths to routes, and explains why a route does not exist.

Clients write base URLs with `/v1`, without it, with it twice, or with a trailing slash. All of these are accepted.
"""

import re
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from clawctl.engines.requests import Refusal
from clawctl.serve.answer import new_handle
from clawctl.serve.dialects import chat, messages
from clawctl.serve.http_response import Envelope, RequestContext

_SLASHES = re.compile(r"/{2,}")
_VERSIONS = re.compile(r"^(/v1)+(?=/|$)")
_API = re.compile(r"^/(chat/completions|completions|responses|messages|models|feedback|outcome|notes|score)(/|$)")
_SAME = {"/healthz": "/health", "/livez": "/health/live", "/ping": "/health/live", "/readyz": "/health/ready"}
_SPOKEN = "POST /v1/chat/completions, /v1/responses, /v1/messages, /v1/completions, and GET /v1/models; docs: /openapi.json"
_ABSENT = (  # start of the path, and the explanation
    ("/v1/embeddings", "this server does not support embeddings"),
    ("/v1/audio", "this server does not process audio"),
    ("/v1/images", "this server does not generate images"),
    ("/v1/moderations", "this server does not support moderation"),
    ("/v1/files", "this server stores no files: put their text into a message"),
    ("/v1/batches", "this server does not support batches: send the requests in parallel"),
    ("/v1/messages/batches", "this server does not support batches: send the requests in parallel"),
    ("/v1/conversations", "this server stores no conversations: send the whole input, or previous_response_id"),
    ("/v1/assistants", "this server does not support assistants and threads"),
    ("/v1/threads", "this server does not support assistants and threads"),
    ("/v1/fine_tuning", "this server learns from use and has no fine-tuning jobs"),
    ("/v1/realtime", "this server does not support realtime sessions"),
    ("/v1/complete", "Anthropic's text completions are not supported: use /v1/messages"),
    ("/v1/responses/", "a response supports GET and DELETE only; none runs in the background"),
    ("/api/", "Ollama's API is not supported: set your client to an OpenAI-compatible API, with a base URL that ends in /v1"),
)
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
        return _ollamas
    anthropic = any(path == root or path.startswith(f"{root}/") for root in _ANTHROPIC)
    return messages.envelope if anthropic or "anthropic-version" in request.headers else chat.envelope


def not_found(path: str) -> Refusal:
    """The refusal for a missing route. Its status is 404, not 501, because clients retry after a 5xx."""
    here = f"{normalised_path(path)}/"
    why = next((f": {reason}" for begin, reason in _ABSENT if here.startswith(f"{begin.rstrip('/')}/")), "")
    return Refusal(404, f"{path[:200]} is not supported{why}. Supported: {_SPOKEN}", code="unknown_route")


def _ollamas(refusal: Refusal) -> dict[str, Any]:
    return {"error": refusal.message}


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
