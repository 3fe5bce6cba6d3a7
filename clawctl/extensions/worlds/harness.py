"""A third-party agent that runs as a command in the sandbox. It can reach its episode's address and nothing else."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic.dataclasses import dataclass as options

from clawctl.environments import EpisodeFailed, Task
from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.agent import OwnAgent, ShellAgent, Unverified, Work, Worked
from clawctl.extensions.worlds.checking import Findings
from clawctl.extensions.worlds.sandbox import TOOLS, Limits, Sandbox, SandboxFailed, SandboxOver, open_sandbox, relay
from clawctl.extensions.worlds.sandbox.forward import PORT
from clawctl.extensions.worlds.sandbox.kinds import read_kind
from clawctl.extensions.worlds.wording import HeldOut
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint

_FORWARD, _TERMINUS = f"{TOOLS}/forward.py", f"{TOOLS}/terminus.py"
_SANDBOX = Path(__file__).parent / "sandbox"
_MAX_CONNECTIONS = 32
_MEBIBYTE = 1 << 20
_LOG = 3000  # the number of characters kept from the end of a harness's output
# Agents need more than the commands of the built-in agent: node reserves gigabytes, and agents keep caches in their home folder.
_MIN_LIMITS = Limits(memory=2048 * _MEBIBYTE, disk=512 * _MEBIBYTE, processes=512, open_files=8192)
KNOWN: dict[str, str] = {
    **yaml.safe_load((Path(__file__).parent / "harnesses.yaml").read_text("utf-8")),
    "terminus-2": f"python -P {_TERMINUS}",
}


@dataclass(slots=True)
class WayOut:
    """The unix socket that leads to the model, and the traffic through it."""

    path: Path
    connections: int = 0
    refused: str | None = None  # why the last connection to the server failed, or None


@dataclass(frozen=True, slots=True)
class ForeignAgent:
    """A command that works on a task. It can read the host folders in `see`; the programs in them are on its PATH."""

    command: str
    see: tuple[str, ...] = ()

    @asynccontextmanager
    async def room(
        self, endpoint: Endpoint, folder: str, limits: Limits, fixed: Mapping[str, bytes]
    ) -> AsyncIterator[tuple[Sandbox, Work]]:
        """Open a sandbox that holds the agent's programs and reaches `endpoint`. Yields it with the function that runs the agent.

        Raises ClawError, SandboxFailed.
        """
        limits = replace(
            limits, memory=max(limits.memory, _MIN_LIMITS.memory), disk=max(limits.disk, _MIN_LIMITS.disk),
            processes=max(limits.processes, _MIN_LIMITS.processes), open_files=_MIN_LIMITS.open_files, reserves_memory=True,
        )  # fmt: skip
        programs = {path: (_SANDBOX / Path(path).name).read_bytes() for path in (_FORWARD, _TERMINUS)}
        async with (
            _open_way_out(endpoint) as way,
            open_sandbox(folder, limits, {**fixed, **programs}, socket=way.path, see=self.see) as sandbox,
        ):
            yield sandbox, partial(self._work, endpoint, sandbox, way)

    async def _work(self, endpoint: Endpoint, sandbox: Sandbox, way: WayOut, instruction: str, seconds: float) -> Worked:
        """Run the command until it ends. Environment variables hold the model's address and the instruction.

        Raises SandboxFailed, EpisodeFailed if the agent made no model call or the server was unreachable, and ClawError if the
        program is missing.
        """
        root = f"http://127.0.0.1:{PORT}{urlsplit(endpoint.url).path.removesuffix('/v1')}"
        variables = {"OPENAI_BASE_URL": f"{root}/v1", "OPENAI_API_BASE": f"{root}/v1", "OPENAI_API_KEY": endpoint.api_key}
        variables |= {"ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": endpoint.api_key, "MODEL": endpoint.model}
        variables |= {"INSTRUCTION": instruction, "PATH": ":".join([*_program_folders(self.see), sandbox.kind.search_path()])}
        try:
            opened = await sandbox.run([sandbox.kind.python(), "-I", "-S", _FORWARD], timeout=20)
            if opened.code != 0:
                raise SandboxFailed(f"the connection to the model could not be opened: {opened.output[-300:]}")
            ran = await sandbox.run(self.command, seconds, environment=variables)
        except SandboxOver as error:
            return Worked("time", str(error))
        log = ran.output[-_LOG:].strip()
        if ran.code == 127 and not way.connections:
            cure = "install it on this machine, and name the folder that contains it in the option see"
            raise ClawError(f"the harness is not in the sandbox: {log[-300:]}", cure)
        if way.refused is not None:
            raise EpisodeFailed("server", f"the server could not be reached: {way.refused}")
        if not way.connections:  # the agent never called the model, so the policy cannot be the cause
            raise EpisodeFailed("environment", f"the harness ended with code {ran.code} and never called the model: {log}")
        return Worked("time" if ran.timed_out else "done", log, log=f"the harness ended with code {ran.code}:\n{log}\n")


@options(kw_only=True, eq=False, repr=False)
class ShellEnvironment:
    """The options of an environment whose agent works in a shell.

    `path`: tasks, of which a fifth is held out. Without it, clawctl draws tasks, and `held_out` says what the measured ones have
    that training lacks: `same_prompts` (other tasks alone), `new_words`, or `paraphrased` (prompts by other authors). `harness`:
    the command of another agent, which runs in the sandbox in place of the built-in agent. `examples`: how many solved tasks of
    training the built-in agent sees before each task. `see`: folders that it needs, separated by commas. `steps`: also reward
    single turns: 1 for a command that ends with code 0, otherwise -1. Only the built-in agent reports how commands ended.
    `sandbox`: the kind of sandbox for the commands (`docs/environments.md`). `accept_unverified`: reward unverified verdicts.
    `fail_unverified`: count them as failures, as those on drawn tasks always are, because honest work at these is never one.
    `accept_unchecked`: play tasks of others without a check whether their verdicts hold."""

    metrics = ("reward", "solved")
    version = "8"
    worst = 0.0

    path: str | None = None
    held_out: HeldOut = "same_prompts"
    max_turns: int = 20
    command_s: float = 30.0
    harness: str | None = None
    see: str | tuple[str, ...] = ""
    steps: bool = False
    examples: int = 0
    sandbox: str | Mapping[str, Any] | None = None
    accept_unverified: bool = False
    fail_unverified: bool = False
    accept_unchecked: bool = False

    def __post_init__(self) -> None:
        if self.accept_unverified and self.fail_unverified:
            raise ClawError("accept_unverified and fail_unverified exclude each other", "leave one of them out", 2)
        is_failure = self.fail_unverified or self.path is None
        self.unverified: Unverified = "rewarded" if self.accept_unverified else "failed" if is_failure else "skipped"
        self.kind, self._findings = read_kind(self.sandbox), Findings()
        built_in = OwnAgent(self.max_turns, self.command_s)
        self.agent: ShellAgent = built_in if self.harness is None else make_harness(self.harness, self.see)

    def prepare(self, run: RunDir, recipe: object, server: object) -> None:
        self._findings.folder = run.episodes / "checked"

    async def refusal(self, task: Task) -> str | None:
        """Why a task of others is left out: its verdict does not hold, as `play --check` finds. None if it can be played."""
        if self.path is None or self.accept_unchecked:
            return None
        key = f"{self.version} {task.spec.digest} {task.spec.verdict_s} {self.sandbox}"
        finding = await self._findings.of(key, partial(self.check, task.spec))
        accepted = ("playable", "verdict cannot be trusted") if self.accept_unverified else ("playable",)
        return None if finding is None or finding.found in accepted else f"{finding.found}: {finding.reason}"

    async def check(self, task: Any) -> CheckedTask:
        """What `play --check` finds about the task. Raises SandboxFailed, and ClawError if the sandbox does not hold."""
        raise NotImplementedError

    def show(self, tasks: Sequence[Task], solved: Callable[[Any], list[dict[str, Any]]]) -> None:
        """Put solved tasks before each task. Raises ClawError (exit code 2) if another agent works."""
        if tasks and not isinstance(self.agent, OwnAgent):
            raise ClawError("a harness is not shown solved tasks", "leave out the option examples or harness", 2)
        if isinstance(self.agent, OwnAgent):
            self.agent = replace(self.agent, solved=tuple(message for task in tasks for message in solved(task.spec)))


def make_harness(command: str, see: str | tuple[str, ...] | list[str] = ()) -> ForeignAgent:
    """`command` is a name in KNOWN or a shell command. `see` lists folders, separated by commas. Raises ClawError (exit code 2)."""
    named = see.split(",") if isinstance(see, str) else see
    folders = [Path(name.strip()).expanduser() for name in named if name.strip()]
    for folder in folders:
        if not folder.is_absolute() or not folder.is_dir() or folder == Path("/"):
            raise ClawError(f"the option see names {folder}, which is not a folder below /", "give the path of a folder", 2)
    readable = tuple(dict.fromkeys(str(path) for folder in folders for path in (folder, *_interpreters(folder))))
    for folder in map(Path, (*readable, *_program_folders(readable))):
        if os.geteuid() == 0 and folder.stat().st_mode & 0o005 != 0o005:  # as root, the commands run as a separate user
            problem = f"only its owner can read {folder}, and the agent runs as another user"
            raise ClawError(problem, f"run `chmod -R o+rX {folder}`", 2)
    return ForeignAgent(KNOWN.get(command, command), readable)


def _interpreters(folder: Path) -> list[Path]:
    """The folders of the Python installations that virtual environments in `folder` are based on. Their programs need them."""
    settings = [folder / "pyvenv.cfg", *sorted(folder.glob("*/pyvenv.cfg"))]
    lines = [line.partition("=") for file in settings if file.is_file() for line in file.read_text().splitlines()]
    homes = [Path(value.strip()).resolve().parent for name, _, value in lines if name.strip() == "home"]
    return [home for home in homes if home.is_dir() and not home.is_relative_to("/usr") and home != Path("/")]


def _program_folders(see: tuple[str, ...]) -> list[str]:
    """The program folders of virtual environments, of npm installations, and of folders that contain several of them."""
    inner = ("bin", "*/bin", "node_modules/node-linux-*/bin", "node_modules/@anthropic-ai/claude-code-linux-*", "node_modules/.bin")
    return [str(path) for folder in see for pattern in inner for path in sorted(Path(folder).glob(pattern)) if path.is_dir()]


@asynccontextmanager
async def _open_way_out(endpoint: Endpoint) -> AsyncIterator[WayOut]:
    """Open a unix socket that leads to the server of `endpoint`. Raises ClawError if the endpoint does not belong to an episode."""
    parts = urlsplit(endpoint.url)
    if "/e/" not in parts.path:
        cure = "remove eval.endpoint, so that `clawctl eval` measures at the run's own server"
        raise ClawError("a harness needs the address of an episode, which only the run's own server has", cure)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    room = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with room:
            way.connections += 1
            try:
                from_model, to_model = await asyncio.open_connection(parts.hostname, port, ssl=parts.scheme == "https" or None)
            except OSError as error:
                way.refused = str(error)
                writer.close()
                return
            way.refused = None
            try:
                await asyncio.gather(relay(reader, to_model), relay(from_model, writer))
            finally:
                writer.close()
                to_model.close()

    with tempfile.TemporaryDirectory(prefix="clawctl-") as folder:
        way = WayOut(Path(folder) / "model.sock")
        server = await asyncio.start_unix_server(pass_on, way.path)
        os.chmod(way.path, 0o666)  # the sandbox runs as a separate user
        try:
            yield way
        finally:
            server.close()
