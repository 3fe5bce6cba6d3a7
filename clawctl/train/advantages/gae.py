"""Credit that reaches back through a session: a turn's own reward and, discounted, the rewards of later turns.

Generalised advantage estimation (arXiv 1506.02438, eq. 16) over turns instead of tokens, without a value function (V = 0, so that
delta_k = r_k): A_k = r_k + gamma * lambda * A_{k+1}, and A_k = r_k for the last turn. A session is a tree. If a turn has several
successors (a regeneration, a fork), A_{k+1} is their mean. With V = 0, gamma and lambda act as one factor; lambda = 1 gives the
discounted return.

The outcome of an episode is in the row of each of its turns, but it occurred once, at the end. It counts at the last turn that has
it, and reaches earlier turns like any later reward.
"""

from collections.abc import Sequence

from clawctl.train.advantages.grpo import Earned


def session_credits(turns: Sequence[Earned], gamma: float, gae_lambda: float) -> dict[str, float]:
    """The advantage of each turn of a session. A turn without a reward passes on later credit and has no advantage itself. A turn
    whose terms are all 0 has none either."""
    children: dict[str | None, list[Earned]] = {}
    for turn in turns:
        children.setdefault(turn.parent_turn_id, []).append(turn)
    worth: dict[str, float] = {}
    ended: set[str] = set()  # turns at or after which the outcome was counted
    for turn in sorted(turns, key=lambda turn: -turn.turn_index):  # a child's index is its parent's and one more
        after = [worth[child.turn_id] for child in children.get(turn.turn_id, []) if child.turn_id in worth]
        later = sum(after) / len(after) if after else 0.0
        own = turn.reward or 0.0
        if any(child.turn_id in ended for child in children.get(turn.turn_id, [])):
            own -= turn.outcome or 0.0
            ended.add(turn.turn_id)
        elif turn.outcome is not None:
            ended.add(turn.turn_id)
        worth[turn.turn_id] = own + gamma * gae_lambda * later
    return {turn.turn_id: worth[turn.turn_id] for turn in turns if turn.reward is not None and worth[turn.turn_id]}
