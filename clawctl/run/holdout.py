"""Held-out sessions: a share of each key's sessions is never trained, so that versions can be measured on them.

A hash of key and session id decides, so every process decides alike, also after a restart. `holdout.json` stores each share with
the time from which it applies. A session keeps the share that applied at its first request, so a change of `eval.holdout` splits no
session. The decision is stored in the row (`HELD_OUT`), which is never edited: no later setting trains such a turn.

Episodes and imported texts are not held out: an environment has its own held-out tasks, and an imported text has no exact prompt.
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, published, quarantine

HELD_OUT = "held out"  # the reason why a turn of a held-out session is not trained


@dataclass(frozen=True, slots=True)
class Holdout:
    """The shares of a run, oldest first, each with the time from which it applies (unix seconds)."""

    shares: tuple[tuple[float, float], ...]

    def has(self, key: str, session_id: str, began: float) -> bool:
        """Whether a session that began at `began` (unix seconds) is held out."""
        share = next((share for since, share in reversed(self.shares) if since <= began), 0.0)
        digest = hashlib.sha256(f"{key}\0{session_id}".encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8]) < share * 2**64


def read_holdout(run: RunDir, share: float) -> Holdout:
    """Return the shares of the run if `share` applies from now on. In a run without turns, the first share applies to all."""
    since, shares = time.time(), _read(run.holdout)
    if not shares:
        return Holdout(((since if published(run.trajectories, ".parquet") else 0.0, share),))
    return Holdout(shares if shares[-1][1] == share else (*shares, (max(since, shares[-1][0]), share)))


def keep_holdout(run: RunDir, share: float) -> Holdout:
    """Return the same shares and store them. The one collect worker calls this before it publishes a row. Raises OSError."""
    try:
        stored = _read(run.holdout)
    except Damaged as error:
        quarantine(run, run.holdout, str(error))
        stored = ()
    holdout = read_holdout(run, share)
    if holdout.shares != stored:
        publish_bytes(run.holdout, sealed(orjson.dumps({"shares": holdout.shares})))
    return holdout


def _read(path: Path) -> tuple[tuple[float, float], ...]:
    """Return the stored shares, or an empty tuple without a file. Raises Damaged."""
    try:
        shares = read_sealed(path.read_bytes())["shares"]
        return tuple((float(since), float(share)) for since, share in shares)
    except FileNotFoundError:
        return ()
    except (LookupError, TypeError, ValueError) as error:
        raise Damaged(f"{path.name} has no list of shares: {error}") from error
