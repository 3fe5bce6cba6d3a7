"""`clawctl inspect better`: a summary in five lines of whether the policy has improved."""

import math
import time
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Literal

from rich.text import Text

from clawctl.inspect.joined import Rows
from clawctl.inspect.policies import describe_policies, gate_of, measured_by, read_eval, read_live
from clawctl.inspect.rows import read_rows
from clawctl.inspect.tables import problem_lines, since
from clawctl.intervals import wilson
from clawctl.printing import answers, counted, plain, print_json
from clawctl.run.directory import RunDir
from clawctl.run.lineage import read_lineage
from clawctl.run.notes import Note, keys_with_notes, read_notes
from clawctl.run.reward import signs
from clawctl.run.rows import DEFAULT_POLICY

_MAX_SHOWN = 4  # the number of measurements in the five lines
FEWEST = 10  # rates are compared only if both have at least this many judged turns

Change = Literal["better", "worse", "no difference"]


@dataclass(frozen=True, slots=True)
class Rate:
    """Turns with a complaint, out of all turns with a known value."""

    bad: int
    of: int

    @property
    def per_100(self) -> float | None:
        return 100 * self.bad / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval for the share (Wilson 1927), per 100 turns."""
        low, high = self.share_interval
        return 100 * low, 100 * high

    @property
    def share_interval(self) -> tuple[float, float]:
        return wilson(self.bad / max(self.of, 1), self.of)


def lower(now: Rate, before: Rate) -> Change:
    """Whether complaints became rarer.

    "better" and "worse" mean that the 95 % interval of the difference of the two shares excludes zero. The interval is Newcombe's
    hybrid score interval (Newcombe 1998, method 10).
    """
    a, b = now.bad / now.of, before.bad / before.of
    (low_a, high_a), (low_b, high_b) = now.share_interval, before.share_interval
    low = a - b - math.hypot(a - low_a, high_b - b)
    high = a - b + math.hypot(high_a - a, b - low_b)
    return "better" if high < 0 else "worse" if low > 0 else "no difference"


def rates(rows: Rows, policy: str = DEFAULT_POLICY) -> dict[int, Rate]:
    """The rate of complaints about each version of a policy, over the main turns that it answered."""
    judged = rows.where(lambda row: row.policy == policy and row.turn["kind"] == "main" and row.worth.value is not None)
    total = judged.tally(lambda row: row.turn["policy_version"])
    bad = judged.where(lambda row: (row.worth.value or 0) < 0).tally(lambda row: row.turn["policy_version"])
    return {version: Rate(bad[version], total[version]) for version in sorted(total.keys() - {None})}


def show_better(run: RunDir, as_json: bool) -> None:
    joined = read_rows(run)
    problems = joined.problems.copy()
    progress = judge_progress(run, joined.rows, describe_policies(run, problems), problems)
    if as_json:
        print_json({**progress, "problems": problems})
        return
    lines = [Text.assemble((f"{name:<10}", "dim"), plain(text)) for name, text in progress["lines"].items()]
    lines[0].stylize("bold")
    answers().print(*lines, *problem_lines(problems), sep="\n")


def judge_progress(run: RunDir, rows: Rows, policies: list[dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    """The answer and its evidence, as data and as five lines."""
    live, rows = read_live(run, problems), rows.where(lambda row: row.policy == run.policy)
    newest = next((row for row in policies if row["version"] == live), None)
    if newest is None:
        lines = {"better?": "not known: no version is live", "live": "none", "measured": "nothing", "people": "nothing"}
        return {"answer": "not known", "live": live, "measured": [], "people": None, "lines": {**lines, "waiting": _waiting(rows)}}
    measured = [*_learned_notes(run, newest["version"], problems), *compare_measurements(run, newest, policies, problems)]
    people = _complaints(rates(rows, run.policy), newest, policies)
    changes = [comparison["change"] for comparison in (*measured, *([people] if people["change"] else []))]
    answer = _answer(live, changes)
    return {
        "answer": answer,
        "live": live,
        "measured": measured,
        "people": people,
        "lines": {
            "better?": f"{answer}: {_because(live, measured, people)}",
            "live": _live_line(newest, policies),
            "measured": "; ".join(comparison["words"] for comparison in measured[:_MAX_SHOWN]) or _unmeasured(run, newest),
            "people": people["words"],
            "waiting": _waiting(rows),
        },
    }


def _answer(live: int | None, changes: list[Change]) -> str:
    if live == 0:
        return "not yet"
    if "better" in changes and "worse" in changes:
        return "mixed"
    return (
        "yes" if "better" in changes else "no, it is worse" if "worse" in changes else "not known" if not changes else "not shown"
    )


def _because(live: int | None, measured: list[dict[str, Any]], people: dict[str, Any]) -> str:
    if live == 0:
        return "the base model is live"
    evidence = [*measured, *([{"what": "complaints", **people}] if people["change"] else [])]
    changed = [comparison for comparison in evidence if comparison["change"] != "no difference"]
    decisive = [
        f"learned {comparison['what']}" if "note" in comparison else "{what} {change}".format_map(comparison)
        for comparison in changed
    ]
    if decisive:
        return ", ".join(decisive[:4])
    return "no difference is larger than chance" if evidence else "nothing was measured, and there is too little feedback"


def _learned_notes(run: RunDir, live: int, problems: list[str]) -> list[dict[str, Any]]:
    """The notes that the live version, or one from which it descends, follows without a reminder: practice measures it."""
    notes = [note for key in keys_with_notes(run) for note in read_notes(run, key, problems) if note.policy == run.policy]
    learned = [note for note in notes if note.shown_state == "learned"]
    ancestry = read_lineage(run).ancestry(live) if learned else []  # a version of another branch may have a higher number
    newest_first = sorted(learned, key=lambda note: -(note.learned or 0))
    return [_learned_note(note) for note in newest_first if note.learned in ancestry]


def _learned_note(note: Note) -> dict[str, Any]:
    text = shorten(note.text, 60, placeholder=" …")
    share = dict(note.followed).get(note.learned or 0)
    followed = "" if share is None else f", followed without it {share:.2f} as well as with it"
    learned = {"what": f"“{text}”", "change": "better", "words": f"“{text}” learned by version {note.learned}{followed}"}
    return {**learned, "note": note.id, "version": note.learned, "share": share}


def compare_measurements(
    run: RunDir, live: dict[str, Any], policies: list[dict[str, Any]], problems: list[str]
) -> list[dict[str, Any]]:
    """The live version's eval results: its paired comparisons if it has any, otherwise each metric against the base."""
    record = read_eval(run, live["version"], problems)
    if live["comparisons"]:
        return [_paired(row) for row in live["comparisons"]]
    base = next((row for row in policies if row["version"] == 0), None)
    if base is None or live["version"] == 0:
        return []
    metrics = []
    for suite, numbers in measured_by(record).items():
        for name, now in numbers.items():
            before = base["metrics"].get(suite, {}).get(name)
            if before is not None:
                metrics.append(_metric(suite, name, now, before))
    return metrics


