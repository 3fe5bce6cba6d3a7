"""Requests as bytes: broken JSON, UTF-8, headers, chunking, lines, and valid requests that break off."""

import json
import random
import socket
from typing import Any

_SOON_S, _PATIENCE_S = 0.2, 60.0
_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/completions")
_VALID = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
}


def raw_requests(count: int, seed: int) -> list[bytes]:
    """Bytes for one connection each."""
    chance = random.Random(seed)
    makers = (broken_json, odd_json, odd_text, odd_headers, odd_chunks, odd_line, noise, early_end, odd_model)
    return [makers[i % len(makers)](chance) for i in range(count)]


def request(path: str, body: bytes, *headers: bytes, length: bytes | None = None) -> bytes:
    size = b"%d" % len(body) if length is None else length
    head = [b"POST %s HTTP/1.1" % path.encode(), b"host: x", b"x-api-key: key", b"connection: close"]
    return b"\r\n".join([*head, b"content-length: " + size, *headers]) + b"\r\n\r\n" + body


def some_path(chance: random.Random) -> str:
    return chance.choice(_PATHS)


def broken_json(chance: random.Random) -> bytes:
    path = some_path(chance)
    body = bytearray(json.dumps(_VALID[path]).encode())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(body))
        body[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return request(path, bytes(body))


def odd_value(chance: random.Random, depth: int = 0) -> Any:
    flat: tuple[Any, ...] = (
        None,
        True,
        -1,
        0,
        2**63,
        -(2**70),
        1e308,
        "",
        "x",
        "\x00",
        "\ud7ff\uffff",
        "💥" * 50,
        [],
        {},
        [[]],
        {"type": "text"},
    )
    if depth > 3 or chance.random() < 0.6:
        return chance.choice(flat)
    if chance.random() < 0.5:
        return [odd_value(chance, depth + 1) for _ in range(chance.randint(0, 4))]
    names = ("role", "content", "type", "text", "name", "id", "function", "arguments", "tool_calls", "input", "call_id", "")
    return {chance.choice(names): odd_value(chance, depth + 1) for _ in range(chance.randint(0, 4))}


def odd_json(chance: random.Random) -> bytes:
    """A valid body with one field that is not."""
    path = some_path(chance)
    names = (
        *_VALID[path],
        "model",
        "tools",
        "tool_choice",
        "stream",
        "stop",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "logprobs",
        "top_logprobs",
        "stream_options",
        "metadata",
        "system",
        "instructions",
        "previous_response_id",
        "include",
        "text",
        "reasoning",
        "thinking",
        "response_format",
        "chat_template_kwargs",
        "stop_sequences",
        "logit_bias",
        "seed",
    )
    body: dict[str, Any] = {**_VALID[path], chance.choice(names): odd_value(chance)}
    for name in ("max_tokens", "max_output_tokens"):
        if name in body and (body[name] is None or (isinstance(body[name], int) and body[name] > 2)):
            body[name] = 2
    return request(path, json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass"))


def odd_text(chance: random.Random) -> bytes:
    """Text that is no UTF-8, lone surrogates, nesting without end, numbers without end."""
    path = some_path(chance)
    said = chance.choice(
        (
            b"\xff\xfe\xc0\x80",
            b"\\ud800",
            b"\xed\xa0\x80",
            b"\\u0000",
            bytes(chance.randbytes(20)).replace(b'"', b""),
            b"\xf4\x90\x80\x80",
        )
    )
    deep = chance.choice((b"[" * 5000, b'{"a":' * 3000, b"9" * 6000, b"1e" + b"9" * 400, b'"' + said + b'"'))
    short = b'{"max_tokens":2,"max_output_tokens":2,'
    return request(path, short + b'"messages":[{"role":"user","content":"' + said + b'"}],"input":' + deep + b"}")


def odd_headers(chance: random.Random) -> bytes:
    path = some_path(chance)
    body = json.dumps(_VALID[path]).encode()
    header = chance.choice(
        (
            b"x-request-id: " + chance.randbytes(12).replace(b"\n", b"").replace(b"\r", b""),
            b"x-session-id: \xff\xfe",
            b": empty",
            b"content-type: \x00",
            b"x-turn-type:" + b" " * 500,
            b"authorization: Bearer \xc3\xa9",
            b"no colon here",
            b"cookie: " + b"a" * 9000,
            b"expect: 100-continue",
            b"content-encoding: gzip",
            b"x-codex-turn-metadata: {" + b"[" * 300,
            b"upgrade: h2c\r\nconnection: upgrade",
            b"content-length: 3",
            b"transfer-encoding: chunked",
            b"traceparent: " + b"0" * 300,
            b"x-session-done: \x7f",
            b"host: y",
        )
    )
    return request(path, body, header)


def odd_chunks(chance: random.Random) -> bytes:
    path = some_path(chance)
    body = json.dumps(_VALID[path]).encode()
    chunk = chance.choice(
        (
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
            b"ffffffffffffffff\r\n",
            b"-1\r\n",
            b"zz\r\n\r\n",
            b"0\r\nx: y\r\n\r\n",
            b"%x;ext=%s\r\n%s\r\n0\r\n\r\n" % (len(body), b"e" * 300, body),
            b"%x\r\n%s" % (len(body) + 5, body),
            b"5\r\nab\r\n",
            b"0\r\n\r\n",
        )
    )
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: key\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + chunk


def odd_line(chance: random.Random) -> bytes:
    line = chance.choice(
        (
            b"GET /%ff%fe HTTP/1.1",
            b"GET \xff HTTP/1.1",
            b"BREW /v1/models HTTP/1.1",
            b"GET * HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            b"GET / HTTP/9.9",
            b"CONNECT x:1 HTTP/1.1",
            b"GET http://evil/v1/models HTTP/1.1",
            b"GET /v1/models/%2e%2e%2f%00 HTTP/1.1",
            b"HEAD /metrics HTTP/1.0",
            b"GET /v1/models?" + b"a=" * 500 + b" HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"get /health http/1.1",
            b"GET  /health HTTP/1.1",
            b"GET //v1//models HTTP/1.1",
            b"DELETE /v1/responses/%0d%0a HTTP/1.1",
            b"GET /v1/responses/" + b"x" * 3000 + b" HTTP/1.1",
            b"GET /health#x HTTP/1.1",
            b"GET ?x HTTP/1.1",
        )
    )
    return line + b"\r\nhost: x\r\nx-api-key: key\r\nconnection: close\r\n\r\n"


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(1, 400)) + b"\r\n\r\n"


def early_end(chance: random.Random) -> bytes:
    whole = request(some_path(chance), json.dumps({**_VALID["/v1/chat/completions"], "stream": True}).encode())
    return whole[: chance.randrange(1, len(whole))]


def odd_model(chance: random.Random) -> bytes:
    path = some_path(chance)
    name = chance.choice(
        ("tiny@", "tiny@" + "9" * 5000, "tiny@-1", "tiny@٣", "../../etc/passwd", "tiny@0\n", "\x00", "a" * 9000, "tiny@1e3")
    )
    return request(path, json.dumps({**_VALID[path], "model": name}).encode())


def send(address: tuple[str, int], data: bytes) -> tuple[int | None, bytes]:
    """What comes back. Where nothing comes soon the sending side is closed: what breaks off is not waited for."""
    answer = b""
    try:
        with socket.create_connection(address, timeout=_SOON_S) as connection:
            connection.sendall(data)
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(_PATIENCE_S)
                answer = connection.recv(65536)
            connection.settimeout(_PATIENCE_S)
            while piece := connection.recv(65536):
                answer += piece
    except TimeoutError as error:
        raise SystemExit(f"no answer in a minute to {data[:500]!r}") from error
    except OSError:  # reset by the server: what it is sent is no HTTP
        pass
    line = answer.split(b"\r\n", 1)[0].split()
    return (int(line[1]) if len(line) > 1 and line[1].isdigit() else None), answer
