"""Data for the pages: counts, lists, and turns as a conversation."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clawctl.inspect.better import rates
from clawctl.inspect.policies import comparisons
from clawctl.inspect.report import examples_of, scores_of
from clawctl.inspect.rows import Row, message_text
from clawctl.inspect.web.filters import agreement, complaints, fate, opinion, outcome_of, uncertainty, votes_of
from clawctl.inspect.web.followed_run import RunSnapshot
from clawctl.inspect.web.text_search import request_of
from clawctl.run.reward import signs

_LINE_BYTES = 4096  # of the end of a log


def prepare(snapshot: RunSnapshot) -> None:
    """Compute the data for the first page of each section in advance. With 100,000 turns, a page must not wait for it."""
    for name, make in _DERIVED.items():
        snapshot.once((snapshot.policy, name), partial(make, snapshot))


def _judged(snapshot: RunSnapshot) -> list[Row]:
    return [row for row in snapshot.own_rows if row.turn["kind"] == "main" and row.worth.value is not None]


def _totals(snapshot: RunSnapshot) -> dict[str, Any]:
    """The policy's turns, conversations, trained turns, and turns by the sign of their value."""
    rows = snapshot.own_rows
    return {
        "turns": len(rows),
        "sessions": len(
            snapshot.sessions if rows is snapshot.rows else {(row.turn["session_id"], row.turn["user"]) for row in rows}
        ),
        "trained": sum(row.step is not None for row in rows),
        "signs": signs(row.worth.value for row in rows),
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


def sessions_of(snapshot: RunSnapshot, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The conversations of these turns, newest first, each with its number of matching turns."""
    matches = Counter((row.turn["session_id"], row.turn["user"]) for row in rows)
    counted = ((session, matches.get((session["session"], session["user"]))) for session in snapshot.sessions)
    return [{**session, "matches": count} for session, count in counted if count]


def first_turn(snapshot: RunSnapshot, session: dict[str, Any]) -> str:
    """The id of a conversation's first main turn; without a main turn, of its first turn."""
    rows = snapshot.of_session[session["session"], session["user"]]
    turn_id: str = next((row for row in rows if row.turn["kind"] == "main"), rows[0]).turn["turn_id"]
    return turn_id


def _choices(snapshot: RunSnapshot) -> dict[str, list[tuple[Any, int]]]:
    """The existing values for the filter's lists, with their counts."""
    users, versions, fates = (Counter[Any]() for _ in range(3))
    for row in snapshot.rows:
        users[row.turn["user"]] += 1
        versions[row.turn["policy_version"] if row.policy == snapshot.policy else None] += 1
        fates[fate(row)] += 1
    del versions[None]
    return {"user": users.most_common(200), "version": sorted(versions.items(), reverse=True), "fate": fates.most_common(60)}


def as_conversation(snapshot: RunSnapshot, rows: Sequence[Row], texts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns in reading order. A next state is omitted if the next turn on the page shows it as its request."""
    shown = {row.turn["turn_id"] for row in rows}
    conversation = []
    for index, row in enumerate(rows):
        turn_id, text = row.turn["turn_id"], texts.get(row.turn["turn_id"])
        after = [child for child in snapshot.children.get(turn_id, ()) if child in shown]
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
    kinds_of_vote = Counter[str | None]()
    queue = []
    for row in snapshot.rows:
        if row.verdict is None or row.verdict["judge"] is None:
            continue
        votes = row.verdict["votes"] or []
        if votes or row.verdict["reward"] is not None:
            judges.setdefault(row.verdict["judge"], Counter())[opinion(row)] += 1
        if votes:
            unsure = uncertainty(row)
            kinds_of_vote[votes_of(row)] += 1
            if unsure > 0:
                queue.append((unsure, row))
    queue.sort(key=lambda one: (-one[0], -one[1].turn["created_at"]))
    return {"agreement": agreement(snapshot.rows), "judges": judges, "votes": kinds_of_vote, "queue": [row for _, row in queue]}


def _environments(snapshot: RunSnapshot) -> dict[str, Any]:
    """Turns of tasks and episodes by task, and all turns by source."""
    tasks: dict[str, dict[str, Any]] = {}
    sources: dict[str, dict[str, Any]] = {}
    for row in snapshot.rows:
        turn = row.turn
        source = sources.setdefault(turn["source"], {"source": turn["source"], "turns": 0, "sessions": set(), "outcomes": 0})
        source["turns"] += 1
        source["sessions"].add((turn["session_id"], turn["user"]))
        outcome = outcome_of(row)
        source["outcomes"] += outcome is not None
        if turn["task_id"] is not None or turn["group_id"] is not None or outcome is not None:
            name = str(turn["task_id"] or turn["group_id"] or turn["session_id"])
            fresh: dict[str, Any] = {
                "task": turn["task_id"],
                "group": turn["group_id"],
                "name": name,
                "turns": 0,
                "episodes": {},
                "groups": set(),
                "last": 0.0,
            }
            task = tasks.setdefault(name, fresh)
            task["turns"] += 1
            task["groups"].add(turn["group_id"])
            task["episodes"][turn["session_id"], turn["user"]] = outcome
            task["last"] = max(task["last"], turn["created_at"])
    for task in tasks.values():
        outcomes = [value for value in task["episodes"].values() if value is not None]
        task |= {"known": len(outcomes), "mean": sum(outcomes) / len(outcomes) if outcomes else None}
        task |= {"low": min(outcomes, default=None), "high": max(outcomes, default=None)}
    ordered = sorted(tasks.values(), key=lambda task: -task["last"])
    return {"tasks": ordered, "sources": sorted(sources.values(), key=lambda source: -source["turns"])}


def _users(snapshot: RunSnapshot) -> list[dict[str, Any]]:
    users: dict[str, dict[str, Any]] = {}
    for session in snapshot.sessions:
        first, last = session["first_seen"], session["last_seen"]
        fresh = {"user": session["user"], "sessions": 0, "turns": 0, "trained": 0, "first": first, "last": last}
        user = users.setdefault(session["user"], fresh)
        user["sessions"] += 1
        user["turns"] += session["turns"]
        user["trained"] += session["trained"]
        user["first"], user["last"] = min(user["first"], first), max(user["last"], last)
    return sorted(users.values(), key=lambda user: str(user["user"]))


_DERIVED: dict[str, Callable[[RunSnapshot], Any]] = {
    "complaints": lambda seen: complaints(_judged(seen)),
    "totals": _totals,
    "rates": lambda seen: rates(seen.rows, seen.policy),
    "choices": _choices,
    "judge": _judge_numbers,
    "environments": _environments,
    "users": _users,
}


def derived(snapshot: RunSnapshot, name: str) -> Any:
    return snapshot.once((snapshot.policy, name), partial(_DERIVED[name], snapshot))
