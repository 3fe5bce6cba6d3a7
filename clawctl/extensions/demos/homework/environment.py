"""Homework as an environment. Half of the tasks are students' problems, half are teachers who comment on a pupil's solution."""

from collections.abc import Sequence
from random import Random
from typing import Any

from clawctl.environments import Outcome, Split, Task
from clawctl.environments.asking import ask, new_client
from clawctl.extensions.demos.homework.chat import converse
from clawctl.extensions.demos.homework.people import Person
from clawctl.extensions.demos.homework.problems import Problem, is_correct, make_tasks
from clawctl.extensions.demos.homework.satisfaction import satisfaction
from clawctl.run.endpoint import Endpoint


class Homework:
    """A held-out task is one question; its first reply is scored. A training task is a conversation until the person is satisfied.

    There is no reward. The person's replies express their opinion in words, which the judge reads.
    """

    metrics = ("satisfaction", "correctness")
    version = "1"  # raise it with every change of the tasks, the people or the scores

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """Half of the tasks are for students, half for teachers. If `count` is odd, students get one more."""
        made = problems(split, count, seed)
        return [Task(problem.task_id, (problem, seed * 1_000_003 + number), split) for number, problem in enumerate(made)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        problem, seed = task.spec
        person = Person(problem.role, seed)
        if task.split == "eval":
            prompt = person.open(problem)
            reply = await ask(endpoint, [{"role": "user", "content": prompt}])
            return _scored(problem, prompt, reply)
        async with new_client(endpoint) as client:
            session, stream = endpoint.headers.get("X-Session-Id"), Random(seed).random() < 0.5
            conversation = await converse(client, endpoint, person, problem, session, stream)
        if conversation.refusal is not None:
            raise conversation.refusal
        return _scored(problem, *conversation.turns[0])


def problems(split: Split, count: int, seed: int) -> list[Problem]:
    half = count // 2
    return make_tasks("student", count - half, seed, split) + make_tasks("teacher", half, seed, split)


def _scored(problem: Problem, prompt: str, reply: str) -> Outcome:
    satisfied, correct = satisfaction(problem, reply), is_correct(problem, reply)
    shown: dict[str, Any] = {"role": problem.role, "prompt": prompt, "reply": reply, "satisfaction": satisfied, "correct": correct}
    return Outcome(parts={"satisfaction": satisfied, "correctness": correct}, example=shown)
