"""Makes a run for the pages: months of conversations of three keys, nine versions, ratings, tasks, and hostile text."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir, open_run, publish_bytes
from clawctl.run.feedback import FeedbackFile
from clawctl.run.policies import ensure_base_policy, move_live, publish_policy
from clawctl.run.rows import Feedback, Message, Policy, Turn, Verdict
from clawctl.run.shards import write_table, write_turns, write_verdicts
from clawctl.train.records import ROW as RECORD

PER_SHARD = 1000
PER_VERSION_S = 14 * 86400.0  # seconds between two versions
VERSIONS = 9
DEAD = {4: 3, 7: 6}  # refused versions and their parents
HOSTILE = {
    "hostile-script": '<script>window.broken = true</script><img src=x onerror="window.broken = true"> {{ 7 * 7 }} </textarea>',
    "hostile-bidi": "the file is named \u202egnp.exe and \u2066hidden\u2069 \u200btext\ufeff",
    "hostile-ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m bell \x07 back\x08space \x00 null",
    "hostile-long-word": "x" * 20_000,
    "hostile-megabyte": "All work and no play makes a long message. " * 25_000,
    "hostile-link": "[click](javascript:window.broken=true) https://example.invalid/?q=<svg/onload=window.broken=true>",
}
_THEMES = (
    ("Why does the test test_orders fail on main?", "The test compares a float with ==.", "pytest"),
    ("Write a short mail that moves the meeting to Friday.", "Dear all, may we meet on Friday instead?", "mail"),
    ("Which of these three laptops has the longest battery life?", "The second one, with 18 hours.", "laptop"),
    ("Erkläre mir bitte, was ein Mutex ist.", "Ein Mutex lässt immer nur einen Thread hinein.", "mutex"),
    ("Rename the column `qty` to `quantity` everywhere.", "I changed the model, the migration and two queries.", "rename"),
    ("Plan a walk of two hours around the lake.", "Start at the north pier and keep the water to your left.", "walk"),
)
_PRAISE = ("thanks, that is it", "perfect", "good, now the next one", "great, merged")
_COMPLAINTS = ("no, shorter please", "that is wrong, look again", "I asked for plain sentences", "please do not use bullet points")
_HINTS = ("Answer in one or two sentences.", "Check the file before you answer.", "Write plain sentences without bullet points.")


@dataclass
class _Writer:
    """Collects turns and verdicts into shards."""

    run: RunDir
    turns: list[Turn] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    shards: int = 0

    def add(self, turn: Turn, verdict: Verdict | None) -> None:
        self.turns.append(turn)
        if verdict is not None:
            self.verdicts.append(verdict)

    def flush(self) -> None:
        if self.turns:
            stem = f"{self.shards:08d}-web"
            write_turns(self.run.turn_shard(stem), self.turns)
            if self.verdicts:
                write_verdicts(self.run.verdict_shard(stem), self.verdicts)
            self.turns, self.verdicts, self.shards = [], [], self.shards + 1


def make_run(folder: Path, turns: int, seed: int = 0, per_shard: int = PER_SHARD) -> RunDir:
    """Make a run with at least `turns` turns, the newest of which is an hour old."""
    run, rng = open_run(folder), random.Random(seed)
    ensure_base_policy(run, "crafts")
    writer = _Writer(run)
    begin = time.time() - VERSIONS * PER_VERSION_S - 3600
    count = number = 0
    trained: dict[int, list[str]] = {version: [] for version in range(1, VERSIONS)}
    examples: list[Turn] = []
    while count < turns:
        at = begin + VERSIONS * PER_VERSION_S * count / turns
        session = list(_conversation(rng, number, at, count, turns))
        for turn, verdict in session:
            writer.add(turn, verdict)
            following = next((other for other in range((turn.policy_version or 0) + 1, VERSIONS) if other not in DEAD), VERSIONS)
            if verdict is not None and verdict.reward and following < VERSIONS and len(trained[following]) < 64:
                trained[following].append(turn.turn_id)
                if following == VERSIONS - 1:
                    examples.append(turn)
        count, number = count + len(session), number + 1
        if len(writer.turns) >= per_shard:
            writer.flush()
    for version in DEAD:
        trained[version] = trained[version + 1][:16]  # returned to the trainer and trained once more
    for index, (name, text) in enumerate(HOSTILE.items()):
        for turn, verdict in _hostile(name, text, begin + VERSIONS * PER_VERSION_S + 60 * index):
            writer.add(turn, verdict)
    for turn, verdict in _episodes(rng, begin + (VERSIONS - 1) * PER_VERSION_S):
        writer.add(turn, verdict)
    writer.flush()
    _publish_versions(run, trained, begin, rng)
    _write_record(run, examples, rng)
    _rate(run, rng, examples)
    return run


def _version_at(share: float) -> int:
    """Return the version that was live after this share of the time. Dead versions were never live."""
    version = min(VERSIONS - 1, int(share * VERSIONS))
    return DEAD.get(version, version)


def _conversation(rng: random.Random, number: int, at: float, count: int, turns: int) -> Iterator[tuple[Turn, Verdict | None]]:
    question, answered, _ = _THEMES[number % len(_THEMES)]
    user = ("default", "anna", "ben")[number % 3]
    session = f"s{number}" if user == "default" else f"{user}/s{number}"
    messages: list[Message] = [{"role": "system", "content": "You are a helpful assistant. " * 8}]
    request = f"{question} ({number})"
    version, parent = _version_at(count / turns), None
    complaint_share = 0.30 - 0.025 * version
    length = rng.randint(1, 14)
    for index in range(length):
        messages = [*messages, {"role": "user", "content": request}]
        turn_id = f"web{number:09d}{index:012d}"
        complains = rng.random() < complaint_share
        last = index == length - 1
        after = rng.choice(_COMPLAINTS if complains else _PRAISE)
        came_back = None if last else [{"role": "user", "content": after}]
        response: Message = {"role": "assistant", "content": f"{answered} Version {version} says so in turn {index}."}
        yield (
            turn(turn_id, session, index, at + 40.0 * index, messages, response, came_back, user, version, parent),
            _verdict(rng, turn_id, complains, last),
        )
        messages, request, parent = [*messages, response], after, turn_id


def turn(
    turn_id: str,
    session: str,
    index: int,
    at: float,
    messages: Sequence[Message],
    response: Message,
    came_back: list[Message] | None,
    user: str = "default",
    version: int = 0,
    parent: str | None = None,
    **changes: Any,
) -> Turn:
    reason = None if came_back else "no next state"
    ids = [(13 * index + len(turn_id)) % 500 + 20 for index in range(24)]
    fields: dict[str, Any] = {
        "turn_id": turn_id, "session_id": session, "parent_turn_id": parent, "turn_index": index, "kind": "main", "source": "serve",
        "task_id": None, "group_id": None, "user": user, "created_at": at, "messages": list(messages), "tools": None,
        "response": response, "next_state": came_back, "prompt_ids": [1, 2, 3], "completion_ids": ids,
        "logprobs": [-0.5] * len(ids),
        "policy_version": version, "policy_version_end": version, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
        "finish_reason": "stop", "outcome_reward": None, "feedback": None, "trainable": reason is None,
        "untrainable_reason": reason, "parent_evidence": "conversation" if parent else None,
    }  # fmt: skip
    return Turn(**{**fields, **changes})


def _verdict(rng: random.Random, turn_id: str, complains: bool, last: bool) -> Verdict | None:
    judge = "crafts@0 prompt 1"
    if last:
        return Verdict(turn_id, None, [], None, [], judge, "not trainable: no next state", None)
    divided = rng.random() < 0.03
    vote = -1 if complains else 1
    votes: list[int | None] = [vote, None, -vote] if divided else [vote] * 3
    hint = rng.choice(_HINTS) if complains else None
    reward = None if divided else float(vote)
    return Verdict(turn_id, reward, votes, hint, [hint] if hint else [], judge, "no majority" if divided else None, 0.4)


def _hostile(name: str, text: str, at: float) -> Iterator[tuple[Turn, Verdict | None]]:
    messages: list[Message] = [{"role": "user", "content": text}]
    response: Message = {"role": "assistant", "content": text}
    first = turn(f"{name}-1", name, 0, at, messages, response, [{"role": "user", "content": text}])
    hint = text[:2000] if len(text) < 10_000 else None
    yield first, Verdict(first.turn_id, -1.0, [-1, None, 1], hint, [hint] if hint else [], f"judge {text[:40]}", None, 0.1)


def _episodes(rng: random.Random, at: float) -> Iterator[tuple[Turn, Verdict | None]]:
    for task in range(12):
        for episode in range(4):
            session, reward = f"play-{task}-{episode}", float(rng.random() < 0.4 + 0.04 * task)
            messages: list[Message] = [{"role": "user", "content": f"Task {task}: what is {task} + {episode}?"}]
            made = turn(
                f"play{task:02d}{episode:018d}", session, 0, at + 100 * task + episode, messages,
                {"role": "assistant", "content": f"It is {task + episode}."}, [{"role": "user", "content": "done"}],
                version=VERSIONS - 3, source="homework", task_id=f"sums-{task}", group_id=f"g{task}", outcome_reward=reward,
            )  # fmt: skip
            yield made, Verdict(made.turn_id, reward, [], None, [], "environment outcome", None, None)


def _publish_versions(run: RunDir, trained: dict[int, list[str]], begin: float, rng: random.Random) -> None:
    steps = b""
    for version in range(1, VERSIONS):
        parent = DEAD.get(version - 1, version - 1)
        made = begin + version * PER_VERSION_S
        policy = Policy(version, parent, version, "combine", "adapter", "crafts", trained[version], None, {}, made)
        publish_policy(run, policy, lambda folder: None)
        entry = {"step": version, "outcome": "trained", "reason": None, "parent": parent, "turns": {"web": trained[version]}}
        run.ledger.mkdir(exist_ok=True)
        publish_bytes(run.ledger_entry(version), sealed(orjson.dumps(entry)))
        numbers = {
            "step": version, "version": version, "time": made, "method": "combine", "turns": len(trained[version]),
            "loss": 0.4 / version, "grad_norm": 1.0 + rng.random(), "lr": 1e-5, "reward_mean": -0.2 + 0.1 * version,
            "mismatch_mean": 0.002, "trained_tokens": 1536, "clip_grad": 1.0, "reward_std": 0.9, "masked_fraction": 0.01,
            "correction": None,
        }  # fmt: skip
        steps += sealed(orjson.dumps(numbers)) + b"\n"
    publish_bytes(run.steps, steps)
    for version in range(VERSIONS):
        _write_eval(run, version, begin + version * PER_VERSION_S, rng)
    live = 0
    for version in range(1, VERSIONS):
        if version not in DEAD:
            move_live(run, version, by="eval")
            live = version
    moves = run.moves.read_bytes().splitlines()
    dated = [orjson.loads(line) for line in moves]
    for row in dated:  # set the times at which the moves would have been made
        row.pop("crc32", None)
        row["at"] = begin + row["to"] * PER_VERSION_S + 60
    publish_bytes(run.moves, b"".join(sealed(orjson.dumps(row)) + b"\n" for row in dated))
    assert live == VERSIONS - 1


def _write_eval(run: RunDir, version: int, at: float, rng: random.Random) -> None:
    better = {4: -3.0, 7: -2.0}.get(version, float(version))
    means = {"satisfaction": 0.35 + 0.06 * better, "correctness": 0.86 + 0.01 * better}
    suites = {
        "mine.py:Style": {**{name: _estimate(mean, 36) for name, mean in means.items()}, "by_role": {}},
        "ability": {"correct": _estimate(0.78 + 0.002 * better, 200), "by_role": {}},
    }
    examples = [_example(task, version) for task in range(1, 6)]
    parent = DEAD.get(version - 1, version - 1)
    compared = [_comparison(task, rng.random() < 0.5 + 0.04 * better) for task in range(40)]
    comparisons = {"own": {str(parent): compared}} if version else {}
    refused = version in DEAD
    reason = "mine.py:Style satisfaction fell" if refused else "better on 3 of 3 metrics"
    decision = {"promote": None if not version else not refused, "reason": reason, "against": parent if version else None}
    anchor = {"what": "the base", "version": 0, "suite": "mine.py:Style", "metric": "satisfaction", "value": 0.35}
    record = {
        "policy": "default", "version": version, "settings": {}, "suites": suites, "examples": examples, "decision": decision,
        "compared": [anchor] if version else [], "comparisons": comparisons, "seconds": 40.0, "at": at,
    }  # fmt: skip
    publish_bytes(run.eval_record(version), sealed(orjson.dumps(record)))


def _example(task: int, version: int) -> dict[str, Any]:
    reply = f"{2 * task}. Version {version}."
    return {
        "task_id": f"student-{task}",
        "prompt": f"What is {task} + {task}?",
        "reply": reply,
        "satisfaction": 1.0,
        "correct": True,
    }


def _comparison(task: int, won: bool) -> dict[str, Any]:
    detail = {
        "prompt": f"Held-out request {task}",
        "candidate": f"New answer {task} <b>bold?</b>",
        "reference": f"Old answer {task}",
    }
    scores = {"candidate": float(won), "reference": float(not won)}
    return {"metric": "preferred", "task_id": f"own-{task}", "key": "", **scores, "detail": detail}


def _estimate(mean: float, n: int) -> dict[str, Any]:
    mean = min(0.99, max(0.01, mean))
    half = 1.96 * math.sqrt(mean * (1 - mean) / n)
    return {"mean": mean, "ci95": [max(0.0, mean - half), min(1.0, mean + half)], "n": n}


def _write_record(run: RunDir, turns: Sequence[Turn], rng: random.Random) -> None:
    """Write the per-token numbers of the last step, as the trainer does."""
    rows = []
    for turn in turns:
        then = [-rng.random() for _ in turn.completion_ids or ()]
        now = [value + rng.gauss(0, 0.15) for value in then]
        advantages = [rng.gauss(0.2, 0.5) for _ in then]
        acting = [abs(advantage) < 1 for advantage in advantages]
        terms = [
            {
                "name": "binary",
                "weight": 1.0,
                "tokens": 1536,
                "advantages": [0.8] * len(then),
                "acting": acting,
                "divergences": None,
            },
            {"name": "opd", "weight": 0.5, "tokens": 1536, "advantages": advantages, "acting": None, "divergences": None},
        ]
        rows.append({
            "turn_id": turn.turn_id, "session_id": turn.session_id, "step": VERSIONS - 1, "method": "combine", "shard": "web",
            "reward": 1.0, "credit": 0.8, "baseline": 0.2, "temperature": 1.0, "policy_version": turn.policy_version,
            "policy_version_end": turn.policy_version, "staleness": 1, "completion_ids": turn.completion_ids,
            "policy_logprobs": now, "sampler_logprobs": then, "teacher_logprobs": then, "terms": terms,
            "worth": "+1 by crafts@0 prompt 1", "bounded": 1.0,
        })  # fmt: skip
    run.records.mkdir(parents=True, exist_ok=True)
    write_table(run.record(VERSIONS - 1), pa.Table.from_pylist(rows, schema=RECORD), compression="zstd")


def _rate(run: RunDir, rng: random.Random, turns: Sequence[Turn]) -> None:
    file = FeedbackFile(run.feedback)
    for number, turn in enumerate(turns[:40]):
        rating = rng.choice([1.0, 1.0, -1.0])
        file.append(Feedback(f"f{number:023d}", time.time(), turn.user, turn.turn_id, rating, None))
