"""Whether the turns of a step were sampled by the model that is trained.

What the newest version sampled, the trainer must find as likely as the sampler did, but for rounding. Where it does not, the
recorded logprobs are somebody else's, and the ratio that corrects off-policy turns would correct nothing.
"""

from clawctl.train.measures import Measures, is_newest
from clawctl.train.sample import Batch

FEWEST = 3  # turns that disagree before the model is called the wrong one: one or two may be broken by themselves


def disagreeing(whole: Measures, batch: Batch, most: float) -> tuple[tuple[str, ...], bool]:
    """The turns of the newest version whose logprobs differ by more than `most` on average over their tokens; and whether they are
    most of those that it sampled."""
    newest = [sample.turn_id for sample in batch.samples if is_newest(sample, batch.step - 1)]
    far = tuple(name for name in newest if float(whole.turns[name].log_ratio_T.abs().mean()) > most)
    return far, len(far) >= FEWEST and 2 * len(far) > len(newest)
