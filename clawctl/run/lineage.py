"""The tree of versions, and the version from which training continues. Training does not continue from rejected versions.

Everything here is derived from files that other stages publish whole. `policies/<version>/policy.json` names the parent.
`policies/LIVE` and `policies/moves.jsonl` name the live version and the earlier ones. `eval/<version>.json` contains the gate's
decision, and `train/abandoned.jsonl` the versions that `clawctl train --from` abandoned. A crash at any moment does not change the
result.

The *tip* is the version from which the next step continues. It is the newest version if the live version is among its ancestors and
no version between the two was refused, rolled back or abandoned. Otherwise it is the live version. A version is *dead* if it is
neither the tip nor one of its ancestors. A dead version becomes living again when a person promotes it.
"""

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from clawctl.run.checksums import read_object, sealed
from clawctl.run.directory import RunDir
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.names import stamp_of
from clawctl.run.policies import list_versions, read_moves, readable_live
from clawctl.run.rows import DEFAULT_POLICY

OVERTAKEN = "overtaken by"  # prefix of a decision that skipped the version without refusing it
BY_EVAL = "eval, because"  # prefix of the mover of LIVE when users complained about a version
BUILT_ON = "built on version"  # prefix of a decision that concerns an ancestor
TWICE = "trained into refused versions twice"
MAX_TIMES = 2  # maximum number of dead steps with the same turn; after that the turn is not tried again
_UNREADABLE = "its eval record cannot be read, and it may have been a refusal"
_LONGEST_CACHE = 1 << 16  # files


@dataclass(frozen=True, slots=True)
class Lineage:
    """The tree of a policy's versions at one moment."""

    parents: dict[int, int | None]  # parent of each published version: {0: None, 1: 0, 2: 1, 3: 0}
    live: int | None
    tip: int  # the version from which the next step continues
    newest: int  # the highest version number
    policy: str = DEFAULT_POLICY  # the name of the policy

    def ancestry(self, version: int | None) -> list[int]:
        """Return `version` and its ancestors, youngest first, as far as they are published."""
        ancestors = []
        while version is not None and version in self.parents:
            ancestors.append(version)
            version = self.parents[version]
        return ancestors

    def above(self, version: int, ancestor: int) -> list[int]:
        """Return the versions after `ancestor` up to `version`, oldest first. Empty if `ancestor` is not an ancestor."""
        path = self.ancestry(version)
        return path[: path.index(ancestor)][::-1] if ancestor in path else []

    def living(self) -> set[int]:
        """Return the tip and its ancestors."""
        return set(self.ancestry(self.tip))

    def dead(self) -> list[int]:
        """Return all other versions, in order."""
        living = self.living()
        return sorted(version for version in self.parents if version not in living)

    def depth(self, version: int) -> int:
        """Return the number of updates between the base model and `version`."""
        return len(self.ancestry(version)) - 1

    def updates_from(self, version: int) -> dict[int, int]:
        """Return for each version the number of updates between it and `version`, by way of the newest common ancestor.

        Among ancestors this is the age in steps. It defines staleness for turns that a dead version sampled.
        """
        distances = {ancestor: distance for distance, ancestor in enumerate(self.ancestry(version))}
        for other in sorted(self.parents):  # a parent comes before its children
            parent = self.parents[other]
            if other not in distances and parent in distances:
                distances[other] = distances[parent] + 1
            else:
                distances.setdefault(other, abs(version - other))  # a version in between is gone: only the numbers are left
        return distances


def read_lineage(run: RunDir) -> Lineage:
    """Return the tree of the policy `run.policy` as it is on disk now."""
    versions = list_versions(run)
    parents = {version: _made(run, version)[0] for version in versions}
    live, newest = readable_live(run), max(versions, default=0)
    tree = Lineage(parents, live, newest, newest)
    excluded = set(abandoned(run)) - set(tree.ancestry(live))
    for version in versions:  # a parent comes before its children
        if parents[version] in excluded:
            excluded.add(version)
    tip = max((version for version in versions if version not in excluded), default=0)
    if live is not None and live in parents and tip != live:
        path, served_versions = tree.above(tip, live), served(run)
        if not path or any(version in served_versions or refusal(run, version) for version in path):
            tip = live
    return Lineage(parents, live, tip, newest, run.policy)


def why_dead(run: RunDir, lineage: Lineage) -> dict[int, str]:
    """Return the reason for each dead version, as a clause: "refused by the gate: …", "built on version 3, which is dead"."""
    served_versions, abandoned_by, reasons = served(run), abandoned(run), dict[int, str]()
    dead = lineage.dead()
    for version in dead:  # a parent comes before its children
        parent = lineage.parents[version]
        reason = refusal(run, version)
        if version in abandoned_by:
            reasons[version] = f"abandoned by {abandoned_by[version]}"
        elif version in served_versions:
            reasons[version] = f"rolled back: {_last_mover(run, lineage, version)}"
        elif parent in reasons:
            reasons[version] = f"built on version {parent}, which is dead"
        elif reason is not None:
            reasons[version] = f"refused by the gate: {reason}"
        else:
            reasons[version] = f"training continued from version {lineage.tip} before the gate decided on it"
    return reasons


