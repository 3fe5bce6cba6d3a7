"""Case `damage`: in each kind of file of a run directory, one bit is flipped or the end is cut off. Then its readers read it.

A reader must return the written content, refuse the file, or quarantine it with a reason. Files that people edit by hand (`LIVE`,
the key) have no checksum, so a changed digit cannot be detected. They are counted separately.
"""

import argparse
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from clawctl.collect.captures import Captures
from clawctl.collect.read_position import ReadPosition
from clawctl.config import Recipe, dump_recipe, load_recipe
from clawctl.errors import ClawError
from clawctl.eval.results import read_record, write_record
from clawctl.inspect.health import read_health
from clawctl.inspect.policies import describe_policies
from clawctl.inspect.rows import read_json
from clawctl.inspect.why import read_record as read_numbers
from clawctl.judge.journal import Journal
from clawctl.run.checksums import sealed_yaml
from clawctl.run.directory import RunDir, open_run, publish_bytes, sole_worker
from clawctl.run.endpoint import announce, own_endpoint, server_api_key
from clawctl.run.feedback import FeedbackFile, Ratings
from clawctl.run.keys import add_key, list_keys
from clawctl.run.policies import check_policy, ensure_base_policy, live_version, move_live, read_moves, read_policy
from clawctl.run.rows import Exchange, Feedback, Policy, Turn, Verdict
from clawctl.run.shards import UnreadableShard, read_turns, read_verdicts, write_table, write_turns, write_verdicts
from clawctl.serve.capture import Capture
from scripts.benchmarks.table import Row

Reader = Callable[[RunDir], Any]
BY_HAND = ("api_key", "policies/LIVE", "run.json", "locks/train.owner", "train/feed.json")  # no checksum
_REFUSALS = (ClawError, UnreadableShard)


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Damage each kind of file `options.rounds` times (default 200, with --quick 3), alternately a bit and the end."""
    rounds = options.rounds or (3 if options.quick else 200)
    dice, outcomes, kinds = random.Random(options.seed), Counter[str](), 0
    logging.disable(logging.CRITICAL)
    try:
        made = make_run(folder / "made")
        for kind, reader in READERS.items():
            kinds += 1
            for number in range(rounds):
                outcomes[_try(made, folder / "run", kind, reader, dice, cut=number % 2 == 1)] += 1
    finally:
        logging.disable(logging.NOTSET)
    counts = {
        "lost_turns": outcomes["lost without a word"],
        "trained_twice": outcomes["trained twice"],
        "half_files_read": outcomes["read wrong"],
        "rounds": sum(outcomes.values()),
        "kinds_of_file": kinds,
        "quarantined_with_reason": outcomes["put aside"],
        "refused_with_reason": outcomes["refused"],
        "read_as_written": outcomes["as written"],
        "mended_or_passed_over": outcomes["mended"],
        "edited_by_hand_undetected": outcomes["edited by hand"],
        "tracebacks": outcomes["traceback"],
    }
    return [Row("damage", metric, value, "count") for metric, value in counts.items()]


def _try(made: RunDir, folder: Path, kind: str, reader: Reader, dice: random.Random, cut: bool) -> str:
    """Damage one file and return the outcome."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made.root, folder)
    run = RunDir(folder)
    want = reader(run)
    shutil.rmtree(folder)
    shutil.copytree(made.root, folder)
    path = next(iter(sorted(folder.glob(kind))))
    data = bytearray(path.read_bytes())
    if cut:
        data = data[: dice.randrange(len(data))]
    else:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(bytes(data))
    aside = len(list(run.quarantine.iterdir()))
    try:
        content = reader(run)
        read_health(run)  # `inspect health` must still show the other data
    except _REFUSALS:
        return "refused"
    except Exception:  # noqa: BLE001 - that is what is counted
        return "traceback"
    if content == want:
        return "as written"
    if len(list(run.quarantine.iterdir())) > aside:
        return "put aside"
    if kind in BY_HAND:
        return "edited by hand"
    return _fewer(kind, content, want)


