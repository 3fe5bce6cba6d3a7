r"""A chat-completions server with scripted answers, for testing real clients without a model.

    python -m scripts.rehearsal --port 8123

Its answers have vLLM's format: token ids, logprobs and usage, streamed or not. The new messages of a user or tool determine the
answer:

- `[[tool:NAME {"a": 1}]]` calls that tool if it was offered. Two such orders make two calls.
- `[[think]]` adds reasoning.
- `[[say:TEXT]]` answers with TEXT, in which `\n` starts a new line.

If tool results contain no orders, the answer is the beginning of each result. A token is a word. All logprobs are -0.5.
"""

import argparse
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "rehearsal"
_LOGPROB = -0.5
_ORDER = re.compile(r"\[\[(tool|say|think)(?::((?:[^\]]|\](?!\]))*))?\]\]", re.DOTALL)
_WORD = re.compile(r"\s*\S+|\s+")
_CONTEXT = 1 << 20


def tokens_of(text: str) -> list[str]:
    return _WORD.findall(text)


def ids_of(text: str) -> list[int]:
    return [crc32(token.encode("utf-8", "surrogatepass")) & 0xFFFFF for token in tokens_of(text)]


def prompt_ids(body: dict[str, Any]) -> list[int]:
    """Encode message by message, so that the ids of a longer conversation begin with the ids of the shorter one."""
    texts = [json.dumps(body.get("tools") or [])] + [json.dumps(message, sort_keys=True) for message in body["messages"]]
    return [i for text in texts for i in ids_of(text)]


def reply_to(body: dict[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the reasoning, the text, and the calls with their arguments."""
    new = list(itertools.takewhile(lambda message: message["role"] != "assistant", reversed(body["messages"])))[::-1]
    orders = [order for message in new if message["role"] != "system" for order in _ORDER.findall(_text(message))]
    orders = orders or [order for message in new for order in _ORDER.findall(_text(message))]
    results = [_text(message)[:60] for message in new if message["role"] == "tool"]
    if results and not orders:
        return "", "It says: " + " / ".join(results), []
    offered = {tool["function"]["name"] for tool in body.get("tools") or []}
    calls = [(name, arguments) for name, _, arguments in (said.partition(" ") for kind, said in orders if kind == "tool")]
    calls = [(name, _unescaped(arguments or "{}")) for name, arguments in calls if name in offered]
    heard = "" if calls else f"I heard {sum(map(len, map(_text, new)))} characters."
    said = next((said.replace("\\n", "\n") for kind, said in orders if kind == "say"), heard)
    return "I think about it." if any(kind == "think" for kind, _ in orders) else "", said, calls


def _unescaped(arguments: str) -> str:
    """Unescape arguments that come from a result that is itself JSON."""
    try:
        json.loads(arguments)
    except ValueError:
        return arguments.replace('\\"', '"')
    return arguments


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def _pieces(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return each token with its delta in the stream."""
    thought, said, calls = reply_to(body)
    pieces: list[tuple[str, dict[str, Any]]] = [(token, {"reasoning": token}) for token in tokens_of(thought)]
    pieces += [(token, {"content": token}) for token in tokens_of(said)]
    for i, (name, arguments) in enumerate(calls):
        begun = {"index": i, "id": f"chatcmpl-tool-{i}", "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append((f"<call {name}>", {"tool_calls": [begun]}))
        grown = ({"tool_calls": [{"index": i, "function": {"arguments": token}}]} for token in tokens_of(arguments))
        pieces += zip(tokens_of(arguments), grown, strict=True)
    pieces = pieces[: body.get("max_completion_tokens") or body.get("max_tokens") or _CONTEXT]
    return pieces


def _message(pieces: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Join the deltas of a stream into one message."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(delta.get("content", "") for _, delta in pieces)}
    if thought := "".join(delta.get("reasoning", "") for _, delta in pieces):
        message["reasoning"] = thought
    calls: list[dict[str, Any]] = []
    for part in (part for _, delta in pieces for part in delta.get("tool_calls", [])):
        if "id" in part:
            calls.append({**part, "function": {**part["function"]}})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return {**message, "tool_calls": calls} if calls else message


def _usage(ids: list[int], pieces: list[tuple[str, dict[str, Any]]]) -> dict[str, int]:
    return {"prompt_tokens": len(ids), "completion_tokens": len(pieces), "total_tokens": len(ids) + len(pieces)}


def _reason(body: dict[str, Any], count: int) -> str:
    thought, said, calls = reply_to(body)
    whole = len(tokens_of(thought)) + len(tokens_of(said)) + sum(1 + len(tokens_of(arguments)) for _, arguments in calls)
    return "length" if count < whole else "tool_calls" if calls else "stop"


def _told(body: dict[str, Any], token: str) -> dict[str, Any]:
    temperature = body.get("temperature") or 1.0
    top = [{"token": token, "logprob": _LOGPROB / temperature, "bytes": None}]
    return {"content": [{"token": token, "logprob": _LOGPROB, "bytes": None, "top_logprobs": top}]}


class Rehearsal:
    """The server. `asked` contains the bodies of all requests."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self._numbers = itertools.count()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/tokenize", self._tokenize, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": _CONTEXT}]})

    async def _tokenize(self, request: Request) -> Response:
        ids = prompt_ids(await request.json())
        return JSONResponse({"count": len(ids), "max_model_len": _CONTEXT, "tokens": ids})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        head = {"id": f"chatcmpl-{next(self._numbers)}", "created": 0, "model": MODEL}
        if body.get("stream"):
            return StreamingResponse(self._stream(body, head), media_type="text/event-stream")
        pieces = _pieces(body)
        ids = prompt_ids(body)
        logprobs = {"content": [entry for token, _ in pieces for entry in _told(body, token)["content"]]}
        choice = {
            "index": 0,
            "message": _message(pieces),
            "finish_reason": _reason(body, len(pieces)),
            "token_ids": [i for token, _ in pieces for i in ids_of(token)[:1]],
            "logprobs": logprobs,
        }
        whole = {**head, "object": "chat.completion", "choices": [choice], "prompt_token_ids": ids}
        return JSONResponse({**whole, "usage": _usage(ids, pieces)})

    async def _stream(self, body: dict[str, Any], head: dict[str, Any]) -> AsyncIterator[str]:
        head, ids, pieces = {**head, "object": "chat.completion.chunk"}, prompt_ids(body), _pieces(body)
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        yield _frame({**head, "choices": [first], "prompt_token_ids": ids})
        for token, delta in pieces:
            choice = {
                "index": 0,
                "delta": delta,
                "finish_reason": None,
                "token_ids": ids_of(token)[:1],
                "logprobs": _told(body, token),
            }
            yield _frame({**head, "choices": [choice]})
        last = {"index": 0, "delta": {}, "finish_reason": _reason(body, len(pieces)), "token_ids": []}
        yield _frame({**head, "choices": [last]})
        yield _frame({**head, "choices": [], "usage": _usage(ids, pieces)})
        yield "data: [DONE]\n\n"


def _frame(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Says what it is told to say.")
    parser.add_argument("--port", type=int, default=8123)
    uvicorn.run(Rehearsal().app(), port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
