"""Outcomes of episodes: the result of a whole session in its environment. Each is one line in `feedback/`, beside the ratings.

An outcome belongs to a session of the key that sent it. Collect writes it into the rows of that session's turns. For turns that
were published before, collect appends a second line that names them. The judge, the trainer and `inspect` look it up there, as they
do with ratings.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import quote

from clawctl.run.endings import ending_of
from clawctl.run.handles import turn_of
from clawctl.run.rows import NO_NEXT_STATE, SCHEMA_VERSION, HintPlace, newer

EPISODE_FAILED = "episode failed"  # why a turn is not trained: its episode ended for a reason other than the policy
# Why a turn is not trained: its episode was killed, or had ended when the turn was requested
WITHOUT_OUTCOME = "episode without outcome"
TRUNCATED = ("turns", "time", "context")  # the endings that are caused by a limit
_LONGEST_NAME = 256  # characters
_MAX_STEPS = 1000


class BadFeedback(Exception):
    """The data is not a valid rating or outcome. The message gives the reason, and `field` the field."""

    def __init__(self, problem: str, field: str) -> None:
        super().__init__(problem)
        self.field = field


def check_fields(body: Any, fields: Sequence[str]) -> None:
    """Raises BadFeedback unless `body` is an object with no other fields than `fields`. The message lists them."""
    if not isinstance(body, dict):
        raise BadFeedback(f"the body must be an object with the fields {', '.join(fields)}", "body")
    if unknown := body.keys() - set(fields):
        name = min(unknown)
        near = [field for field in fields if name in field.split("_")] or get_close_matches(name, fields, n=1, cutoff=0.5)
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise BadFeedback(f"unknown field {name!r}; the fields are {', '.join(fields)}{meant}", name)


UNVERIFIED_LINE = b'"verdict":"unverified"'  # in the line of such an outcome, and in no other, because texts escape their quotes


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """The outcome of one session: one line of `feedback/`."""

    feedback_id: str
    created_at: float  # unix seconds when it was sent; it applies to earlier requests
    key: str  # name of the API key that sent it
    session_id: str  # as in `Turn.session_id`
    status: Literal["done", "failed"]
    reward: float | None  # -1..1; None: the environment gave no reward, or the episode failed
    parts: dict[str, float]  # components of the reward
    steps: dict[str, float]  # rewards of single turns, by turn id
    turn_ids: list[str] | None = None  # in the second line: ids of the turns that were published before
    ending: str = ""  # a name in `clawctl.run.endings`; "": the sender gave none
    truncated: bool = False  # whether a limit ended the episode: turns, time or context
    log: str | None = None  # log of the verdict
    timings: dict[str, float] = field(default_factory=dict)  # seconds by phase: {"play": 12.3}
    settled: bool = True  # False: the attempt gets another episode
    episode: dict[str, Any] | None = None  # the episode's line in `episodes/`, if clawctl played it
    hint: str | None = None  # what the teacher of its turns reads besides their prompts; "": nothing; None: there is no hint
    hint_place: HintPlace | None = None  # where its prompts contain the hint; None: they do not
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)  # {"white": {"reward": 1.0, "turns": [turn ids]}}
    verdict: str = "trusted"  # or "unverified": the grade rests on something that the judged work says of itself

    def __post_init__(self) -> None:
        numbers = [self.created_at, *self.parts.values(), *self.steps.values(), *self.timings.values()]
        numbers += [*(agent["reward"] for agent in self.agents.values()), *([] if self.reward is None else [self.reward])]
        if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
            raise ValueError("an outcome with a value that is no finite number")
        if self.status not in ("done", "failed") or (self.status == "failed" and self.reward is not None):
            raise ValueError(f"status {self.status!r} with reward {self.reward}")
        if self.ending and ending_of(self.ending).is_trained != (self.status == "done"):
            raise ValueError(f"status {self.status!r} with the ending {self.ending!r}")
        if not all(isinstance(text, str) and text for text in (self.feedback_id, self.key, self.session_id)):
            raise ValueError("an outcome needs an id, a key and a session")

    @property
    def decides(self) -> bool:
        """Whether this reward replaces the reward of a turn that was published before.

        The verdict of such a turn was made without the outcome. Its reward no longer counts, so that nothing counts twice.
        """
        return self.reward is not None

    def agent_of(self, turn_id: str) -> str | None:
        """The agent whose turn it is. None if the episode has no agents, or none of them made this turn."""
        return next((name for name, agent in self.agents.items() if turn_id in agent["turns"]), None)

    def reward_of(self, turn_id: str) -> float | None:
        """The reward of the turn's agent, or of the episode if it has no agents."""
        agent = self.agent_of(turn_id)
        return float(self.agents[agent]["reward"]) if agent is not None else None if self.agents else self.reward

    def changes(self, untrainable_reason: str | None, turn_id: str = "") -> dict[str, Any]:
        """Return the fields of an already published turn that this outcome would have changed."""
        if self.status == "failed":
            return {"trainable": False, "untrainable_reason": untrainable_reason or EPISODE_FAILED}
        step_reward = {"step_reward": self.steps[turn_id]} if turn_id in self.steps else {}
        if self.reward is None:
            return step_reward
        reacted = {"trainable": True, "untrainable_reason": None} if untrainable_reason == NO_NEXT_STATE else {}
        return {"outcome_reward": self.reward_of(turn_id), **step_reward, **reacted}

    def in_row(self, versions: tuple[int | None, int | None]) -> dict[str, Any]:
        """Return the episode fields of each row of its turns. `versions`: the policy versions of the first and last sampled
        token.
        """
        fields = {
            "status": self.status, "ending": self.ending or ("done" if self.status == "done" else "environment"),
            "reward": self.reward, "parts": self.parts, "steps": self.steps, "truncated": self.truncated,
            "first_version": versions[0], "last_version": versions[1], "log": self.log, "timings": self.timings,
            "settled": self.settled, "hint": self.hint, "hint_place": self.hint_place,
            "verdict": self.verdict, "agents": self.agents,
        }  # fmt: skip
        return {**(self.episode or {}), **fields}


