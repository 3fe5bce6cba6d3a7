"""Data for the pages: counts, lists, and turns as a conversation."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clawctl.inspect.better import rates
from clawctl.inspect.joined import Row, Rows
from clawctl.inspect.policies import comparisons
from clawctl.inspect.report import examples_of, scores_of
from clawctl.inspect.rows import message_text
from clawctl.inspect.web.filters import agreement, complaints, fate, opinion, outcome_of, uncertainty, votes_of
from clawctl.inspect.web.followed_run import RunSnapshot
from clawctl.inspect.web.text_search import request_of
from clawctl.run.reward import signs

_LINE_BYTES = 4096  # of the end of a log


def prepare(snapshot: RunSnapshot) -> None:
    """Compute the data for the first page of each section in advance. With 100,000 turns, a page must not wait for it."""
    for name, make in _DERIVED.items():
        snapshot.once((snapshot.policy, name), partial(make, snapshot))


def _judged(snapshot: RunSnapshot) -> Rows:
    return snapshot.own_rows.where(lambda row: row.turn["kind"] == "main" and row.worth.value is not None)


def _totals(snapshot: RunSnapshot) -> dict[str, Any]:
    """The policy's turns, conversations, trained turns, and turns by the sign of their value."""
    rows = snapshot.own_rows
    return {
        "turns": len(rows),
        "sessions": rows.sessions(),
        "trained": len(rows.where(lambda row: row.step is not None)),
        "signs": signs(rows.tally(lambda row: row.worth.value).elements()),
    }


def marks_of(snapshot: RunSnapshot, buckets: Sequence[Any]) -> list[dict[str, Any]]:
    """Each move of LIVE within the time span of a chart, and each version that was made in it and never went live."""
    if not buckets:
        return []
    begin, end, lived = buckets[0].begin, buckets[-1].end, {move["to"] for move in snapshot.moves}
    marks = [(move["at"], f"v{move['to']}") for move in snapshot.moves]
    marks += [(row["created_at"], f"(v{row['version']})") for row in snapshot.policies if row["version"] not in lived]
    return [{"x": at, "label": label} for at, label in sorted(marks) if begin <= at <= end][-40:]


def last_line(log: Path) -> str:
    """The end of a stage's log, without the time. Empty if the stage has logged nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LINE_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return re.sub(r"^[\d:]+ \w \S+: ", "", next((line for line in reversed(lines) if line.strip()), ""))


def _choices(snapshot: RunSnapshot) -> dict[str, list[tuple[Any, int]]]:
    """The existing values for the filter's lists, with their counts."""
    users, fates = snapshot.rows.tally(lambda row: row.turn["user"]), snapshot.rows.tally(fate)
    versions = snapshot.own_rows.tally(lambda row: row.turn["policy_version"])
    del versions[None]
    return {"user": users.most_common(200), "version": sorted(versions.items(), reverse=True), "fate": fates.most_common(60)}


