"""Converts an engine's errors to refusals for the client."""

import logging

import orjson

from clawctl.engines.requests import Refusal
from clawctl.run.policies import Version
from clawctl.serve.canary import CanaryFailure

_log = logging.getLogger("clawctl.serve")
_TOO_LONG = ("maximum context length", "max_model_len", "model's context length")  # the last one is SGLang's
_CALL_STATUSES = {401, 403, 404, 405}  # statuses that concern clawctl's call to the upstream, not the client's request


def refusal(status: int, body: bytes) -> Refusal:
    """The refusal for an error response with this status and the body `body`."""
    try:
        error = orjson.loads(body)
        error = error.get("error", error)
        message, param = str(error["message"])[:2000], error.get("param")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        message, param = f"the engine answered with status {status}", None
    if status in _CALL_STATUSES or status >= 500 or status < 400:
        return Refusal(502, f"the engine refused: {message}", code="engine_refused")
    too_long = any(phrase in message for phrase in _TOO_LONG)
    return Refusal(status, message, param if isinstance(param, str) else None, "context_length_exceeded" if too_long else None)


def canary_refusal(version: Version, error: CanaryFailure) -> Refusal:
    """The refusal of a request that pins a version with a failed canary check. The log contains the difference."""
    _log.error("version %s is not served: %s", version, error)
    body = f"version {version} of this model is not served: the engine's results differ from the trainer's"
    return Refusal(404, body, "model", "model_not_found")
