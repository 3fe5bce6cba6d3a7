"""Turns exchanges into rows."""

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Exchange, Turn

HOUR = 3600.0
LATER = 1e9


def stitch(*exchanges: Exchange, end: bool = True) -> dict[str, Turn]:
    """All rows of these exchanges by turn id; with `end` also those that only the timeout closes."""
    sessions = Sessions(HOUR)
    for exchange in exchanges:
        sessions.add(exchange)
    if end:
        sessions.tick(LATER)
    rows = sessions.pop_rows()
    assert len(rows) == len({row.turn_id for row in rows})
    return {row.turn_id: row for row in rows}
