"""Detects that users' preferences have changed, so that earlier turns are no longer trained (`run/complaints.py`)."""

import logging
import math
import time

from clawctl.run.complaints import MAX_TURNS, JudgedAnswer, Rise, rises

log = logging.getLogger("clawctl.train")

OUTDATED = "asked before what people want changed"


class Changes:
    """The reactions to each key's newest turns, as far as this trainer has read them, and when complaints last rose."""

    def __init__(self) -> None:
        self._reactions: dict[str, dict[str, JudgedAnswer]] = {}  # by key and turn id
        self._rises: dict[str, Rise] = {}  # by key
        self._unexamined: set[str] = set()  # keys with reactions that were not examined yet

    def add(self, reaction: JudgedAnswer) -> None:
        reactions = self._reactions.setdefault(reaction.key, {})
        reactions[reaction.turn_id] = reaction
        if len(reactions) > MAX_TURNS:
            del reactions[next(iter(reactions))]
        self._unexamined.add(reaction.key)

    def log_rises(self) -> None:
        """Log the keys whose complaints rose since the last call."""
        for key in self._unexamined:
            for rise in rises(self._reactions[key].values()):
                if key not in self._rises or rise.since > self._rises[key].since:
                    log.warning(
                        "what people want has changed since %s (key %s): complaints about %.0f %% of first answers, %.0f %% "
                        "before; turns from before are not trained",
                        time.strftime("%Y-%m-%d %H:%M", time.localtime(rise.since)), key, 100 * rise.after, 100 * rise.before,
                    )  # fmt: skip
                self._rises[key] = rise
        self._unexamined.clear()

    def since(self, key: str) -> float:
        """Return when complaints of a key last rose, in unix seconds, or -inf if they never did."""
        return self._rises[key].since if key in self._rises else -math.inf
