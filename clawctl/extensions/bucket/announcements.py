"""The names that changed in a bucket, in one object that hosts append to by compare-and-swap. Reading it replaces a listing.

Before a process changes an object, it writes the name to a file of its host, and a process of the host announces the names of
this file. A killed process thus announces its last change late, but it does not lose it. An announcement only says which name to
look at: it may come twice, too early or in another order than the changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson

from clawctl.extensions.bucket.objects import Objects
from clawctl.run.names import Damaged, named

OBJECT: Final = "changed"
_KEPT: Final = 1000  # names in the object; a host that missed more lists the bucket


@dataclass(frozen=True, slots=True)
class Place:
    """How far a host has read. Another `journal` or an older `count` than the object covers: it must list the bucket."""

    tag: str | None = None  # of the object that was read
    journal: str = ""
    count: int = 0  # names that were announced until then


class Announcements:
    """The announcements of one run. `due` is a file of this host; callers hold the host's lock while they note and announce."""

    def __init__(self, objects: Objects, due: Path) -> None:
        self._objects, self._due = objects, due

    def note(self, *names: str) -> None:
        """Record names that are about to change."""
        with self._due.open("a") as file:
            file.write("".join(f"{name}\n" for name in names))

    def are_due(self) -> bool:
        return self._due.exists()

    def announce(self, tag_of: Callable[[str], str | None]) -> None:
        """Append the recorded names, with the tags that this host has. Raises StorageUnreachable; the names then stay recorded."""
        if not self.are_due():
            return
        changed = [(name, tag_of(name)) for name in dict.fromkeys(self._due.read_text().splitlines())]

        def appended(content: bytes) -> bytes:
            journal = _journal(content)
            journal |= {"count": journal["count"] + len(changed), "last": [*journal["last"], *changed][-_KEPT:]}
            return orjson.dumps(journal)

        self._objects.change(OBJECT, appended)
        self._due.unlink(missing_ok=True)

    def since(self, position: Place) -> tuple[dict[str, str | None] | None, Place]:
        """Return the names that were announced after `place` with their tags, and the new place. Tag None: look at the object.
        None instead of names: list the bucket.
        """
        stored = self._objects.read(OBJECT, position.tag)
        if stored is None:
            return {}, position  # unchanged, or nothing was ever announced
        journal = _journal(stored[0])
        new = Place(stored[1], journal["journal"], journal["count"])
        missed = new.count - position.count
        if position.journal != new.journal or not 0 <= missed <= len(journal["last"]):
            return None, new
        names: dict[str, str | None] = {}
        for name, tag in journal["last"][len(journal["last"]) - missed :]:
            names[name] = tag if names.get(name, tag) == tag else None  # of two changes neither is known to be the last
        return names, new


def _journal(content: bytes) -> dict[str, Any]:
    """The object's content. An unreadable one, or that of an earlier clawctl, is replaced by an empty journal of another name."""
    try:
        journal: dict[str, Any] = orjson.loads(content)
        str(journal["journal"]), int(journal["count"])
        for name, _ in journal["last"]:
            for part in name.split("/"):
                named(part)
    except (ValueError, TypeError, LookupError, AttributeError, Damaged):
        return {"journal": uuid4().hex, "count": 0, "last": []}
    return journal
