"""What SGLang 0.5.23 answers to what we ask, written to the letter of its source (`srt/entrypoints/`); words are tokens.

`http_server.py`: routes and their answers. `openai/serving_chat.py`: `sglext`, what a stream refuses, where a logprob is lost.
`openai/protocol.py` and `managers/io_struct.py`: fields; what is unknown is passed over. `managers/tokenizer_manager.py`: errors.
"""

import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PROMPT_IDS = [11, 12, 13]
WORDS = [("Hello", 101, -0.5), (" there", 102, -0.25), ("", 2, -1.5)]  # the end token has no text
SCORES = {"base": -1.0, "tiny@1": -2.0, "tiny@2": -2.0}  # of every token but the first
CONTEXT = 4096


class Sglang:
    """`parses`: started with a parser of tool calls. `lora`: with --enable-lora. `default_top_k`: that of the model's
    generation_config.json. `calls` keeps what was asked, in order."""

    def __init__(self, parses: bool = True, lora: bool = True, default_top_k: int = -1) -> None:
        self.parses, self.lora, self.default_top_k = parses, lora, default_top_k
        self.calls: list[tuple[str, Any]] = []
        self.adapters: dict[str, str] = {}
        self.paused = False

    def app(self) -> Starlette:
        answers = {
            "/model_info": lambda: {"reasoning_parser": None, "tool_call_parser": "qwen25" if self.parses else None},
            "/server_info": lambda: {"enable_lora": self.lora or None, "version": "0.5.23"},
            "/v1/models": lambda: {"object": "list", "data": [{"id": "base", "object": "model", "max_model_len": CONTEXT}]},
        }
        posts = {
            "/v1/chat/completions": self._chat,
            "/tokenize": lambda body: {"tokens": PROMPT_IDS, "count": len(PROMPT_IDS), "max_model_len": CONTEXT},
            "/generate": self._generate,
            "/load_lora_adapter": self._load,
            "/unload_lora_adapter": self._unload,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weights_from_disk": self._update,
        }

        def get(path: str) -> Route:
            async def answer(request: Request) -> Response:
                return JSONResponse(answers[path]())

            return Route(path, answer)

        def post(path: str) -> Route:
            async def answer(request: Request) -> Response:
                body = await request.json()
                self.calls.append((path, body))
                said = posts[path](body)
                return said if isinstance(said, Response) else JSONResponse(said)

            return Route(path, answer, methods=["POST"])

        return Starlette(routes=[*map(get, answers), *map(post, posts)])

    # ---- chat ------------------------------------------------------------------------------------------------------------

    def _chat(self, body: dict[str, Any]) -> Any:
        if body.get("top_k", self.default_top_k) == 0:
            return refused("top_k must be -1 (disable) or at least 1, got 0.")
        if body.get("stream"):
            for field in ("return_prompt_token_ids", "return_token_ids", "return_meta_info"):
                if body.get(field):
                    return refused(f"{field} is not supported with streaming. Please set stream=false when using {field}=true.")
        if "LONG" in str(body["messages"]):
            return refused(f"The input (9999 tokens) is longer than the model's context length ({CONTEXT} tokens).")
        words = WORDS[: body.get("max_completion_tokens") or body.get("max_tokens")]
        reason = {"type": "stop", "matched": 2} if len(words) == len(WORDS) else {"type": "length", "length": len(words)}
        if "ABORT" in str(body["messages"]):
            reason = {"type": "abort", "message": "Aborted by AbortReq."}
        head = {"id": "a" * 32, "created": 1, "model": body["model"]}
        temperature = body.get("temperature", 1.0)
        if body.get("stream"):
            stream = self._stream(body, head, words, reason, temperature)
            return StreamingResponse(iter(stream), media_type="text/event-stream")
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(word for word, _, _ in words), "reasoning_content": None},
            "logprobs": logprobs(words, body, temperature) if body.get("logprobs") else None,
            "finish_reason": reason["type"],
            "matched_stop": reason.get("matched"),
        }
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": PROMPT_IDS, "response_token_ids": [i for _, i, _ in words]}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage(words)}
        ids = sglext(body, words)
        return {**whole, "metadata": {"weight_version": "default"}, **({"sglext": ids} if ids else {})}

    def _stream(
        self, body: dict[str, Any], head: dict[str, Any], words: list[Any], reason: dict[str, Any], temperature: float
    ) -> Iterator[str]:
        head = {**head, "object": "chat.completion.chunk"}
        yield chunk(head, {"reasoning_content": None, "role": "assistant", "content": ""})
        for word, i, logprob in words:
            details = logprobs([(word, i, logprob)], body, temperature) if body.get("logprobs") else None
            if word:
                yield chunk(head, {"reasoning_content": None, "content": word}, details)
            elif self.parses and details:  # else its logprob is never sent
                yield chunk(head, {"reasoning_content": None}, details)
        yield chunk(head, {"reasoning_content": None}, None, finish_reason=reason["type"], matched_stop=reason.get("matched"))
        if ids := sglext(body, words):
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': None, 'sglext': ids})}\n\n"
        if (body.get("stream_options") or {}).get("include_usage"):
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage(words)})}\n\n"
        yield "data: [DONE]\n\n"

    # ---- the rest --------------------------------------------------------------------------------------------------------

    def _generate(self, body: dict[str, Any]) -> Any:
        model = body.get("lora_path") or "base"
        if model not in SCORES or (model != "base" and model not in self.adapters):
            return JSONResponse({"error": {"message": f"The following LoRA adapters are not loaded: {{'{model}'}}"}}, 400)
        entries = [[None if n == 0 else SCORES[model], i, None] for n, i in enumerate(body["input_ids"])]
        return {"text": "x", "output_ids": [1], "meta_info": {"input_token_logprobs": entries[body["logprob_start_len"] :]}}

    def _load(self, body: dict[str, Any]) -> Any:
        if "lora_name" not in body:
            return refused("field required")
        if not self.lora:
            message = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
            return JSONResponse({"success": False, "error_message": message, "loaded_adapters": None}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return {"success": True, "error_message": None, "loaded_adapters": self.adapters}

    def _unload(self, body: dict[str, Any]) -> Any:
        self.adapters.pop(body["lora_name"])
        return {"success": True, "error_message": None, "loaded_adapters": self.adapters}

    def _pause(self, body: dict[str, Any]) -> Any:
        self.paused = True
        return {"message": "Generation paused successfully.", "status": "ok"}

    def _continue(self, body: dict[str, Any]) -> Any:
        self.paused = False
        return {"message": "Generation continued successfully.", "status": "ok"}

    def _update(self, body: dict[str, Any]) -> Any:
        if "model_path" not in body:
            return refused("field required")
        failed = "broken" in body["model_path"]
        message = "Failed to update weights." if failed else "Succeeded to update model weights."
        return JSONResponse({"success": not failed, "message": message, "num_paused_requests": 0}, 400 if failed else 200)


def sglext(body: dict[str, Any], words: list[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.get("return_input_ids_in_sglext"):
        fields["input_ids"] = PROMPT_IDS
    if body.get("return_output_ids_in_sglext"):
        fields["output_ids"] = [[i for _, i, _ in words]]
    return fields


def logprobs(words: list[Any], body: dict[str, Any], temperature: float) -> dict[str, Any]:
    def entry(word: str, logprob: float) -> dict[str, Any]:
        return {"token": word, "bytes": list(word.encode()), "logprob": logprob / temperature}

    top = body.get("top_logprobs") or 0
    return {"content": [{**entry(word, value), "top_logprobs": [entry(word, value)][:top]} for word, _, value in words]}


def usage(words: list[Any]) -> dict[str, Any]:
    counted = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": len(words), "total_tokens": len(PROMPT_IDS) + len(words)}
    return {**counted, "prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None}


def chunk(head: dict[str, Any], delta: dict[str, Any], details: Any = None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": details, "finish_reason": None, "matched_stop": None, **more}
    return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"


def refused(message: str) -> Response:
    error = {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": 400}
    return JSONResponse(error, 400)
