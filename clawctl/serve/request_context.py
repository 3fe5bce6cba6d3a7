"""The state of one HTTP request, and what every response has."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.responses import Response

from clawctl.engines.requests import Refusal
from clawctl.run.capabilities import Capability

_MAX_IGNORED = 16  # names in one header
Envelope = Callable[[Refusal], dict[str, Any]]


@dataclass(slots=True)
class RequestContext:
    """The state of one HTTP request, from its arrival to its end."""

    request_id: str
    api: str  # "chat", "responses", "messages", "count_tokens", "models", "health", "metrics", "none"
    envelope: Envelope
    arrived: float  # unix seconds
    began: float = field(default_factory=time.perf_counter)
    key: str = ""  # name of the API key that the request counts as; empty until it has been checked
    sent_key: str = ""  # name of the API key that was sent
    status: int = 500
    unknown: tuple[str, ...] = ()  # names of unknown fields in its body
    sampling: str = ""  # changes that the recipe made to the request's sampling: "temperature 0.7 instead of 0"
    episode: Capability | None = None  # the episode, if the request was sent to an episode's address
    digest: bytes = b""  # digest of the body, in an episode
    first_at: float | None = None  # unix seconds of the first piece or, for a complete answer, of its first token


def json_response(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def extra_headers(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """The headers of every answer: the request's id, fields that were ignored, and changes to the sampling."""
    headers = [(b"x-request-id", context.request_id.encode()), (b"request-id", context.request_id.encode())]
    if context.unknown:  # printable ASCII, see `clawctl.serve.dialects.api`
        headers.append((b"x-clawctl-ignored", ", ".join(context.unknown[:_MAX_IGNORED]).encode()))
    return [*headers, (b"x-clawctl-sampling", context.sampling.encode())] if context.sampling else headers
