"""A pretrained model of 135 million weights learns from one sentence, on two cores: scripts/bench real

  one-note NAME   a person says a wish once; the model practises it on 12 earlier requests and is measured on 24 others, without
                  the note. `told` is the untrained model with the note in each request. Beside it stand facts, readability, and the
                  likelihood of version 0's answers to requests of other jobs
  control         the same with a note about nothing, and with a note whose words are shuffled: as `clawctl practice` treats them,
                  which refuses a note that costs right answers, and practised all the same (`_anyway`)
  told            wishes that the untrained model does not follow even when it is told them, so that they are not practised
  topk            which tokens a divergence should compare (`real_topk`)
  sizes           steps of the same movement at 1, 10 and 135 million weights (`real_sizes`)
  judge           the model as its own judge, and a judge that is right
  engine          the embedded engine beside transformers' generate (`real_engine`)
  demo            how long `scripts/demo` takes (only if `--parts` names it)

Notes, requests and scorers were written by somebody who had not read the rules of this project. `--notes short,list` chooses,
`--seeds 3` repeats, and `--parallel 6` makes six runs at once, for a card. `@8` and `@16` are the most steps: practice ends as in
every run, when the note is learned. `--quick` makes two steps of one note, and measures of the engine its speed and exactness.
"""

import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.circle import ROOT, wait_until
from scripts.benchmarks.real_circle import LONGEST_S, NOTES, Circle, Measured, Practised, practise, running, talk, write_recipe
from scripts.benchmarks.table import Row, make_parser, names_among, report

STEPS = {"short": 8, "list": 8, "emoji": 16, "captain": 16, "spanish": 16}
PARTS = ("notes", "controls", "told", "topk", "sizes", "judge", "engine", "demo")
UNKNOWN = ("capitals", "goodbye")  # the untrained model does not follow them
UNDERSTOOD = 0.25  # share of told answers that meet a wish; below it, the wish is not practised
CONTROL_STEPS = 4


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--notes", type=names_among(STEPS), default=",".join(STEPS), help="notes to learn, by name")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each note")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once; more than one needs a card or many cores")
    parser.add_argument("--parts", type=names_among(PARTS), default=",".join(PARTS[:-1]), help="parts to run")
    options = parser.parse_args()
    parts, rows = options.parts, list[Row]()
    seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
    notes = [] if "notes" not in parts else ["short"] if options.quick else options.notes
    with tempfile.TemporaryDirectory() as folder:
        rows += one_note_rows({name: 2 if options.quick else STEPS[name] for name in notes}, seeds, Path(folder), options.parallel)
        if "controls" in parts and not options.quick:
            rows += controls(CONTROL_STEPS, Path(folder))
        if "told" in parts and not options.quick:
            rows += told_only(Path(folder))
        if "topk" in parts and not options.quick:
            from scripts.benchmarks.real_topk import topk_rows

            rows += topk_rows(list(STEPS))
        if "sizes" in parts and not options.quick:
            from scripts.benchmarks.real_sizes import size_rows

            rows += size_rows(Path(folder))
        if "judge" in parts and not options.quick:
            from scripts.benchmarks.real_judge import unfit_judge_refused

            rows += unfit_judge_refused(Path(folder))
        if "engine" in parts:
            from scripts.benchmarks.real_engine import engine_rows

            rows += engine_rows(options.quick)
        if "demo" in parts:
            rows += demo_rows()
    report("real", rows, options.json)


def one_note_rows(steps: dict[str, int], seeds: Sequence[int], folder: Path, parallel: int) -> list[Row]:
    """The rows of wishes that are said once, by their numbers of steps."""

    def learned(name: str, seed: int) -> _Learned | None:
        try:
            return _learned(name, NOTES[name], steps[name], seed, folder / f"{name}-{seed}", UNDERSTOOD)
        except SystemExit as problem:
            print(f"{name}, seed {seed}, ended early: {problem}", flush=True)
            return None

    with ThreadPoolExecutor(parallel) as threads:
        runs = {name: [threads.submit(learned, name, seed) for seed in seeds] for name in steps}
        ended = {name: [run for future in futures if (run := future.result()) is not None] for name, futures in runs.items()}
    failed = sum(len(seeds) - len(runs) for runs in ended.values())
    rows = [row for name, runs in ended.items() if runs for row in one_note(name, steps[name], runs)]
    return [*rows, Row("one-note", "failed_runs", failed, "runs")]


