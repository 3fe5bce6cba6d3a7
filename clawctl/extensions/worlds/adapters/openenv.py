"""`openenv`: a server of the library OpenEnv, in which the built-in agent acts by tool calls.

The adapter uses the protocol alone (`/schema`, and JSON over the WebSocket `/ws`). The server may run another Python with other
packages.
"""

import asyncio
import atexit
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

import orjson
import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from clawctl.asking import Refused, complete, new_client
from clawctl.config.environment import environment_of_program, names_in
from clawctl.environments import EPISODE_S, WORST, EpisodeFailed, Outcome, Split, Task, create
from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.splits import task_numbers
from clawctl.extensions.worlds.toolcall.tools import name_and_arguments
from clawctl.http_client import RequestFailed, fetch
from clawctl.process import kill_group
from clawctl.run.endpoint import Endpoint

SYSTEM = "You act in an environment. Each tool call is one action, and you then see what came of it. When you are done, say so."
_START_S = 180.0
_STEP_S = 120.0
_FULL_S = 0.5  # interval between attempts to connect to a full server
_SEEN = 6000  # characters of an observation that the model sees
_HIDDEN = ("metadata",)  # fields of actions and observations that the model does not see


class StepRefused(Exception):
    """The environment rejected this action. The model sees the reason."""


