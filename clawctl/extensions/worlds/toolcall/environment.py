"""`toolcall`: the agent answers a question, and may call tools that run in a sandbox."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from clawctl.asking import complete, new_client
from clawctl.environments import Outcome, Split, Task
from clawctl.environments.checking import CheckedTask
from clawctl.extensions.worlds.sandbox import Limits, Sandbox, SandboxOver, open_sandbox
from clawctl.extensions.worlds.sandbox.kinds import read_kind
from clawctl.extensions.worlds.sandbox.probe import verify_sandbox
from clawctl.extensions.worlds.splits import SHOWN, rows_of, task_numbers
from clawctl.extensions.worlds.toolcall.calls import is_same_call
from clawctl.extensions.worlds.toolcall.checking import check_questions
from clawctl.extensions.worlds.toolcall.questions import Question, decide, draw_question, gym_questions, read_questions
from clawctl.extensions.worlds.toolcall.tools import PYTHON, name_and_arguments, read_tools, use
from clawctl.extensions.worlds.wording import HeldOut, wording_of
from clawctl.run.endpoint import Endpoint

_LIMITS = Limits(seconds=300, memory=256 << 20, disk=16 << 20, processes=16)


@dataclass(kw_only=True, eq=False, repr=False)
class ToolCall:
    """`path`: a file of questions (DAPO, AIME, GSM8K or BFCL). `gym`: families of reasoning-gym, separated by commas. Without
    both, clawctl draws arithmetic, and `held_out` says what the measured questions have that training lacks: `same_prompts` (other
    sums alone), `new_words` (larger and longer sums) or `paraphrased` (prompts by other authors).

    `examples`: how many solved questions of training stand before each question. `tools`: a `tools.json`. Its functions are defined
    in the Python file `code`, which runs in the sandbox. `steps`: also reward single turns: 1 if all their tool calls succeed, -1
    if one returns an error. `sandbox`: the kind of sandbox for the tools
    (`docs/environments.md`)."""

    metrics = ("reward", "solved", "called")
    version = "7"
    worst = 0.0

    path: str | None = None
    gym: str | None = None
    held_out: HeldOut = "same_prompts"
    tools: str | None = None
    code: str | None = None
    max_turns: int = 8
    command_s: float = 10.0
    steps: bool = False
    examples: int = 0
    sandbox: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._limits = replace(_LIMITS, kind=read_kind(self.sandbox))
        self._read = [] if self.path is None else read_questions(Path(self.path).expanduser())
        self._gym = [name.strip() for name in (self.gym or "").split(",") if name.strip()]
        self._tools = None if self.tools is None else read_tools(Path(self.tools).expanduser())
        self._code = None if self.code is None else Path(self.code).expanduser()
        shown = self.tasks("train", self.examples, SHOWN) if self.examples else []
        self._solved = [message for task in shown for message in _solved(task.spec)]

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Check a file of questions, a folder of BFCL's data, or the families in the option `gym`."""
        return check_questions(place, options)

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        if self._read:
            questions = rows_of(self._read, lambda question: question.digest, split, count, seed)
        elif self._gym:
            questions = gym_questions(self._gym, count, 2 * seed + (split == "eval"))
        else:
            wording = wording_of(split, self.held_out)
            questions = [draw_question(number, wording) for number in task_numbers(split, count, seed)]
        return [Task(question.name, question, split) for question in questions]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        question: Question = task.spec
        tools = self._tools or list(question.tools) or [PYTHON]
        messages: list[dict[str, Any]] = [*self._solved, {"role": "user", "content": question.text}]
        calls_made: list[tuple[str, dict[str, Any] | None]] = []
        reply, ending, steps = "", "turns", dict[str, float]()
        async with AsyncExitStack() as stack:
            client, sandbox = await stack.enter_async_context(new_client(endpoint)), None
            for _ in range(self.max_turns):
                message = await complete(endpoint, messages, client, tools=tools)
                reply, calls = str(message.get("content") or ""), message.get("tool_calls") or []
                calls_made += [name_and_arguments(call) for call in calls]
                if not calls or question.calls is not None:
                    ending = "done"
                    break
                if sandbox is None:
                    await verify_sandbox(self._limits)
                    sandbox = await stack.enter_async_context(open_sandbox(limits=self._limits))
                messages.append({"role": "assistant", "content": message.get("content"), "tool_calls": calls})
                try:
                    answers = [await self._answer(sandbox, call) for call in calls]
                except SandboxOver:
                    ending = "time"
                    break
                messages += answers
                failed = any(answer["content"].startswith("error: ") for answer in answers)
                steps[message["turn_id"]] = -1.0 if failed else 1.0
        if question.any_call:
            right, decided = bool(calls_made), "calls"
        elif question.calls is not None:
            right, decided = is_same_call(calls_made, question.calls, tools), "calls"
        else:
            right, decided = await asyncio.to_thread(decide, reply, question)
        shown = {"prompt": question.text, "reply": reply, "calls": len(calls_made), "answer": question.answer}
        parts = {"solved": right, "called": bool(calls_made)}
        return Outcome(float(right), parts, steps if self.steps else {}, ending=ending, log=f"decided by {decided}", example=shown)

    async def _answer(self, sandbox: Sandbox, call: dict[str, Any]) -> dict[str, Any]:
        result = await use(sandbox, call, self.command_s, self._code)
        return {"role": "tool", "tool_call_id": call.get("id", ""), "content": result or "(nothing was printed)"}


def _solved(question: Question) -> list[dict[str, Any]]:
    """The messages of an episode that ends with the right answer, after a call of the calculator if the question is drawn. A
    question without an answer has none."""
    if question.answer is None:
        return []
    worked = list[dict[str, Any]]()
    if question.expression is not None:
        function = {"name": "calculator", "arguments": json.dumps({"expression": question.expression})}
        call = {"id": f"call-{question.name}", "type": "function", "function": function}
        worked = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": question.answer},
        ]
    return [
        {"role": "user", "content": question.text},
        *worked,
        {"role": "assistant", "content": f"The answer is {question.answer}."},
    ]