def _fewer(kind: str, read: Any, want: Any) -> str:
    """Classify a reader without quarantine. It may omit unreadable rows, but must not return different ones."""
    rows = [orjson.dumps(row, default=str) for row in want] if isinstance(want, list) else []
    if isinstance(read, list) and all(orjson.dumps(row, default=str) in rows for row in read):
        cut_off = kind.startswith(("captures/", "feedback/"))  # an incomplete last line may still be continued
        return "mended" if cut_off or not kind.startswith("train/ledger") else "trained twice"
    return "mended" if read in (None, {}, []) else "read wrong"


# ---- a small run with all kinds of file------------------------------------------------------------------------------------


def make_run(root: Path) -> RunDir:
    """Write each kind of file once, with the code that writes it in production."""
    run, recipe = open_run(root), Recipe()
    publish_bytes(root / "recipe.yaml", sealed_yaml(dump_recipe(recipe).encode()))
    announce(run, "127.0.0.1", 9)  # no server listens there
    server_api_key(run, recipe)
    add_key(run, "anna")
    capture = Capture(run.captures, recipe.privacy)
    for number in range(3):
        capture._redact_and_write(exchange(number), None)  # its thread would need an event loop
    capture.close()
    FeedbackFile(run.feedback).append(Feedback("f0", 5.0, "default", "x0", 1.0, "fine"))
    write_turns(run.trajectories / "a.parquet", [turn(number) for number in range(3)])
    verdicts = [Verdict(f"x{number}", 1.0, [1], "Say how.", ["Say how."], "demo@0", None, 0.2) for number in range(3)]
    write_verdicts(run.verdicts / "a.parquet", verdicts)
    journal = Journal(run, "b", [])
    for verdict in verdicts:
        journal.add(verdict)
    position = ReadPosition(run)
    position.save({path.name: path.stat().st_size for path in run.captures.iterdir()}, 0)
    _make_policies(run, recipe)
    write_record(run, {"version": 1, "suites": {"ability": {"n": 3}}, "settings": {}, "decision": {"promote": True}})
    publish_bytes(run.train / "feed.json", b'{"used": 3, "waiting": 0}')
    with sole_worker(run, "train"):
        pass
    return run


def _make_policies(run: RunDir, recipe: Recipe) -> None:
    import pyarrow as pa
    import torch
    from safetensors.torch import save_file

    from clawctl.train.checkpoints import commit, complete_step, identity
    from clawctl.train.records import NAME
    from clawctl.trainers.local.training import OPTIMIZER_FILE

    ensure_base_policy(run, recipe.model.path)
    for step in (1, 2):
        policy = Policy(step, step - 1, step, "binary", "full", recipe.model.path, [f"x{step}"], None, {}, 1.0)
        row: dict[str, Any] = {"step": step, "version": step, "seconds": {}}

        def save(checkpoint: Path) -> None:
            (checkpoint / "policy" / "model.safetensors").write_bytes(random.Random(1).randbytes(2000))
            save_file({"0.exp_avg": torch.ones(9)}, checkpoint / OPTIMIZER_FILE)
            write_table(checkpoint / NAME, pa.table({"turn_id": ["x1", "x2"], "reward": [1.0, -1.0]}))

        state = {"step": step, "identity": identity(recipe), "baselines": {}, "turns": {"a": [f"x{step}"]}, "row": row}
        checkpoint = commit(run, {**state, "policy": asdict(policy)}, save)
        complete_step(run, checkpoint, recipe)
    move_live(run, 1, by="a person")
    move_live(run, 2, by="a person")


def exchange(number: int) -> Exchange:
    return Exchange(
        exchange_id=f"x{number:023d}", created_at=float(number), finished_at=number + 1.0, api="chat", key="default", status="ok",
        model="bench", messages=[{"role": "user", "content": f"question {number}"}], tools=None,
        response={"role": "assistant", "content": "yes"}, finish_reason="stop", prompt_ids=[1, 2, 3], completion_ids=[4, 5],
        logprobs=[-0.5, -0.25], policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0, top_k=0, hints={},
        untrainable_reason=None,
    )  # fmt: skip


