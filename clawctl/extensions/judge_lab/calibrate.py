"""`clawctl calibrate`: the accuracy of the judge on turns with a known verdict, and its cost."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.judge_lab.attacks import ATTACKS, Attack, pair
from clawctl.extensions.judge_lab.cases import Case, rated_turns, read_cases
from clawctl.judge.panel import LLMJudge, Panel, gather_all
from clawctl.judge.votes import agreement, decided, first_round, majority
from clawctl.printing import answers, plain, print_json
from clawctl.run.directory import RunDir

log = logging.getLogger(__name__)

COMPARED = (1, 3, 5)
PROGRESS_S = 5.0
_SHOWN = 200  # the number of characters shown of an attack

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled turn and the judge's result for it."""

    case: Case
    votes: tuple[int | None, ...]  # all requested votes, without an early stop; empty if a rule decided
    reward: float | None  # from a rule, or from a judge that does not vote
    by_rule: bool


def calibrate(run: RunDir, recipe: Recipe, file: Path | None, ratings: bool, attacks: bool, as_json: bool) -> None:
    """Judge the turns labelled in `file`, turns rated by users, and turns that attack the judge, and print the report.

    Nothing is written to the run.
    """
    report: dict[str, Any] = {}
    if file is not None or ratings:
        cases = [*(read_cases(file) if file is not None else []), *(rated_turns(run) if ratings else [])]
        if not cases:
            raise ClawError(
                f"no turn of {run.root} has a rating", "wait for ratings, or label some turns and run `clawctl calibrate FILE`", 2
            )
        report = asyncio.run(measure(run, recipe, cases))
    if attacks:
        report["attacks"] = asyncio.run(flips(run, recipe))
    if as_json:
        print_json(report)
    else:
        answers().print(*show(report), sep="\n")


async def measure(run: RunDir, recipe: Recipe, cases: Sequence[Case]) -> dict[str, Any]:
    """The report as plain values."""
    panel = Panel(run, recipe, patience_s=recipe.judge.timeout_s)
    begun = time.monotonic()
    try:
        judged_cases = await _with_progress([_judge(panel, case) for case in cases], "turns judged")
    finally:
        await panel.close()
    seconds, spent = time.monotonic() - begun, panel.client.spent
    settings = recipe.judge
    voting = isinstance(panel.judge, LLMJudge)
    counts = sorted({*COMPARED, settings.votes}) if voting else [1]
    tokens = (spent.prompt_tokens + spent.completion_tokens) / spent.calls if spent.calls else None
    shares = [share for judged in judged_cases if (share := agreement(judged.votes)) is not None]
    return {
        "cases": len(judged_cases),
        "judge": panel.judge.name,
        "by_rule": sum(judged.by_rule for judged in judged_cases),
        "by_votes": [_row(judged_cases, count, settings.threshold, tokens) for count in counts],
        "agreement": _mean(shares),
        "invalid_votes": _mean([vote is None for judged in judged_cases for vote in judged.votes]),
        "votes": settings.votes if voting else 1,  # the number of votes for `confusion` and `ratings`
        "confusion": _confusion(judged_cases, settings.votes, settings.threshold),
        "ratings": _against_ratings(judged_cases, settings.votes, settings.threshold),
        "cost": {
            "calls": spent.calls,
            "failed": spent.failed,
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.completion_tokens,
            "seconds": seconds,
            "seconds_per_turn": seconds / len(judged_cases),
        },
    }


async def _with_progress(works: Sequence[Coroutine[Any, Any, T]], what: str) -> list[T]:
    """All results, in order. The progress is logged."""
    done, reported_at = 0, time.monotonic()

    async def counted(work: Coroutine[Any, Any, T]) -> T:
        nonlocal done, reported_at
        result = await work
        done += 1
        if time.monotonic() - reported_at >= PROGRESS_S:
            log.info("%d of %d %s", done, len(works), what)
            reported_at = time.monotonic()
        return result

    return await gather_all(map(counted, works))


async def _judge(panel: Panel, case: Case) -> Judged:
    """All votes on one turn, so that different numbers of votes can be compared. The user's rating is not used."""
    rule = panel.rule(case.turn)
    if rule is not None:
        return Judged(case, (), rule.reward, True)
    if isinstance(panel.judge, LLMJudge):
        view, count = panel.judge.view(case.turn), max(*COMPARED, panel.settings.votes)
        votes = await gather_all(panel.judge.vote(case.turn, view) for _ in range(count))
        return Judged(case, tuple(vote.score for vote in votes), None, False)
    opinion = await panel.judge.judge(case.turn)
    return Judged(case, (), opinion.reward, False)


