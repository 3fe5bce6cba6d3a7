"""The held-out turns of a run, in the order in which they are used to measure versions."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from clawctl.eval.suites import SuiteSettings
from clawctl.run.directory import RunDir, published
from clawctl.run.endpoint import Endpoint
from clawctl.run.feedback import Ratings
from clawctl.run.holdout import HELD_OUT
from clawctl.run.model_files import tokenizer_fingerprint
from clawctl.run.policies import read_policy
from clawctl.run.reward import worth
from clawctl.run.rows import Turn
from clawctl.run.shards import UnreadableShard, read_columns, read_origin, read_pieces, read_verdicts

_FEW = ("turn_id", "user", "created_at", "untrainable_reason", "policy_name", "feedback", "temperature")
MAX_TURNS = 2000  # only the newest held-out turns count, because people's wishes change over time
_ENOUGH = 240  # comparisons. If there are fewer turns, they are answered again with other seeds


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The place of a held-out turn, and the value of its answer."""

    turn_id: str
    user: str
    created_at: float
    stem: str
    value: float | None  # from a rating, outcome or verdict, -1 to 1; None: unknown
    greedy: bool = False  # sampled at temperature 0: another seed gives the same answer
    repetition: int = 0

    @property
    def task_id(self) -> str:
        return f"{self.turn_id}#{self.repetition + 1}" if self.repetition else self.turn_id


def held_out_turns(run: RunDir, settings: SuiteSettings, before: float = float("inf")) -> list[HeldOut]:
    """The newest MAX_TURNS held-out turns from before `before` (unix seconds) that the model's tokenizer can read.

    `settings.seed` fixes the order: one turn of each key, then the next turn of each key, so that no key outweighs the others.
    Damaged shards are skipped; judge and trainer quarantine them.
    """
    tokenizer = None if settings.recipe is None else tokenizer_fingerprint(settings.recipe.model_path)
    turns: list[HeldOut] = []
    for path in published(run.trajectories, ".parquet"):
        try:
            rows = [row for row in read_columns(path, "turns", _FEW) if row["untrainable_reason"] == HELD_OUT]
            rows = [row for row in rows if row["created_at"] < before and row["policy_name"] == run.policy]
            sampler = read_origin(path).tokenizer if rows else None
        except (UnreadableShard, FileNotFoundError):
            continue
        if not rows or (tokenizer is not None and sampler is not None and sampler != tokenizer):
            continue
        values = _values(run, path.stem, rows)
        turns += [
            HeldOut(row["turn_id"], row["user"], row["created_at"], path.stem, values[row["turn_id"]], row["temperature"] <= 0)
            for row in rows
        ]
    unique = {turn.turn_id: turn for turn in turns}  # a merged shard may briefly exist next to its parts
    newest = sorted(unique.values(), key=lambda turn: turn.created_at)[-MAX_TURNS:]
    by_user: dict[str, list[HeldOut]] = defaultdict(list)
    for turn in sorted(newest, key=lambda turn: hashed(settings.seed, turn.turn_id)):
        by_user[turn.user].append(turn)
    users = sorted(by_user, key=lambda user: hashed(settings.seed, user))
    return [turn for some in zip_longest(*(by_user[user] for user in users)) for turn in some if turn is not None]


def repeated(turns: Sequence[HeldOut]) -> list[HeldOut]:
    """The turns, and the same turns with other seeds until there are _ENOUGH: with eight comparisons, noise alone moves a mean by
    0.2. Further comparisons of the same turns say whether the versions differ on these turns."""
    tasks, again = list(turns), [turn for turn in turns if not turn.greedy]
    for repetition in range(1, -(-(_ENOUGH - len(turns)) // len(again)) + 1 if again else 1):
        tasks += [replace(turn, repetition=repetition) for turn in again]
    return tasks if len(turns) >= _ENOUGH else tasks[:_ENOUGH]


def _values(run: RunDir, stem: str, rows: Sequence[dict]) -> dict[str, float | None]:
    ratings = Ratings(run)
    ratings.poll()
    try:
        verdicts = {verdict.turn_id: verdict for verdict in read_verdicts(run.verdict_shard(stem))}
    except (UnreadableShard, FileNotFoundError):
        verdicts = {}
    values = {}
    for row in rows:
        rating, verdict = ratings.of(row["user"], row["turn_id"]), verdicts.get(row["turn_id"])
        judged = (None, None) if verdict is None else (verdict.judge, verdict.reward)
        values[row["turn_id"]] = worth(row["feedback"] if rating is None else rating.rating, None, *judged).value
    return values


def whole_turns(run: RunDir, chosen: Sequence[HeldOut]) -> list[Turn]:
    """The rows of these turns, in this order. Turns that no longer exist are skipped."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for turn in chosen:
        wanted[turn.stem].add(turn.turn_id)
    turns: dict[str, Turn] = {}
    for stem, turn_ids in wanted.items():
        try:
            for piece in read_pieces(run.turn_shard(stem)):
                indices = [at for at, row in enumerate(piece.rows("turns", ("turn_id",))) if row["turn_id"] in turn_ids]
                turns |= {turn.turn_id: turn for turn in piece.turns(indices)} if indices else {}
        except (UnreadableShard, FileNotFoundError):
            continue
    return [turns[turn.turn_id] for turn in chosen if turn.turn_id in turns]


def asked_before(run: RunDir, *endpoints: Endpoint) -> float:
    """The time (unix seconds) when the newest of these versions was published.

    A pair of versions is compared on the turns before that time, so the tasks stay the same during the comparison.
    """
    versions = [endpoint.model.rpartition("@")[2] for endpoint in endpoints]
    return max(read_policy(run, int(version)).created_at if version.isdigit() else float("inf") for version in versions)


def hashed(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()


def key_name(user: str) -> str:
    """The hashed name of an API key, which evidence shows in place of the key."""
    return hashlib.sha256(user.encode()).hexdigest()[:16]
