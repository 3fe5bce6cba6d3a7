"""Unknown fields from clients: accepted, counted, and named once in the log."""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from clawctl.privacy.redaction import Redactor
from clawctl.privacy.rules import KINDS

_log = logging.getLogger("clawctl.serve")
_MOST_NAMES: Final = 256  # of all APIs; later ones are counted without their names
_MOST_IN_HEADER: Final = 16
_REST: Final = "(more)"


class Unknown:
    """Requests that named a field, by API and name."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._redactor = Redactor(KINDS)  # who reads /health and the log need not have a key

    def count(self, api: str, names: Iterable[str]) -> None:
        for name in names:
            known = (api, name) in self._counts
            if not known and len(self._counts) < _MOST_NAMES:
                name = self._redactor.text(name)
                known = (api, name) in self._counts
            place = (api, name if known or len(self._counts) < _MOST_NAMES else _REST)
            self._counts[place] += 1
            if not known and place[1] != _REST:
                _log.warning("%s: a client sends the unknown field %r, which has no effect", api, name)

    def told(self) -> dict[str, dict[str, int]]:
        """{"chat": {"provider_x": 3}}, the most frequent first."""
        told: dict[str, dict[str, int]] = {}
        for (api, name), count in self._counts.most_common():
            told.setdefault(api, {})[name] = count
        return told


def header(names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """The header that names them to the client. They are printable ASCII, see `clawctl.serve.dialects.api`."""
    return [(b"x-clawctl-ignored", ", ".join(names[:_MOST_IN_HEADER]).encode())] if names else []
