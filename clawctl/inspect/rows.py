"""The joined data of all readers: turns, their verdicts, their training results, and unreadable files.

Readers change nothing. An unreadable file is reported as a problem and stays in place; the stage that owns it quarantines it.
"""

import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from clawctl.config import TrainConfig, load_recipe
from clawctl.errors import ClawError, Damaged
from clawctl.run import lines
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, published, recipe_file
from clawctl.run.feedback import Ratings, comment_hint
from clawctl.run.lineage import MAX_TIMES, TWICE, Lineage, read_lineage
from clawctl.run.policies import list_versions, policy_names, read_policy
from clawctl.run.reward import PRACTICE, Worth, worth
from clawctl.run.rows import DEFAULT_POLICY, Feedback, Policy, is_by_teacher, is_judged, lacks_reaction
from clawctl.run.shards import UnreadableShard, read_columns, read_values, rows_of

T = TypeVar("T")

_FEW = (
    "turn_id", "session_id", "parent_turn_id", "parent_evidence", "turn_index", "kind", "source", "user", "created_at",
    "policy_name", "policy_version", "top_p", "top_k", "task_id", "group_id", "outcome_reward", "feedback", "trainable",
    "untrainable_reason", "redacted_by", "step_reward", "episode", "images", "notes",
)  # fmt: skip
_WORDS = ("messages", "response", "next_state")
_VERDICT = ("turn_id", "reward", "votes", "hint", "hints", "judge", "reason")


@dataclass(frozen=True, slots=True)
class Row:
    """One turn with its verdict and its training result."""

    turn: Mapping[str, Any]  # the columns of a trajectory shard, without token ids
    verdict: Mapping[str, Any] | None  # None: not judged yet
    step: int | None  # the optimizer step of `policy` that trained it
    why_not: str | None  # why it has not been trained; None if it has been
    worth: Worth  # includes later ratings; for a trained turn, only ratings from before its policy
    dead_steps: tuple[int, ...] = ()  # steps that trained it into versions that are now dead
    rating: Feedback | None = None  # the newest rating that is not part of the row
    policy: str = DEFAULT_POLICY  # the policy that answered it, whose steps train it


