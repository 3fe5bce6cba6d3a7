"""Tells a paused engine to resume until it does, because a paused engine answers no request."""

import itertools
import logging
import time
from collections.abc import Callable

from clawctl.backoff import backoff_s
from clawctl.engines import Unanswered
from clawctl.engines.vllm.control import Control
from clawctl.errors import ClawError

_log = logging.getLogger("clawctl.serve")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 5.0
_TRIES = 5  # for an engine of clawctl, before it is ended


def go_on(
    control: Control, running: Callable[[], bool], stick: Callable[[str | None], None], end: Callable[[], None] | None
) -> None:
    """Blocking. `stick` gets the reason why the engine does not resume, and None when it does. `end` ends an engine of clawctl
    after a few attempts, so that it is restarted. Raises Unanswered after that, or once `running` is False."""
    stuck = False
    for tried in itertools.count(1):
        try:
            control.resume()
        except ClawError as error:
            problem = f"the engine was paused for a swap and does not resume: {error.problem}"
            if not running():
                raise Unanswered(problem, "resume it manually, or restart it") from error
            if end is not None and tried == _TRIES:
                end()
                raise Unanswered(f"{problem}; it is restarted", "its own log has the details") from error
            wait_s = backoff_s(tried, _FIRST_WAIT_S, _LONGEST_WAIT_S)
            _log.error("%s; retrying in %g s", problem, wait_s)
            if end is None:
                stuck = True
                stick(problem)
            time.sleep(wait_s)
        else:
            if stuck:
                _log.warning("the engine has resumed")
                stick(None)
            return
