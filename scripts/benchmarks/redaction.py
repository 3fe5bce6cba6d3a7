"""Measures the recall, the false positives and the cost of redaction.

The data are 500 labelled lines (`labelled_lines.py`) and the lines of five parts of templates (`labelled_templates.py`). The rules
were changed after failures in all five parts. The authors of the parts `seen`, `seen second` and `fresh` had not read the rules, so
the first run of each is the unbiased result, which NOTES.md records. For comparison, detect-secrets reads the same lines
with all its own detectors. It is part of the extra `test`, and is skipped if it is not installed.

A secret counts as found if no part of it longer than 4 characters is left. A secret of 5 characters or fewer counts as found if it
is not left whole. Other text of the line does not count. The cost is processor time on conversations as agents send them, with the
whole history in each turn.
"""

import random
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import PrivacyConfig
from clawctl.privacy.finders import KINDS, Kind
from clawctl.privacy.redaction import Redactor
from scripts.benchmarks import conversations
from scripts.benchmarks.labelled_lines import Line, labelled_lines
from scripts.benchmarks.labelled_templates import FRESH, HALVES, SEEN, SEEN_SECOND, lines_of
from scripts.benchmarks.table import Row, arguments, report

_DEFAULT = PrivacyConfig().redact
_SEEDS = 5
_REPEATS = 20  # of a conversation that was seen before


def rates(case: str, lines: Iterable[Line], leaves: Callable[[Line], bool], touches: Callable[[Line], bool]) -> list[Row]:
    """Return the rates of a case. `leaves`: part of the line's secret is left. `touches`: something was found in the line."""
    lines = list(lines)
    secret = [line for line in lines if line.secret is not None]
    harmless = [line for line in lines if line.secret is None]
    return [
        Row(case, "recall", sum(not leaves(line) for line in secret) / len(secret), "share"),
        Row(case, "false_positive_rate", sum(map(touches, harmless)) / len(harmless), "share"),
        Row(case, "lines", len(lines), "lines"),
    ]


def rest_of(secret: str, redacted: str, line: str = "") -> str:
    """Return the longest prefix or suffix of `secret` that is still in `redacted`.

    Secrets of five characters or fewer, such as PINs, count only as a whole.

    `line` is the text before redaction. A piece that also occurs outside the secret (`github` of `github_pat_…` next to
    `github.com`) counts only if `redacted` contains it more often than the text outside the secret.
    """
    outside = line.replace(secret, "\0")
    shortest = min(5, len(secret))
    pieces = (secret[:length] for length in range(len(secret), shortest - 1, -1))
    tails = (secret[-length:] for length in range(len(secret), shortest - 1, -1))

    def is_left(piece: str) -> bool:
        return redacted.count(piece) > outside.count(piece)

    return max((next(filter(is_left, some), "") for some in (pieces, tails)), key=len)


def our_rows(lines: list[Line], case: str = "clawctl") -> list[Row]:
    redactor = Redactor(_DEFAULT)
    left = {line.text: redactor.text(line.text) for line in lines}
    return rates(
        case,
        lines,
        lambda line: bool(rest_of(str(line.secret), left[line.text], line.text)),
        lambda line: left[line.text] != line.text,
    )


def peer_rows(lines: list[Line], case: str = "detect-secrets") -> list[Row]:
    """Measure detect-secrets with all its detectors, as `detect-secrets scan` reads a file, without verification by services."""
    if find_spec("detect_secrets") is None:
        return []
    from detect_secrets.core.scan import scan_file
    from detect_secrets.settings import default_settings

    failures: dict[str, list[str]] = {}
    with default_settings(), tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(lines):
            path = Path(folder) / f"{number}.txt"
            path.write_text(line.text + "\n")
            failures[line.text] = [secret.secret_value or "" for secret in scan_file(str(path))]

    def leaves(line: Line) -> bool:
        text = line.text
        for value in filter(None, failures[line.text]):
            text = text.replace(value, "*")
        return bool(rest_of(str(line.secret), text, line.text))

    return rates(case, lines, leaves, lambda line: bool(failures[line.text]))


def half_rows(rounds: int, seed: int) -> list[Row]:
    """Fill all templates `rounds` times. Returns the rates of clawctl and detect-secrets, and clawctl's over both halves."""
    halves = {half: lines_of(half, rounds, seed) for half in HALVES}
    rows = []
    for half, lines in (halves | {part: lines_of(part, rounds, seed) for part in (SEEN, SEEN_SECOND, FRESH)}).items():
        rows += our_rows(lines, half.replace("_", " "))
        rows += peer_rows(lines_of(half, 1, seed), f"detect-secrets, {half.replace('_', ' ')}")
    return rows + our_rows([line for lines in halves.values() for line in lines], "both halves")


