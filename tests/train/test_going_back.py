"""Training is not built on versions that did not go live: it goes back, returns turns once, and pauses after many refusals."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from safetensors.torch import load_file

from clawctl.config import Recipe, dump_recipe
from clawctl.errors import ClawError
from clawctl.eval.results import write_record
from clawctl.inspect.health import read_health
from clawctl.inspect.policies import describe_policies
from clawctl.inspect.rows import read_rows
from clawctl.privacy.rollback import learned_from, plan_rollback
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.finished_shards import FinishedShards
from clawctl.run.lineage import read_lineage
from clawctl.run.policies import ensure_base_policy, list_versions, live_version, move_live, publish_policy, read_policy
from clawctl.run.promotion import promote, rollback
from clawctl.run.rows import Policy
from clawctl.train.by_hand import go_back_to, without_from
from clawctl.train.checkpoints import complete_step, steps_kept
from clawctl.train.going_back import read_back
from clawctl.train.ledger import read_ledger
from tests import forked
from tests.train.test_checkpoints import ALONE, same_weights, train
from tests.train.tiny import Sampler, make_recipe, publish_shard, publish_turns, run_training
from tests.waiting import until

TWICE = "trained into refused versions twice"


def gated(model_path: Path, **changes: Any) -> Recipe:
    return make_recipe(model_path, **changes).model_copy(update={"gate": Recipe.model_validate({"gate": {}}).gate})


def decide(run: RunDir, version: int, promote: bool, reason: str = "correctness fell") -> None:
    """As eval does: LIVE first, then the record."""
    if promote:
        move_live(run, version, by="eval")
    decision = {"promote": promote, "reason": reason, "against": 0}
    write_record(run, {"version": version, "settings": {}, "suites": {}, "examples": [], "decision": decision})


def parents(run: RunDir) -> dict[int, int | None]:
    return {version: read_policy(run, version).parent for version in list_versions(run)}


def turns_of(run: RunDir, version: int) -> list[str]:
    return read_policy(run, version).turns


def trained_twice(run: RunDir) -> list[str]:
    living = [turn for version in read_lineage(run).living() for turn in turns_of(run, version)]
    return sorted({turn for turn in living if living.count(turn) > 1})


@contextmanager
def running(run: RunDir, recipe: Recipe) -> Iterator[None]:
    """A trainer in another thread."""
    stop = threading.Event()

    worker = threading.Thread(target=run_training, args=(run, recipe, ALONE, stop, False))
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def test_after_a_refusal_training_continues_from_the_live_version_with_its_weights_and_optimizer(
    tmp_path: Path, sampler: Sampler, model_path: Path
) -> None:
    runs = [open_run(tmp_path / kind) for kind in ("refused", "never made")]
    recipe = gated(model_path, baseline="mean", method="combine", teacher="ema")
    for run in runs:
        publish_turns(run, sampler, 4, "a")
        train(run, recipe)
        decide(run, 1, promote=True)
    publish_turns(runs[0], sampler, 4, "b")
    train(runs[0], recipe)
    decide(runs[0], 2, promote=False)
    train(runs[0], recipe)
    publish_turns(runs[1], sampler, 4, "b")
    train(runs[1], recipe)
    assert parents(runs[0]) == {0: None, 1: 0, 2: 1, 3: 1}
    assert turns_of(runs[0], 3) == [f"b{i:02d}" for i in range(4)], "the turns of the refused step are given back"
    assert same_weights(runs[0].version_folder(3), runs[1].version_folder(2)), "nothing of the refused step is left"
    teachers = [load_file(run.train / "checkpoints" / name / "teacher.safetensors") for run, name in zip(runs, "32", strict=True)]
    assert all((value == teachers[1][name]).all() for name, value in teachers[0].items())
    states = [read_sealed((r.train / "checkpoints" / n / "state.json").read_bytes()) for r, n in zip(runs, "32", strict=True)]
    assert states[0]["baselines"] == states[1]["baselines"]


def test_versions_built_on_a_refused_one_die_with_it_and_numbers_are_never_used_again(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 12)
    recipe = gated(model_path)
    train(run, recipe)
    decide(run, 1, promote=False)
    assert read_lineage(run).dead() == [1, 2, 3], "before the trainer has noticed"
    train(run, recipe)
    assert parents(run) == {0: None, 1: 0, 2: 1, 3: 2, 4: 0, 5: 4, 6: 5}
    assert (live_version(run), trained_twice(run)) == (0, [])
    dead = {row["version"]: row["dead"] for row in describe_policies(run, []) if row["dead"]}
    assert dead[1] == "refused by the gate: correctness fell"
    assert (dead[2], dead[3]) == ("built on version 1, which is dead", "built on version 2, which is dead")


def test_a_turn_that_was_refused_twice_is_skipped_with_that_reason_and_others_are_not(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    recipe = gated(model_path, max_refusals=9)
    publish_turns(run, sampler, 4, "a")
    for version in (1, 2):
        train(run, recipe)
        decide(run, version, promote=False)
    publish_turns(run, sampler, 4, "b")
    train(run, recipe)
    assert parents(run) == {0: None, 1: 0, 2: 0, 3: 0}
    assert turns_of(run, 3) == [f"b{i:02d}" for i in range(4)]
    assert {turn: what for turn, what in read_ledger(run).items() if what == "skipped"} == {
        f"a{i:02d}": "skipped" for i in range(4)
    }
    rows = {row.turn["turn_id"]: row for row in read_rows(run).rows}
    assert (rows["a00"].step, rows["a00"].why_not, rows["a00"].dead_steps) == (None, f"skipped: {TWICE}", (1, 2))
    assert (rows["b00"].step, rows["b00"].why_not) == (3, None)
    skipped = read_sealed((run.train / "ledger" / "refused-2.json").read_bytes())
    assert (skipped["reason"], sorted(t for ids in skipped["turns"].values() for t in ids)) == (
        TWICE,
        [f"a{i:02d}" for i in range(4)],
    )


def test_a_running_trainer_notices_a_rollback_and_builds_its_next_version_on_the_served_one(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 8)
    recipe = make_recipe(model_path)
    train(run, recipe)
    with running(run, make_recipe(model_path)):
        rollback(run, 0)
        until(lambda: live_version(run) == 4)
    assert parents(run) == {0: None, 1: 0, 2: 1, 3: 0, 4: 3}
    assert trained_twice(run) == []
    record = read_back(run)[-1]
    assert (record["newest"], record["to"], record["dead"], record["given_back"]) == (2, 0, [1, 2], 8)
    assert "rolled back: rollback by" in record["why"]
    health = read_health(run)["training"]
    assert (health["goes_on_from"], health["dead_versions"], health["went_back"]["to"]) == (4, [1, 2], 0)


def test_a_version_that_was_committed_before_a_rollback_never_moves_live_forward(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 8)
    recipe = make_recipe(model_path)
    train(run, recipe)
    steps = run.train / "steps.jsonl"
    steps.write_bytes(steps.read_bytes().splitlines(keepends=True)[0])  # killed before the end of publishing 2
    (run.policies / "LIVE").write_text("1\n")
    moves = run.policies / "moves.jsonl"
    moves.write_bytes(b"".join(moves.read_bytes().splitlines(keepends=True)[:-1]))
    rollback(run, 0)
    complete_step(run, run.train / "checkpoints" / "2", recipe)
    assert live_version(run) == 0
    train(run, recipe)
    assert (parents(run)[3], trained_twice(run)) == (0, [])


def test_a_dead_version_is_revived_by_a_manual_promotion(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4, "a")
    recipe = gated(model_path)
    train(run, recipe)
    decide(run, 1, promote=False)
    train(run, recipe)
    promote(run, 1)
    publish_turns(run, sampler, 4, "b")
    train(run, recipe)
    assert parents(run) == {0: None, 1: 0, 2: 0, 3: 1}
    assert turns_of(run, 3) == [f"b{i:02d}" for i in range(4)], "the turns that 1 learned from are used"
    assert (read_lineage(run).dead(), trained_twice(run)) == ([2], [])


def test_a_pruned_version_is_gone_back_to_by_its_published_weights_with_a_fresh_optimizer(
    run: RunDir, sampler: Sampler, model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_turns(run, sampler, 12)
    train(run, make_recipe(model_path, keep_checkpoints=1))
    rollback(run, 1)
    train(run, make_recipe(model_path, max_steps=4, keep_checkpoints=1))
    assert parents(run)[4] == 1
    assert read_back(run)[-1]["optimizer"] == "fresh"
    assert "its checkpoint is gone, so the optimizer, the baselines and the teacher start fresh" in caplog.text
    (run.version_folder(1) / "model.safetensors").write_bytes(b"torn")
    move_live(run, 1)
    with pytest.raises(ClawError, match="policy 1 is damaged") as error:
        train(run, make_recipe(model_path))
    assert "restore" in error.value.fix


def test_checkpoints_of_the_live_version_and_of_candidates_are_kept(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 16)
    train(run, gated(model_path, keep_checkpoints=1, max_steps=3))
    assert steps_kept(run) == [1, 2, 3], "the gate may let in any of them"
    decide(run, 1, promote=True)
    decide(run, 2, promote=False, reason="overtaken by 3 before it was measured")
    train(run, gated(model_path, keep_checkpoints=1))
    assert steps_kept(run) == [1, 3, 4]


def test_staleness_counts_updates_along_the_lineage(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 12)
    recipe = gated(model_path, max_staleness=2)
    train(run, recipe)
    decide(run, 1, promote=False)
    updates = read_lineage(run).updates_from(0)
    assert updates == {0: 0, 1: 1, 2: 2, 3: 3}, "three updates lie between 0 and what 3 sampled"
    publish_turns(run, sampler, 4, "b", policy_version=3)
    train(run, recipe)
    assert orjson.loads((run.train / "feed.json").read_bytes())["refused"] == {"stale": 4}
    (run.root / "recipe.yaml").write_text(dump_recipe(recipe))
    rows = {row.turn["turn_id"]: row.why_not for row in read_rows(run).rows}
    assert rows["b00"] == "stale"


def test_many_refusals_in_a_row_pause_training_until_live_moves_the_recipe_changes_or_a_person_resumes_it(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    recipe = gated(model_path, max_refusals=2)
    for version, stem in enumerate("ab", 1):
        publish_turns(run, sampler, 4, stem)
        train(run, recipe.model_copy(update={"train": recipe.train.model_copy(update={"max_steps": version})}))
        decide(run, version, promote=False)
    with pytest.raises(ClawError, match=r"training is paused: the last 2 updates were refused \(versions 1, 2\)") as error:
        train(run, recipe)
    assert "lower train.lr" in error.value.fix
    assert "train --from" in error.value.fix
    assert read_health(run)["training"]["paused"]["problem"] == error.value.problem
    assert list_versions(run) == [0, 1, 2]
    with pytest.raises(ClawError, match="paused"):
        train(run, recipe)
    other = recipe.model_copy(update={"train": recipe.train.model_copy(update={"lr": 1e-5, "max_steps": 3})})
    train(run, other)
    assert list_versions(run) == [0, 1, 2, 3]
    assert read_health(run)["training"]["paused"] is None
    decide(run, 3, promote=False)
    publish_turns(run, sampler, 8, "c")
    train(run, other.model_copy(update={"train": other.train.model_copy(update={"max_steps": 4})}))
    decide(run, 4, promote=False)
    with pytest.raises(ClawError, match="paused"):
        train(run, recipe)
    assert go_back_to(run, 0) == "training continues from version 0"
    train(run, recipe)
    assert parents(run)[5] == 0


def test_a_version_that_a_server_refused_counts_as_refused(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    train(run, make_recipe(model_path, max_refusals=1))
    move_live(run, 0, by="serve, because of version 1: its canary differs by 1", only_from=1)
    with pytest.raises(ClawError, match=r"paused: the last 1 updates were refused \(versions 1\)"):
        train(run, make_recipe(model_path, max_refusals=1))
    train(run, make_recipe(model_path))
    assert parents(run) == {0: None, 1: 0, 2: 0}


def test_several_ranks_go_back_together(run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path) -> None:
    publish_turns(run, sampler, 4)
    recipe = gated(model_path, max_steps=3, shard="full")
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    command, log = ["train", "--run", str(run.root), "--recipe", str(tmp_path / "recipe.yaml")], tmp_path / "log"
    ranks = forked.start_ranks(command, log, 2)
    until(lambda: list_versions(run) == [0, 1])
    decide(run, 1, promote=False)
    until(lambda: list_versions(run) == [0, 1, 2])
    decide(run, 2, promote=True)
    publish_turns(run, sampler, 4, "b")
    forked.finish(ranks, log)
    assert parents(run) == {0: None, 1: 0, 2: 0, 3: 2}
    assert (read_lineage(run).dead(), trained_twice(run)) == ([1], [])


def test_the_audit_of_the_benchmark_finds_versions_built_on_a_refused_one(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    from scripts.benchmarks.chaos_refusals import audit

    publish_turns(run, sampler, 8)
    recipe = gated(model_path)
    train(run, make_recipe(model_path, max_steps=1, lr=1e-4).model_copy(update={"gate": recipe.gate}))
    decide(run, 1, promote=False)
    train(run, recipe)
    report = audit(run)
    assert (report.built_on_refused, report.twice, report.lost) == ([], [], [])
    assert (report.given_back, report.again, report.dead, report.trained) == (4, 4, 1, 8)
    path = run.version_folder(3) / "policy.json"
    policy = read_sealed(path.read_bytes())
    path.write_bytes(orjson.dumps({**policy, "parent": 1, "created_at": policy["created_at"] + 60}))
    assert any("version 3 was made" in problem for problem in audit(run).built_on_refused)


def test_training_can_be_moved_back_manually_to_a_living_version(
    run: RunDir, sampler: Sampler, model_path: Path, tmp_path: Path
) -> None:
    publish_turns(run, sampler, 12)
    recipe = gated(model_path)
    train(run, recipe)
    decide(run, 1, promote=True)
    assert go_back_to(run, 2) == "training continues from version 2"
    train(run, recipe)
    assert parents(run) == {0: None, 1: 0, 2: 1, 3: 2, 4: 2}
    assert (live_version(run), read_lineage(run).dead()) == (1, [3])
    with pytest.raises(ClawError, match="version 3 did not go live") as error:
        go_back_to(run, 3)
    assert "policies promote 3" in error.value.fix
    assert "policy 0 is now live (before: 1)" in go_back_to(run, 0)
    assert (read_lineage(run).tip, live_version(run)) == (0, 0)
    assert without_from(["--from", "2", "--once", "--from=3", "--policy", "anna", "--run", "x"]) == ["--once", "--run", "x"]


def test_turns_that_may_be_given_back_are_not_done_with(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    recipe = gated(model_path)
    train(run, recipe)
    done = FinishedShards(run, recipe)
    done.poll()
    assert not done.has("a"), "the gate has not decided"
    decide(run, 1, promote=False)
    done.poll()
    assert not done.has("a"), "they are given back"
    train(run, recipe)
    decide(run, 2, promote=True)
    done.poll()
    assert done.has("a")


def test_whoever_is_forgotten_is_named_with_dead_versions_and_a_dead_version_is_never_gone_back_to(
    run: RunDir, sampler: Sampler, model_path: Path
) -> None:
    publish_turns(run, sampler, 4, "a")
    recipe = gated(model_path, keep_checkpoints=9)
    train(run, recipe)
    decide(run, 1, promote=True)
    publish_turns(run, sampler, 4, "b")
    train(run, recipe)
    decide(run, 2, promote=False)
    train(run, recipe)
    decide(run, 3, promote=True)
    assert learned_from(run, {"b00"}) == [2, 3]
    way = plan_rollback(run, [2, 3])
    assert (way.to_version, way.removed_versions, way.live) == (1, [2, 3], 1)
    publish_turns(run, sampler, 4, "c")
    train(run, recipe)
    assert learned_from(run, {"c00"}) == [4]
    assert plan_rollback(run, [4]).to_version == 3, "2 is newer than 1 and has a checkpoint, but it is dead"


def test_a_refusal_outlives_its_record(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    recipe = gated(model_path)
    train(run, recipe)
    decide(run, 1, promote=False)
    record = run.eval / "1.json"
    record.write_bytes(record.read_bytes()[:-40])
    assert read_lineage(run).tip == 0, "what cannot be read may have been a refusal"
    decide(run, 1, promote=False)
    train(run, gated(model_path, batch_turns=64))  # notices the refusal, and makes no step
    assert [row["refused"][0]["version"] for row in read_back(run)] == [1]
    record.unlink()
    lineage = read_lineage(run)
    assert (lineage.tip, lineage.dead()) == (0, [1, 2])
    promote(run, 1)
    assert read_lineage(run).living() >= {0, 1}, "a person still brings it back to life"


def test_a_torn_line_takes_no_version_with_it(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    recipe = gated(model_path)
    train(run, recipe)
    (run.train / "abandoned.jsonl").write_bytes(b'{"at": 1.0, "version"')
    go_back_to(run, 0)
    assert read_lineage(run).tip == 0


def test_training_cannot_be_moved_back_to_a_damaged_version(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 8)
    train(run, make_recipe(model_path))
    weights = run.version_folder(1) / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"rubbish")
    with pytest.raises(ClawError, match="policy 1 is damaged"):
        go_back_to(run, 1)
    assert live_version(run) == 2


def test_turns_whose_shards_expired_are_counted_apart(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4, "a")
    recipe = gated(model_path)
    train(run, recipe)
    publish_turns(run, sampler, 4, "b")
    train(run, recipe)
    decide(run, 1, promote=False)
    for folder in (run.trajectories, run.verdicts):
        (folder / "a.parquet").unlink()
    train(run, recipe)
    record = read_back(run)[-1]
    assert (record["given_back"], record["expired"], record["skipped"]) == (4, 4, 0)
    assert turns_of(run, 3) == [f"b{i:02d}" for i in range(4)]


def test_a_turn_that_is_identical_to_one_of_a_dead_step_may_be_trained(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    recipe = gated(model_path)
    turns = publish_turns(run, sampler, 4, "a")
    train(run, recipe)
    decide(run, 1, promote=False)
    for folder in (run.trajectories, run.verdicts):
        (folder / "a.parquet").unlink()  # the same was asked and answered again, after retention took the first turns
    for stem in "bc":
        again = [replace(turn, turn_id=f"{stem}{i:02d}", session_id=f"{stem}{i:02d}") for i, turn in enumerate(turns)]
        publish_shard(run, stem, [(turn, 1.0, None) for turn in again])
        train(run, recipe)
    assert turns_of(run, 2) == [f"b{i:02d}" for i in range(4)]
    assert list_versions(run) == [0, 1, 2], "of the living ones each counts once"
    assert read_ledger(run)["c00"] == "skipped"


def test_training_moves_back_to_exactly_the_named_version_and_never_to_an_undecided_branch(run: RunDir) -> None:
    ensure_base_policy(run, "crafts")
    for version, parent in ((1, 0), (2, 1), (3, 0)):
        publish_policy(
            run, Policy(version, parent, version, "combine", "full", "crafts", [], None, {}, version), lambda folder: None
        )
    promote(run, 2)
    assert read_lineage(run).tip == 2
    go_back_to(run, 0)
    assert (live_version(run), read_lineage(run).tip) == (0, 0), "version 3 was never decided on"
