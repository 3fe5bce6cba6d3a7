"""Made turns: sessions as agents have them, as token ids alone, since only their shape matters for speed.

A session: a system prompt, then each turn 40 new tokens (what a user said or a tool returned) and 60 that the policy sampled, of
which the first 20 are a thought. As Qwen3's template does, thoughts stay in the history while tools answer, and are stripped once
the user speaks again: from there on the history is another branch. Every fourth turn answers a tool.
"""

import random

Turn = tuple[list[int], list[int]]  # prompt, completion
FRESH, SAMPLED, THOUGHT = 40, 60, 20
FIRST_ID = 3


def make_session(turns: int, system: int, vocabulary: int, seed: int = 0) -> list[Turn]:
    """`turns` turns over a system prompt of `system` tokens."""
    draw = random.Random(seed)

    def some(count: int) -> list[int]:
        return [draw.randrange(FIRST_ID, vocabulary) for _ in range(count)]

    stripped = some(system)  # the history as it is once a user speaks
    kept = list(stripped)  # the same with the thoughts since the last user
    made: list[Turn] = []
    for index in range(turns):
        answers_tool = index % 4 == 3
        fresh, said = some(FRESH), some(SAMPLED)
        prompt = (kept if answers_tool else stripped) + fresh
        made.append((prompt, said))
        kept = prompt + said
        stripped = stripped + fresh + said[THOUGHT:]
    return made


def make_single_turns(turns: int, prompt: int, vocabulary: int, seed: int = 0) -> list[Turn]:
    """Turns that share nothing, of unlike length: prompts of `prompt` tokens, more or less by a quarter, and 60 sampled."""
    draw = random.Random(seed)
    made: list[Turn] = []
    for index in range(turns):
        length = prompt + round(prompt * (index / max(1, turns - 1) - 0.5) / 2)
        ids = [FIRST_ID + index, *(draw.randrange(FIRST_ID, vocabulary) for _ in range(length - 1 + SAMPLED))]
        made.append((ids[:length], ids[length:]))
    return made
