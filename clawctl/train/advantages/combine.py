"""Both signals, as separate terms over separate denominators.

Added into one advantage, as OpenClaw-RL does, one signal swamps the other and turns without a hint train engine noise. A turn with
a reward and a hint has both terms, also where the reward is -1: the binary term says that the answer was not wanted, the other says
which of its tokens were at fault.
"""

from dataclasses import replace

from clawctl.config import TrainConfig
from clawctl.train.advantages import binary, opd
from clawctl.train.advantages.term import Term


def terms(config: TrainConfig) -> list[Term]:
    weights = {"binary": config.weight_binary, "opd": config.weight_opd}
    return [replace(term, weight=weights[term.name]) for term in binary.terms(config) + opd.terms(config)]
