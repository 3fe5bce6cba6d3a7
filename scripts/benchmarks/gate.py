"""Measures the gate's decisions on 1,000 simulated candidates for each effect, and compares them with a test of fixed size.

Each comparison of a simulated candidate is a win, a loss or a tie. 40 % are ties. The effect is wins minus losses, in points of
all comparisons: 0 (`null`), -5, -10, -20, +5, +10 and +20. The margin, error, budget and decision without enough evidence are from
recipes/default.yaml. The test is the gate's own (`clawctl/eval/sequential.py`), evaluated after each comparison.

false_promotion_rate       share promoted. Below the margin of 10 points a candidate may be promoted
false_refusal_rate         share found worse
power_plus20               share promoted of the candidates of the case `plus20`
comparisons_median         comparisons until the decision, or the budget
comparisons_mean           the mean of the same
comparisons_ratio_fixed    the median divided by the comparisons of a test of fixed size: one look at the end, 5 % error at -10
                           and 90 % power at 0
comparisons_mean_ratio     the mean divided by the same
comparisons_mean_ratio_least, comparisons_ratio_least
                           `minus5`: the least mean ratio of any test with the errors of that fixed test, and the least median ratio
                           of any such test within the budget (`gate_limit.py`). `own`: with the error of the gate for both
optional_stopping_error    10,000 candidates, looked at after each of 2,000 comparisons: wrong decisions. `null`: found worse.
                           `minus10`: found not worse. `mcnemar` is the same for McNemar's test

The case `few`: a suite has only 8, 36 or 100 turns, each with an effect of its own, and answers them again with other seeds until
there are 240 comparisons, as `own` does. The means decide where the test finds nothing.

refused_null_8             share refused of unchanged candidates, on 8 turns, against one reference
refused_minus30_8          the same for candidates at -30 points
refused_once_null_8        share refused of unchanged candidates if each turn is answered once

The case `planted` runs only if it is named (--case planted). It plants 20 bad updates in the answers of the tiny models and prints
which suite catches each (`gate_planted.py`).

The exit code is 1 if a metric misses its bar.
"""

import argparse
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np

from clawctl.config import Recipe, load_recipe
from clawctl.eval.sequential import Floats, crossings
from clawctl.eval.suites.held_out import HeldOut, repeated
from scripts.benchmarks.gate_limit import Problem, least_mean, least_median
from scripts.benchmarks.table import Row, make_parser, report

EFFECTS = {"null": 0.0, "minus5": -0.05, "minus10": -0.10, "plus10": 0.10, "plus20": 0.20, "minus20": -0.20, "plus5": 0.05}
TIES = 0.4
CANDIDATES = 1000
LOOKS, BATCHES = 2000, 10  # for the error under optional stopping: 10,000 candidates
POWER = 0.9
FEW = (8, 36, 100)  # tasks
BARS = {  # case and metric: the largest or smallest value that passes
    ("minus10", "false_promotion_rate"): (0.0, 0.05),
    ("minus20", "false_promotion_rate"): (0.0, 0.05),
    ("plus20", "power_plus20"): (0.9, 1.0),
    # not at -5 points: no test reaches it in the mean (`comparisons_mean_ratio_least`)
    **{(case, "comparisons_ratio_fixed"): (0.0, 0.6) for case in EFFECTS if case != "minus5"},
    ("null", "optional_stopping_error"): (0.0, 0.05),
    ("minus10", "optional_stopping_error"): (0.0, 0.05),
    ("few", "refused_null_8"): (0.0, 0.05),
    ("planted", "missed"): (0, 0),
    ("planted", "caught_unchanged"): (0, 0),
}
DEFAULT = Path(__file__).resolve().parents[2] / "recipes" / "default.yaml"


def main() -> None:
    options = read_options()
    recipe = load_recipe(DEFAULT)
    cases = options.case or [*EFFECTS, "few"]
    rows = [row for case in cases if case in EFFECTS for row in simulated(case, recipe, options.seed)]
    if "few" in cases:
        rows += few(recipe, options.seed)
    if "planted" in cases:
        from scripts.benchmarks.gate_planted import rows as planted

        rows += planted(options.quick)
    report("gate", rows, options.json)
    if missed := [f"{row.case} {row.metric} = {row.value}" for row in rows if misses(row)]:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=[*EFFECTS, "few", "planted"], help="run this case only; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulated candidates")
    return parser.parse_args()


def misses(row: Row) -> bool:
    low, high = BARS.get((row.case, row.metric), (-math.inf, math.inf))
    return row.value is None or not low <= row.value <= high


