"""A judge: thanks are worth 1, and any other reply what the answer's length is worth.

`clawctl judge --custom-rm examples/brevity.py:Brevity --run RUN`. `score` may also be async, or a function without a class.
"""

LONG = 400  # characters


class Brevity:
    reward_range = (-1, 1)  # declares the scale; without it, clawctl infers one from the first rewards

    def score(self, prompt: str, response: str, next_state: str | None) -> float | None:
        if next_state is None:
            return None  # no evidence, so the turn is not trained
        if "thank" in next_state.lower():
            return 1.0
        return 1 - 2 * min(len(response) / LONG, 1)
