"""`clawctl collect`: follows captures, assembles sessions, publishes trajectories.

The only state is the published files, and `collect.json`, which records what is finished. A restart reads the captures from there,
rebuilds the open sessions, and publishes the missing rows. A SIGKILL at any moment thus loses no turn and publishes none twice.
"""

import gc
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clawctl.collect.captures import Captured, Captures
from clawctl.collect.clocks import Clocks
from clawctl.collect.edits import Edits
from clawctl.collect.published_sessions import PublishedSessions
from clawctl.collect.read_position import ReadPosition, quarantined_shards
from clawctl.collect.sessions import Sessions
from clawctl.collect.side_rules import VERSION
from clawctl.collect.stems import OWN_DRAFT, new_stem
from clawctl.collect.upkeep import Upkeep
from clawctl.collect.waiting import ArrivedExchange
from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.privacy.forget import catch_up
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, changes, published, quarantine, sole_worker
from clawctl.run.disk import retry_while_full
from clawctl.run.feedback import FeedbackFile, Ratings
from clawctl.run.holdout import keep_holdout
from clawctl.run.lines import Rewritten
from clawctl.run.model_files import IdReader, origin_of
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.retention import Retention
from clawctl.run.rows import Feedback, Turn
from clawctl.run.shards import UNKNOWN, Origin, UnreadableShard, read_parents, write_turns
from clawctl.run.storage import storage_of

log = logging.getLogger(__name__)

BATCH = 256  # exchanges between two checks of the shard limits
MAX_UNSURE = 1024  # exchanges held back for a parent that may still be read
REPORT_S = 10.0
UPKEEP_S = 60.0


def collect(run: RunDir, recipe: Recipe, once: bool, end_sessions: bool = False) -> None:
    """Work until stopped; with `once` until all complete turns are published.

    Incomplete turns wait for the next run, unless `end_sessions` ends all sessions now.
    """
    stop = stop_on_signals()
    settings = recipe.collect
    # Objects loaded so far stay alive; scanning them repeatedly would take a tenth of the time at full load
    gc.freeze()
    with sole_worker(run, "collect"):
        origin = origin_of(recipe.model.path, recipe.model_path)
        catch_up(run)
        retention = Retention(run, recipe)
        retention.expire_due()  # before captures are read, because rows of expired captures would look new
        collector = Collector(run, recipe, stop, origin)
        collector.poll()
        if end_sessions:
            collector.end_sessions()
        if not once:
            poll_s = min(1.0, max(0.05, settings.shard_age_s / 4))
            for _ in changes([run.captures, run.feedback, run.quarantine], stop, poll_s):
                collector.poll()
                retention.expire_due()
        collector.close()


