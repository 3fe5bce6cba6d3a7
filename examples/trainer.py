"""A trainer that computes no gradient: a version is the list of turns of all steps. `train.backend: examples/trainer.py:BACKEND`.

It shows what the loop asks of a trainer: the texts of the model, a step with the numbers of each turn, and a snapshot to publish.
A real one sends `batch` to where the weights are. The protocols are in `clawctl/trainers/__init__.py`.
"""

import json
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np

from clawctl.memory import Needs
from clawctl.train.advantages import Reward, terms_of
from clawctl.train.measures import Measures, StepFacts, StepResult, TurnNumbers, step_row
from clawctl.trainers import Model

TEXTS = SimpleNamespace(vocabulary=320, context=None, decode=str, prompt_of=lambda turn, messages: [*turn.prompt_ids, 7])


class Recorder:
    def __init__(self, config):
        self.config, self.steps = config, []

    def resume(self, version, checkpoint, weights):
        self.steps = json.loads((checkpoint / "steps.json").read_text()) if checkpoint else []
        return Model(TEXTS, adapter=False, exact=True)

    def step(self, batch):
        measures, terms = Measures(computed_tokens=1, sequence_tokens=1, seconds={"forward": 1.0}), terms_of(self.config)
        for sample in batch.samples:
            logprobs = np.array(sample.logprobs, np.float32)
            numbers = measures.turns[sample.turn_id] = TurnNumbers(policy_T=logprobs, sampler_T=logprobs)
            for term in (term for term in terms if isinstance(term.signal, Reward) and term.trains(sample)):
                numbers.advantages[term.name] = np.full_like(logprobs, batch.advantage(sample))
                measures.add_loss(term.name, -batch.advantage(sample))
        weights = {term.name: term.weight for term in terms}
        facts = StepFacts(self.config.method.kind, weights, dict.fromkeys(weights, 1), 0.5, self.config.lr, None, 1.0, None)
        self.steps.append([[sample.turn_id, (sample.teacher_prompt_ids or [None])[-1]] for sample in batch.samples])
        return StepResult(step_row(measures, batch, facts), measures.turns, facts)

    def publish(self, version, scratch):
        # The canary of a real trainer scores fixed prompts, so that serve can check what it loads.
        return SimpleNamespace(canary={"prompt_ids": [], "logprobs": []}, repeatable=True, save=partial(save, [*self.steps]))

    def idle(self):
        pass


def save(steps, folder):
    for name in ("policy/steps.json", "steps.json"):  # what an engine loads, and what `resume` reads
        (folder / name).write_text(json.dumps(steps))


@contextmanager
def open_recorder(recipe, prepare, between_layers):
    prepare()
    yield Recorder(recipe.train)


BACKEND = SimpleNamespace(open=open_recorder, estimate=lambda *_: ["nothing"], needs=lambda *_: Needs(), spread=lambda *_: None)
