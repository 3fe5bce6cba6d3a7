"""Episodes that `clawctl collect --env` plays: their specifications, and which attempts still need an episode.

A line of `episodes/` is written before the first call of its episode. The outcome is a line of `feedback/`, which repeats that
line, so collect needs no other file. An attempt is settled once it has a final outcome. Workers check this while they hold the lock
of the task, so an attempt has at most one.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir
from clawctl.run.feedback import parse_feedback
from clawctl.run.lines import Lines, LineWriter, Rewritten
from clawctl.run.outcomes import SessionOutcome

_ROTATE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode before it begins: one line of `episodes/`. Its id is the session id of its turns."""

    session_id: str  # "e5c0ffee12-3-0-91b2c4d5": the plan, the task's number, the attempt, and a random part
    created_at: float  # unix seconds
    plan: str  # identifies the tasks, attempts and seed that are played together
    environment: str  # as the user named it
    version: str  # version of the environment: its `version`, or a hash of its code
    task_id: str
    task_hash: str  # hash of the task's content
    split: str
    seed: int
    number: int  # number of the task in its plan
    group_id: str  # attempts that share a baseline
    attempt: int
    attempts: int  # how many episodes its group gets
    attempt_try: int  # 0, or higher after episodes that ended for a reason other than the policy
    deadline: float  # unix seconds; the server rejects calls after it
    sampling: dict[str, Any]  # sampling parameters of the server: {"temperature": 1.0}
    worker: str  # "host:4711"
    key: str = "default"  # name of the API key whose turns these are

    def __post_init__(self) -> None:
        if not (self.session_id and self.plan and self.group_id) or not 0 <= self.attempt < self.attempts:
            raise ValueError("an episode needs an id, a plan, a group and the number of its attempt")


class SpecFile:
    """One writer of `episodes/`."""

    def __init__(self, run: RunDir) -> None:
        self._lines = LineWriter(run.episodes, _ROTATE_BYTES)

    def append(self, spec: EpisodeSpec) -> None:
        """Append a line. It is in the kernel's page cache when this returns. Raises OSError."""
        self._lines.append(sealed(orjson.dumps(spec)))


def content_hash(content: Any) -> str:
    """Return a hash of a task's content: any JSON value, dataclasses and paths; for anything else its `repr`."""
    data = orjson.dumps(content, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return blake2b(data, digest_size=8).hexdigest()


@dataclass(slots=True)
class Attempts:
    """The known results of one task of a plan."""

    settled: dict[int, SessionOutcome] = field(default_factory=dict)  # outcomes by attempt
    # By attempt: number of episodes that ended for a reason other than the policy
    tries: dict[int, int] = field(default_factory=dict)


class Played:
    """The outcomes of one plan, from the lines in `feedback/`. If forget or retention removed lines, those attempts are played
    again.
    """

    def __init__(self, run: RunDir, plan: str) -> None:
        self._run, self._plan = run, plan
        self._begin()

    def _begin(self) -> None:
        self.tasks: dict[int, Attempts] = {}  # by task number
        self._outcomes = Lines(self._run.feedback)

    def poll(self) -> None:
        """Read new lines."""
        try:
            self._read()
        except Rewritten:
            self._begin()
            self._read()

    def of(self, number: int) -> Attempts:
        return self.tasks.setdefault(number, Attempts())

    def _read(self) -> None:
        plan_id = self._plan.encode()
        for path in self._outcomes.grown():
            for _, line in self._outcomes.read(path):
                if plan_id in line:
                    self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        try:
            outcome = parse_feedback(line)
        except (ValueError, TypeError):
            return
        spec = outcome.episode if isinstance(outcome, SessionOutcome) and outcome.turn_ids is None else None
        if spec is None or not isinstance(outcome, SessionOutcome) or spec.get("plan") != self._plan:
            return
        attempts, attempt = self.of(spec["number"]), spec["attempt"]
        if outcome.settled:
            attempts.settled.setdefault(attempt, outcome)
        else:
            attempts.tries[attempt] = attempts.tries.get(attempt, 0) + 1
