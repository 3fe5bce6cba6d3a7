"""`clawctl collect`: follow captures, stitch sessions, publish trajectories.

Nothing is kept but what is published: a restart reads the ids of all published turns, rebuilds the sessions from the captures, and
publishes what is not there yet. So a SIGKILL at any moment loses no turn and publishes none twice.
"""

import heapq
import itertools
import logging
import secrets
import threading
import time

from clawctl.collect.captures import Captures
from clawctl.collect.sessions import Sessions
from clawctl.config import CollectConfig, Recipe
from clawctl.errors import ClawError
from clawctl.process import stop_on_signals
from clawctl.run_dir import RunDir, changes, published, quarantine, sole_worker
from clawctl.shards import UNKNOWN, Origin, UnreadableShard, read_turn_ids, write_turns
from clawctl.tokenizer_files import tokenizer_fingerprint
from clawctl.types import Exchange, Turn

log = logging.getLogger(__name__)

BATCH = 256  # exchanges between two looks at the shard limits
MOST_UNSURE = 1024  # exchanges held back for a parent that may still be read
REPORT_S = 10.0


def collect(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Work until told to stop; with `once` until all that is complete is published. Incomplete turns wait for the next run."""
    stop = stop_on_signals()
    settings = recipe.collect
    with sole_worker(run, "collect"):
        origin = Origin(recipe.model.path, tokenizer_fingerprint(recipe.model_path))
        collector = Collector(run, settings, stop, origin)
        collector.look()
        if not once:
            for _ in changes([run.captures], stop, poll_s=min(1.0, max(0.05, settings.shard_age_s / 4))):
                collector.look()
        collector.close()


class Collector:
    """The one collect worker of a run: sessions in memory, complete rows waiting for their shard."""

    def __init__(self, run: RunDir, settings: CollectConfig, stop: threading.Event, origin: Origin = UNKNOWN) -> None:
        self._run, self._settings, self._stop, self._origin = run, settings, stop, origin
        _sweep(run)
        self._captures = Captures(run)
        self._sessions = Sessions(settings.session_timeout_s, _published_ids(run))
        self._waiting: list[Turn] = []
        self._waiting_since = 0.0
        self._refused = False  # by the disk
        self._exchanges, self._rows, self._shards = 0, 0, 0
        self._reported, self._reported_at = 0, time.monotonic()

    def look(self) -> None:
        """Read what was appended, close what is complete or too old, and publish what is due."""
        self._read_once()
        for _ in range(3):  # a child that was read before its parent finds it at the next reading, at the latest
            if not self._sessions.unsure:
                break
            self._read_once()
        self._sessions.tick(time.time())
        self._take()
        if time.monotonic() - self._reported_at >= REPORT_S and self._exchanges > self._reported:
            self.report()

    def _read_once(self) -> None:
        """Add all that was appended. What was unsure before is sure after it: its parent was written, so it has been read now."""
        sessions = self._sessions
        before, sessions.unsure = sessions.unsure, []
        stream = heapq.merge(self._captures.read(), sorted(before, key=_time), key=_time)
        while batch := list(itertools.islice(stream, BATCH)):
            for exchange in batch:
                sessions.add(exchange, sure=False)
            while len(sessions.unsure) > MOST_UNSURE:
                sessions.add(sessions.unsure.pop(0))
            now = min(time.time(), *map(_time, sessions.unsure), batch[-1].created_at)
            sessions.tick(now)  # catching up: what was over by then is over
            self._exchanges += len(batch)
            self._take()
            if self._stop.is_set():
                return  # what was not read yet stays in the captures
        self._exchanges -= len(before)
        waited = {exchange.exchange_id for exchange in before}
        still, sessions.unsure = sessions.unsure, []
        for exchange in still:
            sessions.add(exchange, sure=exchange.exchange_id in waited)

    def _take(self) -> None:
        rows = self._sessions.take_rows()
        if rows and not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting += rows
        while len(self._waiting) >= self._settings.shard_turns and self._publish():
            pass
        self._publish_due()

    def _publish_due(self) -> None:
        """Publish the rows that wait if the oldest has waited long enough."""
        if self._waiting and time.monotonic() - self._waiting_since >= self._settings.shard_age_s:
            while self._waiting and self._publish():
                pass

    def close(self) -> None:
        """Publish what is complete, whatever its age. Incomplete turns stay in the captures for the next run."""
        while self._waiting and self._publish():
            pass
        self.report()
        if self._waiting:
            problem = f"{len(self._waiting)} complete turns could not be written to {self._run.trajectories}"
            raise ClawError(problem, "make room or see the log, then run `clawctl collect --once`; they are still in captures/")

    def _publish(self) -> bool:
        """Write one shard. False if the disk refuses: the rows wait, and the next look tries again."""
        rows = self._waiting[: self._settings.shard_turns]
        try:
            write_turns(self._run.trajectories / f"{time.time_ns():020d}-{secrets.token_hex(3)}.parquet", rows, self._origin)
        except OSError as error:
            if not self._refused:
                log.error("cannot write trajectories, %d turns wait: %s", len(self._waiting), error)
            self._refused = True
            return False
        self._refused = False
        self._waiting = self._waiting[len(rows) :]
        self._waiting_since = time.monotonic()
        self._rows += len(rows)
        self._shards += 1
        return True

    def report(self) -> None:
        """Say how far we are: counts only."""
        seconds = max(time.monotonic() - self._reported_at, 1e-9)
        rate = (self._exchanges - self._reported) / seconds
        line = "%d exchanges read (%.1f/s), %d turns published in %d shards, %d open, %d lines put aside"
        log.info(line, self._exchanges, rate, self._rows, self._shards, self._sessions.open_turns, self._captures.quarantined)
        self._reported, self._reported_at = self._exchanges, time.monotonic()


def _time(exchange: Exchange) -> float:
    return exchange.created_at


def _sweep(run: RunDir) -> None:
    """Remove what a killed worker left half written: we are the only one who writes here."""
    for path in run.trajectories.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _published_ids(run: RunDir) -> set[str]:
    """The turns that have their row. A shard that cannot be read is put aside, and its turns are published again."""
    found: set[str] = set()
    for path in published(run.trajectories, ".parquet"):
        try:
            found.update(read_turn_ids(path))
        except UnreadableShard as error:
            quarantine(run, path, str(error))
            log.warning("put aside an unreadable shard, its turns will be published again: %s", error)
    return found
