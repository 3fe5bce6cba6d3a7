"""The LLM judge: votes of a chat model, as few as decide, and its hints."""

from clawctl.config import JudgeConfig
from clawctl.judge.calls import Calls
from clawctl.judge.evidence import Evidence
from clawctl.judge.hints import HintRules, hint_candidates
from clawctl.judge.opinion import Opinion
from clawctl.judge.prompts import PROMPT_VERSION, Vote, hint_messages, judge_messages, new_fence, read_hint, read_vote
from clawctl.judge.together import together
from clawctl.judge.view import View, view_turn
from clawctl.judge.votes import decided, first_round, majority, why_none

_NO_VOTE = Vote(score=None, hint=None)


class LLMJudge:
    """Asks at most `judge.votes` times about a turn; each call has a fence of its own."""

    def __init__(self, calls: Calls, settings: JudgeConfig) -> None:
        self._calls, self._settings = calls, settings
        self.name = f"{calls.model} prompt {PROMPT_VERSION}"

    def doubt(self) -> None:
        return None

    async def judge(self, turn: Evidence) -> Opinion:
        settings = self._settings
        seen = view_turn(turn, settings.history_chars)
        votes: list[Vote] = []
        while not votes or not decided([vote.score for vote in votes], settings.votes, settings.threshold):
            count = settings.votes - len(votes) if votes else first_round(settings.votes, settings.threshold)
            votes += await self.ask(seen, count)
        return self.sum_up(seen, votes)

    async def ask(self, seen: View, count: int) -> list[Vote]:
        """So many votes, asked at the same time."""
        return await together(self._vote(seen) for _ in range(count))

    def sum_up(self, seen: View, votes: list[Vote]) -> Opinion:
        scores = [vote.score for vote in votes]
        reward = majority(scores, self._settings.threshold)
        hints = hint_candidates(votes, reward, hint_rules(self._settings, seen)) if self._settings.hints == "with_vote" else []
        reason = why_none(scores) if reward is None else None
        return Opinion(self.name, reward, tuple(scores), tuple(hints), reason)

    async def close(self) -> None:
        """The calls are closed by who made them."""

    async def _vote(self, seen: View) -> Vote:
        fence = new_fence()
        said = await self._calls.ask(judge_messages(seen.request, seen.answer, seen.next_state, seen.role, fence, seen.earlier))
        if said is None:
            return _NO_VOTE
        return read_vote(said, fence)


async def write_hint(calls: Calls, settings: JudgeConfig, turn: Evidence) -> tuple[str, ...]:
    """Ask for a hint apart from the votes (`judge.hints: apart`): at most one candidate."""
    seen, fence = view_turn(turn, settings.history_chars), new_fence()
    messages = hint_messages(seen.request, seen.answer, seen.next_state, seen.role, fence, seen.earlier)
    said = await calls.ask(messages, settings.hint_model)
    hint = read_hint(said, fence) if said is not None else None
    return tuple(hint_candidates([Vote(0, hint)], 0.0, hint_rules(settings, seen)))


def hint_rules(settings: JudgeConfig, seen: View) -> HintRules:
    return HintRules(settings.min_hint_chars, settings.max_hint_chars, seen.answer)
