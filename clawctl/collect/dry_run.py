"""`collect --dry-run` and `import --dry-run`: show which turns would be trained and why others would not. Nothing is written."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from rich.text import Text

from clawctl.collect.canonical import text_of
from clawctl.collect.captures import BadLine, parse_exchange
from clawctl.collect.imports import read_turns_of
from clawctl.collect.sessions import Sessions
from clawctl.config import CollectConfig, Recipe
from clawctl.cut_calls import Decode
from clawctl.printing import Column, answers, counted, fitting, labelled, one_line, plain
from clawctl.run.directory import RunDir
from clawctl.run.feedback import Ratings
from clawctl.run.holdout import Holdout, read_holdout
from clawctl.run.lines import Lines
from clawctl.run.model_files import IdReader
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.rows import Exchange, Turn

WILL = "trained, if the verdict has a reward or a hint"
WILL_AS_TEXT = "scored and trained by the trainer's model (text only), if the verdict has a reward or a hint"
OPEN = "open: waits for its next state"


def dry_run(run: RunDir | None, settings: Recipe, file: Path | None, rating: float | None, samples: int, as_json: bool) -> None:
    """Print how many turns would be trained, why the others would not, and some turns of each kind.

    The turns come from all captures of `run` or from `file`. A running collect worker is not disturbed.
    """
    still_open: set[str] = set()
    turns, bad = list[Turn](), 0
    if file is not None:
        turns, bad = read_turns_of(file, rating, settings.privacy), 0
    elif run is not None:
        turns, bad, still_open = stitch_all(
            run, settings.collect, time.time(), IdReader(settings.model_path), read_holdout(run, settings.eval.holdout)
        )
    fates = {turn.turn_id: fate(turn, turn.turn_id in still_open) for turn in turns}
    counts = Counter(fates.values())
    shown = [describe(turn, fates[turn.turn_id]) for turn in pick(turns, fates, samples)]
    if as_json:
        report = {"turns": len(turns), "unreadable_lines": bad, "fates": dict(counts.most_common()), "samples": shown}
        sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    print_tables(counts, shown, bad)


def stitch_all(
    run: RunDir, settings: CollectConfig, now: float, decode: Decode | None = None, holdout: Holdout | None = None
) -> tuple[list[Turn], int, set[str]]:
    """Return all turns that the captures yield, the number of unreadable lines, and the ids of the turns that are still open."""
    sessions, bad = Sessions(settings.session_timeout_s, decode=decode, holdout=holdout), 0
    for feedback in Ratings(run).read():
        if not isinstance(feedback, SessionOutcome):
            sessions.rate(feedback)
        elif feedback.turn_ids is None:
            sessions.note(feedback)
    exchanges: list[Exchange] = []
    for exchange in _exchanges(run):
        if exchange is None:
            bad += 1
        else:
            exchanges.append(exchange)
    for exchange in sorted(exchanges, key=lambda exchange: exchange.finished_at):
        sessions.add(exchange)
    sessions.tick(now)
    sessions.end_episodes()
    closed = sessions.pop_rows()
    sessions.tick(float("inf"))
    still_open = sessions.pop_rows()
    return closed + still_open, bad, {turn.turn_id for turn in still_open}


def _exchanges(run: RunDir) -> Iterator[Exchange | None]:
    lines = Lines(run.captures)
    for path in lines.grown():
        for _, line in lines.read(path):
            try:
                yield parse_exchange(line)
            except BadLine:
                yield None


def fate(turn: Turn, is_open: bool) -> str:
    """Return the expected result for a turn, as text."""
    if is_open:
        return OPEN
    if turn.judged:
        return WILL if turn.trainable else WILL_AS_TEXT
    return turn.untrainable_reason or WILL


def pick(turns: list[Turn], fates: dict[str, str], samples: int) -> list[Turn]:
    """Return up to `samples` turns, chosen in rounds: the newest of each fate, then the next newest of each, and so on."""
    kinds: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        kinds[fates[turn.turn_id]].append(turn)
    rounds = sorted((position, name) for name, of_kind in kinds.items() for position in range(min(len(of_kind), samples)))
    chosen = [kinds[name][-1 - position] for position, name in rounds[:samples]]
    return sorted(chosen, key=lambda turn: (fates[turn.turn_id], turn.session_id, turn.turn_index))


def describe(turn: Turn, fate: str) -> dict[str, Any]:
    request = next((message for message in reversed(turn.messages) if message.get("role") != "system"), {})
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "turn_index": turn.turn_index,
        "kind": turn.kind,
        "fate": fate,
        "asked": text_of(request.get("content")),
        "answered": _answer(turn),
        "came_back": None if turn.next_state is None else [text_of(message.get("content")) for message in turn.next_state],
        "feedback": turn.feedback,
        "tokens": None if turn.prompt_ids is None else len(turn.prompt_ids) + len(turn.completion_ids or []),
    }


def _answer(turn: Turn) -> str | None:
    if turn.response is None:
        return None
    tool_calls = (call for call in turn.response.get("tool_calls") or [] if isinstance(call, dict))
    calls = [str((call.get("function") or {}).get("name")) for call in tool_calls]
    return text_of(turn.response.get("content")) + "".join(f" [calls {name}]" for name in calls)


def print_tables(counts: Counter[str], shown: list[dict[str, Any]], bad: int) -> None:
    page = answers()
    rows = [*counts.most_common(), *([("(lines that cannot be read)", bad)] if bad else [])]
    columns = (Column("result"), Column("turns", right=True))
    cells = [[one_line(name, 100), Text(str(count))] for name, count in rows]
    page.print(fitting(counted(counts.total(), "turn"), columns, cells, page.width))
    for turn in shown:
        next_state = " | ".join(turn["came_back"] or []) if turn["came_back"] is not None else "(nothing)"
        if turn["feedback"] is not None:
            next_state = f"rated {turn['feedback']:g} {next_state}"
        head = Text.assemble("\n", (plain(turn["turn_id"], 8), "bold"), "  ", one_line(turn["session_id"], 40))
        fields = [("asked", turn["asked"]), ("answered", turn["answered"] or "(nothing)"), ("came back", next_state)]
        page.print(head, *labelled([("turn", f"{turn['turn_index']} · {turn['fate']}"), *fields], page.width), sep="\n")
