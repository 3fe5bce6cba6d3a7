"""Selects the turns that a page shows. A filter is a query string, so each number on a page can link to its turns."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

import numpy as np

from clawctl.inspect.better import Rate
from clawctl.inspect.joined import Row, Rows
from clawctl.run.columns import Hashes
from clawctl.run.feedback import LABEL
from clawctl.run.reward import RATING
from clawctl.run.rows import DEFAULT_POLICY

_MAX_BUCKETS = 48
_WIDTHS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 28 * 86400)  # seconds


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on turns. None: no condition."""

    user: str | None = None  # the API key
    policy: str | None = None  # the policy that answered; without one, `version` and `step` are of the shared policy
    version: int | None = None  # the version that sampled the turn
    verdict: str | None = None  # one of VERDICTS: good, bad, …
    fate: str | None = None  # "trained", or the reason why it is not trained
    step: int | None = None  # the step that trained it, possibly into a dead version
    kind: str | None = None  # "main", "side"
    source: str | None = None
    task: str | None = None
    group: str | None = None
    judge: str | None = None
    rated: str | None = None  # people's rating of a turn with a verdict: "good", "neutral", "bad"
    voted: str | None = None  # the judge's own result, regardless of ratings: "good", "neutral", "bad", "abstained"
    votes: str | None = None  # "unanimous", "divided", "no valid vote"
    since: float | None = None  # unix seconds
    until: float | None = None
    q: str | None = None  # text to search for

    @classmethod
    def read(cls, query: Any) -> "Filter":
        """Read a filter from a query string. Empty and invalid values count as absent."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = query.get(field.name, "")
            if text.strip():
                number = {"version": int, "step": int, "since": float, "until": float}.get(field.name)
                try:
                    given[field.name] = text if number is None else number(text)
                except ValueError:
                    continue
        return cls(**given)

    def query(self, **changes: Any) -> str:
        """The filter as a query string, with some values replaced."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        return urlencode({name: value for name, value in values.items() if value not in (None, "")})

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def tests(self) -> list[Callable[[Row], bool]]:
        """Predicates on variants that must all hold. Times are not among them, nor is `q`: `text_search.py` searches the text."""
        tests: list[Callable[[Row], bool]] = []
        columns = {"user": "user", "version": "policy_version", "kind": "kind", "source": "source", "task": "task_id"}
        for name, column in (*columns.items(), ("group", "group_id")):
            if (wanted := getattr(self, name)) is not None:
                tests.append(lambda row, column=column, wanted=wanted: row.turn[column] == wanted)  # type: ignore[misc]
        if (policy := self.policy) is not None or self.version is not None or self.step is not None:
            tests.append(lambda row: row.policy == (policy or DEFAULT_POLICY))
        if self.step is not None:
            tests.append(lambda row: row.step == self.step or self.step in row.dead_steps)
        if self.fate is not None:
            tests.append(lambda row: fate(row) == self.fate)
        if self.judge is not None:
            tests.append(lambda row: row.verdict is not None and row.verdict["judge"] == self.judge)
        if self.rated is not None:
            tests.append(lambda row: row.verdict is not None and rated_as(row) == self.rated)
        if self.voted is not None:
            tests.append(lambda row: row.verdict is not None and voted_as(row) == self.voted)
        if self.votes is not None:
            tests.append(lambda row: votes_of(row) == self.votes)
        if self.verdict is not None:
            tests.append(_VERDICTS.get(self.verdict, lambda row: False))
        return tests


def matching(rows: Rows, wanted: Filter, among: Hashes | None = None) -> Rows:
    """The rows that match a filter, in their order. `among`: the turns that contain the filter's text."""
    tests = wanted.tests()
    rows = rows.where(lambda row: all(test(row) for test in tests))
    at = rows.joined.at[rows.indices]
    since, until = -math.inf if wanted.since is None else wanted.since, math.inf if wanted.until is None else wanted.until
    rows = rows.chosen((at >= since) & (at < until))
    return rows if among is None else rows.chosen(np.isin(rows.joined.id[rows.indices], among))


def fate(row: Row) -> str:
    """ "trained", or the reason why the turn is not trained."""
    return "trained" if row.step is not None else str(row.why_not)


def opinion(row: Row) -> str:
    """The sign of the turn's value as a word, or why it has none."""
    value = row.worth.value
    if value is not None:
        return "good" if value > 0 else "bad" if value < 0 else "neutral"
    return "not judged" if row.verdict is None or not row.verdict["votes"] else "abstained"


def rating_of(row: Row) -> float | None:
    """The rating by the turn's user or by the operator. None if there is no rating."""
    if row.rating is not None:
        return row.rating.rating
    rating = row.turn["feedback"]
    return float(rating) if rating is not None else None


