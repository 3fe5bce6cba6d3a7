"""Both signals, as separate terms with separate denominators.

If both are added into one advantage, as in OpenClaw-RL, one signal dominates the other, and turns without a hint train engine
noise. A turn with a reward and a hint has both terms, even if the reward is -1. The binary term then penalises the whole answer,
and the other term identifies the tokens at fault.
"""

from dataclasses import replace

from clawctl.config import TrainConfig
from clawctl.train.advantages import binary, opd
from clawctl.train.advantages.term import Term


def terms(config: TrainConfig) -> list[Term]:
    weights = {"binary": config.weight_binary, "opd": config.weight_opd}
    return [replace(term, weight=weights[term.name]) for term in binary.terms(config) + opd.terms(config)]
