"""Policies on disk: a policy has a name and versions, and one of its versions is live.

A version goes live in three steps. `publish_policy` writes `policies/<version>/` whole. `check_policy` detects damage before the
version is loaded. `move_live` points `policies/LIVE` at it and records the mover in `policies/moves.jsonl`.

Functions take the run of one policy (`RunDir.of`), which fixes the policy's name. A `version` is then a version of that policy.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import check_folder, checksums_of, read_sealed, sealed
from clawctl.run.directory import RunDir, link, publish_folder
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.names import counted, is_policy_name, named, number_of, numbers_in
from clawctl.run.rows import DEFAULT_POLICY, Policy
from clawctl.run.storage import storage_of

_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class PolicyId:
    """Identifies weights: `PolicyId("anna", 3)`. As text "anna@3", or "3" for the default policy."""

    name: str
    version: int

    def __str__(self) -> str:
        return str(self.version) if self.name == DEFAULT_POLICY else f"{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> "PolicyId":
        """Parse "3" or "anna@3". Raises ValueError."""
        name, _, version = text.rpartition("@")
        number = number_of(version)
        if number is None or not is_policy_name(name or DEFAULT_POLICY):
            raise ValueError(f"{text!r} is not a policy, such as 3 or anna@3")
        return cls(name or DEFAULT_POLICY, number)


Version = int | PolicyId  # a version of the default policy, or of a policy that is named


def located(run: RunDir, version: Version) -> tuple[RunDir, int]:
    """Return the run of the policy, and the number of the version."""
    return (run.of(version.name), version.version) if isinstance(version, PolicyId) else (run, version)


def number_in(version: Version) -> int:
    return version.version if isinstance(version, PolicyId) else version


def policy_names(run: RunDir) -> list[str]:
    """Return the names of the run's policies, the default policy first."""
    folder = run.of(DEFAULT_POLICY).policies
    names = [path.name for path in folder.iterdir() if is_policy_name(path.name) and path.is_dir()] if folder.exists() else []
    return [DEFAULT_POLICY, *sorted(names)]


def list_versions(run: RunDir) -> list[int]:
    """Return the published versions in order."""
    return [number for number in numbers_in(run.policies) if (run.version_folder(number) / "READY").exists()]


# ---- a version is published ----------------------------------------------------------------------------------------------


def ensure_base_policy(run: RunDir, base_model: str) -> None:
    """Publish version 0, the base model itself, and point LIVE at it, unless both exist. Any stage may be the first to do so."""
    base = Policy(0, None, 0, None, "base", base_model, [], None, {}, time.time())
    if not run.version_folder(0).exists():
        publish_policy(run, base, lambda folder: None)
    recorded = read_policy(run, 0).base_model
    if recorded != base_model:
        raise ClawError(
            f"{run.root} was created for the model {recorded!r}, but the recipe names {base_model!r}",
            "use another --run for another model",
            2,
        )
    if live_version(run) is None:
        move_live(run, 0, by="start")


def begin_policy(run: RunDir, name: str) -> str:
    """Create the policy `name`, unless it exists. Its version 0 has the weights of the shared policy that is live now. Returns the
    name. Raises ClawError, with exit code 2 for an invalid name."""
    policy_run, shared = run.of(name), run.of(DEFAULT_POLICY)
    if live_version(policy_run) is not None:
        return name
    for folder in (policy_run.policies, policy_run.train, policy_run.eval):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    live = live_version(shared)
    if live is not None:  # otherwise no stage has published the base model yet, and there is nothing to copy
        source = shared.version_folder(live)
        check_policy(shared, live)
        policy, turns, version = read_policy(shared, live), list[str](), live
        while version:  # so that `forget` finds what version 0 learned from
            ancestor = read_policy(shared, version)
            turns, version = [*ancestor.turns, *turns], ancestor.parent or 0
        first = replace(policy, version=0, parent=None, step=0, turns=turns, created_at=time.time(), name=name, shared=live)
        publish_policy(policy_run, first, lambda folder: link_weights(source, folder))
        move_live(policy_run, 0, by=f"begun from shared version {live}")
    return name


def link_weights(source: Path, target: Path) -> None:
    """Create the files of weights in a second folder, as hard links."""
    for file in sorted(source.iterdir()):
        is_weights = file.is_file() and file.name not in ("policy.json", "READY")
        if is_weights and not file.is_symlink():  # clawctl writes no symbolic links; one may point outside the run
            link(file, target / file.name)