def outcome_of(row: Row) -> float | None:
    """The environment's outcome of the turn's episode. None if there is none."""
    outcome: float | None = row.worth.outcome if row.worth.outcome is not None else row.turn["outcome_reward"]
    return outcome


def judged_reward(row: Row) -> float | None:
    """The reward according to the judge's own votes, regardless of ratings. None if the judge abstained or was not asked."""
    verdict = row.verdict
    if verdict is None:
        return None
    if verdict["judge"] != RATING:
        return float(verdict["reward"]) if verdict["reward"] is not None else None
    votes = [vote for vote in verdict["votes"] or () if vote is not None]
    return (sum(votes) > 0) - (sum(votes) < 0) if votes else None


def rated_as(row: Row) -> str | None:
    """The sign of the rating as a word. None if there is no rating."""
    rating = rating_of(row)
    return None if rating is None else "good" if rating > 0 else "bad" if rating < 0 else "neutral"


def voted_as(row: Row) -> str:
    """The sign of `judged_reward` as a word, or "abstained"."""
    reward = judged_reward(row)
    return "abstained" if reward is None else "good" if reward > 0 else "bad" if reward < 0 else "neutral"


def votes_of(row: Row) -> str | None:
    """Whether the votes of the judge agree. None if there are none."""
    votes = row.verdict["votes"] or [] if row.verdict is not None and row.verdict["judge"] is not None else []
    if not votes:
        return None
    return "no valid vote" if all(vote is None for vote in votes) else "divided" if uncertainty(row) else "unanimous"


def uncertainty(row: Row) -> float:
    """The share of votes that differ from the majority or are invalid, from 0 to 1.

    It is 0 if all votes agree or a person rated the turn, and 1 if no vote is valid."""
    if rating_of(row) is not None or row.verdict is None:
        return 0.0
    votes = row.verdict["votes"] or []
    if not votes or (votes[0] is not None and votes.count(votes[0]) == len(votes)):
        return 0.0
    valid = [vote for vote in votes if vote is not None]
    return 1 - max(Counter(valid).values(), default=0) / len(votes)


_VERDICTS: dict[str, Callable[[Row], bool]] = {  # the predicate for each of VERDICTS
    "good": lambda row: row.worth.value is not None and row.worth.value > 0,
    "neutral": lambda row: row.worth.value == 0,
    "bad": lambda row: row.worth.value is not None and row.worth.value < 0,
    "abstained": lambda row: opinion(row) == "abstained",
    "judged": lambda row: row.worth.value is not None,
    "not judged": lambda row: opinion(row) == "not judged",
    "rated": lambda row: rating_of(row) is not None,
    "uncertain": lambda row: uncertainty(row) > 0,
    "with an outcome": lambda row: outcome_of(row) is not None,
}
VERDICTS = tuple(_VERDICTS)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The complaints about main turns within a span of time."""

    begin: float
    end: float
    rate: Rate


def complaints(rows: Rows) -> list[Bucket]:
    """Complaints over time, in at most _MAX_BUCKETS spans. `rows` must be ordered by time. Empty spans are omitted."""
    rows = rows.where(lambda row: row.worth.value is not None)
    if not rows:
        return []
    at = rows.joined.at[rows.indices]
    width = next((width for width in _WIDTHS if (at[-1] - at[0]) / width <= _MAX_BUCKETS), _WIDTHS[-1])
    spans, numbers = np.unique(at // width, return_inverse=True)
    bad = np.bincount(numbers, rows.values(lambda row: (row.worth.value or 0) < 0)).astype(int).tolist()
    counted = zip(spans.astype(int).tolist(), bad, np.bincount(numbers).tolist(), strict=True)
    return [Bucket(span * width, (span + 1) * width, Rate(bad, of)) for span, bad, of in counted]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement between the judge's votes and people's ratings."""

    counts: dict[tuple[str, str], int]  # {(rating, opinion of the judge): number of turns}
    labels: int  # the number of ratings that are labels
    right: Rate  # over rated turns with an opinion of the judge


def agreement(rows: Rows) -> Agreement:
    """Compare ratings with the judge's results, over turns that have both. `right.bad` counts the disagreements."""
    both = rows.where(lambda row: rated_as(row) is not None and row.verdict is not None)
    counts = both.tally(lambda row: (rated_as(row), voted_as(row)))
    labels = len(both.where(lambda row: row.rating is not None and row.rating.key == LABEL))
    decided = sum(count for (_, word), count in counts.items() if word != "abstained")
    same = sum(count for (rated, word), count in counts.items() if rated == word)
    return Agreement(dict(counts), labels, Rate(decided - same, decided))
