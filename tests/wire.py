"""Servers that send arbitrary bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")), 0)
    return head + await reader.readexactly(length)


def against(serve: Serve, ask: Callable[[str], Awaitable[Any]]) -> Any:
    """What `ask(url)` gives while `serve` answers each connection."""

    async def both() -> Any:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        try:
            return await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        finally:
            server.close()

    return asyncio.run(both())


def saying(*pieces: bytes, stay: bool = True) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
            if not stay:
                return

    return serve
