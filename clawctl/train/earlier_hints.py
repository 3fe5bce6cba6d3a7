"""Earlier hints of a key, which the teacher reads above the hint on the current turn.

A teacher that sees only the current hint answers without regard to earlier ones, and training then undoes them. The text of a hint
is distilled into the weights in any case (context distillation: Askell et al., arXiv 2112.00861); here the context is all hints of
the key.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence

from clawctl.run.rows import Turn, Verdict

_KEPT = 64  # hints per key


def below(earlier: Sequence[str], hint: str) -> str:
    """Return a hint preceded by earlier hints, oldest first. If they conflict, the last one counts."""
    return "\n".join([*(f"Earlier: {text}" for text in earlier), hint])


class EarlierHints:
    """The newest hints of each key, as far as this trainer has read them."""

    def __init__(self, limit: int) -> None:
        """At most `limit` hints are returned for a turn (`train.earlier_hints`)."""
        self._limit = limit
        # By key: request time of the turn, and the text
        self._hints: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)

    def add(self, turn: Turn, verdict: Verdict | None) -> None:
        """Remember the hint on a turn if a person's reply produced it. A tool failure is no evidence about later turns."""
        by_person = not turn.next_state or any(message.get("role") == "user" for message in turn.next_state)
        practised = turn.episode is not None and turn.episode.get("hint") is not None  # a repetition, not a person's reply
        if not self._limit or verdict is None or not verdict.hint or not by_person or practised:
            return
        hints = self._hints[turn.user]
        requested_at = max([turn.created_at, *(requested_at for requested_at, text in hints if text == verdict.hint)])
        hints[:] = [(requested_at, text) for requested_at, text in hints if text != verdict.hint]
        insort(hints, (requested_at, verdict.hint))
        del hints[:-_KEPT]

    def before(self, turn: Turn, since: float) -> list[str]:
        """Return the newest hints of the turn's key, oldest first, from turns requested from `since` on and before this one."""
        hints = [text for requested_at, text in self._hints.get(turn.user, ()) if since <= requested_at < turn.created_at]
        return hints[-self._limit :] if self._limit else []
