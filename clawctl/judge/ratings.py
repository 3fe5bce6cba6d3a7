"""Ratings of turns that arrived after their rows were published."""

from dataclasses import replace

from clawctl.judge.evidence import Evidence
from clawctl.run.directory import RunDir
from clawctl.run.feedback import Ratings


class RatedTurns:
    """Turns with the newest rating of their user, as of the last `look`."""

    def __init__(self, run: RunDir) -> None:
        self._ratings = Ratings(run)
        self.look()

    def look(self) -> None:
        """Take in ratings that were given since the last look."""
        self._ratings.look()

    def remark(self, turn: Evidence) -> Evidence:
        """The turn with the comment of its rating at the end of its next state. Hints may come from it, but never verdicts."""
        found = self._ratings.of(turn.user, turn.turn_id)
        if found is None or not found.comment:
            return turn
        return replace(turn, next_state=[*(turn.next_state or []), {"role": "user", "content": found.comment}])

    def laid_over(self, turn: Evidence) -> Evidence:
        outcome = self._ratings.late_outcome(turn.user, turn.turn_id)
        if outcome is not None and outcome.reward is not None:
            turn = replace(turn, outcome_reward=outcome.reward)
        found = self._ratings.of(turn.user, turn.turn_id)
        return turn if found is None else replace(turn, feedback=found.rating)
