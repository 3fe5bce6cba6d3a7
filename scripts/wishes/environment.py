"""The world of many wishes as an environment: word problems, and people who all have the same wishes for an answer."""

from collections.abc import Sequence
from random import Random
from typing import Any

from clawctl.asking import ask, new_client
from clawctl.environments import Outcome, Split, Task
from clawctl.errors import ClawError
from clawctl.run.endpoint import Endpoint
from scripts.wishes.axes import AXES, USUAL, is_correct, measure
from scripts.wishes.people import Wisher, unmet
from scripts.wishes.problems import WordProblem, make_problems
from scripts.wishes.reader import wants_of
from scripts.wishes.wording import Wants


def wants_in(text: str) -> dict[str, str]:
    """The wishes in a sentence. Raises ClawError (exit code 2) if it contains none."""
    wants = wants_of(text)
    if not wants:
        problem = f"no wish that this world knows is in {text!r}"
        raise ClawError(problem, f"wish for something about {', '.join(AXES)}, such as 'answer in capital letters'", 2)
    return wants


class Wishes:
    """A held-out task is one question; its first reply is scored. A training task is a conversation until the person is satisfied.

    `satisfaction` is 1 if the answer meets every wish. Each axis is also a metric: the share of answers with an unusual value.
    There is no reward. The person's replies express their opinion in words, which the judge reads.
    """

    metrics = ("satisfaction", "correctness", *AXES)

    def __init__(self, wish: str = "say hello first") -> None:
        """`wish` describes people's wishes: "answer in German, no digits". Raises ClawError if it contains no wish."""
        self.wants = wants_in(wish)
        wanted = ", ".join(f"{axis}: {value}" for axis, value in sorted(self.wants.items()))
        self.version = f"1, {wanted}"  # raise the number with every change of the tasks, the people or the scores

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        made = make_problems(count, seed, split)
        return [Task(problem.task_id, (problem, seed * 1_000_003 + number), split) for number, problem in enumerate(made)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        problem, seed = task.spec
        async with new_client(endpoint) as client:
            person = Wisher(self.wants, seed)
            messages: list[dict[str, Any]] = [{"role": "user", "content": person.open(problem)}]
            first = reply = await ask(endpoint, messages, client=client)
            turn, stream, closed = 0, Random(seed).random() < 0.5, task.split == "eval"
            while not closed:
                reaction = person.react(problem, reply, turn)
                if reaction.text is None:
                    break
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": reaction.text}]
                closed, turn = reaction.done, turn + 1
                headers = {"X-Session-Done": "true"} if closed else {}
                reply = await ask(endpoint, messages, headers, stream, client)
        return scored(problem, self.wants, str(messages[0]["content"]), first)


def scored(problem: WordProblem, wants: Wants, prompt: str, reply: str) -> Outcome:
    """The outcome of a first reply."""
    measured = measure(reply)
    rates = {axis: float(measured[axis] not in (usual, None)) for axis, usual in USUAL.items()}
    satisfied, correct = float(not unmet(wants, reply)), float(is_correct(problem, reply))
    shown = {"prompt": prompt, "reply": reply, "satisfaction": satisfied, "correct": bool(correct)}
    return Outcome(parts={"satisfaction": satisfied, "correctness": correct, **rates}, example=shown)