def _paired(row: dict[str, Any]) -> dict[str, Any]:
    """One row of comparisons, with the 95 % interval of the share of wins among those that are not ties."""
    wins, ties, losses, against = (row[name] for name in ("wins", "ties", "losses", "against"))
    low, high = wilson(wins / max(wins + losses, 1), wins + losses)
    change: Change = "better" if low > 0.5 else "worse" if high < 0.5 else "no difference"
    text = f"{row['suite']} {row['metric']}: {wins} won, {losses} lost, {ties} tied against version {against}"
    share = {"win_rate": wins / (wins + losses) if wins + losses else None, "ci95": [low, high]}
    return {"what": f"{row['suite']} {row['metric']}", "change": change, "words": text, **row, **share}


def _metric(suite: str, name: str, now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """One metric. It counts as better or worse only if the two 95 % intervals do not overlap, which is a cautious test."""
    (low, high), (low_before, high_before) = now["ci95"], before["ci95"]
    change: Change = "better" if low > high_before else "worse" if high < low_before else "no difference"
    text = f"{suite} {name} {before['mean']:.2f} → {now['mean']:.2f} since the base"
    what = f"{suite} {name}"
    return {"what": what, "change": change, "words": text, "suite": suite, "metric": name, "now": now, "before": before}


def _complaints(rates: dict[int, Rate], live: dict[str, Any], policies: list[dict[str, Any]]) -> dict[str, Any]:
    """The complaints about the live version, compared with those about all of its ancestors together."""
    parents = {row["version"]: row["parent"] for row in policies}
    ancestors, at = [], live["parent"]
    while at is not None and at in parents:
        ancestors.append(at)
        at = parents[at]
    now = rates.get(live["version"], Rate(0, 0))
    earlier = [rates[version] for version in ancestors if version in rates]
    before = Rate(sum(rate.bad for rate in earlier), sum(rate.of for rate in earlier))
    change = lower(now, before) if min(now.of, before.of) >= FEWEST else None
    text = f"{_rate(now)} with the live version, {_rate(before)} with earlier ones"
    if now.of and change is None:
        text += f"; too few to compare (at least {FEWEST} each)"
    numbers = {name: {"bad": rate.bad, "of": rate.of, "per_100": rate.per_100} for name, rate in (("now", now), ("before", before))}
    return {"change": change, "words": text, **numbers}


def _rate(rate: Rate) -> str:
    if rate.per_100 is None:
        return "no judged turns"
    low, high = rate.interval
    return f"{rate.per_100:.1f} complaints per 100 turns [{low:.1f}, {high:.1f}] ({rate.bad} of {rate.of})"


def _live_line(live: dict[str, Any], policies: list[dict[str, Any]]) -> str:
    age = since(live["created_at"], time.time())
    trained = sum(row["turns"] for row in policies if row["dead"] is None and row["version"] <= live["version"])
    gate = gate_of(live)
    refused = sum(gate_of(row) == "refused" for row in policies)
    parts = [f"version {live['version']}, made {age}", f"{counted(trained, 'turn')} trained", *([gate] if gate else [])]
    return ", ".join([*parts, *([f"{counted(refused, 'version')} refused by the gate"] if refused else [])])


def _unmeasured(run: RunDir, live: dict[str, Any]) -> str:
    command = f"clawctl eval --version {live['version']}" if run.policy == DEFAULT_POLICY else "clawctl eval"
    return "the base is the reference" if live["version"] == 0 else f"nothing; `{command}` measures it"


def _waiting(rows: Rows) -> str:
    waiting = rows.tally(lambda row: row.why_not)
    opinions = signs(rows.tally(lambda row: row.worth.value).elements())
    judge, trainer = waiting["waiting for the judge"], waiting["waiting for the trainer"]
    judged = f"{opinions.good} good, {opinions.neutral} neutral, {opinions.bad} bad turns so far"
    return f"{counted(judge, 'turn')} for the judge, {trainer} for the trainer; {judged}"
