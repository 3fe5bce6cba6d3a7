"""Redacts turns that were not captured: imported turns and turns of the user's own code."""

from dataclasses import replace

from clawctl.collect.rows import SIDE_TURN
from clawctl.privacy.redaction import Redactor
from clawctl.run.rows import Turn

NOT_WANTED = "marked untrainable in the file"


def redacted(turn: Turn, redactor: Redactor) -> Turn:
    """Return the turn without its secrets. One with a secret in its answer loses its ids and is not trained (`Redactor.turn`)."""
    clean = redactor.turn(turn)
    if turn.untrainable_reason in (SIDE_TURN, NOT_WANTED):
        return replace(clean, trainable=False, untrainable_reason=turn.untrainable_reason)
    return clean
