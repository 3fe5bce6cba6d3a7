"""Selects the judge of a turn: people and environments before rules, rules before the recipe's judge."""

import time
from dataclasses import replace

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.judge.calls import Calls
from clawctl.judge.demo_world import DemoWorld, is_judged_by_demo
from clawctl.judge.evidence import Evidence
from clawctl.judge.llm import LLMJudge, write_hint
from clawctl.judge.opinion import Judge, Opinion
from clawctl.judge.ratings import RatedTurns
from clawctl.judge.rules import rated, ruled
from clawctl.run.directory import RunDir
from clawctl.run.reward import RATING
from clawctl.run.rows import Verdict


class Panel:
    """Gives every turn its verdict."""

    def __init__(self, run: RunDir, recipe: Recipe, patience_s: float | None) -> None:
        """Raises ClawError if the recipe's judge cannot be created."""
        self.settings = recipe.judge
        self.calls = Calls(run, recipe, patience_s)
        self.judge = _make_judge(run, recipe, self.calls)
        self.ratings = RatedTurns(run)
        self._world = DemoWorld() if is_judged_by_demo(recipe) else None

    async def verdict(self, turn: Evidence) -> Verdict:
        """The verdict on one turn; one that no step could use is not asked about."""
        if not turn.judged:
            return Verdict(turn.turn_id, None, [], None, [], "nobody", f"not trainable: {turn.untrainable_reason}", None)
        begun = time.monotonic()
        turn = self.ratings.laid_over(turn)
        found = rated(turn, self.settings) or (ruled(turn, self.settings.execution_tools) if self.settings.rules else None)
        asked = found is None
        if found is None:
            if self._world is not None:
                self._world.look(turn)
            found = await self.judge.judge(turn)
        said = self.ratings.remark(turn)
        if self.settings.hints == "apart" and found.reward is not None and said.next_state is not None:
            asked, found = True, replace(found, hints=await write_hint(self.calls, self.settings, said))
        return as_verdict(turn.turn_id, found, time.monotonic() - begun if asked else None)

    def doubt(self, verdict: Verdict) -> ClawError | None:
        """Why this verdict cannot be published yet; None if it can."""
        return self.judge.doubt() if verdict.judge == self.judge.name and verdict.reward is not None else None

    def rated_since(self, turn: Evidence, verdict: Verdict) -> Verdict:
        """The verdict after a rating that arrived while the turn was judged. The votes stay for the record."""
        turn = self.ratings.laid_over(turn)
        if not turn.judged or turn.feedback is None:
            return verdict
        return replace(verdict, reward=float(turn.feedback), judge=RATING, reason=None)

    async def close(self) -> None:
        await self.judge.close()
        await self.calls.close()


def as_verdict(turn_id: str, found: Opinion, latency_s: float | None) -> Verdict:
    hints = list(found.hints)
    return Verdict(
        turn_id, found.reward, list(found.votes), hints[0] if hints else None, hints, found.judge, found.reason, latency_s
    )


def _make_judge(run: RunDir, recipe: Recipe, calls: Calls) -> Judge:
    settings = recipe.judge
    if settings.prm is not None and settings.custom_rm is not None:
        raise ClawError("judge.prm and judge.custom_rm are both set", "keep only one of them", 2)
    if settings.prm is not None:
        from clawctl.judge.prm import PRMJudge  # imports torch

        return PRMJudge(settings.prm, settings)
    if settings.custom_rm is not None:
        from clawctl.judge.custom import CustomJudge

        return CustomJudge(settings.custom_rm, settings, run)
    return LLMJudge(calls, settings)