def recorded_rows() -> list[Row]:
    """Redact recorded requests of agents (`tests/recordings`), which contain no secret. Every finding is a false positive."""
    redactor, size, spots = Redactor(_DEFAULT), 0, 0
    for path in sorted((Path(__file__).parents[2] / "tests" / "recordings").rglob("*.json")):
        text = path.read_text()
        said = orjson.loads(text)
        size += len(text)
        spots += len(redactor.spans(text)) + (redactor.value(said) != said)
    return [Row("recorded agents", "false_positives", spots, "spots"), Row("recorded agents", "mb", size / 1e6, "MB")]


def code_rows(max_bytes: int) -> list[Row]:
    """Redact Python's standard library, which contains no secret. Every finding is a false positive."""
    redactor, size, spots = Redactor(_DEFAULT), 0, 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py")):
        if "test" not in path.parent.name and size < max_bytes:
            text = path.read_text(errors="replace")
            size += len(text.encode())
            spots += len(redactor.spans(text))
    return [
        Row("Python's library", "false_positives_per_mb", spots / (size / 1e6), "spots"),
        Row("Python's library", "mb", size / 1e6, "MB"),
    ]


def conversation(turns: int, draw: random.Random) -> list[dict[str, Any]]:
    """Make an agent's history: prose, code and logs with a few secrets."""
    source = (Path(__file__).parent / "table.py").read_text() + (Path(__file__).parents[2] / "README.md").read_text()
    lines = labelled_lines(100, seed=1)
    messages: list[dict[str, Any]] = [{"role": "system", "content": source * 2}]
    for turn in range(turns):
        at = draw.randrange(len(source) - 2000)
        said = source[at : at + 2000] + (draw.choice(lines).text if turn % 8 == 0 else "")
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": source[at : at + 1000]}]
    return messages


def cost_rows(rounds: int) -> list[Row]:
    """Measure new text, and a history that grows by two messages per turn. The history counts whole, as it is written whole."""
    draw = random.Random(0)
    fresh, again, seen = [], [], []
    alone: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        messages = conversation(20, draw)
        size = sum(len(message["content"].encode()) for message in messages) / 1024
        redactor = Redactor(_DEFAULT)
        began = time.process_time()
        for message in messages:
            redactor.value(message)
        fresh.append((time.process_time() - began) / size * 1e6)
        for kind in KINDS:
            alone[kind].append(_cost_of("\n".join(message["content"] for message in messages), kind))
        redactor, written, began = Redactor(_DEFAULT), 0.0, time.process_time()
        for turn in range(1, len(messages), 2):
            redactor.messages(messages[: turn + 1])
            written += sum(len(message["content"].encode()) for message in messages[: turn + 1]) / 1024
        again.append((time.process_time() - began) / written * 1e6)
        began = time.process_time()
        for _ in range(_REPEATS):
            redactor.messages(messages)
        seen.append((time.process_time() - began) / _REPEATS / size * 1e6)
    return [
        Row("new text", "cpu_us_per_kb", min(fresh), "us"),
        Row("20-turn session", "cpu_us_per_kb", min(again), "us"),
        Row("text seen before", "cpu_us_per_kb", min(seen), "us"),
        *(Row(f"new text, {kind} alone", "cpu_us_per_kb", min(costs), "us") for kind, costs in alone.items()),
        Row("hostile text", "cpu_us_per_kb", max(map(_cost_of, _hostile())), "us"),
    ]


def _hostile() -> list[str]:
    """Make texts of 64 KiB that are hard for regular expressions: they nearly match at every position."""
    seeds = ["pass", "password: ", "4111 ", "eyJ.", "-----BEGIN ", "://a:", "sk-", "token=\\\\\\", "curl -", "--", "a@b.", "+1 "]
    seeds += ["aws key '", "{" * 8, "key is ", "-----BEGIN PRIVATE KEY-----" + "A" * 100]
    return [seed * ((64 << 10) // len(seed)) for seed in seeds]


def _cost_of(text: str, *kinds: Kind) -> float:
    redactor = Redactor(kinds or KINDS)
    began = time.process_time()
    redactor.value(text)
    return (time.process_time() - began) / (len(text) / 1024) * 1e6


def main() -> None:
    options = arguments(__doc__ or "")
    lines = labelled_lines(500, seed=0)
    rows = our_rows(lines) + peer_rows(lines)
    other = [line for seed in range(1, 2 if options.quick else _SEEDS) for line in labelled_lines(500, seed=seed)]
    rows += [Row("clawctl, other seeds", row.metric, row.value, row.unit) for row in our_rows(other)]
    rows += half_rows(1 if options.quick else 10, seed=0) + recorded_rows()
    rows += code_rows((2 if options.quick else 8) << 20)
    rows += conversations.rows(200 if options.quick else 2000)
    rows += cost_rows(2 if options.quick else 40)  # the least counts, because other work evicts the caches
    report("redaction", rows, options.json)


if __name__ == "__main__":
    main()
