"""Bounds the share of one turn in a step's gradient.

The gradient of a turn grows with its length, its advantage and 1 / temperature, and the client controls all three. The gradient of
each turn is therefore measured (`own_gradients`), and the weight of a turn is reduced so that it stays within `bound_of` the step.
The excess is computed again and subtracted.
"""

import math
from collections.abc import Iterable

ABSURD = 1e12  # its square is near the limit of float32; such a turn stays unbounded, so that it causes the step to be skipped
TOO_FAR = 1e-3  # smaller weights: a difference of float32 numbers would lose the other turns' part


def bound_of(sizes: Iterable[float], factor: float | None) -> float:
    """The largest size that a turn keeps: `factor` times the mean of the other turns of the step, themselves bounded.

    It is never below the upper quartile, which is the fifth largest in a step of 16 turns. If a quarter of the turns has all of the
    gradient, no single one dominates the step. Turns without gradient do not count. Infinite if fewer than two have one.
    """
    ordered = sorted((size for size in sizes if 0 < size < ABSURD), reverse=True)
    others = len(ordered) - 1
    if factor is None or others < 1:
        return math.inf
    rest = math.fsum(ordered)
    quartile = ordered[max(1, len(ordered) // 4)]
    for bounded, size in enumerate(
        ordered, 1
    ):  # the `bounded` largest have the bound b: b = factor * ((bounded - 1) b + rest) / others
        rest -= size
        share = 1 - factor * (bounded - 1) / others
        bound = factor * rest / others / share if share > 0 else 0.0
        following = ordered[bounded] if bounded <= others else 0.0
        if bound >= following or following <= quartile:
            return max(bound, quartile)
    return quartile


def weight_of(size: float, bound: float) -> float:
    """At most 1, rounded to three digits, because the last bits of sizes depend on the packing of a step. It is 1 for a size that
    is not finite; the step is then skipped because of this turn."""
    return min(1.0, float(f"{bound / size:.3g}")) if 0 < size < ABSURD else 1.0
