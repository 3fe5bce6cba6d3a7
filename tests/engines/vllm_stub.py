"""What a vLLM server with LoRA answers, as far as a pool asks it. Its tokens show which server and which version sampled them.

The server is a process, so that it can be killed; it imports only the standard library.
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

TOKENS = 8
ABSENT = {"error": {"message": "The model does not exist.", "code": 404}}


def ids(server: int, version: int) -> list[int]:
    return [10_000 * server + 100 * version + i for i in range(TOKENS)]


def logprobs(version: int) -> list[float]:
    return [-(version + 1) - i / 100 for i in range(TOKENS)]


class StandIn:
    """A server that can be killed, and started again at its port."""

    def __init__(self, number: int) -> None:
        self.number, self.port = number, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, __file__, str(self.number), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        with self._process.stdout as output:
            self.port = int(output.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def set(self, **faults: Any) -> dict[str, Any]:
        """Set its faults: seconds of a load, whether it refuses loads, its score of each token, seconds of a token. Returns its
        state."""
        request = urllib.request.Request(f"{self.url}/state", json.dumps(faults).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            state: dict[str, Any] = json.loads(answer.read())
        return state


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    number = 0
    adapters: ClassVar[dict[str, str]] = {}
    state: ClassVar[dict[str, Any]] = {
        "load_s": 0.0,
        "refuses": False,
        "score": -1.0,
        "token_s": 0.002,
        "answered": 0,
        "absent": 0,
        "listed": [],
    }
    weights: ClassVar[str] = "default"  # their version

    def do_GET(self) -> None:
        if self.path == "/weight_info":
            self._answer({"weight_version": self.weights})
            return
        names = self.state["listed"] = ["base", *self.adapters]
        self._answer({"object": "list", "data": [{"id": name, "object": "model", "max_model_len": 4096} for name in names]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}")
        calls = {
            "/state": self._state, "/v1/load_lora_adapter": self._load, "/v1/unload_lora_adapter": self._unload,
            "/v1/completions": self._score, "/v1/chat/completions": self._chat, "/tokenize": lambda body: {"count": 3},
            "/pause?mode=keep": lambda body: {}, "/collective_rpc": lambda body: {}, "/resume": lambda body: {},
            "/update_weight_version": self._weigh,
        }  # fmt: skip
        if (call := calls.get(self.path)) is None:
            self._answer({}, 404)
        elif "model" in body and body["model"] not in ("base", *self.adapters):
            self.state["absent"] += 1
            self._answer(ABSENT, 404)
        elif (said := call(body)) is not None:
            self._answer(said, 400 if "error" in said else 200)

    def _state(self, body: dict[str, Any]) -> dict[str, Any]:
        self.state.update(body)
        return {**self.state, "adapters": sorted(self.adapters)}

    def _load(self, body: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.state["load_s"] if body else 0)
        if not body or self.state["refuses"] or body["lora_name"] in self.adapters:
            return {"error": {"message": "it cannot be loaded"}}
        self.adapters[body["lora_name"]] = body["lora_path"]
        return {"loaded": True}

    def _unload(self, body: dict[str, Any]) -> dict[str, Any]:
        folder = self.adapters.pop(body["lora_name"], None)
        return {"unloaded": True} if folder else {"error": {"message": "it is not loaded"}}

    def _weigh(self, body: dict[str, Any]) -> dict[str, Any]:
        type(self).weights = body.get("new_version", self.weights)
        return {}

    def _score(self, body: dict[str, Any]) -> dict[str, Any]:
        top = {f"token_id:{token}": self.state["score"] for token in body["logprob_token_ids"]}
        return {"choices": [{"index": i, "logprobs": {"top_logprobs": [top]}} for i in range(len(body["prompt"]))]}

    def _chat(self, body: dict[str, Any]) -> dict[str, Any] | None:
        version = int(body["model"].partition("@")[2] or self.weights.replace("default", "0"))
        entries = [
            {"token": "a", "logprob": logprob, "top_logprobs": [{"token": "a", "logprob": logprob}]}
            for logprob in (logprob / body["temperature"] for logprob in logprobs(version))
        ]  # fmt: skip
        if not body.get("stream"):  # a probe
            choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "token_ids": [1], "finish_reason": "length"}
            return {"prompt_token_ids": [1], "choices": [{**choice, "logprobs": {"content": entries[:1]}}]}
        self.state["answered"] += 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self._chunk({"prompt_token_ids": [1, 2, 3], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for i, token in enumerate(ids(self.number, version)):
            time.sleep(self.state["token_s"])
            end = "length" if i == TOKENS - 1 else None
            piece = {"index": 0, "delta": {"content": f"{token} "}, "token_ids": [token], "finish_reason": end}
            self._chunk({"choices": [{**piece, "logprobs": {"content": [entries[i]]}}]})
        self._chunk({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": 3 + TOKENS}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        return None

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", **chunk}).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def main() -> None:
    _Handler.number = int(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
