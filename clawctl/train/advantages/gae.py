"""Credit that reaches back through a session: a turn's own reward and, discounted, the rewards of later turns.

Generalised advantage estimation (arXiv 1506.02438, eq. 16) over turns instead of tokens, without a value function (V = 0, so that
delta_k = r_k): A_k = r_k + gamma * lambda * A_{k+1}, and A_k = r_k for the last turn. A session is a tree. If a turn has several
successors (a regeneration, a fork), A_{k+1} is their mean. With V = 0, gamma and lambda act as one factor; lambda = 1 gives the
discounted return.

The outcome of an episode is in the row of each of its turns, but it occurred once, at the end. It counts at the last turn that has
it, and reaches earlier turns like any later reward.
"""

from collections.abc import Sequence

from clawctl.train.advantages.grpo import TurnReward, session_returns


def session_credits(turns: Sequence[TurnReward], gamma: float, gae_lambda: float) -> dict[str, float]:
    """Return the advantage of each turn of a session.

    A turn without a reward passes on later credit but has no advantage itself. Neither does a turn whose terms are all 0.
    """
    returns = session_returns(turns, gamma * gae_lambda)
    return {turn_id: value for turn_id, value in returns.items() if value}