def as_conversation(rows: Sequence[Row], texts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns in reading order. A next state is omitted if the next turn on the page shows it as its request."""
    continued = {row.turn["parent_turn_id"] for row in rows}
    conversation = []
    for index, row in enumerate(rows):
        turn_id, text = row.turn["turn_id"], texts.get(row.turn["turn_id"])
        after = turn_id in continued
        before = row.turn["parent_turn_id"]
        messages = (text or {}).get("messages") or []
        conversation.append({
            "row": row,
            "missing": text is None,
            "asked": request_of(messages) if _is_root(messages) else _newest(messages),
            "roles": [str(message.get("role")) for message in messages if isinstance(message, dict)],
            "answer": message_text((text or {}).get("response")),
            "next": [
                (str(message.get("role")), message_text(message)) for message in (text or {}).get("next_state") or () if not after
            ],
            "came_back": bool((text or {}).get("next_state")),
            "forks": before is not None and not (index and rows[index - 1].turn["turn_id"] == before),
            "parent": before,
        })  # fmt: skip
    return conversation


def _is_root(messages: Sequence[Any]) -> bool:
    return not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _newest(messages: Sequence[Any]) -> str:
    """Everything after the last answer, which is what the turn responds to."""
    valid = [message for message in messages if isinstance(message, dict)]
    last = max((index for index, message in enumerate(valid) if message.get("role") == "assistant"), default=-1)
    after = valid[last + 1 :] or valid[-1:]
    return "\n\n".join(message_text(message) for message in after)


def moves_of(snapshot: RunSnapshot, version: int) -> list[dict[str, Any]]:
    return [move for move in snapshot.moves if version in (move["from"], move["to"])][::-1]


_ANSWERS = {
    "new": ("candidate_answer", "candidate", "new", "answer", "reply"),
    "old": ("reference_answer", "reference", "old", "live"),
}
_ASKED = ("prompt", "asked", "request", "messages", "conversation", "question")


def pairs_of(new: dict[str, Any], old: dict[str, Any], against: int) -> list[dict[str, Any]]:
    """Tasks that both versions answered, from the newer version's comparisons and from examples that both records contain."""
    pairs = []
    tasks = set()
    for comparison in comparisons(new):
        if comparison["against"] != against or comparison.get("task_id") in tasks:
            continue  # a task has one comparison per metric
        tasks.add(comparison.get("task_id"))
        detail = comparison.get("detail")
        if isinstance(detail, dict):
            sides = {side: next((detail[name] for name in names if name in detail), None) for side, names in _ANSWERS.items()}
            if None not in sides.values():
                request = next((detail[name] for name in _ASKED if name in detail), comparison.get("task_id"))
                score = {"new": [f"{comparison['candidate']:g}"], "old": [f"{comparison['reference']:g}"]}
                answers = {side: {"reply": _words(value), "scores": score[side]} for side, value in sides.items()}
                pairs.append({"task": str(comparison.get("task_id")), "asked": _words(request), **answers})
    earlier = examples_of(old)
    for task, example in examples_of(new).items():
        if task in earlier:
            answers = {
                side: {"reply": str(of.get("reply", "")), "scores": scores_of(of)}
                for side, of in (("new", example), ("old", earlier[task]))
            }
            pairs.append({"task": task, "asked": str(example.get("prompt", task)), **answers})
    return pairs


def _words(value: Any) -> str:
    """The text of a message or of several messages; other values as text."""
    if isinstance(value, dict) and ("content" in value or "tool_calls" in value):
        return message_text(value)
    return "\n\n".join(map(_words, value)) if isinstance(value, list) else str(value)


def _judge_numbers(snapshot: RunSnapshot) -> dict[str, Any]:
    judges: dict[str, Counter[str]] = {}
    judged = snapshot.rows.where(lambda row: row.verdict is not None and row.verdict["judge"] is not None)
    voted = judged.where(lambda row: row.verdict is not None and row.verdict["votes"])
    decided = judged.where(lambda row: row.verdict is not None and (row.verdict["votes"] or row.verdict["reward"] is not None))
    for (judge, word), count in decided.tally(lambda row: (row.verdict and row.verdict["judge"], opinion(row))).items():
        judges.setdefault(judge, Counter())[word] = count
    queue = voted.where(lambda row: uncertainty(row) > 0)
    order = np.lexsort((-snapshot.joined.at[queue.indices], -queue.values(uncertainty)))
    return {
        "agreement": agreement(snapshot.rows), "judges": judges, "votes": voted.tally(votes_of),
        "queue": Rows(snapshot.joined, queue.indices[order]),
    }  # fmt: skip


def _environments(snapshot: RunSnapshot) -> dict[str, Any]:
    """Turns of tasks and episodes by task, and all turns by source."""
    tasks: dict[str, dict[str, Any]] = {}
    joined, at, sources = snapshot.joined, snapshot.joined.at, list[dict[str, Any]]()
    for name, turns in snapshot.rows.tally(lambda row: row.turn["source"]).items():
        of = snapshot.rows.where(lambda row, name=name: row.turn["source"] == name)  # type: ignore[misc]
        with_outcome = len(of.where(lambda row: outcome_of(row) is not None))
        sources.append({"source": name, "turns": turns, "sessions": of.sessions(), "outcomes": with_outcome})
    of_tasks = snapshot.rows.where(lambda row: row.turn["task_id"] or row.turn["group_id"] or outcome_of(row) is not None)
    unnamed = of_tasks.where(lambda row: not (row.turn["task_id"] or row.turn["group_id"])).indices
    names = dict(zip(unnamed.tolist(), joined.ids(unnamed, "session_id"), strict=True))
    for index in of_tasks.indices.tolist():
        row, session = joined.variants[joined.variant[index]], int(joined.session[index])
        turn = row.turn
        name = str(turn["task_id"] or turn["group_id"] or names[index])
        fresh: dict[str, Any] = {
            "task": turn["task_id"], "group": turn["group_id"], "name": name, "turns": 0, "episodes": {}, "groups": set(),
            "last": 0.0,
        }  # fmt: skip
        task = tasks.setdefault(name, fresh)
        task["turns"] += 1
        task["groups"].add(turn["group_id"])
        task["episodes"][session] = outcome_of(row)
        task["last"] = max(task["last"], float(at[index]))
    for task in tasks.values():
        outcomes = [value for value in task["episodes"].values() if value is not None]
        task |= {"known": len(outcomes), "mean": sum(outcomes) / len(outcomes) if outcomes else None}
        task |= {"low": min(outcomes, default=None), "high": max(outcomes, default=None)}
    ordered = sorted(tasks.values(), key=lambda task: -task["last"])
    return {"tasks": ordered, "sources": sorted(sources, key=lambda source: -source["turns"])}


_DERIVED: dict[str, Callable[[RunSnapshot], Any]] = {
    "complaints": lambda seen: complaints(_judged(seen)),
    "totals": _totals,
    "rates": lambda seen: rates(seen.rows, seen.policy),
    "choices": _choices,
    "judge": _judge_numbers,
    "environments": _environments,
    "users": lambda seen: seen.sessions.users(),
}


def derived(snapshot: RunSnapshot, name: str) -> Any:
    return snapshot.once((snapshot.policy, name), partial(_DERIVED[name], snapshot))
