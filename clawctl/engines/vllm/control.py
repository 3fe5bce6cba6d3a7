"""Control calls to a vLLM server: its model, adapters, weights, and the logprobs of given ids. They block."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from clawctl.engines import Unanswered
from clawctl.errors import ClawError
from clawctl.http_client import HttpResponse, RequestFailed, fetch

_PLACES = 64  # positions per request
_TIMEOUT_S = 600.0  # large weights take long to load
_NOT_NOW = {408, 425, 429, 502, 503, 504}  # statuses of a server or its proxy that may succeed on a retry
_NOT_THERE = {401, 403, 404, 405, 501}


class Control:
    """The control calls of one server. Raises ClawError if the server refuses, Unanswered if it is unreachable or busy."""

    def __init__(self, url: str, key: str | None, reload: str = "reload_weights") -> None:
        self._url, self._key = url, key
        self._reload = reload  # the worker's method that reloads weights

    # ---- the server ------------------------------------------------------------------------------------------------------

    def models(self) -> list[dict[str, Any]]:
        listed = self._ask("GET", "/v1/models").get("data")
        return [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []

    def has(self, path: str) -> bool:
        """Whether `path` exists, tested with an empty POST."""
        return self._send("POST", path, {}).status not in _NOT_THERE

    def takes_adapters(self) -> bool:
        return self.has("/v1/load_lora_adapter")

    def takes_weights(self) -> bool:
        return self.has("/collective_rpc") and self.has("/update_weight_version")

    def warnings(self) -> list[str]:
        """Additional warnings for the log at start."""
        return []

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion; {} if the server refuses the call. Raises Unanswered."""
        return self._ask_if_known("POST", "/v1/chat/completions", body)

    def score(self, model: str, ids: Sequence[int], first: int = 1) -> list[float]:
        """Logprobs of `ids[first:]`, each given all preceding ids, at temperature 1.

        Each logprob is requested as an answer of one token. `prompt_logprobs` would return all at once, but it crashes a server
        with LoRA on a CPU (vLLM 0.32).
        """
        logprobs: list[float] = []
        for start in range(first, len(ids), _PLACES):
            positions = range(start, min(start + _PLACES, len(ids)))
            body = {"model": model, "prompt": [list(ids[:position]) for position in positions], "max_tokens": 1, "temperature": 1.0}
            wished = sorted({ids[position] for position in positions})
            neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
            body |= {"logprobs": 1, "logprob_token_ids": wished, "return_tokens_as_token_ids": True, **neutral}
            answer = self._ask("POST", "/v1/completions", body)
            try:
                choices = sorted(answer["choices"], key=lambda choice: choice["index"])
                pairs = zip(choices, positions, strict=True)
                tops = ((choice["logprobs"]["top_logprobs"][0], f"token_id:{ids[position]}") for choice, position in pairs)
                logprobs += [float(top[name]) for top, name in tops]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ClawError(f"the engine returns no logprobs for given ids: {error!r}", "use vLLM 0.32 or newer") from error
        return logprobs

    # ---- adapters --------------------------------------------------------------------------------------------------------

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter. An adapter with the same name from an earlier process is replaced."""
        try:
            self._load(name, folder)
        except Unanswered:
            raise
        except ClawError as refused:
            try:
                self.unload_adapter(name)
            except ClawError:
                raise refused from None  # no such adapter was loaded
            self._load(name, folder)

    def _load(self, name: str, folder: Path) -> None:
        self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload_adapter(self, name: str) -> None:
        self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    # ---- weights ---------------------------------------------------------------------------------------------------------

    def pause(self) -> float:
        """Returns when no token is being sampled. Running requests are kept but lose their cached computation, so that the new
        weights compute it again. Returns the `time.monotonic()` of the request to pause."""
        began = time.monotonic()
        self._ask("POST", "/pause?mode=keep")
        return began

    def reload(self, path: str, version: int) -> None:
        argument = "weights_path" if self._reload == "reload_weights" else "path"
        answer = self._ask("POST", "/collective_rpc", {"method": self._reload, "kwargs": {argument: path}})
        for result in answer.get("results") or ():
            if isinstance(result, dict) and "error" in result:
                raise ClawError(f"the weights in {path} cannot be read: {result['error']}", "publish them again")
        self._ask("POST", "/update_weight_version", {"new_version": str(version)})

    def weight_version(self) -> str | None:
        """The version that `reload` has set last; another one in a process that has restarted. None: the server does not say."""
        return self._ask_if_known("GET", "/weight_info").get("weight_version")

    def resume(self) -> None:
        self._ask("POST", "/resume")

    # ---- memory ----------------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Move weights to the CPU's memory and drop the cache, if vLLM was started with --enable-sleep-mode. Running requests are
        kept."""
        self._ask("POST", "/sleep?level=1&mode=keep")

    def wake(self) -> None:
        self._ask("POST", "/wake_up")

    # ---- requests --------------------------------------------------------------------------------------------------------

    def _ask_if_known(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Like `_ask`, but {} if the server refuses the call."""
        try:
            return self._ask(method, path, body)
        except Unanswered:
            raise
        except ClawError:
            return {}

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        response = self._send(method, path, body)
        if response.status != 200:
            raise ClawError(f"the engine refuses {_bare(path)}: {_error_of(response)}", "the engine's own log has the details")
        try:
            answer = orjson.loads(response.body) if response.body else {}
        except orjson.JSONDecodeError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def _send(self, method: str, path: str, body: Any) -> HttpResponse:
        """Send a request on a new connection. vLLM closes a connection that is idle for 5 s, and a call sent at that moment would
        be lost."""
        sent = b"" if body is None else orjson.dumps(body)
        try:
            response = fetch(method, self._url + path, sent, self._key, timeout_s=_TIMEOUT_S)
        except RequestFailed as error:
            raise Unanswered(f"the engine does not answer {_bare(path)}: {error}", "check that it is running") from error
        if response.status in _NOT_NOW:
            raise Unanswered(f"the engine cannot answer {_bare(path)} now: {_error_of(response)}", "check that it is running")
        return response


def _bare(path: str) -> str:
    return path.split("?")[0]


def _error_of(response: HttpResponse) -> str:
    try:
        answer = orjson.loads(response.body)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        message = error.get("message", error) if isinstance(error, dict) else error
    except orjson.JSONDecodeError:
        message = response.body.decode(errors="replace")
    return f"{response.status} {str(message)[:300]}"
