"""How each file of a run in a bucket (`bucket.py`) is synchronised, by its path below the run."""

import re
from enum import Enum
from typing import Final

from clawctl.run.names import number_of

FOLDER: Final = ".folder"  # suffix of the object that lists the parts of a folder


class Kind(Enum):
    """How a file of a run in a bucket is synchronised."""

    LOCAL = "stays on its host"
    ONCE = "is published once and never changed"
    CHANGING = "is replaced as a whole"
    GROWING = "is appended to by its writer alone, on its host"
    FOLDER = "is a folder that is published once"


_CHANGING = {"run.json", "recipe.yaml", "serve.json", "holdout.json", "verdicts/custom-range.json", "verdicts/fitness.json"}
_CHANGING_BY_NAME = {
    "policies": {"LIVE", "SHARED", "moves.jsonl"},
    "train": {"steps.jsonl", "back.jsonl", "abandoned.jsonl", "refusals.json", "forgotten.jsonl", "feed.json"},
}


def kind_of(name: str) -> Kind:
    """Return the kind of a file from its path below the run."""
    head, *rest = parts = name.split("/")
    if name in _CHANGING:
        return Kind.CHANGING
    if not rest or any(part.startswith(".") for part in parts):
        return Kind.LOCAL
    last = parts[-1]
    if head in ("feedback", "episodes") and last.endswith(".jsonl"):
        return Kind.GROWING
    if head == "quarantine":
        return Kind.ONCE
    if head in ("trajectories", "verdicts"):
        return Kind.ONCE if last.endswith(".parquet") else Kind.LOCAL
    if head == "eval":
        return Kind.CHANGING if last.endswith(".json") else Kind.LOCAL
    if last in _CHANGING_BY_NAME.get(head, ()):
        return Kind.CHANGING
    if (head == "policies" or (head == "train" and "checkpoints" in parts[:-1])) and number_of(last) is not None:
        return Kind.FOLDER
    if head == "train" and parts[-2] in ("ledger", "turns") and last.endswith((".json", ".parquet")):
        return Kind.ONCE
    return Kind.LOCAL


def is_shared_lock(name: str) -> bool:
    """Whether all hosts share the lock. Collect and `up` workers serve one host each."""
    return name.startswith("judge-") or name.split("-")[0] in ("train", "eval", "live", "forget")


_RANKS = (  # files that are read together arrive in this order: a version is here before LIVE names it
    re.compile(r"run\.json|recipe\.yaml|feedback/|episodes/"),
    re.compile(r"train/.*ledger/|verdicts/"),
    re.compile(r"trajectories/|eval/|quarantine/"),
    re.compile(r"train/.*\.folder$"),
    re.compile(r"policies/.*\.folder$"),
    re.compile(r"(?!policies/)"),
)


def order(name: str) -> tuple[int, str]:
    return next((rank for rank, names in enumerate(_RANKS) if names.match(name)), len(_RANKS)), name