def read_outcome(body: Any, key: str, now: float) -> SessionOutcome:
    """Parse the body of `POST /v1/outcome`: {"session_id": …, "reward": -1..1 or null, "status" or "ending", "parts", "steps"}.
    Raises BadFeedback.
    """
    check_fields(body, ("session_id", "reward", "status", "ending", "parts", "steps"))
    session, reward, ending = body.get("session_id"), body.get("reward"), body.get("ending", "")
    try:
        ended = "done" if ending == "" or ending_of(ending).is_trained else "failed"
    except (ValueError, TypeError) as error:
        raise BadFeedback(f"'ending': {error}", "ending") from error
    status = body.get("status", ended)
    if not isinstance(session, str) or not 0 < len(session) <= _LONGEST_NAME:
        raise BadFeedback("'session_id' must be the session that the episode's requests named", "session_id")
    if status not in ("done", "failed"):
        raise BadFeedback("'status' must be 'done' or 'failed'", "status")
    if ending and status != ended:
        raise BadFeedback(f"an episode with the ending {ending!r} is {ended!r}", "status")
    if reward is not None and not _is_number(reward, 1.0):
        raise BadFeedback("'reward' must be null or a number from -1 to 1", "reward")
    if status == "failed" and reward is not None:
        raise BadFeedback("a failed episode has no reward", "reward")
    parts, steps = _numbers(body, "parts", math.inf), by_turn(_numbers(body, "steps", 1.0))
    reward = None if reward is None else float(reward)
    names = secrets.token_hex(12), now, key, scoped_id(key, session)
    return SessionOutcome(*names, status, reward, parts, steps, ending=ending, truncated=ending in TRUNCATED)


def group_of_agent(group_id: str, agent: str) -> str:
    """The group of one agent's turns: agents with different roles share no baseline."""
    return f"{group_id}:{agent}"


def by_turn(steps: Mapping[str, float]) -> dict[str, float]:
    """The rewards of turns by turn id, for rewards by the ids of responses. Other ids are kept as they are."""
    return {turn_of(name) or name: float(value) for name, value in steps.items()}


def _numbers(body: dict[str, Any], field: str, limit: float) -> dict[str, float]:
    numbers = body.get(field) or {}
    if not isinstance(numbers, dict) or len(numbers) > _MAX_STEPS:
        raise BadFeedback(f"{field!r} must be an object with at most {_MAX_STEPS} numbers", field)
    if not all(0 < len(name) <= _LONGEST_NAME and _is_number(value, limit) for name, value in numbers.items()):
        raise BadFeedback(f"{field!r} must map names to numbers{' from -1 to 1' if limit == 1 else ''}", field)
    return {name: float(value) for name, value in numbers.items()}


def _is_number(value: Any, limit: float) -> bool:
    return type(value) in (int, float) and abs(value) <= limit and math.isfinite(value)


def parse_outcome(row: dict[str, Any]) -> SessionOutcome:
    """Parse one line of feedback that names a session. Raises ValueError or TypeError."""
    version = row.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(newer(version))
    return SessionOutcome(**{name: row[name] for name in SessionOutcome.__dataclass_fields__ if name in row})


def scoped_id(user: str, claim: str) -> str:
    """Return a claimed session id in the namespace of its user, so that two users never share one. Ids of the default user are
    unchanged.
    """
    return claim if user == "default" and "/" not in claim else f"{quote(user, safe='')}/{claim}"
