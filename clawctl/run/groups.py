"""Tracks which episodes of each group have ended. A group is complete when its episodes have ended, not when their sessions were
seen.
"""

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from clawctl.run.outcomes import SessionOutcome, group_of_agent

MAX_GROUPS: Final = 1 << 15  # maximum number of groups remembered; the oldest are dropped


@dataclass(slots=True)
class _Group:
    attempts: int
    patience_s: float = 0.0  # seconds, twice the time limit of an episode; after that the group's workers are assumed to be gone
    settled: dict[int, str | None] = field(default_factory=dict)  # by attempt: the session id, or None if it is not trained


class Groups:
    """The groups of episodes that clawctl plays, from their outcomes. Outcomes from other programs do not state the size of their
    group.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str], _Group] = OrderedDict()

    def add(self, outcome: SessionOutcome) -> None:
        """Record an outcome."""
        spec = outcome.episode
        if spec is None or outcome.turn_ids is not None:
            return
        for name in [spec["group_id"], *(group_of_agent(spec["group_id"], agent) for agent in outcome.agents)]:
            group = self._groups.setdefault((outcome.key, name), _Group(spec["attempts"]))
            group.patience_s = max(group.patience_s, 2 * (spec["deadline"] - spec["created_at"]))
            if outcome.settled:
                group.settled[spec["attempt"]] = outcome.session_id if outcome.status == "done" else None
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def is_played(self, key: str, group_id: str) -> bool:
        """Whether clawctl plays the episodes of a group."""
        return (key, group_id) in self._groups

    def is_complete(self, key: str, group_id: str, sessions: Set[str], waited_s: float) -> bool | None:
        """Whether all episodes of a group have ended and the turns of the trained ones are among `sessions`.

        A group that has waited for `waited_s`, longer than twice an episode's time limit, counts as complete. None if clawctl does
        not play it.
        """
        group = self._groups.get((key, group_id))
        if group is None:
            return None
        missing = [session for session in group.settled.values() if session is not None and session not in sessions]
        return (len(group.settled) >= group.attempts and not missing) or waited_s >= group.patience_s
