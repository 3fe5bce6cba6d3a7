"""The server's status: models, health, metrics, and the OpenAPI document of its routes."""

import asyncio
import ipaddress
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from clawctl.config import Recipe
from clawctl.engines.requests import Refusal
from clawctl.run.activity import Activity
from clawctl.run.directory import RunDir
from clawctl.run.fitness import read_fitness
from clawctl.run.keys import OWN
from clawctl.run.lines import CountedLines
from clawctl.run.outcomes import UNVERIFIED_LINE
from clawctl.run.policies import list_versions
from clawctl.serve.capture import Capture
from clawctl.serve.defaults import Defaults
from clawctl.serve.metrics import Metrics, exposition
from clawctl.serve.request_context import RequestContext, json_response
from clawctl.serve.versions import Versions

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_OPENAPI = Path(__file__).parent / "openapi.json"
_MAX_MODELS = 1000  # maximum `limit` of one list
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class ServiceInfo:
    """The routes that need no engine: models, health, metrics and the OpenAPI description."""

    def __init__(
        self,
        run: RunDir,
        recipe: Recipe,
        versions: Versions,
        capture: Capture,
        metrics: Metrics,
        defaults: Defaults,
        activity: Activity,
    ) -> None:
        self._run, self._recipe, self._versions, self._capture, self._metrics = run, recipe, versions, capture, metrics
        self._defaults, self._activity = defaults, activity
        self._started_at = time.time()
        self._unverified = CountedLines(run.feedback, UNVERIFIED_LINE)
        self.draining = False

    # ---- models ----------------------------------------------------------------------------------------------------------

    async def models(self, request: Request, context: RequestContext) -> Response:
        """A list of models that OpenAI's and Anthropic's clients can read."""
        names, has_more = _page(await self._names(), request.query_params)
        return json_response({
            "object": "list", "data": [self._describe(name) for name in names], "has_more": has_more,
            "first_id": names[0] if names else None, "last_id": names[-1] if names else None,
        })  # fmt: skip

    async def model(self, request: Request, context: RequestContext) -> Response:
        name = request.path_params["id"]
        if name not in await self._names():
            raise Refusal(404, f"model {name[:200]!r} does not exist", "model", "model_not_found")
        return json_response(self._describe(name))

    async def _names(self) -> list[str]:
        name = self._recipe.model_name
        return [name] + [f"{name}@{version}" for version in await asyncio.to_thread(list_versions, self._run)]

    def _describe(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": int(self._started_at),
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started_at)),
            "owned_by": "clawctl",
            "max_model_len": self._versions.live.max_context,
        }

    # ---- health ----------------------------------------------------------------------------------------------------------

    def _not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        if self._versions.live.failure() is not None:
            return "the engine has stopped"
        return None if self._versions.asleep else self._versions.live.waiting_for()  # a request wakes a sleeping one

    async def alive(self, request: Request, context: RequestContext) -> Response:
        """Liveness: the process answers, so it need not be restarted."""
        return json_response({"alive": True})

    async def ready(self, request: Request, context: RequestContext) -> Response:
        """Readiness: whether the server accepts new requests."""
        why_not = self._not_ready()
        return json_response({"ready": why_not is None, "reason": why_not}, 200 if why_not is None else 503)

    async def health(self, request: Request, context: RequestContext) -> Response:
        """The full status for clients on this machine or with a key; a short one for all others."""
        versions, capture = self._versions, self._capture
        members: list[dict[str, Any]] = getattr(versions.live, "members", list)()  # of a pool
        problem = self._not_ready() or versions.last_swap_error or versions.live.doubt() or capture.failing
        problem = problem or any(member["problem"] for member in members)
        short = {"status": "degraded" if problem else "ok", "live": versions.live.version, "ready": self._not_ready() is None}
        if not (context.key or _from_here(request)):
            return json_response(short)
        return json_response({
            **short,
            "draining": self.draining,
            "engine": {
                "waiting_for": versions.live.waiting_for(), "doubt": versions.live.doubt(), **asdict(versions.live.capabilities),
                "members": members,
            },
            "capture": {
                "on": capture.enabled, "written": capture.written, "lost": capture.lost, "failing": capture.failing,
                "last_error": capture.last_error,
            },
            "unverified_outcomes": await asyncio.to_thread(self._unverified.poll),
            "judge": None if (judge := read_fitness(self._run)) is None else judge.shown(),
            "disk_free_bytes": self._disk_free(),
            "policies": {} if versions.people is None else versions.people.status(_only(context)),
            "swaps": [asdict(swap) for swap in versions.swaps],
            "last_swap_error": versions.last_swap_error,
            "requests": self._requests(),
            "idle_s": self._activity.idle_s,
            "unknown_fields": self._metrics.unknown.by_api(),
            "default_sampling": self._defaults.as_json(),
            "sampling_changed": self._metrics.enforced.by_client(),
            "uptime_s": time.time() - self._started_at,
        })  # fmt: skip

    def _disk_free(self) -> int | None:
        """Free bytes on the run's disk; None if unknown."""
        try:
            return shutil.disk_usage(self._run.root).free
        except OSError:
            return None

    def _requests(self) -> dict[str, int]:
        counted = [(api, int(status), count) for (api, status, _), count in self._metrics.requests.items()]
        asks = [(status, count) for api, status, count in counted if api in ("chat", "responses", "messages", "completions")]
        return {
            "running": self._metrics.running,
            "total": sum(count for _, count in asks) + self._metrics.running,
            "refused": sum(count for _, status, count in counted if 400 <= status < 499),
            "failed": sum(count for _, status, count in counted if status >= 500),
        }

    # ---- metrics ---------------------------------------------------------------------------------------------------------

    async def metrics(self, request: Request, context: RequestContext) -> Response:
        """Metrics for Prometheus, for clients with a key or on this machine."""
        if not (context.key or _from_here(request)):
            raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key")
        versions, capture = self._versions, self._capture
        last = versions.swaps[-1:]
        load_s, pause_s = next(((swap.load_ms / 1e3, swap.pause_ms / 1e3) for swap in last), (None, None))
        return Response(
            exposition(self._metrics, {
                "clawctl_running": ("gauge", "Running requests.", self._metrics.running),
                "clawctl_ready": ("gauge", "1 if the server accepts new requests.", float(self._not_ready() is None)),
                "clawctl_engine_up": ("gauge", "1 if the engine is running.", float(versions.live.failure() is None)),
                "clawctl_live_version": ("gauge", "The live policy version.", versions.live.version),
                "clawctl_capture_on": ("gauge", "1 if conversations are captured.", float(capture.enabled)),
                "clawctl_capture_written_total": ("counter", "Captured exchanges.", capture.written),
                "clawctl_capture_lost_total": ("counter", "Exchanges that could not be captured.", capture.lost),
                "clawctl_capture_failing": ("gauge", "1 if the last exchange could not be captured.", float(capture.failing)),
                "clawctl_disk_free_bytes": ("gauge", "Free space on the disk of the run, in bytes.", self._disk_free()),
                "clawctl_swaps_total": ("counter", "Swaps that went live.", versions.swaps_done),
                "clawctl_swaps_refused_total": ("counter", "Refused swaps.", versions.swaps_refused),
                "clawctl_swap_alarm": ("gauge", "1 if the last swap was refused.", float(versions.last_swap_error is not None)),
                "clawctl_last_swap_load_seconds": ("gauge", "Load time of the last swap, while the server kept serving.", load_s),
                "clawctl_last_swap_pause_seconds": ("gauge", "Pause of the last swap, in which no token was sampled.", pause_s),
            }, _only(context)),
            media_type=_PROMETHEUS,
        )  # fmt: skip

    async def openapi(self, request: Request, context: RequestContext) -> Response:
        """The OpenAPI document of these routes."""
        return Response(await asyncio.to_thread(_OPENAPI.read_bytes), media_type="application/json")


