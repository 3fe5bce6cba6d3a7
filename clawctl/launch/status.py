"""The terminal view of `clawctl up`, shown instead of its log: the stages, each with its last line, and the state of the run."""

import re
import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clawctl.printing import counted, one_line
from clawctl.process import hidden
from clawctl.run.checksums import read_object
from clawctl.run.directory import RunDir
from clawctl.run.policies import list_versions, readable_live
from clawctl.run.progress import Progress, read_progress

_ORDINARY = re.compile(r"\d\d:\d\d:\d\d [DI] ")  # a log line that is neither a warning nor an error
_PER_SECOND = 2


class StageState(Protocol):
    """The state of a stage, as its supervisor provides it."""

    stage: str
    starts: int  # number of starts
    began: float  # time of its last start, from `time.monotonic`
    finished: bool

    @property
    def runs(self) -> bool: ...


class LiveStatus:
    """A table that redraws itself in place. Warnings, errors, and keys that are shown once, are printed above it."""

    def __init__(self, run: RunDir, console: Console | None = None) -> None:
        self._run, self._last = run, dict[str, str]()
        self._stages: Sequence[StageState] = ()
        self.console = Console(highlight=False) if console is None else console
        self._live = Live(console=self.console, get_renderable=self.draw, refresh_per_second=_PER_SECOND, redirect_stdout=False)

    def follow(self, stages: Sequence[StageState]) -> Live:
        """The context in which the table is shown."""
        self._stages = stages
        return self._live

    def take_line(self, stage: str, text: str) -> None:
        """Record a line of a stage."""
        self._last[stage] = text
        if stage not in ("up", "page") and (not _ORDINARY.match(text) or hidden(text) != text):
            self.console.print(Text(f"{stage:>8} | ", style="bold") + Text(text), soft_wrap=True)

    def draw(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
        for heading in ("stage", "state", "for", "starts"):
            table.add_column(heading, no_wrap=True, justify="right" if heading in ("for", "starts") else "left")
        table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
        for job in self._stages:
            state = Text("● running", "green") if job.runs else Text("done", "dim") if job.finished else Text("○ waiting", "yellow")
            age = _lasted(time.monotonic() - job.began) if job.runs else ""
            last = one_line(hidden(_ORDINARY.sub("", self._last.get(job.stage, ""))), 300)
            progress = read_progress(self._run) if job.runs and job.stage == "train" else None
            table.add_row(job.stage, state, age, str(job.starts), last if progress is None else _bar(progress))
        of_up, end = self._last.get("up", ""), f"Ctrl-C stops all stages; the log is {self._run.log('up')}"
        return Group(Text(""), one_line(facts_of_run(self._run), 400), table, one_line(f"up: {of_up}", 300), Text(end, "dim"))


def facts_of_run(run: RunDir) -> str:
    """The server's address, the versions, and the waiting turns, as far as they are recorded on disk."""
    live, newest = readable_live(run), max(list_versions(run), default=None) if run.policies.exists() else None
    url = (read_object(run.server) or {}).get("url")
    feed, position = read_object(run.feed_counts) or {}, read_object(run.position) or {}
    parts = [str(url)] if url else []
    parts.append("no version is live" if live is None else f"version {live} is live")
    parts += [f"{newest} is the newest"] if newest not in (None, live) else []
    still_open = position.get("open")
    if isinstance(still_open, dict) and isinstance(still_open.get("turns"), int):
        parts.append(f"{counted(still_open['turns'], 'turn')} in open sessions")
    if isinstance(feed.get("waiting"), int):
        parts.append(f"{feed['waiting']} wait for the trainer, {feed.get('used', 0)} trained")
    return " · ".join(parts)


def _bar(progress: Progress) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(progress.of, progress.microbatch - 1, width=20), one_line(str(progress), 120))
    return row


def _lasted(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
