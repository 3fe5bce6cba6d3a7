"""`clawctl inspect health`: running stages; waiting, lost and quarantined data; and the reasons why turns are not trained."""

import re
import shutil
from pathlib import Path
from typing import Any

import orjson

from clawctl.http_client import RequestFailed, TimedOut, fetch
from clawctl.inspect.joined import Joined
from clawctl.inspect.policies import read_live
from clawctl.inspect.rows import read_json, read_lines, read_open, read_rows
from clawctl.inspect.tables import sized
from clawctl.inspect.wanted import what_people_want
from clawctl.run.directory import FOLDERS, RunDir, claimed, published
from clawctl.run.fitness import read_fitness
from clawctl.run.holdout import HELD_OUT
from clawctl.run.lineage import read_lineage, refusals_in_a_row
from clawctl.run.lines import CountedLines
from clawctl.run.outcomes import UNVERIFIED_LINE
from clawctl.run.policies import list_versions
from clawctl.run.running import is_running

_LITTLE_ROOM = 16 << 20  # bytes
_NOT_WAITING = ("waiting for the judge", "waiting for the trainer")


def read_health(run: RunDir) -> dict[str, Any]:
    """The content of the table, as counts."""
    joined = read_rows(run)
    return {
        **read_state(run, joined),
        "wanted": what_people_want(run, joined),
        "disk_bytes": {name: disk_bytes(run.folder(name)) for name in FOLDERS},
    }


def read_state(run: RunDir, joined: Joined, captured: CountedLines | None = None) -> dict[str, Any]:
    """What the pages show of it. A caller that reads repeatedly passes what it counted before as `captured`."""
    captured = CountedLines(run.captures) if captured is None else captured
    problems = joined.problems.copy()
    serve = ask_server(run)
    exchanges, files = captured.poll(), len(captured.counts)
    free = shutil.disk_usage(run.root).free
    if free < _LITTLE_ROOM:
        problems.append(f"the disk has {sized(free)} left: stages wait for free space, and serve loses captures")
    still_open = read_open(run, problems)
    rows = joined.rows
    served, waiting = rows.tally(lambda row: row.turn["source"])["serve"], rows.tally(lambda row: row.why_not)
    feed = read_json(run.feed_counts, problems) or None
    return {
        "stages": {
            "serve": serve["running"],
            "collect": is_running(run, "collect"),
            "judge": is_judging(run),
            **{stage: is_running(run, stage) for stage in ("train", "eval", "up")},
        },
        "serve": serve,
        "live_version": read_live(run, problems),
        "newest_version": max(list_versions(run), default=None),
        "training": training(run, problems),
        "captures": {"files": files, "exchanges": exchanges, "lost": serve["lost"]},
        "turns": {
            "collected": len(rows),
            "open": min(still_open.turns, max(0, exchanges - served)),
            "waiting_for_collect": max(0, exchanges - served - still_open.turns),
            "waiting_for_judge": waiting["waiting for the judge"],
            "waiting_for_trainer": waiting["waiting for the trainer"],
            "trained": waiting[None],
        },
        "unverified_outcomes": CountedLines(run.feedback, UNVERIFIED_LINE).poll(),
        "held_out": held_out(joined),
        "keys": shares_of_keys(joined),
        "shards_without_verdicts": len(unjudged(run)),
        "judge": None if (judge := read_fitness(run)) is None else judge.shown(),
        "not_trained": not_trained(joined),
        "redacted_by": redacted_by(joined),
        "feed": feed,
        "jobs": read_json(run.launch, problems) or None,
        "quarantine": quarantined(run),
        "disk_free_bytes": free,
        "problems": problems,
    }


def training(run: RunDir, problems: list[str]) -> dict[str, Any]:
    """The version that training continues from, dead versions, the last move back, and the reason for a pause."""
    lineage = read_lineage(run)
    stored = read_json(run.refusals, problems)
    back = list(read_lines(run.went_back, problems))
    return {
        "goes_on_from": lineage.tip,
        "dead_versions": lineage.dead(),
        "refused_in_a_row": len(refusals_in_a_row(run, lineage, stored.get("forgiven", 0))),
        "went_back": back[-1] if back else None,
        "paused": stored.get("paused"),
    }


