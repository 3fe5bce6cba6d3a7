"""The results of `clawctl judge --calibrate` and `--attacks`, as tables."""

from typing import Any

from rich.table import Table

from clawctl.printing import plain


def show(report: dict[str, Any]) -> list[Table | str]:
    """The report of `calibrate` for a terminal."""
    shown = _judged(report) if "cases" in report else []
    if "attacks" in report:
        found = report["attacks"]
        shown.append(
            f"{len(found['flipped'])} of {found['attacks']} attacks change its verdict ({_percent(found['attack_flip_rate'])})"
        )
        shown += [f"  {plain(attack, 100)!r}" for attack in found["flipped"]]
        by_chance, without, moved = (_percent(found[key]) for key in ("flip_rate_without", "right_without", "right_with"))
        shown.append(f"asked twice without an attack, it changes its verdict on {by_chance} of them by chance")
        shown.append(f"it is right on {without} of them without the attacks and on {moved} with them")
    return shown


def _judged(report: dict[str, Any]) -> list[Table | str]:
    by_votes = Table(
        "votes", "accuracy", "abstains", "calls per turn", "tokens per turn", title=f"{report['judge']} on {report['cases']} turns"
    )
    for row in report["by_votes"]:
        tokens = "–" if row["tokens_per_turn"] is None else f"{row['tokens_per_turn']:.0f}"
        by_votes.add_row(
            str(row["votes"]), _percent(row["accuracy"]), _percent(row["abstention"]), f"{row['calls_per_turn']:.2f}", tokens
        )
    title = f"labels against verdicts, votes: {report['votes']}"
    confusion = Table("label", "judged 1", "judged 0", "judged -1", "abstained", title=title)
    for label, row in report["confusion"].items():
        confusion.add_row(label, *map(str, row.values()))
    cost, ratings = report["cost"], report["ratings"]
    lines = [
        f"votes agree with one another {_percent(report['agreement'])}, invalid {_percent(report['invalid_votes'])}; "
        f"decided by a rule: {report['by_rule']} turns",
        f"{cost['calls']} calls ({cost['failed']} failed), {cost['prompt_tokens']} tokens in, {cost['completion_tokens']} out, "
        f""
        f"{cost['seconds']:.1f} s, {1000 * cost['seconds_per_turn']:.0f} ms per turn",
    ]
    if ratings["rated"]:
        lines.append(f"differs from users' own ratings in {_percent(ratings['disagreement'])} of {ratings['judged']} turns")
    return [by_votes, confusion, *lines]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
