"""Ratings and outcomes from clients: `POST /v1/feedback`, the `X-Feedback` header and `POST /v1/outcome`. They are stored next to
the captures.

Clients may rate turns and sessions that this server answered recently, and those in the run's captures and shards.
"""

import asyncio
import logging
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.engines.requests import Refusal
from clawctl.errors import ClawError, Damaged
from clawctl.privacy.consent import may_capture
from clawctl.privacy.redaction import Redactor, redactor_of
from clawctl.run.directory import RunDir, published
from clawctl.run.feedback import FeedbackFile, parse_feedback, rating_in_header, read_rating
from clawctl.run.lines import Lines, Rewritten
from clawctl.run.notes import BadNote, add_note
from clawctl.run.outcomes import BadFeedback, SessionOutcome, read_outcome, scoped_id
from clawctl.run.rows import Feedback
from clawctl.run.shards import UnreadableShard, read_columns

_log = logging.getLogger("clawctl.serve")
_BURST, _PER_SECOND = 1000.0, 20.0  # ratings per key
_MAX_TIMES = 8  # ratings kept per answer; the newest counts
_MAX_COUNTED = 1 << 16  # answers
_MAX_OUTCOMES = 1 << 14


class RatingLimiter:
    """Limits the ratings of a key to a burst followed by a rate per second. Refused ratings count as well."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # per key: ratings left, and at which time

    def check(self, key: str) -> None:
        """Raises Refusal if the key sends ratings too fast."""
        now = time.monotonic()
        left, then = self._left.get(key, (_BURST, now))
        left = min(_BURST, left + (now - then) * _PER_SECOND)
        if left < 1:
            problem = f"this API key sends ratings too fast: the limit is {_PER_SECOND:g} ratings per second"
            raise Refusal(429, problem, code="rate_limit_exceeded", retry_after="1")
        self._left[key] = left - 1, now


class Rating:
    """Stores ratings. If `run` is None, conversations are not captured, and nothing can be rated. `counts` receives the numbers of
    stored and lost ratings."""

    def __init__(self, run: RunDir | None, recipe: Recipe, counts: Counter[tuple[str, ...]]) -> None:
        self._run = run
        self._file = None if run is None else FeedbackFile(run.feedback)
        self._folder = None if run is None else run.feedback
        self._earlier: dict[bytes, tuple[str, bytes]] | None = None  # outcomes of earlier processes; None: not read yet
        self._known_turns = None if run is None else KnownTurns(run)
        self._limiter = RatingLimiter()
        self._times: OrderedDict[tuple[str, str], int] = OrderedDict()  # how often recent turns were rated
        self._recipe, self._counts = recipe, counts
        self._redactor = Redactor(()) if run is None else redactor_of(recipe.privacy)
        self._outcomes: OrderedDict[tuple[str, str], SessionOutcome] = OrderedDict()  # recent outcomes, by session
        self._writing = asyncio.Lock()  # lines are written one at a time

    async def store(self, body: Any, key: str) -> dict[str, Any]:
        """Store one rating of `key`; returns when the kernel has it. Raises Refusal, also if the rating is lost."""
        try:
            feedback = read_rating(body, key, time.time())
        except BadFeedback as error:
            raise Refusal(400, str(error), error.field) from error
        turns = self._checked(key)
        if not await asyncio.to_thread(turns.has, key, feedback.turn_id):
            raise Refusal(404, "this run has no answer of this key with that id", "turn_id", "unknown_turn")
        self._count(key, feedback.turn_id)
        async with self._writing:
            if feedback.comment:
                feedback = replace(feedback, comment=await asyncio.to_thread(self._redactor.text, feedback.comment))
            await self._append(feedback)
        answer = {"object": "feedback", "id": feedback.feedback_id, "turn_id": feedback.turn_id, "rating": feedback.rating}
        return {**answer, "note": await asyncio.to_thread(self._remember, feedback)} if body.get("remember") else answer

    def _remember(self, feedback: Feedback) -> str:
        """Make the comment of a stored rating a note. Returns its id. Raises Refusal; the rating may then be sent again."""
        assert self._run is not None
        assert feedback.comment
        try:
            added = add_note(self._run, feedback.key, feedback.comment, said=feedback.comment, turns=(feedback.turn_id,))
        except (BadNote, ClawError, OSError) as error:
            status = 503 if isinstance(error, OSError) else 409
            raise Refusal(status, f"the rating is stored, but its comment is no note: {error}", "comment") from error
        return added.note.id

    async def store_outcome(self, body: Any, key: str) -> dict[str, Any]:
        """Store the outcome of one session of `key`. A session has one outcome: an identical one is confirmed again, a different
        one is refused. Raises Refusal."""
        try:
            outcome = read_outcome(body, key, time.time())
        except BadFeedback as error:
            raise Refusal(400, str(error), error.field) from error
        turns = self._checked(key)
        names = "\n".join((outcome.session_id, *outcome.parts, *outcome.steps))
        if await asyncio.to_thread(self._redactor.text, names) != names:
            raise Refusal(400, "a name in the outcome looks like a secret", "session_id")
        if not await asyncio.to_thread(turns.has_session, key, outcome.session_id):
            raise Refusal(404, "this run has no session of this key with that id", "session_id", "unknown_session")
        async with self._writing:
            known_as = await self._first_id(key, outcome)
            first = self._outcomes.get((key, outcome.session_id), replace(outcome, feedback_id=known_as) if known_as else outcome)
            if replace(outcome, feedback_id=first.feedback_id, created_at=first.created_at) != first:
                raise Refusal(409, _OTHER_OUTCOME, "session_id", "outcome_given")
            if first is outcome:
                await self._append(outcome)
                self._outcomes[key, outcome.session_id] = outcome
                if len(self._outcomes) > _MAX_OUTCOMES:
                    self._outcomes.popitem(last=False)
        return {"object": "outcome", "id": first.feedback_id, "session_id": body["session_id"], "reward": outcome.reward}

    async def _first_id(self, key: str, outcome: SessionOutcome) -> str | None:
        """Return the id of this outcome if an earlier process stored it. Raises Refusal if it stored a different one."""
        if self._earlier is None:
            self._earlier = await asyncio.to_thread(self._stored_outcomes)
        earlier = self._earlier.get(_digest(key, outcome.session_id))
        if earlier is not None and earlier[1] != _content(outcome):
            raise Refusal(409, _OTHER_OUTCOME, "session_id", "outcome_given")
        return None if earlier is None else earlier[0]

    def _stored_outcomes(self) -> dict[bytes, tuple[str, bytes]]:
        """Return the id and a digest of the first outcome of each session that the run's files hold."""
        stored: dict[bytes, tuple[str, bytes]] = {}
        for path in published(self._folder, ".jsonl") if self._folder is not None else ():
            for line in path.read_bytes().splitlines():
                with suppress(ValueError, TypeError, Damaged):
                    row = parse_feedback(line) if b'"session_id"' in line else None
                    if isinstance(row, SessionOutcome):
                        stored.setdefault(_digest(row.key, row.session_id), (row.feedback_id, _content(row)))
        return stored

    def _checked(self, key: str) -> "KnownTurns":
        """The turns that `key` may rate. Raises Refusal if it may not rate at all, or sends ratings too fast."""
        if self._known_turns is None:
            raise Refusal(409, "this server captures nothing, so nothing can be rated: serve with --intercept", code="not_captured")
        if not may_capture(self._recipe.privacy, key, self._recipe.model_name):
            raise Refusal(409, "this key's conversations are not captured, so they cannot be rated", code="not_captured")
        self._limiter.check(key)
        return self._known_turns

    async def _append(self, row: Feedback | SessionOutcome) -> None:
        assert self._file is not None
        try:
            await asyncio.to_thread(self._file.append, row)
        except OSError as error:
            self._counts["lost",] += 1
            _log.error("a rating was not stored: %s", error)
            raise Refusal(503, "the rating could not be stored; send it again later", code="not_kept") from error
        self._counts["kept",] += 1

    def note_answer(self, key: str, turn_id: str, session: str | None = None) -> None:
        """Record that this answer is captured. `key` may then rate it, and give an outcome to the session that it claims."""
        if self._known_turns is not None:
            self._known_turns.add(key, turn_id, session)

    def _count(self, key: str, turn_id: str) -> None:
        times = self._times.pop((key, turn_id), 0) + 1
        if times > _MAX_TIMES:
            raise Refusal(429, f"this answer was already rated {_MAX_TIMES} times", code="rate_limit_exceeded")
        self._times[key, turn_id] = times
        if len(self._times) > _MAX_COUNTED:
            self._times.popitem(last=False)

    def hint(self, headers: Mapping[str, str]) -> dict[str, float]:
        """The hint from an `X-Feedback` header: a rating of the turn that precedes the request. An invalid rating counts as lost,
        and the request is still answered."""
        try:
            rating = rating_in_header(headers.get("x-feedback"))
        except BadFeedback:
            self._counts["lost",] += 1
            return {}
        return {} if rating is None else {"feedback": rating}


