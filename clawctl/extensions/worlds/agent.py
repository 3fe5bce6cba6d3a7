"""A small shell agent, which `terminal` and `swe` share. The model answers with a command, then reads the command's output."""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

from clawctl.asking import Refused, complete, new_client
from clawctl.environments import Outcome
from clawctl.extensions.worlds.sandbox import Limits, Ran, Sandbox, SandboxOver, open_sandbox
from clawctl.extensions.worlds.verdicts import Graded
from clawctl.run.endpoint import Endpoint

SYSTEM = (
    "You solve tasks in a Linux shell. Answer with one command in a block:\n```bash\nCOMMAND\n```\n"
    "You then see what it printed. When the task is solved, answer with the single word submit."
)
_BLOCK = re.compile(r"```(?:bash|sh|shell)?[ \t]*\n(.*?)(?:\n)?```", re.DOTALL)
_SEEN = 6000  # the number of characters of a command's output that the model sees


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of the agent's work in an episode."""

    ending: str  # "done", "turns", "time" or "context", as in `clawctl.run.endings`
    last: str  # the agent's last answer
    steps: dict[str, float] = field(default_factory=dict)  # by turn id: 1 for a command that ended with code 0, else -1
    log: str = ""  # for people


Unverified = Literal["skipped", "rewarded", "failed"]


def outcome_of(instruction: str, worked: Worked, score: Graded, steps: bool, unverified: Unverified = "skipped") -> Outcome:
    """The outcome of a graded episode. `steps`: also reward its single turns.

    `unverified` says what a verdict that cannot be trusted is: not trained, worth what the tests say, or a failure.
    """
    shown, log = {"prompt": instruction, "reply": worked.last}, worked.log + score.log
    if score.verdict == "unverified" and unverified == "skipped":
        parts = {"solved": False}
        return Outcome(None, parts, status="failed", ending="unverified", log=log, example=shown, verdict=score.verdict)
    if score.verdict == "unverified" and unverified == "failed":
        score = replace(score, value=0.0)
    parts, rewards = {"solved": score.value == 1}, worked.steps if steps else {}
    return Outcome(score.value, parts, rewards, ending=worked.ending, log=log, example=shown, verdict=score.verdict)


Work = Callable[[str, float], Awaitable[Worked]]  # arguments: the instruction, and the time limit in seconds


class ShellAgent(Protocol):
    """Works on a task in a sandbox: the built-in agent, or a harness."""

    def room(
        self, endpoint: Endpoint, folder: str, limits: Limits, fixed: Mapping[str, bytes]
    ) -> AbstractAsyncContextManager[tuple[Sandbox, Work]]:
        """Open a sandbox for one episode. Yields it with the function that runs the agent in it.

        Raises ClawError, SandboxFailed.
        """
        ...


@dataclass(frozen=True, slots=True)
class OwnAgent:
    """The built-in agent. It makes its model calls outside of the sandbox."""

    max_turns: int
    command_s: float
    solved: tuple[dict[str, Any], ...] = ()  # the messages of solved tasks, which stand before each task

    @asynccontextmanager
    async def room(
        self, endpoint: Endpoint, folder: str, limits: Limits, fixed: Mapping[str, bytes]
    ) -> AsyncIterator[tuple[Sandbox, Work]]:
        async with open_sandbox(folder, limits, fixed) as sandbox:
            yield sandbox, partial(work, endpoint, sandbox, self)


async def work(endpoint: Endpoint, sandbox: Sandbox, agent: OwnAgent, instruction: str, seconds: float = 600.0) -> Worked:
    """Let the model work on the instruction until it submits, or until its turns, time or context run out.

    Raises Refused and SandboxFailed.
    """
    request = {"role": "user", "content": instruction}
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, *agent.solved, request]
    reply, end, steps = "", time.monotonic() + seconds, dict[str, float]()
    async with new_client(endpoint) as client:
        for turn in range(agent.max_turns):
            left = end - time.monotonic()
            if left <= 0:
                return Worked("time", reply, steps)
            try:
                answer = await complete(endpoint, messages, client)
            except Refused as refused:
                if turn == 0 or refused.used_up is None:
                    raise
                return Worked(refused.used_up, reply, steps)
            reply = str(answer.get("content") or "")
            command = command_in(reply)
            if command is None:
                return Worked("done", reply, steps)
            try:
                ran = await sandbox.run(command, timeout=max(1.0, min(agent.command_s, end - time.monotonic())))
            except SandboxOver:
                return Worked("time", reply, steps)
            steps[answer["turn_id"]] = 1.0 if ran.code == 0 and not ran.timed_out and ran.stopped is None else -1.0
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation(ran, agent.command_s)}]
    return Worked("turns", reply, steps)


def solved(instruction: str, commands: Mapping[str, str]) -> list[dict[str, Any]]:
    """The messages of an episode that ends well: its commands with their outputs."""
    messages = [{"role": "user", "content": instruction}]
    for command, output in commands.items():
        seen = f"exit code 0\n{output}".rstrip()
        messages += [{"role": "assistant", "content": f"```bash\n{command}\n```"}, {"role": "user", "content": seen}]
    return [*messages, {"role": "assistant", "content": "submit"}]


def command_in(reply: str) -> str | None:
    """The command in an answer. Several blocks form one script. None if the answer has no command, or is `submit`."""
    command = "\n".join(_BLOCK.findall(reply)).strip()
    return None if command in ("", "submit") else command


def observation(ran: Ran, command_s: float) -> str:
    """The text that the model reads after its command: "exit code 0" and the output."""
    output = ran.output
    if len(output) > _SEEN:
        output = f"{output[: _SEEN // 2]}\n[{len(output) - _SEEN} characters left out]\n{output[-_SEEN // 2 :]}"
    ended = f"exit code {ran.code}"
    if ran.timed_out:
        ended = f"ended after {command_s:.0f} s"
    elif ran.stopped is not None:
        ended = f"ended: too much {ran.stopped}" if ran.stopped == "memory" else "ended: too many files"
    return f"{ended}\n{output}".rstrip()
