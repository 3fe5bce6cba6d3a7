"""What `clawctl forget` asks of the other hosts of a run in a bucket: each has captures that no other host can reach.

The request is an object below `forgotten/`: the wish, and the ids of the turns and sessions that were found. A host carries it out
before its next collect, judge, train or eval worker begins, and once more if it is killed meanwhile.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

import orjson

from clawctl.privacy.selection import SelectedTurns, Selection
from clawctl.run.bucket import BucketStorage
from clawctl.run.storage import storage_of


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to forget."""

    name: str
    wish: Selection | None  # None: only these turns
    chosen: SelectedTurns


def bucket_of(root: Path) -> BucketStorage | None:
    """The bucket that a run is in, if it is in one."""
    storage = storage_of(root.resolve())
    return storage if isinstance(storage, BucketStorage) else None


def ask(bucket: BucketStorage, wish: Selection | None, chosen: SelectedTurns) -> None:
    """Ask all hosts, this one too. What is said from now on does not belong to it."""
    limited = None if wish is None else replace(wish, until=time.time())
    row = {
        "wish": None if limited is None else asdict(limited),
        "turns": sorted(chosen.turn_ids),
        "sessions": sorted(chosen.sessions),
    }
    bucket.ask(f"{time.time_ns():020d}-{uuid4().hex[:8]}", orjson.dumps(row))


def asked(bucket: BucketStorage) -> list[Asked]:
    """What this host still has to do, in the order in which it was asked."""
    asked = []
    for name, data in bucket.asked().items():
        row = orjson.loads(data)
        chosen = SelectedTurns(set(row["turns"]), {(user, session) for user, session in row["sessions"]})
        asked.append(Asked(name, None if row["wish"] is None else Selection(**row["wish"]), chosen))
    return asked
