"""The lines of `clawctl inspect health`, from the counts of `health.py`."""

import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from clawctl.inspect.health import read_health
from clawctl.inspect.tables import problem_lines, since, sized
from clawctl.printing import answers, counted, one_line, print_json
from clawctl.run.directory import RunDir

REDACTION_CURE = (
    "`clawctl inspect turns` shows the place as [redacted:…]. If a client sends a secret with every request, remove it from its "
    "instructions; if the text is not a secret, add it to privacy.not_secrets"
)


def show_health(run: RunDir, as_json: bool) -> None:
    health = read_health(run)
    if as_json:
        print_json(health)
        return
    answers().print(_table(health), *_reasons(health), *problem_lines(health["problems"]), sep="\n")


def _table(health: dict[str, Any]) -> Table:
    table = Table(title="health", show_header=False)
    table.add_column("what", style="dim", no_wrap=True)
    table.add_column("found")
    for what, text in health_lines(health):
        table.add_row(what, text)
    return table


def health_lines(health: dict[str, Any]) -> list[tuple[str, Text]]:
    turns, captures, feed = health["turns"], health["captures"], health["feed"]
    stages = Text("  ").join(_stage(stage, runs) for stage, runs in health["stages"].items())
    versions = f"{health['live_version']} is live, {health['newest_version']} is the newest"
    lost = captures["lost"]
    losses = "serve is not running, so the number of lost ones is not known" if lost is None else f"{lost} lost"
    waits = ", ".join(f"{turns[f'waiting_for_{stage}']} for {stage}" for stage in ("collect", "judge", "trainer"))
    lines = [
        ("running", stages),
        ("server", one_line(_server_line(health["serve"]), 300)),
        *_member_lines(health["serve"]["health"] or {}),
        *([("sampling", one_line(sampled, 300))] if (sampled := _sampling_line(health["serve"])) else []),
        ("policy", Text(versions)),
        (
            "captures",
            Text(
                f"{counted(captures['exchanges'], 'exchange')} in {counted(captures['files'], 'file')}, {losses}",
                style="red" if lost else "",
            ),
        ),
        ("turns", Text(f"{turns['collected']} collected, {turns['trained']} trained, {turns['open']} in open sessions")),
        ("waiting", Text(waits)),
        *([("unverified", Text(unverified_line(count)))] if (count := health["unverified_outcomes"]) else []),
        *([("held out", Text(_held_out_line(health["held_out"])))] if health["held_out"]["turns"] else []),
        *([("keys", one_line(_keys_line(health["keys"]), 300))] if health["keys"] else []),
        *wanted_lines(health["wanted"]),
        ("shards", Text(f"{health['shards_without_verdicts']} without verdicts")),
        *([("judge", Text(judge["line"], style="" if judge["used"] else "red"))] if (judge := health["judge"]) else []),
    ]
    if health["jobs"]:
        lines.append(("jobs", one_line(_jobs_line(health["jobs"]), 500)))
    unknown = (health["serve"]["health"] or {}).get("unknown_fields")
    if isinstance(unknown, dict) and unknown:
        lines.append(("unknown fields", one_line(_unknown_line(unknown), 300)))
    lines += _training_lines(health["training"])
    if feed:
        lines.append(("trainer", one_line(_feed_line(feed), 200)))
    used = ", ".join(f"{name} {sized(size)}" for name, size in health["disk_bytes"].items() if size >= 1 << 16)
    return [*lines, ("disk", Text(f"{sized(sum(health['disk_bytes'].values()))} ({used})" if used else "almost nothing"))]


def unverified_line(count: int) -> str:
    reason = "the tests believed the graded code, so it earned nothing unless the option accept_unverified is set"
    return f"{counted(count, 'outcome')}: {reason}"


def _training_lines(facts: dict[str, Any]) -> list[tuple[str, Text]]:
    lines, back, paused = [], facts["went_back"], facts["paused"]
    if facts["dead_versions"]:
        dead = counted(len(facts["dead_versions"]), "dead version")
        lines.append(("training", Text(f"continues from version {facts['goes_on_from']}; {dead}, see `clawctl inspect policies`")))
    if back:
        given = f"{counted(back.get('given_back', 0), 'turn')} given back, {back.get('skipped', 0)} skipped"
        given += f", {back['expired']} expired with their shards" if back.get("expired") else ""
        text = (
            f"{since(back['at'], time.time())}, from version {back.get('newest')} to {back.get('to')}: {back.get('why')}; {given}"
        )
        lines.append(("went back", one_line(text, 300)))
    if paused:
        lines.append(("paused", one_line(f"{paused.get('problem')}; {paused.get('fix')}", 500)))
        lines[-1][1].stylize("red")
    return lines


