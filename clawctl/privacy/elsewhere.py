"""Requests from `clawctl forget` to the other hosts of a run in a bucket. Each host has captures that no other host can reach.

A request is an object below `forgotten/`. It holds the selection and the ids of the turns and sessions that were found. A host
carries it out before it starts its next collect, judge, train or eval worker. If the host is killed meanwhile, it carries the
request out again.
"""

import time
from dataclasses import asdict, dataclass, replace
from uuid import uuid4

import orjson

from clawctl.privacy.selection import SelectedTurns, Selection
from clawctl.run.storage import Storage


@dataclass(frozen=True, slots=True)
class RemovalRequest:
    """One request to forget."""

    name: str
    selection: Selection | None  # None: only these turns
    chosen: SelectedTurns


def send_request(storage: Storage, selection: Selection | None, chosen: SelectedTurns) -> None:
    """Send the request to all hosts, including this one. Data created after this call is not part of the request."""
    limited = None if selection is None else replace(selection, until=time.time())
    row = {
        "wish": None if limited is None else asdict(limited),
        "turns": sorted(chosen.turn_ids),
        "sessions": sorted(chosen.sessions),
    }
    storage.request_removal(f"{time.time_ns():020d}-{uuid4().hex[:8]}", orjson.dumps(row))


def pending_requests(storage: Storage) -> list[RemovalRequest]:
    """Return the requests that this host has not carried out yet, in the order in which they were made."""
    requests = []
    for name, data in storage.pending_removals().items():
        row = orjson.loads(data)
        chosen = SelectedTurns(set(row["turns"]), {(user, session) for user, session in row["sessions"]})
        requests.append(RemovalRequest(name, None if row["wish"] is None else Selection(**row["wish"]), chosen))
    return requests
