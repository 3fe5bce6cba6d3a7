"""Names of the shards that collect publishes: the time, which gives their order, then random digits, and in a bucket the host.

Each host of a bucket merges the shards that it published itself. Its read position names a shard that another host does not know,
so only its own collect worker can tell which of them a restart reads again.
"""

import re
import secrets
import time
from hashlib import sha256
from typing import Final

OWN_DRAFT: Final = re.compile(r"\.\d{20}-[0-9a-f]{6}([0-9a-f]{12})?(-merged)?\.parquet\..*\.tmp")


def new_stem(last: str, host: str) -> str:
    """Return a stem after `last`, even if the clock was set back. `host` is `Storage.host`."""
    before = last[:20]
    follows = before.isascii() and before.isdigit() and before < "9" * 20
    timestamp = max(time.time_ns(), int(before) + 1) if follows else time.time_ns()
    return f"{timestamp:020d}-{secrets.token_hex(3)}{_mark(host)}"


def is_of(host: str, stem: str) -> bool:
    """Whether a collect worker of `host` made the stem, or that of the merged shard. On a shared disk there is one worker."""
    return not host or re.fullmatch(rf"\d{{20}}-[0-9a-f]{{6}}{_mark(host)}(-merged)?", stem) is not None


def _mark(host: str) -> str:
    return sha256(host.encode()).hexdigest()[:12] if host else ""