def wanted_lines(wanted: dict[str, Any]) -> list[tuple[str, Text]]:
    lines = []
    for rise in wanted["changed"]:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(rise["since"]))
        text = (
            f"what people want has changed since {day} (key {rise['key']}): complaints about {rise['after']:.0%} of first answers"
        )
        text += f", {rise['before']:.0%} before" + ("; they have fallen since" if rise["over"] else "")
        lines.append(("changed", one_line(text, 300)))
    for conflict in wanted["conflicts"]:
        first, second = conflict["keys"]
        text = f"keys {first} and {second} want opposite things: their hints pull the policy apart ({conflict['agreement']:+.2f}); "
        text += f"`clawctl policies split {first} {second}` gives each a policy of its own"
        lines.append(("conflict", one_line(text, 300)))
    return lines


def _jobs_line(launch: dict[str, Any]) -> str:
    """The jobs of `clawctl up --on`, in their last known state."""
    jobs = ", ".join(f"{job['stage']} {job['detail'] or job['phase']}" for job in launch["jobs"])
    return f"{launch['on']}, {since(launch['at'], time.time())}: {jobs or 'none'}; `clawctl up --status` asks again"


def _held_out_line(held: dict[str, int]) -> str:
    turns = counted(held["turns"], "turn")
    return f"{turns} of {held['sessions']} of {held['of_sessions']} sessions measure versions and are never trained (eval.holdout)"


def _keys_line(keys: dict[str, dict[str, float]]) -> str:
    """The keys, ordered by their number of trained turns."""
    return ", ".join(
        f"{key} {counts['share']:.0%} of trained turns ({counts['trained']}), {counts['waiting']} waiting"
        for key, counts in keys.items()
    )


def _stage(stage: str, runs: bool | None) -> Text:
    if runs is None:
        return Text(f"· {stage} (nothing to do)", style="dim")
    return Text(f"● {stage}", style="green") if runs else Text(f"○ {stage}", style="dim")


def _server_line(serve: dict[str, Any]) -> str:
    health = serve["health"] or {}
    parts = [str(serve["url"] or "has not registered"), str(health.get("status", ""))]
    capture = health.get("capture")
    if isinstance(capture, dict):
        parts.append(
            f"{capture.get('written')} captured since its start"
            if capture.get("on")
            else "captures nothing: start it with --intercept"
        )
        parts.append(str(capture.get("last_error") or ""))
    return ", ".join(part for part in (*parts, str(health.get("last_swap_error") or "")) if part)


def _member_lines(served: dict[str, Any]) -> list[tuple[str, Text]]:
    """The servers of a pool (docs/engines.md)."""
    engine = served.get("engine")
    members = engine.get("members") if isinstance(engine, dict) else None
    lines = []
    for member in members if isinstance(members, list) else []:
        serves = "no version" if member.get("version") is None else f"version {member['version']}"
        text = f"{member.get('url')}: {serves}, {member.get('running')} running, {member.get('answered')} asked of it"
        lines.append(("member", one_line("; ".join(filter(None, [text, member.get("problem")])), 300)))
        if member.get("problem"):
            lines[-1][1].stylize("red")
    return lines


def _unknown_line(unknown: dict[str, Any]) -> str:
    named = [
        f"{api} {name} ({count})" for api, names in unknown.items() if isinstance(names, dict) for name, count in names.items()
    ]
    return "sent by clients, without effect: " + ", ".join(named)


def _sampling_line(serve: dict[str, Any]) -> str:
    """The number of requests per client whose sampling settings were changed. Empty if there were none."""
    changed = (serve["health"] or {}).get("sampling_changed")
    if not isinstance(changed, dict) or not changed:
        return ""
    clients = []
    for client, counts in changed.items():
        of = ", ".join(f"{name} {count}" for name, count in counts.items() if name != "requests")
        clients.append(f"{counted(counts.get('requests', 0), 'request')} of {client} ({of})")
    return f"changed by serve.sampling: {', '.join(clients)}"


def _feed_line(feed: dict[str, Any]) -> str:
    parts = [f"{feed.get('waiting', '?')} usable turns are waiting, {feed.get('used', '?')} used, {feed.get('skipped', 0)} skipped"]
    for title, key in (("refused", "refused"), ("hints lost", "lost_hints")):
        counts = feed.get(key)
        if isinstance(counts, dict) and counts:
            parts.append(f"{title}: " + ", ".join(f"{reason} {count}" for reason, count in counts.items()))
    return "; ".join(parts)


def _reasons(health: dict[str, Any]) -> Sequence[Table | Text]:
    parts: list[Table | Text] = []
    if health["not_trained"]:
        table = Table()
        table.add_column("not trained because")
        table.add_column("turns", justify="right")
        for reason, count in health["not_trained"].items():
            table.add_row(one_line(reason, 60), str(count))
        parts.append(table)
    if health["redacted_by"]:
        rule, count = next(iter(health["redacted_by"].items()))
        text = f"{counted(count, 'turn')}, most of the redacted ones, because of {rule}; {REDACTION_CURE}"
        parts.append(Text.assemble(("redacted: ", "yellow"), one_line(text, 400)))
    parts += [
        Text.assemble(("quarantined: ", "yellow"), one_line(f"quarantine/{entry['file']}: {entry['reason']}", 300))
        for entry in health["quarantine"]
    ]
    return parts
