"""The counts of the turns that a trainer read, by result: `train/feed.json` for `inspect`, and one line for the log."""

import logging
from typing import Any

import orjson

from clawctl.config import TrainConfig
from clawctl.run.directory import RunDir, publish_bytes

log = logging.getLogger("clawctl.train")

Counts = dict[str, Any]


class CountsFile:
    """The counts file. It is written only when something changed."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.feed_counts
        self._written: bytes = b""

    def write(self, counts: Counts) -> None:
        text = orjson.dumps(counts, option=orjson.OPT_INDENT_2)
        if text != self._written:
            try:
                publish_bytes(self._path, text)
            except OSError as error:  # only counts: written again when they change
                log.error("cannot write train/feed.json, so `inspect` shows old counts: %s", error)
            self._written = text


def summary_line(counts: Counts, config: TrainConfig) -> str:
    """Return the number of trained, waiting and refused turns, with reasons."""
    fewest = min(config.batch_min_turns, config.batch_turns)
    needed = f" (a step needs {config.batch_turns}, or {fewest} after {config.batch_wait_s:g} s)" if counts["waiting"] else ""
    refused = ", ".join(f"{reason} {count}" for reason, count in counts["refused"].items())
    text = f"{counts['used']} turns trained so far, {counts['skipped']} skipped, {counts['waiting']} waiting{needed}"
    return text + (f"; refused: {refused}" if refused else "")
