"""Turns with a known verdict: from a labelled file (`clawctl calibrate FILE`), or rated by users of a run.

A labelled file has one JSON object per line:

    {"request": "2+2?", "answer": "5", "next_state": "no, that's wrong", "label": -1}
    {"messages": [{"role": "user", "content": "2+2?"}], "response": {"role": "assistant", "content": "4"}, "next_state": null,
     "label": 0}

`label` is 1, 0 or -1. `request` is short for a single user message, `answer` for the text of the response. If `next_state` is a
text, its author is `role` (default: user); null means that there is no next state. `rating` is the user's rating, from -1 to 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import ClawError
from clawctl.judge.panel import with_rating
from clawctl.judge.protocol import Evidence, read_evidence
from clawctl.run.directory import RunDir
from clawctl.run.feedback import EDITS, Ratings
from clawctl.run.rows import Message
from clawctl.run.shards import read_each

_KEYS = {"request", "messages", "answer", "response", "next_state", "label", "role", "rating", "id"}
_FORMAT = 'a line looks like {"request": "2+2?", "answer": "5", "next_state": "no, wrong", "label": -1}: `clawctl docs concepts`'


@dataclass(frozen=True, slots=True)
class Case:
    turn: Evidence
    label: int  # 1, 0, -1
    rating: float | None  # the user's rating, from -1 to 1


def read_cases(path: Path) -> list[Case]:
    """The turns of a labelled file. Raises ClawError (exit code 2), which names the first invalid line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ClawError(f"labelled turns {path} cannot be read: {error}", "pass a JSONL file to `clawctl calibrate`", 2) from error
    cases = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                cases.append(_case(orjson.loads(line), f"case {number}"))
            except (ValueError, TypeError, KeyError) as error:
                problem = f"there is no {error}" if isinstance(error, KeyError) else str(error)
                raise ClawError(f"{path}, line {number}: {problem}", _FORMAT, 2) from error
    if not cases:
        raise ClawError(f"{path} contains no labelled turn", _FORMAT, 2)
    return cases


def rated_turns(run: RunDir) -> list[Case]:
    """All turns of the run that a person rated, not those that `collect.edits` rated. The label is the sign of the rating."""
    ratings = Ratings(run)
    ratings.poll()
    turns = (with_rating(ratings, turn) for turn in _turns(run))
    by_person = (turn for turn in turns if (rating := ratings.of(turn.user, turn.turn_id)) is None or rating.key != EDITS)
    return [Case(turn, (turn.feedback > 0) - (turn.feedback < 0), turn.feedback) for turn in by_person if turn.feedback is not None]


def _turns(run: RunDir) -> Iterator[Evidence]:
    for _, shard in read_each(run.trajectories, read_evidence, skip_damaged=True):  # the judge stage quarantines damaged ones
        yield from shard


def _case(row: Any, name: str) -> Case:
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if not row.keys() <= _KEYS:
        raise ValueError(f"unknown key {min(row.keys() - _KEYS)!r}")
    label, rating = row["label"], row.get("rating")
    if label not in (1, 0, -1) or isinstance(label, bool):
        raise ValueError(f"label is {label!r}, not 1, 0 or -1")
    if rating is not None and (isinstance(rating, bool) or not isinstance(rating, int | float) or not -1 <= rating <= 1):
        raise ValueError(f"rating is {rating!r}, not a number from -1 to 1")
    messages = row["messages"] if "messages" in row else _message("user", row["request"])
    response = row["response"] if "response" in row else row["answer"]
    next_state = row["next_state"]
    return Case(
        turn=make_turn(
            str(row.get("id", name)),
            _checked(messages),
            _checked(_message("assistant", response) if isinstance(response, str) else [response])[0],
            None
            if next_state is None
            else _checked(next_state if isinstance(next_state, list) else _message(row.get("role", "user"), next_state)),
        ),
        label=label,
        rating=None if rating is None else float(rating),
    )


def _message(role: str, content: Any) -> list[Message]:
    if not isinstance(content, str):
        raise ValueError(f"expected text, found {type(content).__name__}")
    return [{"role": role, "content": content}]


def _checked(messages: Any) -> list[Message]:
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
    ):
        raise ValueError("messages must be a list of objects, each with a role")
    return messages


def make_turn(turn_id: str, messages: list[Message], response: Message, next_state: list[Message] | None) -> Evidence:
    """A turn that is not part of a shard."""
    return Evidence(turn_id, "calibration", "", messages, response, next_state, None, None, False, "calibration")
