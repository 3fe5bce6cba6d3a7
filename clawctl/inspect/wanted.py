"""Detects changes in users' wishes, and keys with opposite wishes."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clawctl.inspect.joined import Joined
from clawctl.run.complaints import last_rises
from clawctl.run.directory import RunDir
from clawctl.run.names import number_of
from clawctl.run.shards import UnreadableShard, read_table

Pulls = Mapping[int, float]  # by token id: how strongly a hint pulls its logit up (> 0) or down
STEPS = 8  # only the newest steps are compared, because older wishes may be outdated
FEWEST = 6  # the least number of turns of a key
LARGEST = -4.0  # bound on the mean agreement of two keys, in standard errors; by chance, one pair in 30,000 is below it


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two keys whose hints pull the policy in opposite directions. `agreement` is the mean cosine of their turns, below 0."""

    keys: tuple[str, str]
    agreement: float


def what_people_want(run: RunDir, joined: Joined) -> dict[str, Any]:
    """Each key's last rise in complaints, and the pairs of keys that contradict each other, as plain data."""
    return {
        "changed": [asdict(rise) for rise in last_rises(first_answers(joined))],
        "conflicts": [asdict(conflict) for conflict in conflicts(pulls_of_keys(run, joined))],
    }


def first_answers(joined: Joined) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The times of each key's judged main turns with an opinion, and whether they received a complaint. A turn after one with a
    complaint is left out (`clawctl.run.complaints.first_answers`)."""
    judged = joined.rows.where(lambda row: row.turn["kind"] == "main" and row.worth.value)  # neither unknown nor 0
    complained = judged.where(lambda row: (row.worth.value or 0) < 0)
    first = judged.chosen(~np.isin(joined.parents_of(judged.indices), joined.id[complained.indices]))
    keys = {key: number for number, key in enumerate(first.tally(lambda row: row.turn["user"]))}
    numbers = first.values(lambda row: keys.get(row.turn["user"], -1), np.int64)
    order = np.argsort(numbers, kind="stable")
    times, bad = joined.at[first.indices][order], first.values(lambda row: (row.worth.value or 0) < 0)[order]
    ends = np.bincount(numbers, minlength=len(keys)).cumsum()  # after the last one, nothing is left
    return dict(zip(keys, zip(np.split(times, ends), np.split(bad, ends), strict=True), strict=False))


def pulls_of_keys(run: RunDir, joined: Joined) -> dict[str, list[Pulls]]:
    """For each key, the pulls of its turns' hints in the last STEPS steps that have records."""
    steps = sorted(number for path in run.records.glob("*.parquet") if (number := number_of(path.stem)) is not None)
    pulls_by_key: defaultdict[str, list[Pulls]] = defaultdict(list)
    for step in steps[-STEPS:]:
        try:
            rows = read_table(run.record(step), ("turn_id", "pulled_ids", "pulls")).to_pylist()
        except (UnreadableShard, FileNotFoundError, pa.ArrowException):
            continue  # removed in the meantime, or written by an older version
        for row in rows:
            of = joined.decided(row["turn_id"])
            # Practice repeats one note on many requests, whoever wrote them
            if of is not None and (of.turn["episode"] or {}).get("hint") is None and row["pulled_ids"]:
                pulls_by_key[of.turn["user"]].append(dict(zip(row["pulled_ids"], row["pulls"], strict=True)))
    return pulls_by_key


def conflicts(pulls: Mapping[str, Sequence[Pulls]]) -> list[Conflict]:
    """The pairs of keys that pull in opposite directions, the most opposed first.

    Each turn's pull is a vector over tokens: the gradient of a bias of the output layer that the turn's hint would cause. Two tasks
    conflict if their gradients have a negative cosine (PCGrad, arXiv 2001.06782). Here the mean cosine between turns of two keys
    must be below 0 by more than chance allows, with the turns of each key as the sample.
    """
    units = {key: [_unit(turn) for turn in turns] for key, turns in pulls.items() if len(turns) >= FEWEST}
    means = {key: _mean(turns) for key, turns in units.items()}
    conflicts = []
    for a, b in combinations(sorted(units), 2):
        of_a, of_b = ([_dot(turn, means[other]) for turn in units[key]] for key, other in ((a, b), (b, a)))
        agreement = sum(of_a) / len(of_a)
        error = math.sqrt(sum(_variance(values) / len(values) for values in (of_a, of_b)))
        if agreement < LARGEST * error:
            conflicts.append(Conflict((a, b), agreement))
    return sorted(conflicts, key=lambda conflict: conflict.agreement)


def _unit(vector: Pulls) -> dict[int, float]:
    length = math.sqrt(sum(value**2 for value in vector.values())) or 1.0
    return {token: value / length for token, value in vector.items()}


def _mean(vectors: Sequence[Pulls]) -> dict[int, float]:
    total: defaultdict[int, float] = defaultdict(float)
    for vector in vectors:
        for token, value in vector.items():
            total[token] += value / len(vectors)
    return total


def _dot(a: Pulls, b: Pulls) -> float:
    return sum(value * b.get(token, 0.0) for token, value in a.items())


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
