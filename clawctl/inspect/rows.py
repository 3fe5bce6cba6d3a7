"""The data of all readers, joined: turns, their verdicts, their training results, and unreadable files.

Readers change nothing. An unreadable file is reported as a problem and stays in place; its stage quarantines it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawctl.config import TrainConfig, load_recipe, recipe_file
from clawctl.errors import ClawError, Damaged
from clawctl.run import lines
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, published
from clawctl.run.feedback import Ratings
from clawctl.run.lineage import MOST_TIMES, TWICE, read_lineage
from clawctl.run.policies import list_versions, read_policy
from clawctl.run.reward import Worth, worth
from clawctl.run.rows import Policy, is_judged, lacks_reaction
from clawctl.run.shards import UnreadableShard, read_columns

_FEW = (
    "turn_id", "session_id", "parent_turn_id", "parent_evidence", "turn_index", "kind", "source", "user", "created_at",
    "policy_name", "policy_version", "top_p", "top_k", "group_id", "outcome_reward", "feedback", "trainable", "untrainable_reason",
    "redacted_by", "step_reward", "episode",
)  # fmt: skip
_WORDS = ("messages", "response", "next_state")
_VERDICT = ("turn_id", "reward", "votes", "hint", "hints", "judge", "reason")


@dataclass(frozen=True, slots=True)
class Row:
    """One turn and all that happened to it."""

    turn: dict[str, Any]  # the columns of a trajectory shard, without token ids
    verdict: dict[str, Any] | None  # None: not judged yet
    step: int | None  # the optimizer step that trained it
    why_not: str | None  # why it is not trained (yet); None exactly if it is
    worth: Worth  # with later ratings; of a trained turn, with ratings from before its policy
    dead_steps: tuple[int, ...] = ()  # steps that trained it into versions that are dead


@dataclass(slots=True)
class Joined:
    """The rows of a run in the order in which they were asked."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # "trajectories/a-1.parquet: not a shard: …"


def read_rows(run: RunDir, words: bool = False) -> Joined:
    """All turns of the run; with `words` also their text. Unreadable files never raise an error."""
    joined = Joined()
    columns = (*_FEW, *_WORDS) if words else _FEW
    turns = {row["turn_id"]: row for row in shard_rows(run.trajectories, "turns", columns, joined.problems)}
    verdicts = {row["turn_id"]: row for row in shard_rows(run.verdicts, "verdicts", _VERDICT, joined.problems)}
    policies = read_policies(run, joined.problems)
    lineage = read_lineage(run)
    gone = set(lineage.dead())
    steps, skipped, dead = _ledger(run, joined.problems, gone)
    for policy in policies:
        for turn_id in policy.turns:
            if policy.version not in gone:
                steps[turn_id] = policy.step
            elif policy.step not in dead.setdefault(turn_id, []):
                dead[turn_id].append(policy.step)
    trained_at = {turn_id: policy.created_at for policy in policies for turn_id in policy.turns if policy.version not in gone}
    updates = lineage.updates_from(lineage.tip)
    config = train_config(run, joined.problems)
    ratings = Ratings(run)
    ratings.look()
    for turn in turns.values():
        turn_id = turn["turn_id"]
        verdict, step = verdicts.get(turn_id), steps.get(turn_id)
        used, rating = turn, ratings.of(turn["user"], turn_id)
        if rating is not None and lacks_reaction(turn["source"], turn["untrainable_reason"]):
            used = {**turn, "trainable": True, "untrainable_reason": None}  # its user reacted, after the row was published
        late = ratings.late_outcome(turn["user"], turn_id)
        if late is not None and step is None:
            used = {**used, **late.changes(used["untrainable_reason"], turn_id)}
        counts = rating is not None and (step is None or rating.created_at <= trained_at.get(turn_id, 0.0))
        newest_rating = rating.rating if rating is not None and counts else turn["feedback"]
        alone = late is not None and step is None and late.decides
        judged = (None, None) if verdict is None or alone else (verdict["judge"], verdict["reward"])
        earned = worth(newest_rating, used["outcome_reward"], judged[0], judged[1], used["step_reward"])
        old = updates.get(turn["policy_version"] or 0, 0)
        why_not = None if step is not None else _why_not(used, verdict, earned, skipped.get(turn_id), old, config)
        if why_not is not None and skipped.get(turn_id) is None and len(dead.get(turn_id, ())) >= MOST_TIMES:
            why_not = f"skipped: {TWICE}"
        joined.rows.append(Row(turn, verdict, step, why_not, earned, tuple(sorted(dead.get(turn_id, ())))))
    joined.rows.sort(key=lambda row: row.turn["created_at"])
    return joined


