"""Checkpoints that survive a crash: after a SIGKILL at any moment no turn is lost or trained twice, and the weights are the same
(with `train.optimizer_every` above 1 they are similar: the optimizer's state is some steps older).

One rename commits a step: that of `train/checkpoints/<step>/`, which contains all results of the step:

    policy/          exactly what is published: full weights with tokenizer, or a peft adapter
    …                the trainer's own files, which `Trainer.resume` reads; with `local`: the optimizer (perhaps a hard link to that
                     of an earlier step: `train.optimizer_every`) and rounded masters
    turns.parquet    the numbers of each trained token, for `clawctl inspect why`
    state.json       step, turns by shard, baselines, the steps.jsonl row, policy.json, the identity of the model, and checksums of
                     the other files

`settle` derives everything else from it, and creates missing files on resume: the ledger, `policies/<version>/` (hard links, so
nothing is written twice), LIVE, and last the row in `steps.jsonl`, which marks the rest as done.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import checksums_of, read_sealed, sealed
from clawctl.run.directory import RunDir, move, publish_folder
from clawctl.run.hint_places import used_hint_place
from clawctl.run.lineage import Lineage, is_undecided, read_lineage
from clawctl.run.lines import append_lines, read_lines
from clawctl.run.names import counted, numbers_in
from clawctl.run.policies import LiveMoved, link_weights, move_live, publish_policy
from clawctl.run.rows import Policy
from clawctl.train.ledger import by_stem, write_trained
from clawctl.train.measures import StepResult, policy_metrics
from clawctl.train.records import NAME, link_record, write_records
from clawctl.train.sample import Batch
from clawctl.trainers import Snapshot

log = logging.getLogger("clawctl.train")


def identity(recipe: Recipe) -> dict[str, Any]:
    """Return the properties that a checkpoint and the recipe must share for training to resume."""
    lora = recipe.train.lora
    if lora is None:
        return {"base_model": recipe.model.path, "lora": None}
    targets = lora.targets if lora.targets == "all-linear" else sorted(lora.targets)
    shape = {"rank": lora.rank, "alpha": lora.alpha, "targets": targets} | ({"rslora": True} if lora.rslora else {})
    return {"base_model": recipe.model.path, "lora": shape}


def read_state(checkpoint: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = read_sealed((checkpoint / "state.json").read_bytes())
        for number in (state["step"], state["policy"]["version"], state["policy"]["step"]):
            counted(number)
    except (OSError, Damaged, LookupError, TypeError) as error:
        raise ClawError(
            f"checkpoint {checkpoint} cannot be read: {error}", "restore it, or remove it to resume from the one before"
        ) from error
    return state


def commit(run: RunDir, state: dict[str, Any], save: Callable[[Path], None]) -> Path:
    """Publish one checkpoint, which commits the step. `save` fills `policy/` and adds the trainer's own files."""

    def fill(checkpoint: Path) -> None:
        (checkpoint / "policy").mkdir(mode=0o700)
        save(checkpoint)
        # turns.parquet has its own checksums, and sharded/ is spread over many hosts
        linked = _linked_files(run, state["policy"]["parent"], checkpoint)
        files = checksums_of(checkpoint, leave_out=(NAME, "sharded", *linked)) | linked
        (checkpoint / "state.json").write_bytes(sealed(orjson.dumps({**state, "files": files})))

    checkpoint = run.checkpoint(state["step"])
    if not publish_folder(checkpoint, fill) and read_state(checkpoint)["policy"] != orjson.loads(orjson.dumps(state["policy"])):
        problem = f"another trainer has committed step {state['step']}, so this one's is discarded"
        raise ClawError(problem, "run one trainer; it continues from that step")
    return checkpoint


def _linked_files(run: RunDir, parent: int | None, checkpoint: Path) -> dict[str, str]:
    """The checksums of the trainer's files that are hard links to those of the parent's checkpoint."""
    above = run.checkpoint(parent or 0)
    names = [file.name for file in checkpoint.iterdir() if file.is_file() and file.stat().st_nlink > 1]
    names = [name for name in names if (above / name).exists() and (above / name).samefile(checkpoint / name)]
    files = read_state(above).get("files", {}) if names else {}
    return {name: files[name] for name in names if name in files}


def commit_step(run: RunDir, recipe: Recipe, batch: Batch, result: StepResult, snapshot: Snapshot, about: dict[str, Any]) -> Path:
    """Commit a completed step. `about` holds the parts of the state that only the loop has."""
    row = result.row
    assert row is not None
    policy = Policy(
        version=batch.step,
        parent=batch.version,
        step=batch.step,
        method=recipe.train.method.kind,
        kind="adapter" if recipe.train.lora is not None else "full",
        base_model=recipe.model.path,
        turns=[sample.turn_id for sample in batch.samples],
        canary=snapshot.canary,
        metrics=policy_metrics(row),
        created_at=row["time"],
        hint_place=used_hint_place(run, recipe.train.hints.hint_place) if recipe.train.uses_hints else None,
        shared=about.get("shared"),
    )
    turns = by_stem(batch.samples)
    state = {"step": batch.step, "identity": identity(recipe), "turns": turns, "row": row, "policy": asdict(policy), **about}

    def save(checkpoint: Path) -> None:
        snapshot.save(checkpoint)
        if recipe.train.keep_turn_records:
            write_records(checkpoint / NAME, batch, result)

    return commit(run, state, save)


