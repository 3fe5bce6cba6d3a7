"""The joined data of all readers: turns, their verdicts, their training results, and unreadable files.

Readers change nothing but their cache, `RUN/columns.npz` (`clawctl.run.columns`). An unreadable file is reported as a problem and
stays in place; the stage that owns it quarantines it.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from clawctl.config import TrainConfig, load_recipe
from clawctl.errors import ClawError, Damaged
from clawctl.inspect.joined import Joined, Row, Shards
from clawctl.printing import tracked
from clawctl.run import columns, lines
from clawctl.run.checksums import read_sealed
from clawctl.run.columns import ShardColumns
from clawctl.run.directory import RunDir, published, recipe_file
from clawctl.run.feedback import Ratings, comment_hint
from clawctl.run.lineage import MAX_TIMES, TWICE, Lineage, read_lineage
from clawctl.run.policies import list_versions, policy_names, read_policy
from clawctl.run.reward import PRACTICE, Worth, worth
from clawctl.run.rows import DEFAULT_POLICY, Policy, is_by_teacher, is_judged, lacks_reaction
from clawctl.run.shards import UnreadableShard

T = TypeVar("T")

_MANY = 64  # new files
_SAVED_ROWS = 4096  # so many rows are read again rather than stored


class CachedFiles(Generic[T]):
    """The contents of a folder's files. A published file never changes, but another file may replace it under the same name."""

    def __init__(
        self, folder: Path, suffix: str, read: Callable[[Path], T], stored: Mapping[Path, tuple[tuple[int, int], T]] | None = None
    ) -> None:
        self._folder, self._suffix, self._read = folder, suffix, read
        self.stamps = {path: stamp for path, (stamp, _) in (stored or {}).items()}
        self._unreadable: dict[Path, str] = {}
        self.found: dict[Path, T] = {path: content for path, (_, content) in (stored or {}).items()}  # ordered by name

    def poll(self) -> bool:
        """Read new files and drop removed ones. Returns whether anything changed."""
        stamps = {}
        for path in published(self._folder, self._suffix):
            with suppress(FileNotFoundError):  # merged in the meantime
                status = path.stat()
                stamps[path] = status.st_mtime_ns, status.st_ino
        new = {path for path, stamp in stamps.items() if self.stamps.get(path) != stamp}
        if not new and len(stamps) == len(self.stamps):
            return False
        contents, self._unreadable = {}, {path: why for path, why in self._unreadable.items() if path in stamps and path not in new}
        gone: list[Path] = []
        for path in tracked(stamps, f"reading new {self._folder.name}") if len(new) > _MANY else stamps:
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


def read_rows(run: RunDir) -> Joined:
    """All turns of the run. Unreadable files raise no error."""
    return TurnReader(run).poll()