def shard_rows(folder: Path, kind: str, columns: Sequence[str], problems: list[str]) -> Iterator[dict[str, Any]]:
    """Some columns of all rows in the shards of a folder."""
    for path in published(folder, ".parquet"):
        try:
            yield from read_columns(path, kind, columns)
        except UnreadableShard as error:
            problems.append(f"{folder.name}/{error}")


def _ledger(run: RunDir, problems: list[str], gone: set[int]) -> tuple[dict[str, int], dict[str, str], dict[str, list[int]]]:
    """Of turns that were in a step: the living step that trained them; why it was skipped; and its steps among those that are
    `gone`."""
    steps: dict[str, int] = {}
    skipped: dict[str, str] = {}
    dead: dict[str, list[int]] = {}
    for path in published(run.ledger, ".json"):
        entry = read_json(path, problems, turns=dict)
        ids = [turn_id for some in entry.get("turns", {}).values() for turn_id in some]
        if entry.get("outcome") == "trained" and entry["step"] in gone:
            for turn_id in ids:
                dead.setdefault(turn_id, []).append(entry["step"])
        elif entry.get("outcome") == "trained":
            steps |= dict.fromkeys(ids, entry["step"])
        else:
            skipped |= dict.fromkeys(ids, f"skipped: {entry.get('reason')}")
    return steps, skipped, dead


def _why_not(
    turn: dict[str, Any], verdict: dict[str, Any] | None, earned: Worth, skipped: str | None, staleness: int, config: TrainConfig
) -> str:
    """The trainer's own rules, in its order (`train/feed.py`), as far as they show without the token ids."""
    if not is_of_use(turn):
        return str(turn["untrainable_reason"])
    if verdict is None:
        return "waiting for the judge"
    if skipped is not None:
        return skipped
    if earned.problem is not None:
        return earned.problem
    hinted = bool(verdict["hint"]) and config.uses_hints
    has_reward = earned.counts(config.credit != "reward")
    if config.credit == "group" and turn["group_id"] is None and not hinted:
        return "in no group"
    if not (hinted or (has_reward and config.uses_rewards)):
        known = str(verdict["reason"] or "neutral")
        if not config.uses_rewards:
            return "no hint" if earned.value else known
        return "no reward" if verdict["hint"] else known
    if turn["trainable"] and staleness > config.max_staleness:
        return "stale"
    return "waiting for the trainer"


def is_of_use(turn: dict[str, Any]) -> bool:
    """`Turn.judged`: whether a step could use the turn."""
    return is_judged(turn["trainable"], turn["source"], turn["untrainable_reason"])


def train_config(run: RunDir, problems: list[str]) -> TrainConfig:
    """The training section of the run's recipe; the defaults if it cannot be read."""
    try:
        return load_recipe(recipe_file(run.root)).train
    except ClawError as error:
        problems.append(error.problem)
        return TrainConfig()


def read_policies(run: RunDir, problems: list[str]) -> list[Policy]:
    """The published policies in order."""
    found = []
    for version in list_versions(run):
        try:
            found.append(read_policy(run, version))
        except ClawError as error:
            problems.append(error.problem)
    return found


@dataclass(frozen=True, slots=True)
class Open:
    """Turns that collect has read but not published, because their next state is missing and their session may continue."""

    turns: int
    since: float | None  # when the oldest exchange of an open session was asked


def read_open(run: RunDir, problems: list[str]) -> Open:
    """The open turns as collect last saved them: seconds ago if it is running."""
    saved = read_json(run.position, problems).get("open")
    turns, since = (saved.get("turns"), saved.get("since")) if isinstance(saved, dict) else (0, None)
    return Open(turns if isinstance(turns, int) else 0, since if isinstance(since, int | float) else None)


def read_json(path: Path, problems: list[str], **shape: type) -> dict[str, Any]:
    """The object in `path`, whose keys in `shape` have that type. Empty if there is no file, or if it is unusable, which is a
    problem."""
    try:
        value = read_sealed(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, Damaged) as error:
        problems.append(f"{path.parent.name}/{path.name}: {error}")
        return {}
    if isinstance(value, dict) and all(isinstance(value.get(key), kind) for key, kind in shape.items()):
        return value
    problems.append(f"{path.parent.name}/{path.name}: unexpected content")
    return {}


def read_lines(path: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file with one a line. A damaged line is noted as a problem."""
    where = f"{path.parent.name}/{path.name}"
    return lines.read_lines(path, lambda number, error: problems.append(f"{where}, line {number}: {error}"))


def words_of(message: dict[str, Any] | None) -> str:
    """The text of a chat message, or the tool calls it makes."""
    if message is None:
        return ""
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text", f"({part.get('type', 'part')})")) for part in content if isinstance(part, dict))
    calls = [call.get("function") or {} for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    called = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
    return "\n".join([str(content)] * bool(content) + called)
