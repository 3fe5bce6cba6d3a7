"""Explicit ratings: `feedback/<writer>-<n>.jsonl`, one rating per line, appended by serve and never edited.

A rating takes precedence over the judge at any time. Before its turn is published, collect writes it into the row. After that the
row is fixed, and the judge and the trainer look the rating up here. A turn that is already trained is not trained again; its rating
still counts when judges are compared with people.

A label is a rating by the person who runs clawctl (`clawctl inspect web`). Its key is LABEL. It counts for a turn that its own user
has not rated. EDITS is the key of ratings that collect derives from what a person kept of an answer's files (`collect.edits`). They
count for turns without any other rating.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir
from clawctl.run.groups import Groups
from clawctl.run.handles import exchange_of, turn_of
from clawctl.run.lines import Lines, LineWriter, Rewritten
from clawctl.run.notes import LONGEST
from clawctl.run.outcomes import BadFeedback, SessionOutcome, check_fields, parse_outcome
from clawctl.run.rows import SCHEMA_VERSION, Feedback, Verdict, from_json, newer

LABEL, EDITS = "label", "edits"  # keys of labels and of kept edits; no API key has these names
LONGEST_COMMENT = 10_000  # characters
LONGEST_HINT = 2000  # characters of a comment that is a hint
_ROTATE_BYTES = 16 << 20
_TURN = re.compile(r"^[0-9A-Za-z][0-9A-Za-z_.:/-]{0,199}$")


def read_rating(body: Any, key: str, now: float) -> Feedback:
    """Parse the body of `POST /v1/feedback`: {"turn_id" or "completion_id": …, "rating": -1..1, "comment": … or null,
    "remember": whether the comment becomes a note}.

    `key` is the name of the API key of the request, which may rate only its own turns. Raises BadFeedback.
    """
    check_fields(body, ("turn_id", "completion_id", "rating", "comment", "remember"))
    named = [name for name in ("turn_id", "completion_id") if body.get(name) is not None]
    if len(named) != 1:
        raise BadFeedback("set 'turn_id' or 'completion_id' (the id of the response)", "turn_id")
    rating, comment = body.get("rating"), body.get("comment")
    if isinstance(rating, bool) or not isinstance(rating, int | float) or not -1 <= rating <= 1:
        raise BadFeedback("'rating' must be a number from -1 (bad) to 1 (good)", "rating")
    if comment is not None and not (isinstance(comment, str) and len(comment) <= LONGEST_COMMENT):
        raise BadFeedback(f"'comment' must be a string of at most {LONGEST_COMMENT} characters", "comment")
    if body.get("remember") not in (None, True, False):
        raise BadFeedback("'remember' must be true or false", "remember")
    if body.get("remember") and not 0 < len((comment or "").strip()) <= LONGEST:
        raise BadFeedback(f"'remember' needs a comment of at most {LONGEST} characters, which becomes a note", "comment")
    turn_id = _plain(body[named[0]], named[0])
    if named == ["completion_id"]:
        turn_id = turn_of(turn_id) or ""
        if not turn_id:
            raise BadFeedback("'completion_id' is not an id of this server", "completion_id")
    elif exchange_of(turn_id):
        raise BadFeedback("'turn_id' has the id of a response: send it as 'completion_id'", "turn_id")
    return Feedback(secrets.token_hex(12), now, key, turn_id, float(rating), comment or None)


def _plain(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _TURN.match(value):
        raise BadFeedback(f"'{field}' must be an id of letters and digits", field)
    return value


def comment_hint(rating: Feedback | None) -> str | None:
    """The comment of a rating below 0, as the hint that the teacher reads: the person's own text, on one line.

    None if there is no comment, or if it is too long for a hint. A comment on a good answer asks for no change.
    """
    if rating is None or rating.rating >= 0 or not rating.comment:
        return None
    hint = " ".join("".join(char for char in rating.comment if char.isprintable() or char.isspace()).split())
    return hint if 0 < len(hint) <= LONGEST_HINT else None


def with_comment(verdict: Verdict, rating: Feedback | None) -> Verdict:
    """The verdict with the rating's comment as its first hint: what a person wrote outranks what a judge made of it."""
    hint = comment_hint(rating)
    return verdict if hint is None else replace(verdict, hint=hint, hints=list(dict.fromkeys([hint, *verdict.hints])))