@dataclass(slots=True)
class Joined:
    """The rows of a run, ordered by the time of the request."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # "trajectories/a-1.parquet: not a shard: …"


def read_rows(run: RunDir) -> Joined:
    """All turns of the run, without their texts. Unreadable files raise no error."""
    with without_collections():
        return TurnReader(run).poll()


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector while rows are read: a collection visits every row. Later ones leave them out."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class TurnReader:
    """Reads the turns of a run repeatedly. Each `poll` reads only new files."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._turns = CachedFiles(run.trajectories, ".parquet", lambda path: _by_id(path, "turns", _FEW))
        self._verdicts = CachedFiles(run.verdicts, ".parquet", lambda path: _by_id(path, "verdicts", _VERDICT))
        self._ledgers = dict[str, CachedFiles[dict[str, Any]]]()  # by policy
        self._ratings = Ratings(run)
        self._joined: Joined | None = None
        self._joined_with: object = None

    def poll(self) -> Joined:
        """The current rows. Returns the same object as last time if nothing has changed."""
        problems: list[str] = []
        for name in policy_names(self._run):
            self._ledgers.setdefault(name, CachedFiles(self._run.of(name).ledger, ".json", _ledger_entry))
        new = [files.poll() for files in (self._turns, self._verdicts, *self._ledgers.values())]
        rated = self._ratings.poll()
        lineages = {name: read_lineage(self._run.of(name)) for name in self._ledgers}
        inputs = lineages, (config := train_config(self._run, problems)), problems
        if self._joined is None or any(new) or rated or inputs != self._joined_with:
            self._joined, self._joined_with = self._join(lineages, config, problems.copy()), inputs
        return self._joined

    def shard_of(self, turn_id: str) -> Path | None:
        """The file that contains a turn, or None."""
        return next((path for path, turns in self._turns.found.items() if turn_id in turns), None)

    def with_texts(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with the texts of their turns, which are None if their shard cannot be read any more."""
        texts, wanted = dict[str, dict[str, Any]](), {row.turn["turn_id"] for row in rows}
        for path, turns in self._turns.found.items():
            if ids := [turn_id for turn_id in turns if turn_id in wanted]:
                with suppress(UnreadableShard):
                    texts |= {text["turn_id"]: text for text in rows_of(path, ("turn_id", *_WORDS), set(ids))}
        none = dict.fromkeys(_WORDS)
        return [replace(row, turn={**row.turn, **texts.get(row.turn["turn_id"], none)}) for row in rows]

    def shards(self) -> dict[Path, tuple[int, int]]:
        """The readable turn shards. Each has a stamp that changes if the file is published again."""
        return {path: self._turns.stamps[path] for path in self._turns.found}

    def _join(self, lineages: dict[str, Lineage], config: TrainConfig, problems: list[str]) -> Joined:
        joined = Joined(problems=[*self._turns.problems(), *self._verdicts.problems(), *problems])
        verdicts = {turn_id: verdict for shard in self._verdicts.found.values() for turn_id, verdict in shard.items()}
        by_policy = {
            name: _read_fates(self._run.of(name), ledger, lineages[name], joined.problems) for name, ledger in self._ledgers.items()
        }
        rate, late_outcome = self._ratings.of, self._ratings.late_outcome
        turns = {turn_id: turn for shard in self._turns.found.values() for turn_id, turn in shard.items()}
        for turn_id, turn in turns.items():
            policy = turn["policy_name"] if turn["policy_name"] in by_policy else DEFAULT_POLICY
            fates = by_policy[policy]
            verdict, step = verdicts.get(turn_id), fates.steps.get(turn_id)
            used, rating = turn, rate(turn["user"], turn_id)
            if rating is not None and lacks_reaction(turn["source"], turn["untrainable_reason"]):
                used = {**turn, "trainable": True, "untrainable_reason": None}  # its user reacted after the row was published
            late = late_outcome(turn["user"], turn_id)
            if late is not None and step is None:
                used = {**used, **late.changes(used["untrainable_reason"], turn_id)}
            counts = rating is not None and (step is None or rating.created_at <= fates.trained_at.get(turn_id, 0.0))
            newest_rating = rating.rating if rating is not None and counts else turn["feedback"]
            if verdict is not None and counts and (hint := comment_hint(rating)) is not None:
                verdict = {**verdict, "hint": hint, "hints": list(dict.fromkeys([hint, *verdict["hints"]]))}
            alone = late is not None and step is None and late.decides
            judged = (None, None) if verdict is None or alone else (verdict["judge"], verdict["reward"])
            earned = _worth(newest_rating, used["outcome_reward"], *judged, used["step_reward"])
            why_not = None
            if step is None:
                old = fates.updates.get(turn["policy_version"] or 0, 0)
                why_not = _why_not(used, verdict, earned, fates.skipped.get(turn_id), old, config)
                if fates.skipped.get(turn_id) is None and len(fates.dead.get(turn_id, ())) >= MAX_TIMES:
                    why_not = f"skipped: {TWICE}"
            dead = tuple(sorted(fates.dead.get(turn_id, ())))
            joined.rows.append(Row(turn, verdict, step, why_not, earned, dead, rating, policy))
        joined.rows.sort(key=lambda row: row.turn["created_at"])
        return joined


_worth = functools.lru_cache(1 << 16)(worth)  # thousands of turns share a few distinct verdicts


class ShardRow(Mapping[str, Any]):
    """A row as a view of its shard's columns. A run in memory as dictionaries takes twice as much."""

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: dict[str, list[Any]], index: int) -> None:
        self._columns, self._index = columns, index

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class CachedFiles(Generic[T]):
    """The contents of a folder's files. A published file never changes, but another file may replace it under the same name."""

    def __init__(self, folder: Path, suffix: str, read: Callable[[Path], T]) -> None:
        self._folder, self._suffix, self._read = folder, suffix, read
        self.stamps: dict[Path, tuple[int, int]] = {}
        self._unreadable: dict[Path, str] = {}
        self.found: dict[Path, T] = {}  # ordered by name

    def poll(self) -> bool:
        """Read new files and drop removed ones. Returns whether anything changed."""
        stamps = {}
        for path in published(self._folder, self._suffix):
            with suppress(FileNotFoundError):  # merged in the meantime
                status = path.stat()
                stamps[path] = status.st_mtime_ns, status.st_ino
        new = [path for path, stamp in stamps.items() if self.stamps.get(path) != stamp]
        if not new and len(stamps) == len(self.stamps):
            return False
        contents, self._unreadable = {}, {path: why for path, why in self._unreadable.items() if path in stamps and path not in new}
        gone: list[Path] = []
        for path in stamps:
            if path not in new:
                if path in self.found:
                    contents[path] = self.found[path]
                continue
            try:
                contents[path] = self._read(path)
            except (UnreadableShard, Damaged) as error:
                if path.exists():
                    self._unreadable[path] = str(error)
                else:  # merged since the listing: its rows are in a file that was not listed
                    gone.append(path)
        self.stamps, self.found = {path: stamp for path, stamp in stamps.items() if path not in gone}, contents
        if gone:
            self.poll()
        return True

    def problems(self) -> list[str]:
        """Descriptions of unreadable files: "trajectories/a-1.parquet: not a shard: …"."""
        return [f"{self._folder.name}/{why}" for why in self._unreadable.values()]