_OTHER_OUTCOME = "this session already has a different outcome"
_MAX_RECENT = 1 << 16  # turns of this process that are remembered
_SEARCH_EVERY_S = 0.25  # how often files are searched for turns that other processes captured
_MERGE = 4096  # new numbers are kept outside the sorted array up to this count


def _digest(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode(), digest_size=16).digest()


def _content(outcome: SessionOutcome) -> bytes:
    fixed = replace(outcome, feedback_id="any", created_at=0.0)
    return blake2b(orjson.dumps(fixed), digest_size=16).digest()


class KnownTurns:
    """The turns and sessions of a run, 8 bytes each. Call `add` on the event loop. `has` may read files, so call it in a thread."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._reading = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._sorted, self._unsorted = array("Q"), set[int]()
        self._lines, self._shards = Lines(self._run.captures), set[str]()
        self._searched_at = float("-inf")

    def add(self, key: str, turn_id: str, session: str | None = None) -> None:
        self._recent[_number(key, turn_id)] = None
        if session:
            self._recent[_session_number(key, scoped_id(key, session))] = None
        while len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)

    def has(self, key: str, turn_id: str) -> bool:
        """Whether the run contains this turn of `key`."""
        return self._has(_number(key, turn_id))

    def has_session(self, key: str, session_id: str) -> bool:
        """Whether the run contains turns of this session of `key`. `session_id` is in the key's namespace."""
        return self._has(_session_number(key, session_id))

    def _has(self, number: int) -> bool:
        if number in self._recent:
            return True
        with self._reading:
            if not self._contains(number) and time.monotonic() - self._searched_at >= _SEARCH_EVERY_S:
                self._search_files()
            return self._contains(number)

    def _contains(self, number: int) -> bool:
        index = bisect_left(self._sorted, number)
        return number in self._unsorted or (index < len(self._sorted) and self._sorted[index] == number)

    def _search_files(self) -> None:
        try:
            grown = self._lines.grown()
        except Rewritten:  # turns were removed from a file (`clawctl forget`): read all files again
            self._clear()
            grown = self._lines.grown()
        for path in grown:
            for _, line in self._lines.read(path):
                with suppress(orjson.JSONDecodeError, LookupError, TypeError):
                    exchange = orjson.loads(line)
                    self._take(_number(exchange["key"], exchange["exchange_id"]))
                    if isinstance(session := exchange["hints"].get("session_id"), str):
                        self._take(_session_number(exchange["key"], scoped_id(exchange["key"], session)))
        for path in published(self._run.trajectories, ".parquet"):
            if path.stem not in self._shards:
                self._shards.add(path.stem)
                with suppress(UnreadableShard):
                    for row in read_columns(path, "turns", ("user", "turn_id", "session_id")):
                        self._take(_number(row["user"], row["turn_id"]))
                        self._take(_session_number(row["user"], row["session_id"]))
        self._searched_at = time.monotonic()

    def _take(self, number: int) -> None:
        self._unsorted.add(number)
        if len(self._unsorted) > max(_MERGE, len(self._sorted) // 8):
            self._sorted = array("Q", sorted(self._unsorted.union(self._sorted)))
            self._unsorted = set()


def _number(key: str, turn_id: str) -> int:
    return int.from_bytes(blake2b(f"{key}\0{turn_id}".encode(), digest_size=8).digest(), "big")


def _session_number(key: str, session_id: str) -> int:
    return _number(key, f"session\0{session_id}")
