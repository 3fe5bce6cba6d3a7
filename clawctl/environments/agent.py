"""One small agent for a shell, which `terminal` and `swe` share: the model answers with a command, and reads what it printed."""

import re
from dataclasses import dataclass
from typing import Any

from clawctl.environments.asking import ask, new_client
from clawctl.environments.sandbox import Ran, Sandbox, SandboxOver
from clawctl.run.endpoint import Endpoint

SYSTEM = (
    "You solve tasks in a Linux shell. Answer with one command in a block:\n```bash\nCOMMAND\n```\n"
    "You then see what it printed. When the task is solved, answer with the single word submit."
)
_BLOCK = re.compile(r"```(?:bash|sh|shell)?[ \t]*\n(.*?)(?:\n)?```", re.DOTALL)
_SEEN = 6000  # characters of a command's output that the model sees


@dataclass(frozen=True, slots=True)
class Worked:
    """How the agent's part of an episode went."""

    ending: str  # "done", "turns", or "time" where the sandbox was over
    turns: int
    last: str  # its last answer


async def work(endpoint: Endpoint, sandbox: Sandbox, instruction: str, most_turns: int, command_s: float) -> Worked:
    """Let the model work on the instruction until it submits, or its turns are used. Raises Refused and SandboxFailed."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": instruction}]
    said = ""
    async with new_client(endpoint) as client:
        for turn in range(most_turns):
            said = await ask(endpoint, messages, client=client)
            command = command_in(said)
            if command is None:
                return Worked("done", turn + 1, said)
            try:
                ran = await sandbox.run(command, timeout=command_s)
            except SandboxOver:
                return Worked("time", turn + 1, said)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": observation(ran, command_s)}]
    return Worked("turns", most_turns, said)


def command_in(said: str) -> str | None:
    """The command of an answer, or None if it has none, or submits. Several blocks are one script."""
    command = "\n".join(_BLOCK.findall(said)).strip()
    return None if command in ("", "submit") else command


def observation(ran: Ran, command_s: float) -> str:
    """What the model reads after its command: "exit code 0" and the output."""
    output = ran.output
    if len(output) > _SEEN:
        output = f"{output[: _SEEN // 2]}\n[{len(output) - _SEEN} characters left out]\n{output[-_SEEN // 2 :]}"
    ended = f"exit code {ran.code}"
    if ran.timed_out:
        ended = f"ended after {command_s:.0f} s"
    elif ran.stopped is not None:
        ended = f"ended: too much {ran.stopped}" if ran.stopped == "memory" else "ended: too many files"
    return f"{ended}\n{output}".rstrip()