def one_note(name: str, steps: int, runs: Sequence["_Learned"]) -> list[Row]:
    """The rows of one wish: means over the runs. A wish that is not understood when told is not practised."""
    case, after = f"one-note {name}", [(run, run.after) for run in runs if run.after is not None]
    practised = [run.practised for run in runs if run.practised is not None]

    def mean(metric: str, values: Sequence[float | None], unit: str = "share") -> Row:
        present = [value for value in values if value is not None]
        return Row(case, metric, statistics.fmean(present) if present else None, unit)

    return [
        mean("untrained", [run.before.met[name] for run in runs]),
        mean("told", [run.told.met[name] for run in runs]),
        Row(case, "not_understood_said", len(runs) - len(practised), f"of {len(runs)} runs"),
        Row(case, "costly_said", sum(end.costly for end in practised), f"of {len(runs)} runs"),
        Row(case, "learned_said", sum(end.learned for end in practised), f"of {len(runs)} runs"),
        mean("steps", [end.steps for end in practised], "steps"),
        mean(f"weights_only@{steps}", [answers.met[name] for _, answers in after]),
        mean("of_told", [answers.met[name] / run.told.met[name] for run, answers in after], "ratio"),
        Row(case, "weights_only_lowest", min((answers.met[name] for _, answers in after), default=None), "share"),
        mean("facts_told_change", [_change(run.before.facts, run.told.facts) for run in runs]),
        mean("facts_change", [_change(run.told.facts, answers.facts) for run, answers in after]),
        mean("unreadable_told_change", [run.told.unreadable - run.before.unreadable for run in runs]),
        mean("unreadable_share_change", [answers.unreadable - run.before.unreadable for run, answers in after]),
        mean("other_requests_nll_change", [run.nll_change for run, _ in after], "nats a token"),
        mean("practice_s", [end.seconds for end in practised], "s"),
    ]


def controls(steps: int, folder: Path) -> list[Row]:
    """The largest change of the share of any wish, where there is nothing to learn, and how far the same wish changes in the
    untrained model that is told the same."""
    words = NOTES["captain"].split()
    random.Random(1).shuffle(words)
    notes = {"control_note_about_nothing": NOTES["nothing"], "control_shuffled_notes": " ".join(words)}
    rows = []
    for metric, note in notes.items():
        run = _learned("nothing", note, steps, 0, folder / metric)
        assert run.after is not None
        assert run.practised is not None
        before, told, after, refused = run.before, run.told, run.after, run.practised.costly or run.practised.harm is not None
        moved = max(before.met, key=lambda name: abs(after.met[name] - before.met[name]))
        change = after.met[moved] - before.met[moved]
        rows += [
            Row(
                "control",
                metric,
                0.0 if refused else change,
                "share; 0: it is not practised, or practised away" if refused else f"share of {moved}",
            ),
            Row("control", f"{metric}_anyway", change, f"share of {moved}"),
            Row("control", f"{metric}_told", told.met[moved] - before.met[moved], f"share of {moved}"),
            Row("control", f"{metric}_facts", _change(before.facts, after.facts), "share"),
            Row("control", f"{metric}_facts_told", _change(before.facts, told.facts), "share"),
        ]
    return rows


def told_only(folder: Path) -> list[Row]:
    """Whether a wish that the untrained model does not follow is recognised as such."""
    recipe = write_recipe(folder / "told.yaml", {"up": {"stages": ["serve"]}, "train": {"hint_place": "line"}})
    with running(folder / "told", recipe):
        circle = Circle(folder / "told")
        shares = {name: circle.measure(0, NOTES[name], with_facts=False).met[name] for name in UNKNOWN}
    said = statistics.fmean(share < UNDERSTOOD for share in shares.values())
    return [
        Row("told", "not_understood_said", said, "share"),
        *(Row("told", name, share, "share") for name, share in shares.items()),
    ]


def demo_rows() -> list[Row]:
    """One command, from its start to its end, where everything is installed."""
    began = time.monotonic()
    subprocess.run(["scripts/demo"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return [Row("demo", "demo_minutes", (time.monotonic() - began) / 60, "min"), Row("demo", "demo_commands", 1, "command")]


@dataclass(slots=True)
class _Learned:
    """A run of one note: what the versions answer before, when told, and after. `after` is None if the note was not practised."""

    before: Measured
    told: Measured
    after: Measured | None = None
    practised: Practised | None = None
    nll_change: float | None = None


def _learned(name: str, note: str, steps: int, seed: int, root: Path, understood: float = 0.0) -> _Learned:
    """Say a note and let it be practised, if at least this share of told answers meets it."""
    changes = {"train": {"seed": seed}, "practice": {"idle_s": 1, "steps": steps}}
    recipe = write_recipe(root.parent / f"{root.name}.yaml", changes)
    with running(root, recipe):
        circle = Circle(root)
        talk(circle, None)
        wait_until(circle.run.hint_place.exists, LONGEST_S, f"{name}: no place of notes was chosen")
        run = _Learned(circle.measure(0, seed=seed), circle.measure(0, note, seed=seed))
        if run.told.met[name] >= understood:
            others = circle.others()
            run.practised = practise(circle, note, steps)
            version = run.practised.version
            run.after = circle.measure(version, seed=seed)
            run.nll_change = circle.nll(version, others) - circle.nll(0, others)
    print(f"{name}, seed {seed}, {circle.place}: {run.practised}")
    for title, measured in (("untrained", run.before), ("told", run.told), ("learned", run.after)):
        if measured is not None:
            print(f"  {title}: met {measured.met[name]:.2f}, facts {measured.facts:.2f}, ", end="")
            print(f"unreadable {measured.unreadable:.2f}: {measured.examples[0]!r}", flush=True)
    return run


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


if __name__ == "__main__":
    main()
