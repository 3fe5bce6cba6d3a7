"""The published second experiment (OpenClaw-RL, arXiv 2603.10165 v2, Table 3) in the world of many wishes.

Three people with different wishes share one policy. Each has consecutive sessions. The metric is the number of sessions until a
person's first answer has met the wish in three consecutive sessions, including these three. Published, joint average: hybrid 10.3,
GRPO 14.1, Mem0 14.5, OPD 29.7.
"""

from collections.abc import Mapping
from typing import Any

from scripts.benchmarks.wishes_circle import Group, World, recipe_of
from scripts.wishes.people import unmet
from scripts.wishes.wording import Wants

IN_A_ROW = 3
TURNS = 4  # turns per step: three people fill larger steps too slowly


def sessions_until_satisfied(settings: Mapping[str, Any], seed: int, wants: Wants, most: int) -> dict[int, dict[str, float]]:
    """Return the mean over the people and the largest value. A person not satisfied after `most` sessions counts as `most`."""
    world = World(recipe_of({**settings, "batch_turns": TURNS, "seed": seed}), seed)
    groups = [Group({axis: value}, key=axis) for axis, value in wants.items()]
    in_a_row, needed = [0] * len(groups), [0] * len(groups)
    for number in range(1, most + 1):
        for person, answer in enumerate(world.one_session_each(groups)):
            in_a_row[person] = 0 if unmet(groups[person].wants, answer) else in_a_row[person] + 1
            if in_a_row[person] == IN_A_ROW and not needed[person]:
                needed[person] = number
        if all(needed):
            break
        while world.update_if_full():
            pass
    counted = [count or most for count in needed]
    return {0: {"joint_average": sum(counted) / len(counted), "worst_person": float(max(counted))}}