class TurnReader:
    """Reads the turns of a run repeatedly. Each `poll` reads only files that are new and not in `RUN/columns.npz`."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        stored = columns.load(run)
        self._columns = turns, verdicts = stored["turns"], stored["verdicts"]
        self._turns = CachedFiles(run.trajectories, ".parquet", turns.read, turns.stored)
        self._verdicts = CachedFiles(run.verdicts, ".parquet", verdicts.read, verdicts.stored)
        self._ledgers = dict[str, CachedFiles[dict[str, Any]]]()  # by policy
        self._ratings = Ratings(run)
        self._joined: Joined | None = None
        self._joined_with: object = None

    def poll(self) -> Joined:
        """The current rows. Returns the same object as last time if nothing has changed."""
        problems: list[str] = []
        for name in policy_names(self._run):
            self._ledgers.setdefault(name, CachedFiles(self._run.of(name).ledger, ".json", _ledger_entry))
        every: list[CachedFiles[Any]] = [self._turns, self._verdicts, *self._ledgers.values()]
        new = [files.poll() for files in every]
        rated = self._ratings.poll()
        lineages = {name: read_lineage(self._run.of(name)) for name in self._ledgers}
        inputs = lineages, (config := train_config(self._run, problems)), problems
        if self._joined is None or any(new) or rated or inputs != self._joined_with:
            self._save()
            self._joined, self._joined_with = self._join(lineages, config, problems.copy()), inputs
        return self._joined

    def _save(self) -> None:
        """Store the columns if many rows are new, for the next reader."""
        both = list(zip(self._columns, (self._turns, self._verdicts), strict=True))
        if sum(len(rows) for of, files in both for path, rows in files.found.items() if path not in of.stored) < _SAVED_ROWS:
            return
        for of, files in both:
            of.stored = {path: (files.stamps[path], rows) for path, rows in files.found.items()}
        columns.save(self._run, self._columns)

    def _join(self, lineages: dict[str, Lineage], config: TrainConfig, problems: list[str]) -> Joined:
        problems[:0] = [*self._turns.problems(), *self._verdicts.problems()]
        fates = {name: _read_fates(self._run.of(name), ledger, lineages[name], problems) for name, ledger in self._ledgers.items()}
        turns, verdicts = map(_at_this_moment, self._columns, (self._turns, self._verdicts))
        joined = Joined(turns, verdicts, partial(_row, fates, self._ratings, config), problems)
        entered = set[str]().union(*(of.turn_ids() for of in fates.values()))
        exceptions: dict[str, Any] = {turn_id: tuple(of.key(turn_id) for of in fates.values()) for turn_id in entered}
        joined.decide(*self._columns, exceptions | dict.fromkeys(self._ratings.turn_ids()))
        return joined


@dataclass(frozen=True, slots=True)
class _Fates:
    """What one policy made of turns, by turn id."""

    steps: dict[str, int]  # the step that trained the turn into a version that is not dead
    skipped: dict[str, str]  # why a step skipped it
    dead: dict[str, list[int]]  # the steps that trained it into dead versions
    trained_at: dict[str, float]
    updates: dict[int, int]  # optimizer steps from a version to the one that training continues from

    def turn_ids(self) -> set[str]:
        return self.steps.keys() | self.skipped.keys() | self.dead.keys()

    def key(self, turn_id: str) -> tuple[Any, ...]:
        """Equal for turns of equal fates."""
        return self.steps.get(turn_id), self.skipped.get(turn_id), tuple(sorted(self.dead.get(turn_id, ())))


def _at_this_moment(of: ShardColumns, files: CachedFiles[NDArray[Any]]) -> Shards:
    parts = list(files.found.values())
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    return Shards(of.kind, columns.joined(parts, of.none()), {path: files.stamps[path] for path in files.found}, starts)


def _row(
    fates: Mapping[str, _Fates], ratings: Ratings, config: TrainConfig, turn: Mapping[str, Any], verdict: Mapping[str, Any] | None
) -> Row:
    """The turn with its fate. A turn without an id is a variant, about which nothing but its columns decides."""
    turn_id = turn.get("turn_id", "")
    policy = turn["policy_name"] if turn["policy_name"] in fates else DEFAULT_POLICY
    of = fates[policy]
    step = of.steps.get(turn_id)
    used, rating = turn, ratings.of(turn["user"], turn_id)
    if rating is not None and lacks_reaction(turn["source"], turn["untrainable_reason"]):
        used = {**turn, "trainable": True, "untrainable_reason": None}  # its user reacted after the row was published
    late = ratings.late_outcome(turn["user"], turn_id)
    if late is not None and step is None:
        used = {**used, **late.changes(used["untrainable_reason"], turn_id)}
    counts = rating is not None and (step is None or rating.created_at <= of.trained_at.get(turn_id, 0.0))
    newest_rating = rating.rating if rating is not None and counts else turn["feedback"]
    if verdict is not None and counts and (hint := comment_hint(rating)) is not None:
        verdict = {**verdict, "hint": hint, "hints": list(dict.fromkeys([hint, *verdict["hints"]]))}
    alone = late is not None and step is None and late.decides
    judged = (None, None) if verdict is None or alone else (verdict["judge"], verdict["reward"])
    earned = _worth(newest_rating, used["outcome_reward"], *judged, used["step_reward"])
    why_not, dead = None, tuple(sorted(of.dead.get(turn_id, ())))
    if step is None:
        old = of.updates.get(turn["policy_version"] or 0, 0)
        why_not = _why_not(used, verdict, earned, of.skipped.get(turn_id), old, config)
        if of.skipped.get(turn_id) is None and len(dead) >= MAX_TIMES:
            why_not = f"skipped: {TWICE}"
    return Row(turn, verdict, step, why_not, earned, dead, rating, policy)


_worth = functools.lru_cache(1 << 16)(worth)  # thousands of turns share a few distinct verdicts


def _ledger_entry(path: Path) -> dict[str, Any]:
    """Read an entry of the ledger. Raises Damaged."""
    problems: list[str] = []
    entry = read_json(path, problems, turns=dict)
    if problems:
        raise Damaged(problems[0].removeprefix(f"{path.parent.name}/"))
    return entry


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
    """The reason by the trainer's own rules, in its order (`train/turn_queue.py`), as far as it is visible without token ids."""
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