class Collector:
    """The single collect worker of a run: sessions in memory, and complete rows that wait for their shard."""

    def __init__(
        self, run: RunDir, recipe: Recipe, stop: threading.Event, origin: Origin = UNKNOWN, clocks: Callable[[], Clocks] = Clocks
    ) -> None:
        self._run, self._settings, self._stop, self._origin = run, recipe.collect, stop, origin
        self._decode = IdReader(recipe.model_path)
        self._holdout = retry_while_full(lambda: keep_holdout(run, recipe.eval.holdout), "holdout.json", stop)
        self._new_clocks = clocks
        self._edits = Edits(Path(self._settings.edits), self._settings.edits_after_s) if self._settings.edits else None
        self._upkeep, self._upkeep_at = Upkeep(run, recipe), float("-inf")
        remove_leftovers(run)
        self._write_failed = self._rating_write_failed = False  # the disk refused the last write
        # Late ratings and outcomes that are not stored yet
        self._late_ratings: list[Feedback | SessionOutcome] = []
        self._own_feedback = FeedbackFile(run.feedback)
        self._exchanges, self._rows, self._shards = 0, 0, 0
        self._reported, self._reported_at = 0, time.monotonic()
        log.info("side rules version %d", VERSION)
        self._begin()

    def _begin(self, afresh: bool = False) -> None:
        """Start from the published shards and the saved position; with `afresh` from the shards only, reading all captures
        again.
        """
        if afresh:
            # The worker's own published shards must be included
            storage_of(self._run.root).follow(shards=True)
        self._unwritten_shard: tuple[str, list[Turn]] | None = None  # the shard that could not be written
        self._position = ReadPosition(self._run, afresh)
        self._quarantined_shards = quarantined_shards(self._run)
        self._known = _published(self._run, self._position.shards_after)
        self._captures = Captures(self._run, self._position.start)
        self._ratings = Ratings(self._run)
        self._published_sessions, self._late_outcomes = PublishedSessions(self._run), list[SessionOutcome]()
        self._clocks, self._has_looked = self._new_clocks(), False
        self._stored_ratings: set[str] = set()  # ids of the ratings in feedback/
        self._sessions = Sessions(self._settings.session_timeout_s, self._known, self._decode, holdout=self._holdout)
        self._last_stem = max((path.stem for path in published(self._run.trajectories, ".parquet")), default="")
        self._waiting: list[Turn] = []
        self._published_at = time.monotonic()  # when the last shard was published
        self._emitted, self._published = 0, 0  # closed and published rows since this start
        self._saved_at = time.monotonic()

    def poll(self) -> None:
        """Read appended lines, close turns that are complete or too old, and publish the rows that are due."""
        if quarantined_shards(self._run) != self._quarantined_shards:
            log.warning("a shard was quarantined; its turns will be published again from the captures")
            self._begin(afresh=True)
        try:
            self._read_all()
        except Rewritten as file:
            log.warning("%s was rewritten, so all captures are read again", file)
            self._begin(afresh=True)
            self._read_all()
        self._sessions.tick(self._clocks.now())
        self._pop_closed()
        if time.monotonic() - self._saved_at >= self._settings.shard_age_s:
            self._save()
        if time.monotonic() - self._reported_at >= REPORT_S and self._exchanges > self._reported:
            self.report()

    def end_sessions(self) -> None:
        """Close every open turn with the information available now."""
        self._sessions.tick(float("inf"))
        self._pop_closed()

    def _read_all(self) -> None:
        self._clocks.begin_poll(set(self._captures.offsets) if self._has_looked else set())
        self._has_looked = True
        # Before the captures, so that the row includes the rating if possible
        for feedback in self._ratings.read():
            self._stored_ratings.add(feedback.feedback_id)
            if not isinstance(feedback, SessionOutcome):
                self._sessions.rate(feedback)
            elif feedback.turn_ids is None:
                self._sessions.note(feedback)
        self._read_once()
        for _ in range(3):  # a child that was read before its parent finds it in the next pass at the latest
            if not self._sessions.waiting:
                break
            self._read_once()
        if not self._stop.is_set():
            self._end_episodes()

    def _end_episodes(self) -> None:
        """End the sessions that have an outcome; everything captured before it has been read.

        If turns of such a session were published earlier, append a line that names them.
        """
        ended = self._sessions.end_episodes()
        self._late_outcomes += [late for late in ended if late.changes(None) and _late_id(late) not in self._stored_ratings]
        self._pop_closed()
        while self._late_outcomes and self._waiting:
            if not self._publish():
                return  # the disk is full: these turns are named later
        if self._late_outcomes:
            self._published_sessions.poll()
        late, self._late_outcomes = self._late_outcomes, []
        for outcome in late:
            if turn_ids := self._published_sessions.before(outcome.key, outcome.session_id, outcome.created_at):
                self._late_ratings.append(replace(outcome, feedback_id=_late_id(outcome), turn_ids=turn_ids))
        self._store_late_ratings()

    def _read_once(self) -> None:
        """Add all appended lines. Exchanges that waited before are then sure: a parent was written earlier, so it has been read."""
        sessions = self._sessions
        before = sessions.waiting.pop_all()
        stream = heapq.merge(map(self._arrived, self._captures.read()), before, key=_time)
        while batch := list(itertools.islice(stream, BATCH)):
            for arrived in batch:
                self._add(arrived, False)
            if len(sessions.waiting) > MAX_UNSURE:
                for number, arrived in enumerate(sessions.waiting.pop_all()):
                    self._add(arrived, number < MAX_UNSURE // 2)
            # Trees that had timed out by then end
            sessions.tick(min(self._clocks.now(), *map(_time, sessions.waiting), _time(batch[-1])))
            self._exchanges += len(batch)
            self._pop_closed()
            if self._stop.is_set():
                return  # unread lines stay in the captures
        self._exchanges -= len(before)
        waited = {arrived.exchange.exchange_id for arrived in before}
        for arrived in sessions.waiting.pop_all():
            self._add(arrived, arrived.exchange.exchange_id in waited)

    def _add(self, arrived: ArrivedExchange, sure: bool) -> None:
        self._sessions.add(arrived.exchange, sure, arrived.clock_offset, arrived.writer)

    def _arrived(self, captured: Captured) -> ArrivedExchange:
        self._position.read(captured)
        if self._edits is not None:
            self._edits.add(captured.exchange)
        clock_offset = self._clocks.offset_of(captured.file, captured.exchange.finished_at)
        return ArrivedExchange(captured.exchange, captured.file.rpartition("-")[0], clock_offset)

    def _pop_closed(self) -> None:
        edited = () if self._edits is None else self._edits.pop_due(time.time())
        self._late_ratings += [
            rating for rating in (*self._sessions.pop_late_ratings(), *edited) if rating.feedback_id not in self._stored_ratings
        ]
        self._store_late_ratings()
        rows = self._sessions.pop_rows()
        self._emitted += len(rows)
        self._position.ended(self._sessions.pop_ended(), self._emitted)
        self._waiting += rows
        while len(self._waiting) >= self._settings.shard_turns and self._publish():
            pass
        self._publish_due()

    def _store_late_ratings(self) -> None:
        """Append late ratings from requests to the feedback file. If the request is read again, its rating is found there."""
        while self._late_ratings:
            try:
                self._own_feedback.append(self._late_ratings[0])
            except OSError as error:
                if not self._rating_write_failed:
                    log.error("%d ratings from requests wait because the disk is full: %s", len(self._late_ratings), error)
                self._rating_write_failed = True
                return
            self._late_ratings.pop(0)
            self._rating_write_failed = False

    def _publish_due(self) -> None:
        """Publish the waiting rows, unless a shard was published a short time ago. A single turn thus waits for no others."""
        if self._waiting and time.monotonic() - self._published_at >= self._settings.shard_age_s:
            while self._waiting and self._publish():
                pass

    def close(self) -> None:
        """Publish complete turns, whatever their age. Incomplete turns stay in the captures for the next run."""
        while self._waiting and self._publish():
            pass
        self._save()
        self.report()
        if self._waiting:
            problem = f"{len(self._waiting)} complete turns could not be written to {self._run.trajectories}"
            raise ClawError(
                problem, "free some space or check the log, then run `clawctl collect --once`; the turns are still in captures/"
            )

    def _publish(self) -> bool:
        """Write one shard. Returns False if the disk refuses: the rows wait, and the next poll tries again."""
        if self._unwritten_shard is None:
            rows = self._waiting[: _whole_episodes(self._waiting, self._settings.shard_turns)]
            self._unwritten_shard = new_stem(self._last_stem, storage_of(self._run.root).host), rows
        # A shard that may have been published, although the response was lost, is published again under the same name
        stem, rows = self._unwritten_shard
        try:
            write_turns(self._run.turn_shard(stem), rows, self._origin)
        except OSError as error:
            if not self._write_failed:
                log.error("cannot write trajectories, %d turns are waiting: %s", len(self._waiting), error)
            self._write_failed = True
            return False
        if self._write_failed:
            log.warning("the disk has space again: trajectories are written")
        self._write_failed, self._unwritten_shard = False, None
        self._last_stem = stem
        self._position.shard(stem, (row.turn_id for row in rows))
        self._waiting = self._waiting[len(rows) :]
        self._published_at = time.monotonic()
        self._rows += len(rows)
        self._published += len(rows)
        self._shards += 1
        return True

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        try:
            self._position.save(self._captures.offsets, self._published, self._sessions.open_turns)
        except OSError as error:
            log.error("cannot write collect.json, so a restart will read more captures: %s", error)
            return
        if time.monotonic() - self._upkeep_at >= UPKEEP_S:
            self._upkeep_at = time.monotonic()
            try:
                self._upkeep.work(self._position)
            except OSError as error:
                log.error("cannot merge shards, retrying in a minute: %s", error)

    def report(self) -> None:
        """Log the progress as counts."""
        seconds = max(time.monotonic() - self._reported_at, 1e-9)
        rate = (self._exchanges - self._reported) / seconds
        line = "%d exchanges read (%.1f/s), %d turns published in %d shards, %d open, %d lines quarantined"
        log.info(line, self._exchanges, rate, self._rows, self._shards, self._sessions.open_turns, self._captures.quarantined)
        self._reported, self._reported_at = self._exchanges, time.monotonic()


def _time(arrived: ArrivedExchange) -> float:
    return arrived.time


def _whole_episodes(rows: list[Turn], limit: int) -> int:
    """Return how many of the first rows go into a shard: `limit`, plus the rest of the last row's episode, which is adjacent."""
    count = min(limit, len(rows))
    while 0 < count < len(rows) and rows[count].episode is not None and rows[count].session_id == rows[count - 1].session_id:
        count += 1
    return count


def _late_id(outcome: SessionOutcome) -> str:
    """Return the id of the line that names the published turns that an outcome concerns."""
    return f"late-{outcome.feedback_id}"


def remove_leftovers(run: RunDir) -> None:
    """Remove files that a killed collect worker left incomplete. Only one collect worker runs at a time.

    Imports and custom rollouts also write here at any time. Their drafts have other names, and `open_run` removes those once they
    are a day old.
    """
    for path in run.trajectories.glob(".*.tmp"):
        if OWN_DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _published(run: RunDir, after: str) -> dict[str, str | None]:
    """Return the published turns in shards after the stem `after`, with their parents.

    An unreadable shard is quarantined, and its turns are published again.
    """
    parents: dict[str, str | None] = {}
    for path in published(run.trajectories, ".parquet"):
        if path.stem <= after:
            continue
        try:
            parents.update(read_parents(path))
        except UnreadableShard as error:
            quarantine(run, path, str(error))
            log.warning("quarantined an unreadable shard; its turns will be published again: %s", error)
    return parents
