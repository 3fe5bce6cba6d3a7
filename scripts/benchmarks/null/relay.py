"""Passes bytes between clients and one server unread: the least that any process in between costs.

python -m scripts.benchmarks.null.relay PORT prints the port that it listens at.
"""

import asyncio
import sys
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One end of a connection; what comes in goes out at the other."""

    def __init__(self, other: "End | None" = None) -> None:
        self.other, self._early = other, b""  # what came before there was another end
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.other is None:
            self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        _, self.other = await loop.create_connection(lambda: End(self), "127.0.0.1", int(sys.argv[1]))
        if self._early and self.other.transport is not None:
            self.other.transport.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(End, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
