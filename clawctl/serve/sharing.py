"""Assigns a share of the new sessions to a candidate (`gate.share`). Sessions are assigned as a whole, and only when they begin.

A session is identified by the client's claim, or else by its key and its messages up to the first user message. It is new if this
server has not seen it and its request contains no assistant message. A request never waits for the candidate: while the candidate
is not loaded, or its place is taken, the live version answers.
"""

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress

from clawctl.engines import Engine, EngineFailure
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.run.directory import RunDir
from clawctl.run.sharing import Share, read_share

_log = logging.getLogger("clawctl.serve")
_MAX_SESSIONS = 100_000


class Sharing:
    """Call `look` in a thread, and everything else on the event loop."""

    def __init__(self, run: RunDir, live: Engine) -> None:
        self._run, self._live = run, live
        self._share: Share | None = None
        self._holding: tuple[Share, asyncio.Task[None]] | None = None
        self._sessions: OrderedDict[int, int | None] = OrderedDict()  # hash of a session: its candidate; None: the live version

    def refresh(self) -> None:
        """Read which candidate currently has a share of the sessions."""
        self._share = read_share(self._run)

    def version_for(self, request: GenerationRequest) -> int | None:
        """The candidate, if the request belongs to one of its sessions and the candidate is ready; otherwise None."""
        share = self._share
        if self._holding is not None and self._holding[0] != share:
            self.end()
        if share is None or request.prompts or share.version == self._live.version or not hasattr(self._live, "at_once"):
            # A named session keeps its version when a share begins; an unnamed one is recognised as old by its assistant messages.
            if request.session:
                self._version_of(request.conversation, None)
            return None
        if self._holding is None:
            self._holding = share, asyncio.ensure_future(self._hold(share.version))
        name, ready = request.conversation, self._live.at_once(share.version, request.key)
        is_new = not any(message.get("role") == "assistant" for message in request.messages)
        assigned = self._version_of(name, share.version if is_new and ready and share.has(name) else None)
        return share.version if ready and assigned == share.version else None

    def _version_of(self, session: str, version: int | None) -> int | None:
        """The version of a session. A session that is seen for the first time is recorded with `version`."""
        assigned = self._sessions.setdefault(hash(session), version)
        self._sessions.move_to_end(hash(session))
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return assigned

    def end(self) -> None:
        """Release the candidate."""
        if self._holding is not None:
            self._holding[1].cancel()
        self._holding = None

    async def _hold(self, version: int) -> None:
        try:
            async with self._live.hold(version):
                _log.info("version %d answers a share of the new sessions", version)
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        except (Refusal, EngineFailure) as error:
            _log.error("version %d cannot answer a share of the sessions: %s", version, error)