@options(kw_only=True, eq=False, repr=False)
class OpenEnv:
    """Connect to the running server at `url`, or start one with `command`.

    `command` runs in `folder`; {port} in it becomes the server's port. `variables` names environment variables, separated by
    commas, that the command gets in addition to the usual ones. `instruction` is the system message. `reward` selects the sum of
    all step rewards (`sum`), or the last one (`last`). `worst` is the reward of an episode in which no step had one. OpenEnv
    declares no range of rewards, so `worst` is the lowest possible one by default: an agent that stalls must not score better
    than one that fails.
    """

    metrics = ("reward", "solved")

    url: str | None = None
    command: str | None = None
    folder: str = "."
    instruction: str = SYSTEM
    reward: Literal["sum", "last"] = "sum"
    max_turns: int = 20
    episode_s: float = EPISODE_S
    variables: str = ""
    worst: Annotated[float, Field(ge=-1, le=1)] = WORST

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Connect to the server at an address, or start that of a folder with `openenv.yaml`, and begin an episode.

        The option `python` names the interpreter that starts it.
        """
        if place.startswith(("http://", "https://")):
            return [_check(place, {"url": place, **options})]
        folder = Path(place).expanduser()
        if not place or not (folder / "openenv.yaml").is_file():
            return None
        python = str(options.get("python", sys.executable))
        try:
            app = yaml.safe_load((folder / "openenv.yaml").read_text(encoding="utf-8"))["app"]
        except (ValueError, LookupError, TypeError, yaml.YAMLError) as error:
            raise ClawError(f"{folder}/openenv.yaml names no app: {error!r}", "add `app: server.app:app`", 2) from error
        command = f"{shlex.quote(python)} -m uvicorn {shlex.quote(str(app))} --host 127.0.0.1 --port {{port}}"
        given = {name: value for name, value in options.items() if name != "python"}
        return [_check(folder.name, {"command": command, "folder": str(folder), **given})]

    def __post_init__(self) -> None:
        if find_spec("websockets") is None:
            raise ClawError("the package websockets is not installed", "run `pip install 'clawctl[environments]'`", 2)
        if (self.url is None) == (self.command is None):
            raise ClawError(
                "openenv needs either the option url or the option command", "add --option url=http://127.0.0.1:8000", 2
            )
        started = self.url or _start(str(self.command), Path(self.folder).expanduser(), names_in(self.variables))
        self._url = started.rstrip("/")
        schema = _schema(self._url)
        self._action = {name: value for name, value in dict(schema["action"]).items() if name != "title"}
        self._has_tools = {"tool_name", "arguments"} <= set(self._action.get("properties", {}))  # an environment of MCP tools
        self.version = sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """Each task is a seed of the environment. Even seeds are for training, odd seeds are held out."""
        return [Task(f"seed-{number}", number, split) for number in task_numbers(split, count, seed)]

    async def begin(self, task: Task) -> str:
        """Begin an episode and leave it. Returns what an agent would see. Raises EpisodeFailed."""
        async with _connected(self._url, _START_S) as session:
            reply = await session.ask("reset", {"seed": task.spec})
            if not await self._tools(session):
                raise EpisodeFailed("environment", "the environment offers no tool")
            return _shown(reply["observation"])

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        rewards: list[float] = []
        async with new_client(endpoint) as client, _connected(self._url, self.episode_s) as session:
            reply = await session.ask("reset", {"seed": task.spec})
            tools = await self._tools(session)
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": self.instruction}, {"role": "user", "content": _shown(reply["observation"])}
            ]  # fmt: skip
            ending = "turns"
            for turn in range(self.max_turns):
                try:
                    message = await complete(endpoint, messages, client, tools=tools)
                except Refused as refused:
                    if turn == 0 or refused.used_up is None:
                        raise
                    ending = refused.used_up
                    break
                calls = message.get("tool_calls") or []
                if not calls:
                    ending = "done"
                    break
                messages.append({"role": "assistant", "content": message.get("content"), "tool_calls": calls})
                is_over = False
                for call in calls:
                    seen = "the episode is over"
                    if not is_over:
                        seen, reward, is_over = await self._step(session, call)
                        rewards += [] if reward is None else [reward]
                    messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": seen})
                if is_over:
                    ending = "done"
                    break
        worth = max(-1.0, min(1.0, sum(rewards) if self.reward == "sum" else rewards[-1])) if rewards else self.worst
        log = f"{len(rewards)} rewards of steps: {rewards[:50]}"
        return Outcome(
            worth, {"solved": worth > 0}, ending=ending, log=log, example={"prompt": messages[1]["content"], "reply": log}
        )

    async def _tools(self, session: "OpenEnvSession") -> list[dict[str, Any]]:
        if not self._has_tools:
            properties = {name: value for name, value in self._action.get("properties", {}).items() if name not in _HIDDEN}
            schema = {**self._action, "type": "object", "properties": properties}
            return [_tool("act", str(self._action.get("description", "One action.")), schema)]
        listed = await session.ask("step", {"type": "list_tools"})
        tools = listed["observation"].get("tools") or []
        return [
            _tool(tool["name"], str(tool.get("description", "")), tool.get("input_schema") or {"type": "object"}) for tool in tools
        ]

    async def _step(self, session: "OpenEnvSession", call: Mapping[str, Any]) -> tuple[str, float | None, bool]:
        """Take one action. Returns the observation as text, the reward, and whether the episode is over."""
        name, arguments = name_and_arguments(call)
        if arguments is None:
            return "error: the arguments are no JSON object", None, False
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments} if self._has_tools else arguments
        try:
            reply = await session.ask("step", action)
        except StepRefused as error:
            return f"error: {error}", None, False
        reward = reply.get("reward")
        return _shown(reply["observation"]), None if reward is None else float(reward), bool(reply.get("done"))


def _check(name: str, options: Mapping[str, Any]) -> CheckedTask:
    """Create the environment and begin an episode. A model is not asked, so no action is tried."""
    try:
        environment = cast(OpenEnv, create(OpenEnv, name, "play --check", options))
        asyncio.run(environment.begin(environment.tasks("train", 1, 0)[0]))
    except ClawError as error:
        return CheckedTask(name, "not playable", f"{error.problem} -> {error.fix}")
    except (EpisodeFailed, StepRefused, LookupError) as error:
        return CheckedTask(name, "not playable", f"no episode begins: {error}")
    return CheckedTask(name, "playable", "an episode begins; it has no solution to try")


def _tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _shown(observation: Any) -> str:
    """The text of an observation that the model reads."""
    if isinstance(observation, dict):
        observation = {name: value for name, value in observation.items() if name not in _HIDDEN and value is not None}
        if len(observation) == 1 and isinstance(text := next(iter(observation.values())), str):
            observation = text
    text = observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
    return text if len(text) <= _SEEN else f"{text[:_SEEN]} […]"


@dataclass(slots=True)
class OpenEnvSession:
    """One connection, which stands for one instance of the environment."""

    connection: Any

    async def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one message and return the answer's data.

        Raises StepRefused if the server rejects the data, and EpisodeFailed if the server fails or does not answer.
        """
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            async with asyncio.timeout(_STEP_S):
                with suppress(ConnectionClosed):  # `recv` returns the server's last message, which holds the reason
                    await self.connection.send(json.dumps({"type": kind, **({} if data is None else {"data": dict(data)})}))
                answer = json.loads(await self.connection.recv())
        except (TimeoutError, OSError, ValueError, WebSocketException) as error:
            raise EpisodeFailed("environment", f"the environment did not answer {kind}: {error!r}") from error
        response = answer.get("data") or {}
        if answer.get("type") == "error":
            if response.get("code") == "VALIDATION_ERROR":
                raise StepRefused(str(response.get("message"))[:1000])
            raise EpisodeFailed("environment", f"{response.get('code')}: {response.get('message')}")
        return dict(response)


