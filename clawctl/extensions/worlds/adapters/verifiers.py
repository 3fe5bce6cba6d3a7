"""`verifiers`: a taskset of the library verifiers (0.4 or newer) runs unchanged, in a separate process.

Its agents call the model at the episode's address, through verifiers' own interception. The taskset's reward is the outcome.
"""

import asyncio
import atexit
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import replace
from pathlib import Path
from typing import Any

from clawctl.config.environment import environment_of_program, names_in
from clawctl.environments import EPISODE_S, AgentOutcome, EpisodeFailed, Outcome, Split, Task
from clawctl.environments.checking import CheckedTask, check_environment
from clawctl.errors import ClawError
from clawctl.extensions.worlds.adapters.processes import AnsweringProcess, ProcessEnded
from clawctl.extensions.worlds.splits import rows_of
from clawctl.run.endpoint import Endpoint

_PROGRAM = Path(__file__).parent / "verifiers_process.py"
_START_S = 180.0
_CONTAINERS = ("docker", "podman", "apptainer")
_DEFINED = re.compile(r"^(?:def|class) (\w+)", re.MULTILINE)
_MAX_TASKS = 4096  # taken from an endless taskset
_ENDINGS = {"SandboxError": "sandbox", "TaskError": "verifier", "ProviderError": "server"}  # by the type of verifiers' errors
_USED_UP = (("episode_over", "time"), ("context_length_exceeded", "context"))  # endings by clawctl's error code in an error's text


class Verifiers:
    """`taskset` is the id of an installed taskset, or the path of one. `python` is an interpreter that has verifiers installed.

    `variables` names environment variables, separated by commas, that its process gets in addition to the usual ones. `harness` and
    `runtime` have the meaning that verifiers gives them; an agent that runs commands needs the runtime docker, podman or apptainer.
    All other options are passed to the taskset."""

    metrics = ("reward",)

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Load the taskset with this id or path. None for a folder without Python."""
        folder = Path(place).expanduser()
        if folder.is_file() or (folder.is_dir() and not any(folder.glob("**/*.py"))):
            return None
        checked = check_environment(Path(place).name or "verifiers", Verifiers, {"taskset": place, **options})
        if not folder.exists() and checked.found != "playable":
            checked = replace(
                checked, reason=f"there is no file or folder {place}, and as a taskset of verifiers: {checked.reason}"
            )
        return [checked]

    def __init__(
        self,
        taskset: str,
        python: str = sys.executable,
        harness: str | None = "null",
        runtime: str = "subprocess",
        max_turns: int = 20,
        episode_s: float = EPISODE_S,
        variables: str = "",
        **options: Any,
    ) -> None:
        self.episode_s, self._max_turns, self._taskset = float(episode_s), max_turns, taskset
        settings = {"taskset": taskset, "options": options, "harness": harness, "runtime": runtime, "max_turns": max_turns}
        if (old := legacy_file(taskset)) is not None:
            raise _is_legacy(f"{taskset} ({old.name})")
        interpreter = shutil.which(str(Path(python).expanduser()))
        if interpreter is None:
            raise ClawError(f"the option python names {python}, which is not a program", "give the path of an interpreter", 2)
        self._process = AnsweringProcess(interpreter, _PROGRAM, settings, _variables(interpreter, variables))
        atexit.register(self._process.close)
        message = self._wait(self._process.first, python)
        if "problem" in message:
            raise _cannot_load(taskset, python, message)
        self.version = f"{taskset} with verifiers {message['ready']['version']}"
        executing = message["ready"]["executes_code"]
        if executing and runtime not in _CONTAINERS:
            cure = f"add --option runtime={'|'.join(_CONTAINERS)}, or --option harness=null, an agent that runs no commands"
            raise ClawError(f"the harness {', '.join(executing)} would run commands on this machine without a sandbox", cure, 2)
        self._tasks = self._wait(self._process.ask({"do": "tasks", "limit": _MAX_TASKS}), python)["tasks"]

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """A fifth of the taskset is held out."""
        numbered = list(enumerate(self._tasks))
        chosen = rows_of(numbered, lambda row: int(row[1]["key"][:8], 16), split, count, seed)
        return [Task(f"{row['name'] or 'task'}-{number}", {"number": number, "key": row["key"]}, split) for number, row in chosen]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        headers = dict(endpoint.headers) if "/e/" not in endpoint.url else {}  # an episode's address already identifies the caller
        request = {
            "do": "play", "number": task.spec["number"], "url": endpoint.url, "api_key": endpoint.api_key, "model": endpoint.model,
            "sampling": dict(endpoint.sampling), "headers": headers, "seconds": self.episode_s, "max_turns": self._max_turns,
        }  # fmt: skip
        message = await asyncio.wrap_future(self._process.ask(request))
        return outcome_of(message, self._max_turns)

    def _wait(self, answer: Any, python: str) -> dict[str, Any]:
        try:
            return dict(answer.result(_START_S))
        except WaitedTooLong as error:
            raise ClawError(f"the taskset {self._taskset} did not load within {_START_S:.0f} s", "try it with vf-eval") from error
        except ProcessEnded as error:
            cure = f"run `{python} -m pip install verifiers`, or name another interpreter in the option python"
            raise ClawError(f"verifiers cannot run: {error}", cure, 2) from error


def outcome_of(message: Mapping[str, Any], max_turns: int) -> Outcome:
    """Convert the process's answer into an outcome. Raises EpisodeFailed if anything but the policy ended the episode."""
    text = "\n".join(f"{error['type']}: {error['text']}" for error in message.get("errors", ()))
    used_up = next((ending for code, ending in _USED_UP if code in text), None)
    if used_up is None and (message.get("timed_out") or message.get("ending") == "time"):
        used_up = "time"
    if message.get("errors") and used_up is None:
        ending = next((_ENDINGS[error["type"]] for error in message["errors"] if error["type"] in _ENDINGS), "environment")
        raise EpisodeFailed(ending, text)
    if message.get("ending") == "environment":
        raise EpisodeFailed("environment", str(message.get("log")))
    reward = message.get("reward")
    if reward is None and used_up is None:
        raise EpisodeFailed("verifier", "the taskset returned no reward")
    parts = {name: value for name, value in dict(message.get("parts", {})).items() if 0 <= value <= 1}
    is_out_of_turns = "max_turns" in message.get("stopped", ())
    worth = -1.0 if reward is None else max(-1.0, min(1.0, float(reward)))
    agents = {
        name: AgentOutcome(max(-1.0, min(1.0, float(agent["reward"]))), tuple(agent["turns"]))
        for name, agent in dict(message.get("agents", {})).items()
    }
    ending = used_up or ("turns" if is_out_of_turns else "done")
    return Outcome(worth, parts, ending=ending, log=text or None, agents=agents if reward is not None else {})


