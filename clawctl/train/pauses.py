"""How the trainer gives way to requests on a device that it shares with the server (`train.when`)."""

import threading
import time
from dataclasses import dataclass

from clawctl.config import TrainConfig
from clawctl.run.activity import read_activity
from clawctl.run.directory import RunDir
from clawctl.run.gaps import Gaps

_LOOK_S = 0.005
_PAUSE_S = 0.25  # before each layer of a step that has rested for `train.longest_rest_s`
_LONGEST_ALONE_S = 1200.0  # other processes of a trainer wait for this one, at most half an hour


@dataclass(slots=True)
class Pauses:
    """A step begins in a gap. During a step the trainer rests between two layers while the server answers somebody.

    In a step it rests for at most `train.longest_rest_s`. From then on it computes one layer a pause, so that a server that is
    never idle does not stop training. With several processes only rank 0 looks; the others wait for it in their next collective.
    """

    run: RunDir
    config: TrainConfig
    stop: threading.Event  # a stop waits for the step, and not for requests
    world: int = 1
    rested_s: float = 0.0  # by the running step
    _waits_since: float | None = None

    @property
    def may_rest(self) -> bool:
        return self.config.local.when != "always"

    def why_not(self) -> str | None:
        """Why the next step does not begin now; None if it does."""
        local = self.config.local
        why = Gaps(local.when, local.idle_s, self._idle_for, alone=True).why_not()
        now = time.monotonic()
        if why is not None and self._waits_since is None:
            self._waits_since = now
        if why is None or ("-" not in local.when and now - (self._waits_since or now) >= local.longest_rest_s):
            self._waits_since, self.rested_s = None, 0.0
            return None
        return why

    def between_layers(self) -> None:
        """Return when the next layer may be computed."""
        if not self._is_busy():
            return
        longest = self.config.local.longest_rest_s
        if self.world > 1:
            longest = min(longest, _LONGEST_ALONE_S)
        began = time.monotonic()
        until = began + max(_PAUSE_S, longest - self.rested_s)
        while self._is_busy() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self.rested_s += time.monotonic() - began

    def _is_busy(self) -> bool:
        seen = read_activity(self.run.activity)
        return seen is not None and seen.running > 0 and not self.stop.is_set()

    def _idle_for(self) -> float | None:
        seen = read_activity(self.run.activity)
        return None if seen is None else seen.idle_s