def rating_in_header(text: str | None) -> float | None:
    """Return the number in an `X-Feedback` header, or None without one. It rates the turn that its request answers. Raises
    BadFeedback.
    """
    if text is None or not text.strip():
        return None
    try:
        rating = float(text)
    except ValueError:
        rating = float("nan")
    if not -1 <= rating <= 1:
        raise BadFeedback("'X-Feedback' must be a number from -1 (bad) to 1 (good)", "X-Feedback")
    return rating


class FeedbackFile:
    """One writer of ratings. A rating is in the kernel's page cache when `append` returns."""

    def __init__(self, folder: Path) -> None:
        self._lines = LineWriter(folder, _ROTATE_BYTES)

    def append(self, feedback: Feedback | SessionOutcome) -> None:
        """Append a rating or an outcome. Raises OSError if it cannot be written; the sender must then get an error."""
        self._lines.append(sealed(orjson.dumps(feedback)))


def parse_feedback(line: bytes) -> Feedback | SessionOutcome:
    """Parse one line of feedback. Unknown fields from a newer clawctl are ignored. Raises ValueError with the reason."""
    row = read_sealed(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if "session_id" in row:
        return parse_outcome(row)
    version = row.pop("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(newer(version))
    return from_json(Feedback, row)


class Ratings:
    """All ratings of a run by turn. The newest rating of a turn counts. Invalid ratings are counted and skipped."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._reset()

    def _reset(self) -> None:
        self.unreadable = 0
        self._lines = Lines(self._run.feedback)
        self._newest: dict[tuple[str, str], tuple[str, Feedback]] = {}  # each with its writer
        self.groups = Groups()
        # Outcomes of turns that were published before their episode ended.
        self._late_outcomes: dict[tuple[str, str], SessionOutcome] = {}

    def poll(self) -> set[str]:
        """Read new lines. Returns the ids of the turns that they may concern."""
        try:
            return self._read_new()
        except Rewritten:  # ratings were removed from a file: read all of them again
            earlier_ids = self.turn_ids()
            self._reset()
            return earlier_ids | self._read_new()

    def _read_new(self) -> set[str]:
        rated = set()
        for writer, feedback in self._read():
            if isinstance(feedback, SessionOutcome):
                self.groups.add(feedback)
                for turn_id in feedback.turn_ids or ():
                    self._late_outcomes.setdefault((feedback.key, turn_id), feedback)
                    rated.add(turn_id)
                continue
            turn_key = feedback.key, feedback.turn_id
            newest = self._newest.get(turn_key)
            if newest is None or newest[0] == writer or feedback.created_at >= newest[1].created_at:
                self._newest[turn_key] = writer, feedback
                rated.add(feedback.turn_id)
        return rated

    def read(self) -> Iterator[Feedback | SessionOutcome]:
        """Yield the rows appended since the last call, for a reader that keeps its own records."""
        return (feedback for _, feedback in self._read())

    def _read(self) -> Iterator[tuple[str, Feedback | SessionOutcome]]:
        """Yield each rating with its writer. Of two lines of one writer the later one is newer, even if its clock was set back."""
        for path in self._lines.grown():
            for _, line in self._lines.read(path):
                try:
                    yield path.stem.rpartition("-")[0], parse_feedback(line)
                except (ValueError, TypeError):
                    self.unreadable += bool(line)

    def of(self, user: str, turn_id: str) -> Feedback | None:
        """Return the rating of a turn by its owner, or else its label, or else that of its edits. Other users' do not count."""
        return next((self._newest[key, turn_id][1] for key in (user, LABEL, EDITS) if (key, turn_id) in self._newest), None)

    def turn_ids(self) -> set[str]:
        """The turns that have a rating or a late outcome."""
        return {turn_id for _, turn_id in (*self._newest, *self._late_outcomes)}

    def late_outcome(self, user: str, turn_id: str) -> SessionOutcome | None:
        """Return the outcome of a turn's episode if it arrived after the row was published.

        The turn's reward is then the outcome alone, because its verdict was made without it.
        """
        return self._late_outcomes.get((user, turn_id))
