"""Generated turns of agent-like sessions. They have token ids only, because only their shape matters for speed.

A session starts with a system prompt. Each turn has 40 new tokens (a user message or a tool result; `fresh`) and 60 sampled
tokens, of which the first 20 are a thought. As in Qwen3's template, thoughts stay in the history while tools answer, and are
stripped after the next user message, which starts a new branch of the history. Every fourth turn answers a tool.
"""

import random

Turn = tuple[list[int], list[int]]  # prompt, completion
FRESH, SAMPLED, THOUGHT = 40, 60, 20
FIRST_ID = 3


def make_session(turns: int, system: int, vocabulary: int, seed: int = 0, fresh: int = FRESH) -> list[Turn]:
    """Make `turns` turns with a system prompt of `system` tokens."""
    draw = random.Random(seed)

    def some(count: int) -> list[int]:
        return [draw.randrange(FIRST_ID, vocabulary) for _ in range(count)]

    stripped = some(system)  # the history after a user message
    kept = list(stripped)  # the same with the thoughts since the last user message
    made: list[Turn] = []
    for index in range(turns):
        answers_tool = index % 4 == 3
        new, said = some(fresh), some(SAMPLED)
        prompt = (kept if answers_tool else stripped) + new
        made.append((prompt, said))
        kept = prompt + said
        stripped = stripped + new + said[THOUGHT:]
    return made


def make_single_turns(turns: int, prompt: int, vocabulary: int, seed: int = 0) -> list[Turn]:
    """Make turns without shared tokens, with prompts of `prompt` tokens plus or minus a quarter, and 60 sampled tokens."""
    draw = random.Random(seed)
    made: list[Turn] = []
    for index in range(turns):
        length = prompt + round(prompt * (index / max(1, turns - 1) - 0.5) / 2)
        ids = [FIRST_ID + index, *(draw.randrange(FIRST_ID, vocabulary) for _ in range(length - 1 + SAMPLED))]
        made.append((ids[:length], ids[length:]))
    return made
