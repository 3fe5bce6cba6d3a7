"""A loss: the policy gradient of `binary`, without its mask. `train.custom_loss: examples/loss.py:compute_loss`."""


def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    """`policy_logits` [N, vocabulary] of all sampled tokens of a part of a step; the parts are added up, so it divides by
    `config.count`, the tokens of the whole step."""
    logprobs = policy_logits.log_softmax(-1).gather(1, config.token_ids[:, None]).squeeze(1)
    ratio = (logprobs - config.sampler_logprobs).exp()
    return -(ratio * advantages).sum() / config.count
