"""An upstream without a model: it answers every chat completion at once with the same number of tokens.

A raw asyncio protocol; whole answers and streams are made before the first request. Token texts vary (a proxy that guards against
repetition must not trip), ids and logprobs stand where vLLM sends them. It prints its port.
"""

import argparse
import asyncio
import json
from typing import Any, cast

import uvloop

_WORDS = ("river", "seven", "lamp", "quiet", "under", "stone", "maybe", "north", "glass", "apple", "winter", "twelve", "cloud")
UNREAD = 16  # tokens that clawctl lets vLLM send at once where no client reads the stream (`stream_interval`)
_PROMPT_IDS = list(range(100, 130))
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: "


def token(i: int) -> str:
    return f" {_WORDS[i * 7 % len(_WORDS)]}{i}"


def entry(i: int) -> dict[str, Any]:
    return {"token": token(i), "logprob": -0.01 * (i % 90) - 0.1, "bytes": list(token(i).encode()), "top_logprobs": []}


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": len(_PROMPT_IDS), "completion_tokens": tokens, "total_tokens": len(_PROMPT_IDS) + tokens}


def whole(tokens: int) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(map(token, range(tokens)))},
        "logprobs": {"content": [entry(i) for i in range(tokens)]},
        "finish_reason": "length",
        "token_ids": list(range(1000, 1000 + tokens)),
    }
    return {
        "id": "chatcmpl-null", "object": "chat.completion", "created": 1, "model": "null", "choices": [choice],
        "prompt_token_ids": _PROMPT_IDS, "usage": usage(tokens),
    }  # fmt: skip


def frames(tokens: int, with_ids: bool, interval: int = 1) -> list[dict[str, Any]]:
    """The chunks of a stream, of `interval` tokens each, as vLLM sends them: with ids and logprobs if they are asked for."""
    head = {"id": "chatcmpl-null", "object": "chat.completion.chunk", "created": 1, "model": "null"}
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]}
    chunks: list[dict[str, Any]] = [{**head, **role, **({"prompt_token_ids": _PROMPT_IDS} if with_ids else {})}]
    for first in range(0, tokens, interval):
        some = range(first, min(first + interval, tokens))
        choice: dict[str, Any] = {"index": 0, "delta": {"content": "".join(map(token, some))}, "logprobs": None}
        choice["finish_reason"] = "length" if some[-1] == tokens - 1 else None
        if with_ids:
            choice |= {"logprobs": {"content": [*map(entry, some)]}, "token_ids": [1000 + i for i in some]}
        chunks.append({**head, "choices": [choice]})
    return [*chunks, {**head, "choices": [], "usage": usage(tokens)}]


def response(kind: bytes, body: bytes) -> bytes:
    return _HEAD + kind + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def stream(tokens: int, with_ids: bool, interval: int = 1) -> bytes:
    """A whole stream at once, each chunk an HTTP chunk of its own."""
    chunks = frames(tokens, with_ids, interval)
    lines = [b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in chunks]
    body = b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in [*lines, b"data: [DONE]\n\n"])
    return _HEAD + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


class Answers:
    """Everything that can be asked, made once."""

    def __init__(self, tokens: int) -> None:
        models = {"object": "list", "data": [{"id": "null", "object": "model", "owned_by": "null", "max_model_len": 32768}]}
        self.models = response(b"application/json", json.dumps(models).encode())
        self.nothing = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        self.whole = response(b"application/json", json.dumps(whole(tokens)).encode())
        self.short = response(b"application/json", json.dumps(whole(1)).encode())
        self.stream_told, self.stream_plain = stream(tokens, True), stream(tokens, False)
        self.stream_unread = stream(tokens, True, UNREAD)

    def to(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET"):
            return self.models if b"/models" in head[:40] else self.nothing
        if b"/chat/completions" not in head[:60]:
            return self.nothing
        if b'"stream":true' in body or b'"stream": true' in body:
            if b'"stream_interval":%d' % UNREAD in body:
                return self.stream_unread
            return self.stream_told if b"return_token_ids" in body else self.stream_plain
        return self.short if b'"max_tokens":1,' in body else self.whole


class Null(asyncio.Protocol):
    def __init__(self, answers: Answers) -> None:
        self._answers, self._held = answers, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._held) < end + 4 + length:
                return
            body, self._held = self._held[end + 4 : end + 4 + length], self._held[end + 4 + length :]
            self._transport.write(self._answers.to(head, body))


async def main(port: int, tokens: int) -> None:
    answers = Answers(tokens)
    server = await asyncio.get_running_loop().create_server(lambda: Null(answers), "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    uvloop.run(main(given.port, given.tokens))