@asynccontextmanager
async def _connected(url: str, seconds: float) -> AsyncIterator[OpenEnvSession]:
    """Open a session, and wait while the server is full. Raises EpisodeFailed."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    address, end = f"ws{url.removeprefix('http')}/ws", time.monotonic() + seconds
    while True:
        try:
            async with connect(address, max_size=64 << 20, proxy=None) as connection:
                session = OpenEnvSession(connection)
                try:
                    await session.ask("state")  # a full server rejects this first message
                except EpisodeFailed as failed:
                    if "CAPACITY" not in str(failed) or time.monotonic() > end:
                        raise
                else:
                    yield session
                    await connection.send(json.dumps({"type": "close"}))
                    return
        except (OSError, WebSocketException) as error:
            raise EpisodeFailed("environment", f"no session with {address}: {error!r}") from error
        await asyncio.sleep(_FULL_S)


def _schema(url: str) -> dict[str, Any]:
    """The server's schemas. Raises ClawError (exit code 2)."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ClawError(f"the option url is {url}", "give an address like http://127.0.0.1:8000", 2)
    try:
        answer = fetch("GET", f"{url}/schema", timeout_s=30.0)
        schema = orjson.loads(answer.body) if answer.status == 200 else {}
    except (RequestFailed, ValueError) as error:
        raise ClawError(f"no OpenEnv server answers at {url}: {error}", "start it, or set the option command instead", 2) from error
    if not isinstance(schema.get("action") if isinstance(schema, dict) else None, dict):
        raise ClawError(f"the server at {url} has no /schema with an action", "use a server of openenv-core 0.2 or newer", 2)
    return dict(schema)


def _start(command: str, folder: Path, variables: Sequence[str]) -> str:
    """Start a server, which is stopped when this process exits. Returns its address. Raises ClawError (exit code 2)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [word.replace("{port}", str(port)) for word in shlex.split(command)]
    with tempfile.TemporaryFile() as said:
        try:
            server = subprocess.Popen(
                arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                env=environment_of_program(named=variables),
            )  # fmt: skip
        except OSError as error:
            cure = "give a program and its arguments, with {port}"
            raise ClawError(f"the option command cannot be run: {error}", cure, 2) from error
        atexit.register(_stop, server)
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + _START_S
        while time.monotonic() < end and server.poll() is None:
            try:
                if fetch("GET", f"{url}/health", timeout_s=5.0).status == 200:
                    return url
            except RequestFailed:
                time.sleep(0.2)
        _stop(server)
        said.seek(0)
        last = (said.read().decode(errors="replace").strip() or "it printed nothing").splitlines()[-1].strip()
        problem = f"the OpenEnv server did not start: {last}"
    raise ClawError(problem, "try the command yourself; it must listen on {port}", 2)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(5)
    kill_group(server.pid)
    server.wait()