def not_trained(joined: Joined) -> dict[str, int]:
    """The number of untrained turns by reason, the most frequent first."""
    reasons = joined.rows.where(lambda row: row.why_not is not None).tally(lambda row: row.why_not)
    return {str(reason): count for reason, count in reasons.most_common() if reason not in _NOT_WAITING}


def held_out(joined: Joined) -> dict[str, int]:
    """The numbers of held-out turns, of sessions with held-out turns, and of all captured sessions."""
    captured = joined.rows.where(lambda row: row.turn["source"] == "serve")
    held = captured.where(lambda row: row.turn["untrainable_reason"] == HELD_OUT)
    return {"turns": len(held), "sessions": held.sessions(), "of_sessions": captured.sessions()}


def redacted_by(joined: Joined) -> dict[str, int]:
    """The number of untrained turns by redaction rule and place, the most frequent first."""
    redacted = joined.rows.where(lambda row: row.turn["redacted_by"] and row.turn["untrainable_reason"])
    return dict(redacted.tally(lambda row: row.turn["redacted_by"]).most_common())


def shares_of_keys(joined: Joined) -> dict[str, dict[str, float]]:
    """For each key: its trained turns, its share of all trained turns, and its turns that wait for the trainer."""
    trained = joined.rows.where(lambda row: row.step is not None).tally(lambda row: row.turn["user"])
    waiting = joined.rows.where(lambda row: row.why_not == "waiting for the trainer").tally(lambda row: row.turn["user"])
    return {
        key: {"trained": trained[key], "share": trained[key] / max(1, trained.total()), "waiting": waiting[key]}
        for key, _ in (trained + waiting).most_common()
    }


def is_judging(run: RunDir) -> bool | None:
    """Whether a judge worker has claimed a shard without verdicts.

    None if there is no such shard, because idle judges hold no lock. Any number of judges may run, each on a shard of its own.
    """
    waiting = unjudged(run)
    if not waiting:
        return None
    return any(_is_claimed(run, f"judge-{stem}") for stem in waiting)


def _is_claimed(run: RunDir, name: str) -> bool:
    if not run.lock(name).exists():
        return False
    with claimed(run, name) as free:
        return not free


def ask_server(run: RunDir) -> dict[str, Any]:
    """The server's status: {"running", "url", "lost", "health"}. `lost` is None if it is unknown.

    A server that accepts the connection but does not answer in time counts as running.
    """
    url = read_json(run.server, []).get("url")
    answer: dict[str, Any] = {"running": False, "url": url, "lost": None, "health": None}
    if not answer["url"]:
        return answer
    try:
        response = fetch("GET", re.sub(r"/v1/?$", "", answer["url"]) + "/health", timeout_s=1.5, connect_s=1.0)
        answer["running"] = response.status == 200
        health = orjson.loads(response.body)
    except TimedOut:
        answer["running"] = True
        return answer
    except (RequestFailed, orjson.JSONDecodeError):
        return answer
    if isinstance(health, dict):
        answer["health"] = health
        capture = health.get("capture")
        answer["lost"] = capture.get("lost") if isinstance(capture, dict) else None
    return answer


def unjudged(run: RunDir) -> list[str]:
    """The stems of trajectory shards without verdicts, the oldest first."""
    judged = {path.stem for path in published(run.verdicts, ".parquet")}
    return [path.stem for path in published(run.trajectories, ".parquet") if path.stem not in judged]


def quarantined(run: RunDir) -> list[dict[str, str]]:
    files = []
    for path in sorted(run.quarantine.iterdir()):
        reason = path.with_name(path.name + ".reason.txt")
        if not path.name.endswith(".reason.txt") and not path.name.startswith("."):
            files.append({"file": path.name, "reason": reason.read_text(errors="replace").strip() if reason.exists() else ""})
    return files


def disk_bytes(folder: Path) -> int:
    """The folder's size on disk. A file with two names (a checkpoint and its policy) counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue  # removed during the walk
        sizes[(stat.st_dev, stat.st_ino)] = stat.st_blocks * 512
    return sum(sizes.values())
