"""Environments: where the tasks come from that an agent works on, and what says how well it did.

An environment is a client of `clawctl serve`. It plays an episode, which is one attempt at a task, by calling the model at an
endpoint: with a few lines of Python, or with any agent that accepts a URL and a key. The server captures these calls like those of
a person. What the environment adds is the outcome.

`clawctl play NAME` plays tasks for training. `eval.suites: [NAME]` measures a version on held-out tasks (`clawctl/eval/suites/`).
An environment is built in, `file.py:name`, or the entry point `clawctl.environments` of an installed package.
"""

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from clawctl.errors import ClawError
from clawctl.registry import Registry
from clawctl.run.endpoint import Endpoint

Split = Literal["train", "eval"]
Status = Literal["done", "failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """What an episode is about."""

    id: str  # "sum-17", unique in its environment; the part before the first "-" or "/" is its kind
    spec: Any  # whatever `play` needs: a prompt, a row of a data set, a path
    split: Split = "train"
    group: str | None = None  # episodes of a group share a baseline; None: the attempts at this task are a group

    @property
    def kind(self) -> str:
        """ "sum" for "sum-17"."""
        return self.id.split("/")[0].split("-")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the environment says of an episode.

    An episode that the policy ended (it is done, or out of turns, time or context) has the status "done" and is graded. One that
    something else ended (a sandbox, a server, a verifier) is "failed" and never trained. One that was killed has no outcome.
    """

    reward: float | None = None  # -1..1; None: the environment has no opinion, and the judge decides
    parts: Mapping[str, float] = field(default_factory=dict)  # what it is made of, 0..1: {"correctness": True, "speed": 0.5}
    steps: Mapping[str, float] = field(default_factory=dict)  # rewards of single turns, -1..1, by turn id; kept for the trainer
    status: Status = "done"
    example: Mapping[str, Any] = field(default_factory=dict)  # what a report shows: {"prompt": "2 + 2?", "reply": "4"}

    def __post_init__(self) -> None:
        if self.status not in ("done", "failed"):
            raise ValueError(f"the status {self.status!r} is neither 'done' nor 'failed'")
        if self.status == "failed" and self.reward is not None:
            raise ValueError("a failed episode has no reward")
        for name, value, low in (
            *(("reward", value, -1) for value in (self.reward,) if value is not None),
            *((f"part {name}", value, 0) for name, value in self.parts.items()),
            *((f"step {turn_id}", value, -1) for turn_id, value in self.steps.items()),
        ):
            if not isinstance(value, int | float) or not low <= value <= 1:
                raise ValueError(f"{name} is {value!r}, not a number from {low} to 1")


class Environment(Protocol):
    """Tasks, and how one of them is played. The class is named, not an instance; it is created without arguments."""

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """At most `count` tasks, the same for the same arguments. No task of "train" is one of "eval"."""
        ...

    def play(self, task: Task, endpoint: Endpoint) -> Outcome | Awaitable[Outcome]:
        """One attempt. Each model call goes to `endpoint`: its URL, key and model name, with its headers and its sampling.

        `async def play` runs beside other episodes; `def play` runs in a thread of its own. Raises Refused if the server refuses.
        Any other exception is a failed episode.
        """
        ...


ENVIRONMENTS: Registry[type[Environment]] = Registry(
    "environment",
    "clawctl.environments",
    {
        "homework": "clawctl.environments.homework.environment:Homework",
        "terminal": "clawctl.environments.terminal.environment:Terminal",
    },
)


def is_environment(found: object) -> bool:
    return callable(getattr(found, "play", None)) and callable(getattr(found, "tasks", None))


def create(found: Any, name: str, option: str) -> Environment:
    """The environment of what a registry returned: a class without arguments, or an object. Raises ClawError (exit code 2)."""
    if not is_environment(found):
        cure = "write a class with tasks(split, count, seed) and play(task, endpoint); docs/environments.md has an example"
        raise ClawError(f"{option}: {name} is not an environment", cure, 2)
    if not inspect.isclass(found):
        return cast(Environment, found)
    try:
        return cast(Environment, found())
    except Exception as error:  # the user's own code
        raise ClawError(f"{option}: {name} cannot be created: {error!r}", "write a class without arguments", 2) from error