def simulated(case: str, recipe: Recipe, seed: int) -> list[Row]:
    gate, budget = recipe.gate, recipe.eval.budget.comparisons
    if gate is None or budget is None:
        raise SystemExit("recipes/default.yaml has no gate with a budget of comparisons")
    margin = gate.rows[0].max_drop
    fixed = fixed_size(margin, gate.error)
    differences = draw(EFFECTS[case], max(budget, fixed), np.random.default_rng([seed, list(EFFECTS).index(case)]))
    every = np.ones(LOOKS)
    promising, worse = crossings(differences[:, :budget], every[:budget], margin, gate.error)
    opened = (promising == budget) & (worse == budget)
    promoted = np.where(opened, gate.undecided == "promote", promising < worse)
    used = np.minimum(np.minimum(promising, worse) + 1, budget)
    rows = [
        Row(case, "false_promotion_rate" if EFFECTS[case] < 0 else "promotion_rate", float(promoted.mean()), "share"),
        Row(case, "false_refusal_rate" if EFFECTS[case] >= 0 else "refusal_rate", float((worse < promising).mean()), "share"),
        Row(case, "undecided_rate", float(opened.mean()), "share"),
        Row(case, "comparisons_median", float(np.median(used)), "comparisons"),
        Row(case, "comparisons_ratio_fixed", float(np.median(used)) / fixed, "ratio"),
        Row(case, "comparisons_mean", float(used.mean()), "comparisons"),
        Row(case, "comparisons_mean_ratio", float(used.mean()) / fixed, "ratio"),
        Row(case, "promotion_rate_fixed", float(promoted_by_fixed(differences, margin, gate.error).mean()), "share"),
    ]
    if case == "plus20":
        rows.append(Row(case, "power_plus20", float(promoted.mean()), "share"))
    if case == "minus5":
        problem, strict = (Problem(margin, gate.error, power, TIES) for power in (POWER, 1 - gate.error))
        rows.append(Row(case, "comparisons_mean_ratio_least", least_mean(problem) / fixed, "ratio"))
        rows.append(Row(case, "comparisons_mean_ratio_least_own", least_mean(strict) / fixed, "ratio"))
        rows.append(Row(case, "comparisons_ratio_least", least_median(problem, budget) / fixed, "ratio"))
    if case in ("null", "minus10"):
        errors, by_mcnemar = [], []
        for batch in range(BATCHES):
            drawn = draw(EFFECTS[case], LOOKS, np.random.default_rng([seed, batch, 99]))
            promising, worse = crossings(drawn, every, margin, gate.error)
            errors.append(float((worse < LOOKS if case == "null" else promising < LOOKS).mean()))
            by_mcnemar.append(float(mcnemar(drawn, gate.error).mean()))
        rows.append(Row(case, "optional_stopping_error", float(np.mean(errors)), "share"))
        if case == "null":
            rows.append(Row(case, "optional_stopping_error_mcnemar", float(np.mean(by_mcnemar)), "share"))
    return rows


def few(recipe: Recipe, seed: int) -> list[Row]:
    """The share refused with so few tasks that the means decide."""
    rows = []
    for name, effect in (("null", 0.0), ("minus30", -0.3)):
        for count in FEW:
            tasks = len(repeated([HeldOut(str(number), "", 0.0, "", None) for number in range(count)]))
            random = np.random.default_rng([seed, count])
            effects = np.where(effect, np.clip(random.normal(effect, 0.2, (CANDIDATES, count)), -0.6, 0.6), 0.0)
            differences = draw(np.resize(effects.T, (tasks, CANDIDATES)).T, tasks, random)
            rows.append(Row("few", f"refused_{name}_{count}", refused(recipe, differences), "share"))
            rows.append(Row("few", f"refused_once_{name}_{count}", refused(recipe, differences[:, :count]), "share"))
    return rows


def refused(recipe: Recipe, differences: Floats) -> float:
    assert recipe.gate is not None
    margin, count = recipe.gate.rows[0].max_drop, differences.shape[1]
    promising, worse = crossings(differences, np.ones(count), margin, recipe.gate.error)
    by_means = (promising == count) & (worse == count) & (differences.mean(1) < -margin - 1e-9)
    return float(((worse < promising) | by_means).mean())


def draw(effect: float | Floats, count: int, random: np.random.Generator) -> Floats:
    """Draw comparisons: 1 for a win, -1 for a loss, 0 for a tie. Shape: [CANDIDATES, count], as that of several effects."""
    drawn = random.random((CANDIDATES, count))
    wins = (1 - TIES + effect) / 2
    return np.where(drawn < wins, 1.0, np.where(drawn < 1 - TIES, -1.0, 0.0))


def fixed_size(margin: float, error: float) -> int:
    """The sample size of a paired z-test of "worse by the margin" with this error and power 0.9 for an unchanged candidate."""
    normal = NormalDist()
    return math.ceil((normal.inv_cdf(1 - error) + normal.inv_cdf(POWER)) ** 2 * (1 - TIES) / margin**2)


def promoted_by_fixed(differences: Floats, margin: float, error: float) -> Floats:
    """Which candidates that test promotes with one look at the end."""
    seen = differences[:, : fixed_size(margin, error)]
    z = (seen.mean(1) + margin) / (seen.std(1, ddof=1) / math.sqrt(seen.shape[1]))
    return np.asarray(z >= NormalDist().inv_cdf(1 - error), float)


def mcnemar(differences: Floats, error: float) -> Floats:
    """Which candidates McNemar's one-sided test finds worse at any look. The first look is after 10 discordant pairs."""
    losses, discordant = np.cumsum(differences < 0, 1), np.cumsum(differences != 0, 1)
    z = (2 * losses - discordant) / np.sqrt(np.maximum(discordant, 1))
    return np.asarray(((z >= NormalDist().inv_cdf(1 - error)) & (discordant >= 10)).any(1), float)


if __name__ == "__main__":
    main()
