"""Environments supply the tasks that an agent works on and grade the result.

An environment is a client of `clawctl serve`. It plays an episode, which is one attempt at a task, by calling the model at an
endpoint. The caller can be a few lines of Python, or any agent that accepts a URL and a key. The server captures these calls in the
same way as a user's calls. The environment adds the outcome.

`clawctl play NAME` plays tasks for training. `eval.suites: [NAME]` measures a version on held-out tasks (`clawctl/eval/suites/`).
NAME is a built-in environment, `file.py:name`, or an entry point `clawctl.environments` of an extension or installed package.
"""

import inspect
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast

from pydantic import ValidationError

from clawctl.errors import ClawError
from clawctl.registry import Registry
from clawctl.run.endings import ending_of
from clawctl.run.endpoint import Endpoint
from clawctl.run.rows import HintPlace

EPISODE_S = 600.0
WORST = -1.0

Split = Literal["train", "eval"]
Status = Literal["done", "failed"]
Verdict = Literal["trusted", "unverified"]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment."""

    id: str  # "sum-17", unique in its environment; the part before the first "-" or "/" is its kind
    spec: Any  # whatever `play` needs: a prompt, a row of a data set, a path
    split: Split = "train"
    group: str | None = None  # episodes of a group share a baseline; None: all attempts at this task form a group

    @property
    def kind(self) -> str:
        """The kind of the task: "sum" for the id "sum-17"."""
        return self.id.split("/")[0].split("-")[0]


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """The result of one of several agents in an episode."""

    reward: float  # -1..1
    turns: tuple[str, ...]  # its turns, by turn id or response id

    def __post_init__(self) -> None:
        if not -1 <= self.reward <= 1:
            raise ValueError(f"the reward of an agent is {self.reward!r}, not a number from -1 to 1")
        if isinstance(self.turns, str):
            raise ValueError(f"the turns of an agent are {self.turns!r}, not a list of ids")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an episode, as graded by the environment.

    If the policy ended the episode (it finished, or ran out of turns, time or context), the status is "done" and the episode is
    graded. If something else ended it (a sandbox, a server, a verifier), the status is "failed": the episode is never trained and
    is played again. A killed episode has no outcome. `clawctl.run.endings` lists all endings.
    """

    reward: float | None = None  # -1..1; None: the environment gives no reward, and the judge decides
    parts: Mapping[str, float] = field(default_factory=dict)  # components of the reward, 0..1: {"correctness": True, "speed": 0.5}
    steps: Mapping[str, float] = field(default_factory=dict)  # rewards of single turns, -1..1, by turn id or response id
    status: Status = "done"
    ending: str = ""  # how it ended, a name in `clawctl.run.endings`: "turns"; "": "done", or "environment" if it failed
    log: str | None = None  # the verifier's log, for people
    example: Mapping[str, Any] = field(default_factory=dict)  # shown in reports: {"prompt": "2 + 2?", "reply": "4"}
    # What the teacher of this episode's turns reads besides their prompts; "": nothing, so they are trained towards the teacher as
    # it is. It takes the place of a reward. None: no hint, and the turns are trained on rewards alone.
    hint: str | None = None
    hint_place: HintPlace | None = None  # where the calls of this episode contain the hint; None: they do not contain it
    # Several agents by name. In an agent's own turns, its reward takes the place of `reward`. Its turns are compared with those of
    # the same agent in other attempts.
    agents: Mapping[str, AgentOutcome] = field(default_factory=dict)
    verdict: Verdict = "trusted"  # "unverified": the grade rests on something that the judged work says of itself

    def __post_init__(self) -> None:
        if self.status not in ("done", "failed"):
            raise ValueError(f"the status {self.status!r} is neither 'done' nor 'failed'")
        if self.status == "failed" and self.reward is not None:
            raise ValueError("a failed episode has no reward")
        if self.hint_place is not None and not self.hint:
            raise ValueError("an episode without a hint contains none")
        if self.agents and self.reward is None:
            raise ValueError("an episode of several agents has a reward of its own, such as their mean")
        if len({turn for agent in self.agents.values() for turn in agent.turns}) < sum(len(a.turns) for a in self.agents.values()):
            raise ValueError("two agents have the same turn")
        if self.hint is not None and self.reward is not None:
            raise ValueError("an episode has a hint or a reward, not both")
        if self.ending and ending_of(self.ending).is_trained != (self.status == "done"):
            raise ValueError(f"an episode that ended by {self.ending!r} is not {self.status!r}")
        for name, value, low in (
            *(("reward", value, -1) for value in (self.reward,) if value is not None),
            *((f"part {name}", value, 0) for name, value in self.parts.items()),
            *((f"step {turn_id}", value, -1) for turn_id, value in self.steps.items()),
        ):
            if not isinstance(value, int | float) or not low <= value <= 1:
                raise ValueError(f"{name} is {value!r}, not a number from {low} to 1")