def _by_id(path: Path, kind: str, columns: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    of = read_values(path, kind, columns)
    return {turn_id: ShardRow(of, index) for index, turn_id in enumerate(of["turn_id"])}


def shard_rows(folder: Path, kind: str, columns: Sequence[str], problems: list[str]) -> Iterator[dict[str, Any]]:
    """Selected columns of all rows in a folder's shards."""
    for path in published(folder, ".parquet"):
        try:
            yield from read_columns(path, kind, columns)
        except UnreadableShard as error:
            problems.append(f"{folder.name}/{error}")


def _ledger_entry(path: Path) -> dict[str, Any]:
    """Read an entry of the ledger. Raises Damaged."""
    problems: list[str] = []
    entry = read_json(path, problems, turns=dict)
    if problems:
        raise Damaged(problems[0].removeprefix(f"{path.parent.name}/"))
    return entry


@dataclass(frozen=True, slots=True)
class _Fates:
    """What one policy made of turns, by turn id."""

    steps: dict[str, int]  # the step that trained the turn into a version that is not dead
    skipped: dict[str, str]  # why a step skipped it
    dead: dict[str, list[int]]  # the steps that trained it into dead versions
    trained_at: dict[str, float]
    updates: dict[int, int]  # optimizer steps from a version to the one that training continues from


def _read_fates(run: RunDir, ledger: CachedFiles[dict[str, Any]], lineage: Lineage, problems: list[str]) -> _Fates:
    fates = _Fates({}, {}, {}, {}, lineage.updates_from(lineage.tip))
    policies, gone = read_policies(run, problems), set(lineage.dead())
    for entry in ledger.found.values():
        ids = [turn_id for turn_ids in entry.get("turns", {}).values() for turn_id in turn_ids]
        if entry.get("outcome") == "trained" and entry["step"] in gone:
            for turn_id in ids:
                fates.dead.setdefault(turn_id, []).append(entry["step"])
        elif entry.get("outcome") == "trained":
            fates.steps.update(dict.fromkeys(ids, entry["step"]))
        else:
            fates.skipped.update(dict.fromkeys(ids, f"skipped: {entry.get('reason')}"))
    problems += ledger.problems()
    for policy in policies:
        for turn_id in policy.turns:
            if policy.version not in gone:
                fates.steps[turn_id], fates.trained_at[turn_id] = policy.step, policy.created_at
            elif policy.step not in fates.dead.setdefault(turn_id, []):
                fates.dead[turn_id].append(policy.step)
    return fates


def _why_not(
    turn: Mapping[str, Any],
    verdict: Mapping[str, Any] | None,
    earned: Worth,
    skipped: str | None,
    staleness: int,
    config: TrainConfig,
) -> str:
    """The reason by the trainer's own rules, in its order (`train/feed.py`), as far as it is visible without token ids."""
    if not is_of_use(turn):
        return str(turn["untrainable_reason"])
    if verdict is None:
        return "waiting for the judge"
    if skipped is not None:
        return skipped
    if earned.problem is not None:
        return earned.problem
    practised = verdict["judge"] == PRACTICE
    if practised and not config.uses_hints:
        return PRACTICE
    hinted = config.teaches(turn, verdict, earned.value)
    has_reward = earned.counts(config.credit != "reward")
    if config.credit == "group" and turn["group_id"] is None and not hinted:
        return "in no group"
    if not (hinted or (has_reward and config.uses_rewards)):
        reason = str(verdict["reason"] or "neutral")
        if not config.uses_rewards:
            return "no hint" if earned.value else reason
        return "no reward" if verdict["hint"] else reason
    if turn["trainable"] and staleness > config.max_staleness and not is_by_teacher(turn["episode"]):
        return "stale"
    return "waiting for the trainer"


def is_of_use(turn: Mapping[str, Any]) -> bool:
    """Whether a step could use the turn (`Turn.judged`)."""
    return is_judged(turn["trainable"], turn["source"], turn["untrainable_reason"])


def train_config(run: RunDir, problems: list[str]) -> TrainConfig:
    """The section `train` of the run's recipe, or the defaults if the recipe cannot be read."""
    try:
        return load_recipe(recipe_file(run.root)).train
    except ClawError as error:
        problems.append(error.problem)
        return TrainConfig()


def read_policies(run: RunDir, problems: list[str]) -> list[Policy]:
    """The published policies, ordered by version."""
    policies = []
    for version in list_versions(run):
        try:
            policies.append(read_policy(run, version))
        except ClawError as error:
            problems.append(error.problem)
    return policies


@dataclass(frozen=True, slots=True)
class OpenTurns:
    """Turns that collect has read but not published: they have no next state yet, and their session may continue."""

    turns: int
    since: float | None  # when the oldest exchange of an open session was requested


def read_open(run: RunDir, problems: list[str]) -> OpenTurns:
    """The open turns, as last saved by collect. While collect is running, the data is seconds old."""
    saved = read_json(run.position, problems).get("open")
    turns, since = (saved.get("turns"), saved.get("since")) if isinstance(saved, dict) else (0, None)
    return OpenTurns(turns if isinstance(turns, int) else 0, since if isinstance(since, int | float) else None)


def read_json(path: Path, problems: list[str], **shape: type) -> dict[str, Any]:
    """The object in `path`. Each key in `shape` must have the given type.

    Empty if the file does not exist, or if it is unusable; the latter is added to `problems`.
    """
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
    """The objects in a file with one object per line. Damaged lines are added to `problems`."""
    where = f"{path.parent.name}/{path.name}"
    return lines.read_lines(path, lambda number, error: problems.append(f"{where}, line {number}: {error}"))


def _part_text(part: dict[str, Any]) -> str:
    """The text of a part. For an image, the beginning of its hash, which is its file name in `RUN/images`."""
    name = str((part.get("image_url") or {}).get("url", "")) if isinstance(part.get("image_url"), dict) else ""
    kind = f"image {name[6:18]}" if name.startswith("image:") else part.get("type", "part")
    return str(part.get("text", f"({kind})"))


def message_text(message: dict[str, Any] | None) -> str:
    """The text of a chat message, followed by its tool calls."""
    if message is None:
        return ""
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(_part_text(part) for part in content if isinstance(part, dict))
    calls = [call.get("function") or {} for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    called = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
    return "\n".join([str(content)] * bool(content) + called)