def turn(number: int) -> Turn:
    return Turn(
        turn_id=f"x{number}", session_id="s", parent_turn_id=None, turn_index=number, kind="main", source="serve", task_id=None,
        group_id=None, user="default", created_at=float(number), messages=[{"role": "user", "content": "why?"}], tools=None,
        response={"role": "assistant", "content": "so"}, next_state=None, prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5],
        policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0, top_k=0, finish_reason="stop", outcome_reward=None,
        feedback=None, trainable=True, untrainable_reason=None,
    )  # fmt: skip


# ---- readers ------------------------------------------------------------------------------------------------------------


def _checkpoint(run: RunDir) -> Any:
    from clawctl.train.checkpoints import read_state, steps_kept
    from clawctl.train.setback import find_start
    from clawctl.trainers.local.training import read_optimizer

    latest = find_start(run, lambda checkpoint: None).checkpoint
    assert latest is not None
    assert latest == run.checkpoint(steps_kept(run)[-1])
    return [read_state(latest), {name: value.tolist() for name, value in read_optimizer(latest)[0].items()}]


def _policy(run: RunDir) -> Any:
    check_policy(run, 2)
    return [asdict(read_policy(run, 2)), (run.policies / "2" / "model.safetensors").read_bytes()]


def _ledger(run: RunDir) -> Any:
    from clawctl.train.ledger import read_ledger

    return sorted(read_ledger(run).items())


def _steps(run: RunDir) -> Any:
    from clawctl.train.checkpoints import read_rows

    problems: list[str] = []
    describe_policies(run, problems)
    return read_rows(run)


def _ratings(run: RunDir) -> Any:
    ratings = Ratings(run)
    ratings.poll()
    return [asdict(rating) for rating in [ratings.of("default", "x0")] if rating is not None]


def _owner(run: RunDir) -> Any:
    with sole_worker(run, "train"):
        return None


READERS: dict[str, Reader] = {
    "run.json": lambda run: open_run(run.root, create=False).root.name,
    "recipe.yaml": lambda run: load_recipe(run.root / "recipe.yaml"),
    "serve.json": lambda run: own_endpoint(run, Recipe()).url,
    "api_key": lambda run: server_api_key(run, Recipe())[0],
    "api_keys.json": lambda run: list_keys(run),
    "captures/*.jsonl": lambda run: [asdict(captured.exchange) for captured in Captures(run).read()],
    "feedback/*.jsonl": _ratings,
    "collect.json": lambda run: (
        ReadPosition(run).start and [ReadPosition(run).shards_after, sorted(ReadPosition(run).start.values())]
    ),
    "trajectories/a.parquet": lambda run: read_turns(run.trajectories / "a.parquet"),
    "verdicts/a.parquet": lambda run: read_verdicts(run.verdicts / "a.parquet"),
    "verdicts/b.jsonl": lambda run: [asdict(verdict) for verdict in Journal(run, "b", ["x0", "x1", "x2"]).verdicts.values()],
    "policies/2/policy.json": _policy,
    "policies/2/model.safetensors": _policy,
    "policies/2/READY": _policy,
    "policies/LIVE": lambda run: live_version(run),
    "policies/moves.jsonl": lambda run: read_moves(run),
    "train/checkpoints/2/state.json": _checkpoint,
    "train/checkpoints/2/optimizer.safetensors": _checkpoint,
    "train/checkpoints/2/policy/model.safetensors": _checkpoint,
    "train/checkpoints/2/turns.parquet": _checkpoint,
    "train/ledger/2.json": _ledger,
    "train/steps.jsonl": _steps,
    "train/feed.json": lambda run: read_json(run.feed_counts, []) or None,
    "train/turns/2.parquet": lambda run: read_numbers(run, 2, "x2", []),
    "eval/1.json": lambda run: read_record(run, 1),
    "locks/train.owner": _owner,
}
