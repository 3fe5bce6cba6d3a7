"""HTTP for the judge's calls: the small client with timeouts, or httpx if the environment names a proxy."""

import asyncio
import urllib.request
from urllib.parse import urlsplit

import httpx

from clawctl.http_client import CONNECT_S, Answer, Broken, Client, Unreachable, json_headers

_LONGEST = 8 << 20  # bytes of a judge's answer: far more than any vote with its reasoning


class Posts:
    """POSTs to any number of endpoints."""

    def __init__(self, timeout_s: float, headers: dict[str, str], trust_env: bool) -> None:
        """`trust_env`: proxies that the environment names are used, as httpx does."""
        self._timeout_s, self._headers, self._trust_env = timeout_s, headers, trust_env
        self._clients: dict[tuple[str, str], Client] = {}
        self._through_proxy: dict[str, bool] = {}
        self._proxied: httpx.AsyncClient | None = None

    async def post(self, url: str, key: str, body: bytes) -> Answer:
        """The complete answer, whatever its status. Raises Broken, and Unreachable if no server listens."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._has_proxy(url):
                    return await self._by_proxy(url, key, body)
                return await self._client(url, key).post("", body)
        except TimeoutError as error:
            raise Broken(f"no answer in {self._timeout_s:g} s") from error

    async def close(self) -> None:
        for client in self._clients.values():
            client.close()
        if self._proxied is not None:
            await self._proxied.aclose()

    def _client(self, url: str, key: str) -> Client:
        client = self._clients.get((url, key))
        if client is None:
            client = self._clients[url, key] = Client(url, key, self._headers, _LONGEST)
        return client

    def _has_proxy(self, url: str) -> bool:
        found = self._through_proxy.get(url)
        if found is None:
            parts, proxies = urlsplit(url), urllib.request.getproxies() if self._trust_env else {}
            named = bool({parts.scheme, "all"} & proxies.keys())
            found = self._through_proxy[url] = named and not urllib.request.proxy_bypass(parts.hostname or "")
        return found

    async def _by_proxy(self, url: str, key: str, body: bytes) -> Answer:
        if self._proxied is None:
            self._proxied = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_S))
        asked = {**json_headers(key), **self._headers}
        try:
            async with self._proxied.stream("POST", url, content=body, headers=asked) as found:
                said = await _bounded(found)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise Unreachable(f"{url} cannot be reached: {error}") from error
        except httpx.TransportError as error:
            raise Broken(type(error).__name__) from error
        return Answer(url, found.status_code, said, found.headers.get("retry-after"))


async def _bounded(response: httpx.Response) -> bytes:
    """The body. Raises Broken if it is longer than any valid answer."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _LONGEST:
            raise Broken(f"its answer is longer than {_LONGEST >> 20} MiB")
    return bytes(body)
