"""The trainer of examples/: the loop uses only its protocol, and no torch."""

import subprocess
import sys
from pathlib import Path

import orjson

from clawctl.run.directory import RunDir
from clawctl.run.policies import list_versions, live_version, read_policy
from clawctl.train.checkpoints import read_rows
from clawctl.train.ledger import read_ledger
from tests import forked
from tests.train.tiny import HINT, Sampler, publish_shard

EXAMPLE = Path(__file__).parents[2] / "examples" / "trainer.py"


def test_a_trainer_in_a_file_trains_publishes_and_resumes_without_torch(run: RunDir, tmp_path: Path, sampler: Sampler) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"train: {{backend: '{EXAMPLE}:BACKEND', batch_turns: 2}}\n")
    turns = [sampler.turn(f"t{i}", seed=i) for i in range(6)]
    for stem, pair in (("a", turns[:2]), ("b", turns[2:])):
        publish_shard(run, stem, [(turn, 1.0, HINT if i else None) for i, turn in enumerate(pair)])
        python = [sys.executable, "-X", "importtime"]  # names each imported module on stderr
        command = [*python, "-m", "clawctl", "train", "--run", str(run.root), "--recipe", str(recipe), "--once"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "clawctl.trainers" in imported
        assert "torch" not in imported
    assert list_versions(run) == [0, 1, 2, 3]
    assert live_version(run) == 3
    assert orjson.loads((run.version_folder(3) / "steps.json").read_bytes()) == [
        [["t0", None], ["t1", 7]], [["t2", None], ["t3", 7]], [["t4", 7], ["t5", 7]],
    ]  # fmt: skip
    assert read_policy(run, 3).parent == 2
    assert [(row["step"], row["terms"]["binary"]["advantage_mean"]) for row in read_rows(run)] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert read_ledger(run) == {turn.turn_id: "trained" for turn in turns}


def test_an_unknown_backend_is_refused_with_the_known_names(run: RunDir, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train: {backend: cloud}\n")
    done = forked.run("train", "--run", run.root, "--recipe", recipe, "--once")
    assert (done.returncode, "there is no trainer 'cloud'" in done.stderr, "use one of local" in done.stderr) == (2, True, True)
