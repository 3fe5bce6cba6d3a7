"""A chat completion that comes in, as a stream or whole: what it says is shown, and what was sampled is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

import orjson

from clawctl.serve.backends import Sampled
from clawctl.serve.backends.http import Client, Connection
from clawctl.serve.backends.tokens import Clock, Tokens
from clawctl.serve.dialects import Shown, ShownToken
from clawctl.serve.engines import EngineFailure
from clawctl.serve.text import CallBegun, CallSaid, Event, Said, Thought


class Words(Protocol):
    """What choices say."""

    def chat(self, told: dict[str, Any]) -> dict[str, Any]:
        """A chunk or a completion in the form that a chat's has."""
        ...

    def show(self, choices: list[dict[str, Any]]) -> Shown | None: ...

    def end(self, sampled: Sampled) -> Shown | None:
        """What was held back; `sampled` learns what only the words tell of the end."""
        ...


class UpstreamReply:
    """See `clawctl.serve.backends.Reply`; the taker of the response's body as well."""

    def __init__(self, sampled: Sampled, clock: Clock, show_logprobs: bool, expect_ids: bool, words: Words | None = None) -> None:
        self.sampled = sampled
        self._tokens = Tokens(sampled, clock, expect_ids)
        self._words = words or _Words(show_logprobs)
        self._rest = b""
        self._choices: list[dict[str, Any]] = []  # not shown yet
        self._done = False  # [DONE] has come
        self._over = False
        self._error: str | None = None
        self._news = asyncio.Event()
        self._client: Client | None = None
        self._connection: Connection | None = None
        self.cancelled = False

    def runs_on(self, client: Client, connection: Connection) -> None:
        self._client, self._connection = client, connection
        if self.cancelled or self._over:
            self._let_go()

    # ---- what comes in ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if self._over:
            return
        *lines, self._rest = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip())
        if self._choices or self._over:
            self._news.set()

    def ended(self, error: str | None) -> None:
        if not self._over:
            self._end(error or (None if self._done else "the upstream's stream ended early"))

    def _end(self, error: str | None) -> None:
        self._over, self._error = True, error
        self._let_go()
        self._news.set()

    def _let_go(self) -> None:
        if self._client is not None and self._connection is not None:
            self._client.give_back(self._connection)
            self._connection = None

    def _take(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._end("the upstream sent what is not JSON")
            return
        if "error" in chunk:
            self._end(f"the upstream says: {str(chunk['error'])[:300]}")
            return
        self._choices += self._tokens.take(self._words.chat(chunk))

    # ---- what goes out ---------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Shown]:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                choices, self._choices = self._choices, []
                shown = self._words.show(choices)
                if shown is not None:
                    yield shown
                if self._over and not self._choices:
                    break
                if self._over:
                    self._news.set()
            if shown := self._words.end(self.sampled):
                yield shown
        finally:
            self.cancel()
            self._tokens.settle()
        if self._error is not None:
            raise EngineFailure(self._error)

    def cancel(self) -> None:
        self.cancelled = True
        if not self._over:
            self._end(None)


class WholeReply:
    """See `clawctl.serve.backends.Reply`: asked for whole and told whole, once it is iterated. What it raises may be a Refusal."""

    def __init__(
        self,
        sampled: Sampled,
        clock: Clock,
        show_logprobs: bool,
        expect_ids: bool,
        ask: Callable[[], Coroutine[Any, Any, bytes]],
        words: Words | None = None,
    ) -> None:
        self.sampled = sampled
        sampled.whole = True
        self._tokens, self._words, self._ask = Tokens(sampled, clock, expect_ids), words or _Words(show_logprobs), ask
        self._asking: asyncio.Task[bytes] | None = None
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[Shown]:
        try:
            body = None if self.cancelled else await self._body()
            shown = None if body is None else self._words.show(self._tokens.take(self._words.chat(_completion(body))))
            if shown is not None:
                yield shown
            if shown := self._words.end(self.sampled):
                yield shown
        finally:
            self._tokens.settle()

    async def _body(self) -> bytes | None:
        asking = self._asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
        return None if asking.cancelled() else asking.result()

    def cancel(self) -> None:
        self.cancelled = True
        if self._asking is not None:
            self._asking.cancel()  # closes the connection, which stops the engine


def _completion(body: bytes) -> dict[str, Any]:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineFailure("the upstream sent what is not JSON") from error
    if not isinstance(told, dict) or "error" in told:
        raise EngineFailure(f"the upstream says: {body[:300].decode(errors='replace')}")
    return told


class _Words:
    """See `Words`: of a chat completion, as events. Neighbours that say the same kind of thing are one."""

    def __init__(self, show_logprobs: bool) -> None:
        self._show_logprobs = show_logprobs
        self._unseen: list[ShownToken] = []  # tokens of what is not shown yet
        self._call_index = -1  # of the call that began last

    def chat(self, told: dict[str, Any]) -> dict[str, Any]:
        return told

    def end(self, sampled: Sampled) -> Shown | None:
        return None

    def show(self, choices: list[dict[str, Any]]) -> Shown | None:
        """One piece of all that these chunks' (or this completion's) choices say, if anything."""
        runs: list[tuple[type[Event], list[str]]] = []
        for choice in choices:
            self._read(choice.get("delta") or choice.get("message") or {}, runs)
            if self._show_logprobs:
                entries = (choice.get("logprobs") or {}).get("content") or ()
                self._unseen += [ShownToken(each["token"], each["logprob"], each.get("top_logprobs") or []) for each in entries]
        if not runs:
            return None
        tokens, self._unseen = self._unseen, []
        return Shown([kind("".join(texts)) for kind, texts in runs], tokens)

    def _read(self, words: dict[str, Any], runs: list[tuple[type[Event], list[str]]]) -> None:
        if thought := words.get("reasoning") or words.get("reasoning_content"):
            _add(runs, Thought, thought)
        if said := words.get("content"):
            _add(runs, Said, said)
        for i, call in enumerate(words.get("tool_calls") or ()):
            function, index = call.get("function") or {}, call.get("index", i)
            if index > self._call_index and function.get("name"):
                self._call_index = index
                runs.append((CallBegun, [function["name"]]))
            if function.get("arguments") and self._call_index >= 0:
                _add(runs, CallSaid, function["arguments"])


def _add(runs: list[tuple[type[Event], list[str]]], kind: type[Event], text: str) -> None:
    if runs and runs[-1][0] is kind:
        runs[-1][1].append(text)
    else:
        runs.append((kind, [text]))