def refusal(run: RunDir, version: int) -> str | None:
    """Return the gate's reason for refusing a version, or None if the gate did not refuse this version itself.

    An unreadable record counts as a refusal, because it may have been one. If the record is gone (quarantined or deleted), the
    trainer's own record still names the refused version.
    """
    decision = decision_of(run, version)
    if decision is None and any(
        _is_same(run, version, created_at) for noted, created_at in _noted_refusals(run) if noted == version
    ):
        return "training went back from it before; its eval record is gone"
    if decision is None or decision.get("promote") is not False:
        return None
    reason = str(decision.get("reason"))
    return None if reason.startswith((OVERTAKEN, BUILT_ON)) else reason


def decision_of(run: RunDir, version: int) -> dict[str, Any] | None:
    """Return the decision in the eval record of a version, or None."""
    path = run.eval_record(version)
    stamp = stamp_of(path)
    return None if stamp is None else _read_decision(path, stamp)


def is_undecided(run: RunDir, version: int) -> bool:
    """Whether the gate still has to decide on a version."""
    decision = decision_of(run, version)
    return decision is None or decision.get("promote") is None


def refusals_in_a_row(run: RunDir, lineage: Lineage, after: int = 0) -> list[int]:
    """Return the refused versions numbered above `after`, newest first, back to the last accepted version.

    A version counts as refused if the gate or a server refused it, or if users complained about it.
    """
    accepted = set(lineage.ancestry(lineage.live)) | served(run)
    by_server = {move["from"] for move in read_moves(run) if str(move["by"]).startswith(("serve", BY_EVAL))}
    refused = []
    for version in sorted(lineage.parents, reverse=True):
        if version <= after:
            break
        if version in by_server and version not in lineage.ancestry(lineage.live):
            refused.append(version)
        elif version in accepted:
            break
        elif refusal(run, version):
            refused.append(version)
    return refused


# ---- abandoned versions ------------------------------------------------------------------------------------------------


def abandon(run: RunDir, versions: list[int], by: str) -> None:
    """Record that training must not continue from these versions, although the gate did not refuse them."""
    lines = [sealed(orjson.dumps({"at": time.time(), "version": v, "made": _made(run, v)[1], "by": by})) for v in versions]
    append_lines(run.abandoned, lines)


def abandoned(run: RunDir) -> dict[int, str]:
    """Return the versions that `abandon` recorded, each with the person or command that abandoned it."""
    rows = [row for row in read_lines(run.abandoned) if {"version", "made", "by"} <= row.keys()]
    return {int(row["version"]): str(row["by"]) for row in rows if _is_same(run, row["version"], row["made"])}


# ---- reading -------------------------------------------------------------------------------------------------------------


def served(run: RunDir) -> set[int]:
    """Return the versions that LIVE has named at some time.

    A number may have been used before, by a version that is now in quarantine. It counts only if the move names the same version.
    """
    versions = set()
    for move in read_moves(run):
        for end in ("from", "to"):
            if move[end] is not None and _is_same(run, move[end], move.get(f"{end}_made")):
                versions.add(int(move[end]))
    return versions


def _last_mover(run: RunDir, lineage: Lineage, version: int) -> str:
    """Return a clause that names the person or stage that moved LIVE off a version's branch."""
    moves = [
        move
        for move in read_moves(run)
        if version in lineage.ancestry(move["from"]) and version not in lineage.ancestry(move["to"])
    ]
    return f"{moves[-1]['by']} moved LIVE to {moves[-1]['to']}" if moves else "LIVE was moved"


def _is_same(run: RunDir, version: int, created_at: float | None) -> bool:
    return created_at is None or _made(run, version)[1] in (None, created_at)


def _made(run: RunDir, version: int) -> tuple[int | None, float | None]:
    """Return parent and creation time of a version. If policy.json is damaged, the ledger provides the parent."""
    path = run.version_folder(version) / "policy.json"
    stamp = stamp_of(path)
    policy = None if stamp is None else _read_policy(path, stamp)
    if policy is not None:
        return policy
    parent = (read_object(run.ledger_entry(version)) or {}).get("parent")
    return (parent if isinstance(parent, int) else version - 1 if version else None), None


@functools.lru_cache(_LONGEST_CACHE)
def _read_policy(path: Path, stamp: tuple[int, int]) -> tuple[int | None, float | None] | None:
    policy = read_object(path)
    return None if policy is None or "parent" not in policy else (policy["parent"], policy.get("created_at"))


@functools.lru_cache(_LONGEST_CACHE)
def _read_decision(path: Path, stamp: tuple[int, int]) -> dict[str, Any] | None:
    decision = (read_object(path) or {}).get("decision")
    return decision if isinstance(decision, dict) else {"promote": False, "reason": _UNREADABLE, "against": None}


def refused_now(run: RunDir, versions: list[int]) -> list[dict[str, Any]]:
    """Return the versions that the gate itself refused, to be stored in `RunDir.went_back`, which outlives their eval records."""
    return [{"version": version, "made": _made(run, version)[1]} for version in versions if refusal(run, version)]


def _noted_refusals(run: RunDir) -> list[tuple[int, float | None]]:
    """Return the versions that `refused_now` named when training went back."""
    path = run.went_back
    stamp = stamp_of(path)
    return [] if stamp is None else _read_noted_refusals(path, (*stamp, path.stat().st_size))


@functools.lru_cache(64)
def _read_noted_refusals(path: Path, stamp: tuple[int, int, int]) -> list[tuple[int, float | None]]:
    rows = [row for row in read_lines(path) if isinstance(row.get("refused"), list)]
    refusals = [
        entry for row in rows for entry in row["refused"] if isinstance(entry, dict) and isinstance(entry.get("version"), int)
    ]
    return [(refusal["version"], refusal.get("made")) for refusal in refusals]