def _cannot_load(taskset: str, python: str, message: Mapping[str, Any]) -> ClawError:
    problem = str(message["problem"])
    if message.get("version") is None:
        cure = f"run `{python} -m pip install 'verifiers>=0.4'`, or name another interpreter in the option python"
        return ClawError(f"verifiers is not installed for {python}", cure, 2)
    missing = re.search(r"No module named '([\w.]+)'", problem)
    if missing and not missing[1].startswith("verifiers") and missing[1] != taskset.replace("-", "_"):
        cure = f"run `{python} -m pip install {missing[1].split('.')[0]}`, or what its documentation names for it"
        return ClawError(f"the taskset {taskset} needs the module {missing[1]}, which is not installed for {python}", cure, 2)
    if message.get("is_legacy"):
        return _is_legacy(taskset)
    if "verifiers.v1" in problem or str(message["version"]).startswith(("0.1.", "0.2.", "0.3.")):
        cure = f"run `{python} -m pip install --upgrade 'verifiers>=0.4'`; older tasksets have to be ported"
        return ClawError(f"verifiers {message['version']} is not a version that the adapter supports ({problem})", cure, 2)
    return ClawError(f"the taskset {taskset} cannot be loaded: {problem}", f"install it for {python}, or give its path", 2)


def _is_legacy(taskset: str) -> ClawError:
    cure = "port it to a Taskset of verifiers.v1: the rows of its dataset are the tasks, the functions of its rubric rewards"
    return ClawError(f"{taskset} is an environment of verifiers before 0.4 (`load_environment`), without a taskset", cure, 2)


def legacy_file(taskset: str) -> Path | None:
    """The file of a path that has `load_environment`, as before verifiers 0.4, and no taskset. Nothing is imported."""
    path = Path(taskset).expanduser()
    name = path.name.replace("-", "_")
    packages = [folder for folder in (path, path / name, path / "src" / name) if (folder / "__init__.py").is_file()]
    files = [
        path,
        path / f"{name}.py",
        *path.glob("*.py"),
        *(file for package in packages for file in sorted(package.glob("*.py"))),
    ]
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in files if file.suffix == ".py" and file.is_file()}
    defined = {file: set(_DEFINED.findall(text)) for file, text in texts.items()}
    is_new = any({"load_taskset", "Taskset"} & names for names in defined.values()) or "verifiers.v1" in "".join(texts.values())
    return None if is_new else next((file for file, names in defined.items() if "load_environment" in names), None)


def _variables(interpreter: str, named: str) -> dict[str, str]:
    """The process's environment variables. PATH starts with the interpreter's folder, because verifiers calls uv."""
    variables = environment_of_program({"PRIME_DISABLE_VERSION_CHECK": "1"}, names_in(named))
    return {**variables, "PATH": f"{Path(interpreter).parent}:{variables.get('PATH', '')}"}