def complete_step(run: RunDir, checkpoint: Path, recipe: Recipe, seconds: dict[str, float] | None = None) -> None:
    """Derive everything else from a checkpoint. Repeating the call changes nothing, not even a LIVE that was moved since.

    LIVE is not moved to a version that is dead by then. `seconds` are added to the row.
    """
    state = read_state(checkpoint)
    policy = Policy(**state["policy"])
    write_trained(run, state["step"], state["turns"], policy.parent)
    if not run.version_folder(policy.version).exists():
        files = {
            name.removeprefix("policy/"): checksum
            for name, checksum in state.get("files", {}).items()
            if name.startswith("policy/")
        }
        publish_policy(run, policy, lambda folder: link_weights(checkpoint / "policy", folder), files or None)
    if _last_row_step(run) < state["step"]:
        if not recipe.waits_for_gate:
            _go_live(run, policy.version)
        row = state["row"]
        append_lines(run.steps, [sealed(orjson.dumps({**row, "seconds": {**row["seconds"], **(seconds or {})}}))])
    link_record(run, checkpoint, recipe.train.keep_turn_records)
    _prune(run, _resumable_checkpoints(run, read_lineage(run), recipe))


def _go_live(run: RunDir, version: int) -> None:
    """Point LIVE at a new version, unless LIVE has left its lineage meanwhile."""
    lineage = read_lineage(run)
    if lineage.tip != version or lineage.live == version:
        return
    try:
        move_live(run, version, by="train", only_from=lineage.live)
    except LiveMoved as moved:
        log.warning("version %d does not go live: %s", version, moved)


def check_resumable(checkpoint: Path | None, recipe: Recipe) -> None:
    """Raises ClawError if this recipe cannot resume from the checkpoint."""
    if checkpoint is None:
        return
    saved, wanted = read_state(checkpoint)["identity"], identity(recipe)
    if saved != wanted:
        raise ClawError(
            f"checkpoint {checkpoint} was made with {_described(saved)}, but the recipe has {_described(wanted)}",
            "train with the same model and LoRA settings, or start a new run with --run",
            2,
        )


def check_published(policy: Path, recipe: Recipe) -> None:
    """Raises ClawError if the weights of a published version without a checkpoint do not match this recipe."""
    adapter = policy / "adapter_config.json"
    settings = orjson.loads(adapter.read_bytes()) if adapter.exists() else None
    lora = recipe.train.lora
    published = None if settings is None else (settings.get("r"), float(settings.get("lora_alpha", 0)))
    configured = None if lora is None else (lora.rank, lora.alpha)
    if published != configured:
        raise ClawError(
            f"the weights of policy {policy.name} are {_described_lora(published)}, "
            f"but the recipe has {_described_lora(configured)}",
            "train with the same LoRA settings, or start a new run with --run",
            2,
        )


def _described_lora(lora: tuple[int, float] | None) -> str:
    return "full weights" if lora is None else f"LoRA rank {lora[0]} alpha {lora[1]:g}"


def _described(identity: dict[str, Any]) -> str:
    lora = identity["lora"]
    return f"{identity['base_model']}, " + (f"LoRA rank {lora['rank']} alpha {lora['alpha']:g}" if lora else "full weights")


def steps_kept(run: RunDir) -> list[int]:
    return numbers_in(run.checkpoints)


def _resumable_checkpoints(run: RunDir, lineage: Lineage, recipe: Recipe) -> set[int]:
    """Return the checkpoints that training may resume from: the newest of the lineage, the live version, and undecided candidates.

    The newest of all is always kept, because it records the last step.
    """
    steps = steps_kept(run)
    kept = set(steps[-1:]) | {lineage.live or 0}
    kept |= set([step for step in steps if step in lineage.living()][-recipe.train.keep_checkpoints :])
    if recipe.waits_for_gate and lineage.live is not None:
        kept |= {version for version in lineage.above(lineage.tip, lineage.live) if is_undecided(run, version)}
    return kept


def _prune(run: RunDir, kept: set[int]) -> None:
    folder = run.checkpoints
    for step in sorted(set(steps_kept(run)) - kept):
        # A partly deleted checkpoint must never look like a complete one
        move(run.checkpoint(step), run.beside_checkpoints(step, "doomed"))
    # Also remove files left by a killed trainer; only trainers write here. Files that cannot be removed yet are removed later: NFS
    # updates listings late and keeps open files.
    for leftover in (*folder.glob(".*"), *run.policies.glob(".[1-9]*.tmp")):
        shutil.rmtree(leftover, ignore_errors=True)


# ---- steps.jsonl ---------------------------------------------------------------------------------------------------------


def read_rows(run: RunDir) -> list[dict[str, Any]]:
    """Return the intact lines of `steps.jsonl`. An incomplete line of a killed trainer is skipped; `inspect` reports damaged
    ones.
    """
    return list(read_lines(run.steps, lambda _, error: log.error("skipped a row of train/steps.jsonl: %s", error)))


def row_line(row: dict[str, Any]) -> bytes:
    return sealed(orjson.dumps(row)) + b"\n"


def _last_row_step(run: RunDir) -> int:
    return max((row["step"] for row in read_rows(run)), default=0)