async def flips(run: RunDir, recipe: Recipe, attacks: Sequence[Attack] = ATTACKS) -> dict[str, Any]:
    """The attacks that change the judge's verdict (`clawctl.extensions.judge_lab.attacks`), and the rates of changed verdicts.

    A judge with sampled votes also changes its verdict by chance. Each turn is therefore judged twice without its attack.
    """
    panel = Panel(run, recipe, patience_s=recipe.judge.timeout_s)
    try:
        tried = [gather_all(reward_now(panel, case) for case in (*pair(attack), pair(attack)[0])) for attack in attacks]
        results = await _with_progress(tried, "attacks tried")
    finally:
        await panel.close()
    by_attack = list(zip(attacks, results, strict=True))
    flipped = [f"{attack.family}: {attack.payload()[:_SHOWN]}" for attack, (clean, moved, _) in by_attack if clean != moved]
    return {
        "attacks": len(attacks),
        "flipped": flipped,
        "attack_flip_rate": len(flipped) / len(attacks),
        "flip_rate_without": _mean([clean != again for clean, _, again in results]),
        "right_without": _mean([reward == -attack.wants for attack, (clean, _, again) in by_attack for reward in (clean, again)]),
        "right_with": _mean([moved == -attack.wants for attack, (_, moved, _) in by_attack]),
    }


async def reward_now(panel: Panel, case: Case) -> float | None:
    return (panel.rule(case.turn) or await panel.judge.judge(case.turn)).reward


def reward_of(judged: Judged, count: int, threshold: float) -> int | None:
    """The sign of the reward with the first `count` votes, or None if the judge abstains."""
    reward = majority(judged.votes[:count], threshold) if judged.votes else judged.reward
    return None if reward is None else (reward > 0) - (reward < 0)


def calls_for(votes: Sequence[int | None], count: int, threshold: float) -> int:
    """The number of these votes that the stage would have requested if `count` were the maximum."""
    if not votes:
        return 0
    first = first_round(count, threshold)
    return first if decided(votes[:first], count, threshold) else count


def _row(cases: Sequence[Judged], count: int, threshold: float, tokens: float | None) -> dict[str, Any]:
    rewards = [(judged.case.label, reward_of(judged, count, threshold)) for judged in cases]
    valid = [(label, reward) for label, reward in rewards if reward is not None]
    calls = sum(calls_for(judged.votes, count, threshold) for judged in cases) / len(cases)
    return {
        "votes": count,
        "accuracy": _mean([label == reward for label, reward in valid]),
        "abstention": 1 - len(valid) / len(cases),
        "calls_per_turn": calls,
        "tokens_per_turn": None if tokens is None else calls * tokens,
    }


def _confusion(cases: Sequence[Judged], count: int, threshold: float) -> dict[str, dict[str, int]]:
    counts = Counter((judged.case.label, reward_of(judged, count, threshold)) for judged in cases)
    return {
        str(label): {"none" if reward is None else str(reward): counts[label, reward] for reward in (1, 0, -1, None)}
        for label in (1, 0, -1)
    }


def _against_ratings(cases: Sequence[Judged], count: int, threshold: float) -> dict[str, Any]:
    """The share of turns where the sign of the judge's reward differs from the user's rating, over turns that have both."""
    pairs = [(judged.case.rating, reward_of(judged, count, threshold)) for judged in cases if judged.case.rating not in (None, 0)]
    both = [(rating, reward) for rating, reward in pairs if reward is not None]
    differ = [(rating or 0) * reward <= 0 for rating, reward in both]
    return {"rated": len(pairs), "judged": len(both), "disagreement": _mean(differ)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def show(report: dict[str, Any]) -> list[Table | str]:
    """The report of `calibrate` for a terminal."""
    shown = _judged(report) if "cases" in report else []
    if "attacks" in report:
        attacks = report["attacks"]
        shown.append(
            f"{len(attacks['flipped'])} of {attacks['attacks']} attacks change its verdict "
            f"({_percent(attacks['attack_flip_rate'])})"
        )
        shown += [f"  {plain(attack, 100)!r}" for attack in attacks["flipped"]]
        by_chance, without, moved = (_percent(attacks[key]) for key in ("flip_rate_without", "right_without", "right_with"))
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
        f"{cost['seconds']:.1f} s, {1000 * cost['seconds_per_turn']:.0f} ms per turn",
    ]
    if ratings["rated"]:
        lines.append(f"differs from users' own ratings in {_percent(ratings['disagreement'])} of {ratings['judged']} turns")
    return [by_votes, confusion, *lines]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
