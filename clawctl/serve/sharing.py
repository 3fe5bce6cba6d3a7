"""Sends a share of the new sessions to a candidate (`gate.share`), whole sessions and never one that began before.

A session is what the client claims, or else its key and its messages up to the first of the user. It is new when its request has no
answer of a model yet. A request never waits for the candidate: while it is not loaded, or its place is taken, the live version
answers.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from contextlib import suppress

import orjson

from clawctl.engines import Engine
from clawctl.run.directory import RunDir
from clawctl.run.sharing import Share, read_share
from clawctl.serve.dialects import Ask, Refusal

_log = logging.getLogger("clawctl.serve")
_MOST_SESSIONS = 100_000


class Sharing:
    """`look` runs in a thread, everything else on the event loop."""

    def __init__(self, run: RunDir, live: Engine) -> None:
        self._run, self._live = run, live
        self._share: Share | None = None
        self._holding: tuple[Share, asyncio.Task[None]] | None = None
        self._sessions: OrderedDict[str, None] = OrderedDict()  # of the candidate; the oldest are left out

    def look(self) -> None:
        """Read which candidate shares the sessions now."""
        self._share = read_share(self._run)

    def version_for(self, ask: Ask, session: str | None) -> int | None:
        """The candidate, if the request belongs to one of its sessions and need not wait for it."""
        share = self._share
        if self._holding is not None and self._holding[0] != share:
            self.end()
        if share is None or ask.prompts or share.version == self._live.version:
            return None
        if self._holding is None:
            self._holding = share, asyncio.ensure_future(self._hold(share.version))
        name = _session(ask, session)
        if name not in self._sessions:
            is_new = not any(message.get("role") == "assistant" for message in ask.messages)
            if not is_new or not share.has(name) or not self._live.at_once(share.version, ask.key):
                return None
            self._sessions[name] = None
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(name)
        return share.version if self._live.at_once(share.version, ask.key) else None

    def end(self) -> None:
        """Let the candidate go."""
        if self._holding is not None:
            self._holding[1].cancel()
        self._holding = None
        self._sessions.clear()

    async def _hold(self, version: int) -> None:
        try:
            async with self._live.hold(version):
                _log.info("version %d answers a share of the new sessions", version)
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        except Refusal as refusal:
            _log.error("version %d cannot answer a share of the sessions: %s", version, refusal)


def _session(ask: Ask, claimed: str | None) -> str:
    if claimed:
        return f"{ask.key} {claimed}"
    opening = []
    for message in ask.messages:
        opening.append(message)
        if message.get("role") == "user":
            break
    return f"{ask.key} {hashlib.sha256(orjson.dumps(opening, option=orjson.OPT_SORT_KEYS)).hexdigest()}"
