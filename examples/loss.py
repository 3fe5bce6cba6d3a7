"""A loss: the policy gradient of `binary`, without its mask. `train.custom_loss: examples/loss.py:compute_loss`."""


def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    """`policy_logits` [N] are the log-probabilities of the sampled tokens in a part of a step. The parts are added up, so it
    divides by `config.count`, the tokens of the whole step."""
    ratio = (policy_logits - config.sampler_logprobs).exp()
    return -(ratio * advantages).sum() / config.count
