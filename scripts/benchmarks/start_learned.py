"""The commands between the installation and "it has learned what I said": `clawctl start`, and a conversation in `clawctl chat`."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from scripts.benchmarks.table import Row

# What a person types into the chat: a dozen requests, as the demo has, and a wish.
SAID = (
    "How do I make a cup of tea?",
    "What should I pack for a weekend in the mountains?",
    "Why is the sky blue?",
    "How can I sleep better at night?",
    "What is a good name for a cat?",
    "How do I remove a coffee stain from a shirt?",
    "What can I cook with potatoes and eggs?",
    "How do I start running?",
    "Why do cats purr?",
    "What should I give my mother for her birthday?",
    "How do I water a cactus?",
    "What is the difference between weather and climate?",
    "/remember Answer in one short sentence.",
)
_PATIENCE_S = 2400.0


def learned_rows(clawctl: str, run: Path, is_ready: Callable[[Path], bool]) -> Iterator[Row]:
    """Start `smollm2`, talk, say a wish once, and wait until the run says that it is learned."""
    began, log = time.monotonic(), run.with_suffix(".log")
    start = [clawctl, "start", "--model", "smollm2", "--agent", "none", "--run", str(run), "--no-open", "--page-port", "0"]
    chat = [clawctl, "chat", "--run", str(run)]
    with log.open("wb") as output, subprocess.Popen(start, stdout=output, stderr=output) as process:
        try:
            _wait(lambda: is_ready(run), process, log)
            subprocess.run(chat, input="\n".join(SAID).encode(), check=True, stdout=output)
            said = time.monotonic()
            _wait(lambda: _note(clawctl, run)["state"] not in ("new", "prompted", "practised"), process, log)
            now, note = time.monotonic(), _note(clawctl, run)
        finally:
            process.terminate()
    if note["state"] != "learned":
        raise SystemExit(f"the wish was not learned: {note['state']}, {note['reason']}")
    yield Row("learned", "commands", float(len([start, chat])), "commands")
    yield Row("learned", "learned_s", now - began, "s")
    yield Row("learned", "after_the_wish_s", now - said, "s")
    yield Row("learned", "followed_without_it", dict(note["followed"])[note["learned"]], "of told")


def _note(clawctl: str, run: Path) -> dict[str, Any]:
    output = subprocess.run([clawctl, "notes", "list", "--run", str(run), "--json"], check=True, stdout=subprocess.PIPE).stdout
    return next(iter(orjson.loads(output)["notes"]))


def _wait(is_done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"clawctl start got no further: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(1)