def _page(names: list[str], query: Mapping[str, str]) -> tuple[list[str], bool]:
    """The names on one page of the list of models, and whether more follow in its direction. `after_id` and `before_id` are
    Anthropic's parameters, `after` and `before` OpenAI's. Without `limit` all names are returned. Raises Refusal."""
    limit, after, before = query.get("limit"), _cursor(query, "after", names), _cursor(query, "before", names)
    if limit is not None and not (limit.isascii() and limit.isdigit() and len(limit) < 5 and 1 <= int(limit) <= _MAX_MODELS):
        raise Refusal(400, f"'limit' must be a whole number from 1 to {_MAX_MODELS}", "limit")
    if after is not None and before is not None:
        raise Refusal(400, "'after_id' and 'before_id' cannot be used together", "before_id")
    left = names[:before] if before is not None else names[0 if after is None else after + 1 :]
    page_size = len(left) if limit is None else int(limit)
    return left[-page_size:] if before is not None and page_size else left[:page_size], len(left) > page_size


def _cursor(query: Mapping[str, str], which: str, names: list[str]) -> int | None:
    param = next((name for name in (f"{which}_id", which) if query.get(name)), None)
    if param is None:
        return None
    if query[param] not in names:
        raise Refusal(400, f"'{param}' is not a model of this list", param)
    return names.index(query[param])


def _only(context: RequestContext) -> str | None:
    """The key whose requests and policy a client may see, because it has that key; None: all."""
    return context.key if context.key not in ("", OWN) else None


def _from_here(request: Request) -> bool:
    """Whether the client is on this machine and not behind a proxy. Behind a proxy every client appears local."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
