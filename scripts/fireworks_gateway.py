"""A stand-in for Fireworks' gateway, for tests and `scripts/bench backends`. It answers with the types of Fireworks' own SDK.

usage: python -m scripts.fireworks_gateway SKYRL_URL PORT

The control plane keeps saved and promoted adapters in memory. Calls to the training plane are forwarded to SkyRL's Tinker server.
Two names are translated because the SDK checks their form: session ids begin with `ts-`, and a saved state is
`ACCOUNT/run-…/NAME`. `/calls` returns the number of calls to the training plane and the number of refused calls.
"""

import re
import sys
import time
from typing import Any

import httpx
from fireworks import types
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clawctl.extensions.tinker.adapter import members_of

ACCOUNT, BASE = "demo", "accounts/fireworks/models/demo"
_TRAINING = "/training/v1/serverless/"
_PATH = re.compile(r"tinker://model_([0-9a-f]{8})/(?:weights/)?([\w-]+)")  # SkyRL's form
_RUN = re.compile(ACCOUNT + r"/run-([0-9a-f]{8})0{24}/([\w-]+)")  # Fireworks' form


class Gateway:
    """The state of one account. Tests change it to check how the client reacts."""

    def __init__(self, skyrl: str | None = None) -> None:
        self.saved: dict[str, dict[str, bytes]] = {}  # checkpoints of the account's sessions
        self.promoted: dict[str, dict[str, bytes]] = {}  # models of the account
        self.refusal: str | None = None  # the reason with which promotions are refused
        self.copying = 0  # the number of status requests for which a promoted model is still being copied
        self.valid_s = 600.0  # lifetime of a signed URL
        self.calls = self.refused = 0
        self._skyrl = httpx.AsyncClient(base_url=skyrl, timeout=600, follow_redirects=True) if skyrl is not None else None
        self._models: dict[str, str] = {}  # SkyRL's model of each saved checkpoint
        sessions = "/v1/accounts/{account}/trainingSessions/{session}/checkpoints"
        routes = [
            Route("/v1/accounts", self.accounts),
            Route("/v1/accounts/{account}/models/{name}", self.model, methods=["GET", "DELETE"]),
            Route(sessions, self.checkpoints),
            Route(sessions + "/{name}:promote", self.promote, methods=["POST"]),
            Route("/files/{model}/{name}", self.file),
            Route("/calls", self.counts),
            Route(_TRAINING + "{path:path}", self.training_plane, methods=["GET", "POST"]),
        ]
        self.app = Starlette(routes=routes)

    # ---- control plane ---------------------------------------------------------------------------------------------------

    async def accounts(self, _: Request) -> Response:
        return JSONResponse({"accounts": [_made(types.Account, email="demo@example.com", name=f"accounts/{ACCOUNT}")]})

    async def model(self, request: Request) -> Response:
        name, _, verb = request.path_params["name"].partition(":")
        full = f"accounts/{request.path_params['account']}/models/{name}"
        if full == BASE:
            return JSONResponse(_made(types.Model, name=full, kind="HF_BASE_MODEL", state="READY", trainingContextLength=4096))
        if name not in self.promoted:
            return _error(404, f"no model {full}")
        if request.method == "DELETE":
            del self.promoted[name]
            return JSONResponse({})
        if verb == "getDownloadEndpoint":
            until = time.time() + self.valid_s
            urls = {file: f"{request.base_url}files/{name}/{file}?until={until}" for file in self.promoted[name]}
            return JSONResponse(_made(types.ModelGetDownloadEndpointResponse, filenameToSignedUrls=urls))
        self.copying -= 1
        state = "UPLOADING" if self.copying >= 0 else "READY"
        return JSONResponse(_made(types.Model, name=full, kind="HF_PEFT_ADDON", state=state))

    async def checkpoints(self, request: Request) -> Response:
        session = "accounts/{account}/trainingSessions/{session}".format(**request.path_params)
        rows = [{"name": f"{session}/checkpoints/{name}", "promotable": True} for name in (*self.saved, *self._models)]
        return JSONResponse({"trainingSessionCheckpoints": rows})

    async def promote(self, request: Request) -> Response:
        if self.refusal is not None:
            return _error(400, self.refusal)
        name, wanted = request.path_params["name"], await request.json()
        model = wanted["output_model"].rpartition("/")[2]
        self.promoted[model] = self.saved[name] if name in self.saved else await self._archive(name)
        return JSONResponse({"model": _made(types.Model, name=wanted["output_model"], kind="HF_PEFT_ADDON", state="UPLOADING")})

    async def file(self, request: Request) -> Response:
        if float(request.query_params["until"]) < time.time() or "authorization" in request.headers:
            return Response("expired", 403)
        return Response(self.promoted[request.path_params["model"]][request.path_params["name"]])

    # ---- training plane --------------------------------------------------------------------------------------------------

    async def training_plane(self, request: Request) -> Response:
        assert self._skyrl is not None
        self.calls += 1
        body = (await request.body()).decode()
        body = _RUN.sub(r"tinker://model_\1/weights/\2", body).replace('"ts-session_', '"session_')
        sent = {"content-type": request.headers.get("content-type", "application/json")}
        answer = await self._skyrl.request(request.method, "/" + request.path_params["path"], content=body, headers=sent)
        if answer.status_code >= 400:
            self.refused += 1
            print(f"refused: {request.path_params['path']} {body[:300]}: {answer.status_code} {answer.text[:300]}", flush=True)
        elif request.path_params["path"].endswith("save_weights_for_sampler"):
            saved = httpx.Response(200, text=body).json()
            self._models[saved["path"]] = saved["model_id"]
        text = _PATH.sub(lambda match: f"{ACCOUNT}/run-{match[1]}{'0' * 24}/{match[2]}", answer.text)
        return Response(
            text.replace('"session_id":"session_', '"session_id":"ts-session_'), answer.status_code, media_type="application/json"
        )

    async def _archive(self, name: str) -> dict[str, bytes]:
        assert self._skyrl is not None
        answer = await self._skyrl.get(f"/api/v1/training_runs/{self._models[name]}/checkpoints/{name}/archive")
        return members_of(answer.raise_for_status().content)

    async def counts(self, _: Request) -> Response:
        return JSONResponse({"calls": self.calls, "refused": self.refused})


def _made(type_: Any, /, **fields: Any) -> Any:
    """Make an answer of an SDK type. Raises ValueError for a field that the type lacks; the SDK itself would accept it."""
    answer = type_.model_validate(fields)
    if answer.model_extra:
        raise ValueError(f"{type_.__name__} has no {', '.join(answer.model_extra)}")
    return answer.to_dict(mode="json")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"code": status, "message": message}}, status)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(Gateway(sys.argv[1]).app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
