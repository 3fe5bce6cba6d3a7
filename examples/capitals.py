"""An environment: a question with a known answer. `clawctl play examples/capitals.py:Capitals --run RUN`."""

from clawctl.asking import ask
from clawctl.environments import Outcome, Task

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi"}


class Capitals:
    def tasks(self, split, count, seed):
        countries = list(CAPITALS)[:2] if split == "eval" else list(CAPITALS)[2:]
        return [Task(f"capital-{country}", country, split) for country in countries[:count]]

    async def play(self, task, endpoint):
        reply = await ask(endpoint, [{"role": "user", "content": f"What is the capital of {task.spec}?"}])
        right = CAPITALS[task.spec] in reply
        return Outcome(reward=1 if right else -1, parts={"correct": right})
