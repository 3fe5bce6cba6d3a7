"""What a key asked for before: the hints on its earlier turns, which the teacher reads above the hint on this one.

A teacher that is shown one wish at a time answers the others as it likes, and so unteaches them. The text of a hint is distilled
into the weights anyway (context distillation: Askell et al., arXiv 2112.00861); here the context is all that was asked for.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence

from clawctl.run.rows import Turn, Verdict

_KEPT = 64  # hints of a key


def below(earlier: Sequence[str], hint: str) -> str:
    """A hint below the hints before it, the oldest first. Where they differ, the last one counts."""
    return "\n".join([*(f"Earlier: {text}" for text in earlier), hint])


class EarlierHints:
    """The newest hints of each key, as far as this trainer has read them."""

    def __init__(self, most: int) -> None:
        """`most` hints are returned for a turn (`train.earlier_hints`)."""
        self._most = most
        self._hints: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)  # by key: when the turn was asked, and the text

    def add(self, turn: Turn, verdict: Verdict | None) -> None:
        """Remember the hint on a turn if a person's reply gave it. A tool's failure says nothing about later turns."""
        by_person = not turn.next_state or any(message.get("role") == "user" for message in turn.next_state)
        if not self._most or verdict is None or not verdict.hint or not by_person:
            return
        known = self._hints[turn.user]
        at = max([turn.created_at, *(at for at, text in known if text == verdict.hint)])
        known[:] = [(at, text) for at, text in known if text != verdict.hint]
        insort(known, (at, verdict.hint))
        del known[:-_KEPT]

    def before(self, turn: Turn, since: float) -> list[str]:
        """The newest hints of the turn's key on turns asked from `since` on and before this one, the oldest first."""
        known = [text for at, text in self._hints.get(turn.user, ()) if since <= at < turn.created_at]
        return known[-self._most :] if self._most else []
