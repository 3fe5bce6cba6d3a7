"""A candidate that serves a share of the new sessions before it goes live: `policies/SHARED`.

The gate writes it, and serve reads it.
"""

import hashlib
import time
from dataclasses import asdict, dataclass

import orjson

from clawctl.run.checksums import read_object, sealed
from clawctl.run.directory import RunDir, publish_bytes, remove


@dataclass(frozen=True, slots=True)
class Share:
    """A candidate and its share of new sessions."""

    version: int
    share: float  # fraction of new sessions: 0.1
    since: float  # unix seconds

    def has(self, session: str) -> bool:
        """Whether a new session belongs to the candidate. The answer depends on the version and the session only."""
        digest = hashlib.sha256(f"{self.version} {session}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.share * 2**64


def read_share(run: RunDir) -> Share | None:
    """Return the current share, or None if there is none or its file is damaged."""
    record = read_object(run.shared)
    if record is None or not {"version", "share", "since"} <= record.keys():
        return None
    return Share(int(record["version"]), float(record["share"]), float(record["since"]))


def begin_share(run: RunDir, version: int, share: float) -> Share:
    new = Share(version, share, time.time())
    publish_bytes(run.shared, sealed(orjson.dumps(asdict(new))))
    return new


def end_share(run: RunDir) -> None:
    remove(run.shared)
