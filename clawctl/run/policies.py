"""Policies on disk: `policies/<version>/`, published whole by the trainer, and `policies/LIVE`, which names the live version.

`policies/moves.jsonl` records who moved LIVE, when, and from where.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock

from clawctl.errors import ClawError
from clawctl.run.checksums import Damaged, check_folder, checksums_of, read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, publish_folder
from clawctl.run.names import counted, named, numbers_in, open_to_append
from clawctl.run.rows import Policy

_PATIENCE_S = 10.0


def policy_folder(run: RunDir, version: int) -> Path:
    return run.policies / str(version)


def ensure_base_policy(run: RunDir, base_model: str) -> None:
    """Publish policy 0, the base model itself, and point LIVE at it, unless both exist. Any stage may be the first."""
    base = Policy(0, None, 0, None, "base", base_model, [], None, {}, time.time())
    if not policy_folder(run, 0).exists():
        publish_policy(run, base, lambda folder: None)
    found = read_policy(run, 0).base_model
    if found != base_model:
        raise ClawError(
            f"{run.root} was created for the model {found!r}, but the recipe names {base_model!r}",
            "use another --run for another model",
            2,
        )
    if live_version(run) is None:
        move_live(run, 0, by="start")


def publish_policy(run: RunDir, policy: Policy, write: Callable[[Path], None], checksums: dict[str, str] | None = None) -> None:
    """Publish one version. `write` saves the weights (Hugging Face or peft layout). policy.json and READY are added; READY contains
    a checksum of each file. `checksums` are those of the files that `write` saves, if known."""

    def fill(folder: Path) -> None:
        write(folder)
        files = checksums_of(folder) if checksums is None else checksums
        (folder / "policy.json").write_bytes(sealed(orjson.dumps(asdict(policy), option=orjson.OPT_INDENT_2)))
        (folder / "READY").write_bytes(sealed(orjson.dumps({"files": files})))

    publish_folder(policy_folder(run, policy.version), fill)


def list_versions(run: RunDir) -> list[int]:
    """Published versions in order."""
    return [number for number in numbers_in(run.policies) if (policy_folder(run, number) / "READY").exists()]


def read_policy(run: RunDir, version: int) -> Policy:
    path = policy_folder(run, version) / "policy.json"
    try:
        policy = Policy(**read_sealed(path.read_bytes()))
        if counted(policy.version) != version:
            raise Damaged(f"its policy.json names version {policy.version}")
        return policy
    except (OSError, Damaged, TypeError) as error:
        known = ", ".join(map(str, list_versions(run))) or "none"
        raise ClawError(f"policy {version} cannot be read: {error}", f"choose one of the published versions: {known}") from error


def check_policy(run: RunDir, version: int) -> None:
    """Raises ClawError if a file of a published version has changed. A version without checksums is not checked."""
    folder = policy_folder(run, version)
    try:
        ready = (folder / "READY").read_bytes()
        if ready:
            check_folder(folder, read_sealed(ready)["files"])
        check_harmless(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        known = ", ".join(str(other) for other in list_versions(run) if other != version) or "none"
        problem = f"policy {version} is damaged: {error}"
        raise ClawError(problem, f"restore {folder} from a copy, or promote another version: {known}") from error


_CODE = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".py")  # pickles, and files that transformers would import


def check_harmless(folder: Path) -> None:
    """Raises Damaged if a folder of weights contains anything that could run code or refers to a file outside. clawctl never writes
    such a folder."""
    for file in sorted(folder.iterdir()):
        if file.is_symlink():
            raise Damaged(f"{file.name} is a link")
        if file.suffix in _CODE:
            raise Damaged(f"{file.name} could run code")
    for name, keys in (("config.json", ("auto_map",)), ("adapter_config.json", ("megatron_config",))):
        told = orjson.loads((folder / name).read_bytes()) if (folder / name).is_file() else {}
        if found := [key for key in keys if told.get(key)]:
            raise Damaged(f"{name} names code: {found[0]}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        for name in set(orjson.loads(index.read_bytes())["weight_map"].values()):
            named(name)


def live_version(run: RunDir) -> int | None:
    """The version that serves, or None before anything was published."""
    try:
        return int((run.policies / "LIVE").read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:  # a flipped bit is no UTF-8, or no digit
        raise ClawError(f"policies/LIVE is not a number: {error}", "write the number of a published version into it") from error


class LiveMoved(Exception):
    """LIVE names another version than the mover expected."""


def move_live(run: RunDir, version: int, by: str = "unnamed", only_from: int | None = None) -> int | None:
    """Point LIVE at a published version and record that `by` moved it. Returns the version that was live before.

    A lock keeps the records in the order of the moves. Raises LiveMoved, without a move, if `only_from` is given and LIVE names
    another version.
    """
    if version not in list_versions(run):
        raise ClawError(f"policy {version} is not published", f"choose one of {list_versions(run)}", 2)
    with FileLock(run.locks / "live.lock", timeout=_PATIENCE_S):
        before = readable_live(run)
        if only_from is not None and before != only_from:
            raise LiveMoved(f"LIVE names {before}, not {only_from}")
        made = {"from_made": _made_at(run, before), "to_made": _made_at(run, version)}  # numbers may be used again: `setback`
        publish_bytes(run.policies / "LIVE", f"{version}\n".encode())
        line = sealed(orjson.dumps({"at": time.time(), "from": before, "to": version, "by": by, **made})) + b"\n"
        descriptor = open_to_append(run.policies / "moves.jsonl")
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    return before


def _made_at(run: RunDir, version: int | None) -> float | None:
    try:
        return None if version is None else read_policy(run, version).created_at
    except ClawError:  # damaged: the loader reports it
        return None


def read_moves(run: RunDir) -> list[dict[str, Any]]:
    """The moves of LIVE, oldest first: [{"at": …, "from": 0, "to": 1, "by": "train"}, …]. Unreadable lines are skipped."""
    try:
        lines = (run.policies / "moves.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    moves = []
    for line in lines:
        try:
            move = read_sealed(line)
        except Damaged:  # an incomplete line; LIVE itself counts
            continue
        if isinstance(move, dict) and {"at", "from", "to", "by"} <= move.keys():
            moves.append(move)
    return moves


def readable_live(run: RunDir) -> int | None:
    """The live version, or None if LIVE is missing or damaged."""
    try:
        return live_version(run)
    except ClawError:  # broken by hand: this move repairs it
        return None
