"""A rollout function of another system as an environment: `async def terminal_rollout(agent_model, task_description)`.

Each `agent_model.generate(prompt)` is a request to the run's server. The function returns a list with one mapping for each step. A
step's `reward`, from -1 to 1, is that of its call, and the last one is the reward of the episode.
"""

import asyncio
import builtins
import dis
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import orjson

from clawctl.asking import complete, new_client
from clawctl.environments import Outcome, Split, Task
from clawctl.errors import ClawError
from clawctl.plugins import load_module, takes
from clawctl.run.endpoint import Endpoint

_TEXTS = ("task_description", "task", "instruction", "prompt", "text", "question")
_HELD_OUT = 10  # each tenth task is for measuring


class Agent:
    """The `agent_model` of a rollout."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self.turns = endpoint, list[str]()

    async def generate(self, prompt: str | list[dict[str, Any]], **sampling: Any) -> str:
        """The policy's answer to a text or to messages. Raises Refused."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        async with new_client(self._endpoint) as client:
            message = await complete(self._endpoint, messages, client, **sampling)
        self.turns.append(message["turn_id"])
        return str(message.get("content") or "")


class _PlainAgent(Agent):
    """The same for a rollout that is not async."""

    def generate(self, prompt: str | list[dict[str, Any]], **sampling: Any) -> str:  # type: ignore[override]
        return asyncio.run(super().generate(prompt, **sampling))


class Rollout:
    """Plays a rollout function. `data`: a file with one task in each line, as text or JSON, or a JSON list. `task`: a single task.
    `max_turns`: the value of MAX_STEPS, if the file does not set it. `defines`: a file with other names that the rollout uses."""

    function: Callable[[Any, str], Any]

    def __init__(self, data: str | None = None, task: str | None = None, max_turns: int = 20, defines: str | None = None) -> None:
        name, names = self.function.__name__, self.function.__globals__
        if (data is None) == (task is None):
            raise ClawError(
                f"the rollout {name} needs tasks", "add --option data=FILE with one in each line, or --option task=TEXT", 2
            )
        if defines is not None:
            names.update({key: value for key, value in vars(load_module(defines, "defines")).items() if not key.startswith("__")})
        names.setdefault("MAX_STEPS", max_turns)
        if unknown := [name for name in _globals(self.function.__code__) if name not in names and not hasattr(builtins, name)]:
            problem = f"the rollout {name} uses {', '.join(unknown)}, which its file does not define"
            raise ClawError(problem, "define them in the file, or in another one: --option defines=FILE.py", 2)
        self._tasks = [task] if task is not None else _read(Path(str(data)))

    def tasks(self, split: Split, count: int, seed: int) -> list[Task]:
        indices = [n for n in range(len(self._tasks)) if (n % _HELD_OUT == _HELD_OUT - 1) == (split == "eval")]
        chosen = random.Random(seed).sample(indices, min(count, len(indices)))
        return [Task(f"task-{index}", self._tasks[index], split) for index in chosen]

    def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        """Runs in its own thread, because rollouts of other systems block (`subprocess.run`)."""
        is_async = inspect.iscoroutinefunction(self.function)
        agent = Agent(endpoint) if is_async else _PlainAgent(endpoint)
        result = self.function(agent, task.spec)
        return outcome_of(asyncio.run(result) if is_async else result, agent.turns)


def outcome_of(result: Any, turns: Sequence[str]) -> Outcome:
    """The outcome of a rollout that made these turns: from its steps, a mapping with `reward`, or a number."""
    steps = result if isinstance(result, list) else []
    rewards = [step.get("reward") if isinstance(step, Mapping) else None for step in steps]
    by_turn = dict(zip(turns, rewards, strict=True)) if len(turns) == len(rewards) else {}
    reward = rewards[-1] if rewards else result.get("reward") if isinstance(result, Mapping) else result
    return Outcome(
        reward=None if reward is None or isinstance(reward, list) else float(reward),
        steps={turn: float(value) for turn, value in by_turn.items() if value is not None},
    )


def is_rollout(made: Any) -> bool:
    """Whether `made` is a function of an agent and a task."""
    return inspect.isfunction(made) and takes(made, 2) and not takes(made, 3)


def environment_of(function: Any) -> type[Rollout]:
    """The environment that plays a function. Its version is that of the function's file."""
    return type("Rollout", (Rollout,), {"function": staticmethod(function), "__module__": function.__module__})


def _globals(code: CodeType) -> Iterator[str]:
    """The global names that a function reads, in the order of its code."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _read(path: Path) -> list[str]:
    """The tasks of a file. Raises ClawError (exit code 2)."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ClawError(f"the tasks in {path} cannot be read: {error}", "pass a file with one task in each line", 2) from error
    try:
        rows = orjson.loads(text)
        rows = rows if isinstance(rows, list) else [rows]
    except orjson.JSONDecodeError:
        rows = [_row(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    tasks = [_text(row) for row in rows]
    if not tasks or not all(tasks):
        raise ClawError(f"a row of {path} has no task", f"write texts, or objects with one of {', '.join(_TEXTS)}", 2)
    return tasks


def _row(path: Path, number: int, line: str) -> Any:
    try:
        return orjson.loads(line) if line.lstrip().startswith("{") else line
    except orjson.JSONDecodeError as error:
        raise ClawError(f"line {number} of {path} is damaged: {error}", "correct it, or write the task as plain text", 2) from error


def _text(row: Any) -> str:
    """The text of a task: the row itself, or its first field of `_TEXTS`, also below another (`{"task": {"instruction": …}}`)."""
    if not isinstance(row, Mapping):
        return str(row)
    value = next((row[name] for name in _TEXTS if row.get(name)), "")
    return _text(value) if isinstance(value, Mapping) else str(value)