def publish_policy(run: RunDir, policy: Policy, write: Callable[[Path], None], checksums: dict[str, str] | None = None) -> None:
    """Publish one version of the run's policy. `write` saves the weights (Hugging Face or peft layout).

    policy.json and READY are added; READY contains a checksum of each file. `checksums` are the checksums of the files that `write`
    saves, if known.
    """

    def fill(folder: Path) -> None:
        write(folder)
        files = checksums_of(folder) if checksums is None else checksums
        (folder / "policy.json").write_bytes(
            sealed(orjson.dumps({**asdict(policy), "name": run.policy}, option=orjson.OPT_INDENT_2))
        )
        (folder / "READY").write_bytes(sealed(orjson.dumps({"files": files})))

    publish_folder(run.version_folder(policy.version), fill)


def read_policy(run: RunDir, version: int) -> Policy:
    """Return the record of a version. Raises ClawError if the version is not published or its policy.json is damaged."""
    try:
        policy = Policy(**read_sealed((run.version_folder(version) / "policy.json").read_bytes()))
        if (policy.name, counted(policy.version)) != (run.policy, version):
            raise Damaged(f"its policy.json names version {PolicyId(policy.name, policy.version)}")
        return policy
    except (OSError, Damaged, TypeError) as error:
        versions = ", ".join(map(str, list_versions(run))) or "none"
        name = f"policy {PolicyId(run.policy, version)}"
        problem = f"there is no {name}" if isinstance(error, FileNotFoundError) else f"{name} cannot be read: {error}"
        raise ClawError(problem, f"choose one of the published versions: {versions}") from error


def check_policy(run: RunDir, version: int) -> None:
    """Raises ClawError if a file of a published version has changed. A version without checksums is not checked."""
    folder = run.version_folder(version)
    try:
        storage_of(folder).complete(folder)
        ready = (folder / "READY").read_bytes()
        if ready:
            check_folder(folder, read_sealed(ready)["files"])
        check_harmless(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        versions = ", ".join(str(other) for other in list_versions(run) if other != version) or "none"
        problem = f"policy {PolicyId(run.policy, version)} is damaged: {error}"
        raise ClawError(problem, f"restore {folder} from a copy, or promote another version: {versions}") from error


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
        config = orjson.loads((folder / name).read_bytes()) if (folder / name).is_file() else {}
        if code_keys := [key for key in keys if config.get(key)]:
            raise Damaged(f"{name} names code: {code_keys[0]}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        for name in set(orjson.loads(index.read_bytes())["weight_map"].values()):
            named(name)


# ---- a version goes live -------------------------------------------------------------------------------------------------


class LiveMoved(Exception):
    """LIVE names a different version than expected."""


def move_live(run: RunDir, version: int, by: str = "unnamed", only_from: int | None = None) -> int | None:
    """Point LIVE at a published version and record that `by` moved it. Returns the version that was live before.

    A lock keeps the records in the order of the moves. Raises LiveMoved, without a move, if `only_from` is given and LIVE names
    another version.
    """
    if version not in list_versions(run):
        raise ClawError(f"policy {PolicyId(run.policy, version)} is not published", f"choose one of {list_versions(run)}", 2)
    storage = storage_of(run.live)
    with storage.exclusive(run.lock("live"), _PATIENCE_S):
        current = storage.latest(run.live)
        before = _readable(current)
        if only_from is not None and before != only_from:
            raise LiveMoved(f"LIVE names {before}, not {only_from}")
        # Numbers may be reused, see `setback`.
        creation_times = {"from_made": _made_at(run, before), "to_made": _made_at(run, version)}
        if not storage.swap(run.live, f"{version}\n".encode(), current):
            raise LiveMoved(f"LIVE moved away from {before} meanwhile")
        append_lines(
            run.moves, [sealed(orjson.dumps({"at": time.time(), "from": before, "to": version, "by": by, **creation_times}))]
        )
    return before


def _made_at(run: RunDir, version: int | None) -> float | None:
    try:
        return None if version is None else read_policy(run, version).created_at
    except ClawError:  # damaged: the loader reports it
        return None


def live_version(run: RunDir) -> int | None:
    """Return the version that serves, or None before anything was published. Raises ClawError if LIVE is damaged."""
    try:
        return int(run.live.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:  # a damaged file is not UTF-8, or not a number
        name = run.live.relative_to(run.root)
        raise ClawError(f"{name} is not a number: {error}", "write the number of a published version into it") from error


def readable_live(run: RunDir) -> int | None:
    """Return the live version, or None if LIVE is missing or damaged."""
    try:
        return _readable(run.live.read_bytes())
    except FileNotFoundError:
        return None


def _readable(live: bytes | None) -> int | None:
    try:
        return None if live is None else int(live)
    except ValueError:  # damaged by a manual edit: the next move repairs it
        return None


def read_moves(run: RunDir) -> list[dict[str, Any]]:
    """Return the moves of LIVE, oldest first: [{"at": …, "from": 0, "to": 1, "by": "train"}, …]. Unreadable lines are skipped."""
    return [move for move in read_lines(run.moves) if {"at", "from", "to", "by"} <= move.keys()]