class EpisodeFailed(Exception):
    """Raised by `play` if anything but the policy ended the episode: EpisodeFailed("sandbox", "no space left")."""

    def __init__(self, ending: str, problem: str):
        super().__init__(problem)
        if ending_of(ending).is_trained:
            raise ValueError(f"the policy ends an episode by {ending!r}: return an Outcome")
        self.ending = ending


class Environment(Protocol):
    """Tasks, and the code that plays one of them.

    The user names the class, not an instance. It is created with the user's options, or without arguments. The options are keyword
    parameters of `__init__`, or the fields of a dataclass of pydantic, which checks them.

    Five attributes are optional:

    - `version`: episodes of another version do not count as played. Without it, a hash of the code in the source file is used.
    - `episode_s`: the time limit of an episode in seconds (default EPISODE_S).
    - `worst`: the reward of an episode that ran out of time or context before `play` could grade it (default WORST).
    - `prepare(run, recipe, server)`: called once before `tasks`, for an environment that reads the run or asks its server.
    - `async refusal(task)`: why a task is left out, or None. It is asked before the task's first episode, or measurement.
    """

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """At most `count` tasks. The same arguments return the same tasks. The splits "train" and "eval" share no task."""
        ...

    def play(self, task: Task, endpoint: Endpoint) -> Outcome | Awaitable[Outcome]:
        """Play one attempt. Send each model call to the URL of `endpoint`, with its key, model name, headers and sampling.

        `async def play` runs concurrently with other episodes; `def play` runs in its own thread. After `endpoint.deadline` the
        server rejects all calls.

        Raises Refused if the server refuses a call, and EpisodeFailed if anything but the policy ended the episode. Any other
        exception also fails the episode. Its attribute `ending`, if it has one, names the ending.
        """
        ...


ENVIRONMENTS: Registry[type[Environment]] = Registry(
    "environment", "clawctl.environments", {"practice": "clawctl.environments.practice:Practice"}
)


def is_environment(value: object) -> bool:
    return callable(getattr(value, "play", None)) and callable(getattr(value, "tasks", None))


def _signature(made: type) -> inspect.Signature:
    """The options of a class. A dataclass of pydantic keeps its signature as an attribute. A subclass with an `__init__` of its own
    inherits that attribute, but takes other options."""
    for owner in made.__mro__:
        if "__signature__" in vars(owner):
            break
        if "__init__" in vars(owner) and owner is not object:
            initial = inspect.signature(vars(owner)["__init__"])
            return initial.replace(parameters=list(initial.parameters.values())[1:])
    return inspect.signature(made)


def create(made: Any, name: str, option: str, options: Mapping[str, Any] = MappingProxyType({})) -> Environment:
    """Create the environment from a registry entry: a class that takes `options`, or an object. Raises ClawError (code 2)."""
    if not is_environment(made):
        cure = "write a class with tasks(split, count, seed) and play(task, endpoint); `clawctl docs environments` has an example"
        missing = " and ".join(method for method in ("tasks", "play") if not callable(getattr(made, method, None)))
        raise ClawError(f"{option}: {name} is not an environment, because it has no {missing}", cure, 2)
    if not inspect.isclass(made):
        if options:
            raise ClawError(f"{option}: {name} takes no options", "name a class that has these arguments", 2)
        return cast(Environment, made)
    signature = _signature(made)
    try:
        signature.bind(**options)
    except TypeError as error:
        accepted = ", ".join(signature.parameters) or "none"
        raise ClawError(f"{option}: {name} does not take these options: {error}", f"its options are: {accepted}", 2) from error
    except ValueError:
        pass  # a class without a signature
    try:
        return cast(Environment, made(**options))
    except ClawError:
        raise
    except Exception as error:
        if isinstance(error, ValidationError) and error.title == made.__name__:  # of its fields, the options
            first = error.errors()[0]
            cure = first["msg"][:1].lower() + first["msg"][1:]
            field = ".".join(map(str, first["loc"]))
            raise ClawError(f"{option}: {name}: the option {field} is {first['input']!r}", cure, 2) from error
        raise ClawError(f"{option}: {name} cannot be created: {error!r}", "fix its __init__", 2) from error


def draw_tasks(environment: Environment, name: str, split: Split, count: int, seed: int = 0) -> Sequence[Task]:
    """The environment's tasks. Raises ClawError (exit code 2) if its code raises something, or returns something else."""
    try:
        tasks = list(environment.tasks(split, count, seed))
    except ClawError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}, line {at.lineno}"
        problem = f"tasks of {name} raised {type(error).__name__}: {error} ({where})"
        raise ClawError(problem, f"let tasks({split!r}, count, seed) return a list of Task", 2) from error
    if wrong := next((task for task in tasks if not isinstance(task, Task)), None):
        raise ClawError(f"tasks of {name} has {wrong!r:.80}, not a Task", "return Task(id, spec, split)", 2)
    return tasks
