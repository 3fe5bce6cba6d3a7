"""A user's own trainer, in a file: the loop uses only its protocol, and no torch."""

import subprocess
import sys
from pathlib import Path

import orjson

from clawctl.run.directory import RunDir
from clawctl.run.policies import list_versions, live_version, read_policy
from clawctl.train.checkpoints import read_rows
from clawctl.train.ledger import read_ledger
from tests.train.tiny import HINT, Sampler, publish_shard

# It computes nothing: every turn keeps its logprobs, and a version is one file. Its tokenizer is not of this machine.
CODE = """
import contextlib, json, sys
import numpy as np
from clawctl.train.advantages import Reward, terms_of
from clawctl.train.measures import Measures, StepFacts, StepResult, TurnNumbers, step_row
from clawctl.trainers import Model

class Texts:
    vocabulary, context = 320, None
    def decode(self, ids): return ""
    def render(self, turn): raise AssertionError
    def with_hint(self, turn, hint, place): return [*turn.prompt_ids, 7]
    def without_hint(self, turn, hint, place): return None

class Snapshot:
    canary, repeatable = {"prompt_ids": [], "logprobs": []}, True
    def __init__(self, steps): self.steps = steps
    def save(self, folder):
        (folder / "policy" / "steps.json").write_text(json.dumps(self.steps))
        (folder / "mine.json").write_text(json.dumps(self.steps))

class Trainer:
    def __init__(self, config): self.config, self.steps = config, []
    def resume(self, version, checkpoint, weights):
        self.steps = json.loads((checkpoint / "mine.json").read_text()) if checkpoint else []
        assert len(self.steps) == version
        return Model(Texts(), adapter=False, exact=True)
    def step(self, batch):
        assert "torch" not in sys.modules
        measures, terms = Measures(computed_tokens=1, sequence_tokens=1, seconds={"forward": 1.0}), terms_of(self.config)
        for sample in batch.samples:
            logprobs = np.array(sample.logprobs, np.float32)
            numbers = measures.turns[sample.turn_id] = TurnNumbers(logprobs, logprobs)
            for term in terms:
                if isinstance(term.signal, Reward) and term.trains(sample):
                    numbers.advantages[term.name] = np.full_like(logprobs, batch.advantage(sample))
                    measures.add_loss(term.name, -batch.advantage(sample))
        self.steps.append([[s.turn_id, s.teacher_prompt_ids and s.teacher_prompt_ids[-1]] for s in batch.samples])
        weights = {term.name: term.weight for term in terms}
        facts = StepFacts("combine", weights, dict.fromkeys(weights, 1), 0.5, self.config.lr, None, 1.0, None)
        return StepResult(step_row(measures, batch, facts), measures.turns, facts)
    def publish(self, version, scratch): return Snapshot(self.steps)
    def idle(self): pass

class Backend:
    def estimate(self, recipe, gpus, processes): return ["nothing"]
    def spread(self, recipe, gpus, processes, arguments): pass
    @contextlib.contextmanager
    def open(self, recipe, prepare):
        prepare()
        yield Trainer(recipe.train)

BACKEND = Backend()
"""


def test_a_trainer_in_a_file_trains_publishes_and_resumes_without_torch(run: RunDir, tmp_path: Path, sampler: Sampler) -> None:
    file, recipe = tmp_path / "mine.py", tmp_path / "recipe.yaml"
    file.write_text(CODE)
    recipe.write_text(f"train: {{backend: '{file}:BACKEND', batch_turns: 2}}\n")
    turns = [sampler.turn(f"t{i}", seed=i) for i in range(6)]
    for stem, pair in (("a", turns[:2]), ("b", turns[2:])):
        publish_shard(run, stem, [(turn, 1.0, HINT if i else None) for i, turn in enumerate(pair)])
        command = [sys.executable, "-m", "clawctl", "train", "--run", str(run.root), "--recipe", str(recipe), "--once"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
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
    command = [sys.executable, "-m", "clawctl", "train", "--run", str(run.root), "--recipe", str(recipe), "--once"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "there is no trainer 'cloud'" in done.stderr, "use one of local" in done.stderr) == (2, True, True)
