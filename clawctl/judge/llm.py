"""The LLM judge: votes of a chat model, as few as decide, and its hints."""

from functools import partial

from clawctl.config import JudgeConfig
from clawctl.judge.calls import Calls, Refused
from clawctl.judge.demo_world import knows
from clawctl.judge.evidence import Evidence
from clawctl.judge.hints import hint_candidates, hint_rules
from clawctl.judge.opinion import Opinion
from clawctl.judge.plain import plain_words
from clawctl.judge.prompts import PROMPT_VERSION, Vote, hint_messages, judge_messages, new_fence, read_hint, read_vote
from clawctl.judge.together import together
from clawctl.judge.view import DEMO_CHARS, LEAST_CHARS, VIEW_CHARS, View, view_turn
from clawctl.judge.votes import decided, first_round, majority, why_none

_NO_VOTE = Vote(score=None, hint=None)
_SHORTER = 4  # a view that brought no valid vote is made so many times shorter


class LLMJudge:
    """Asks for at most `judge.votes` votes on a turn, each with its own fence.

    Ordinary sentences decide: a vote is based on those of a turn (`clawctl.judge.plain`), and on the complete view only if they do
    not decide. A hint may come from the rest of a reply, such as a log or a list, if the vote on the complete view agrees.

    A long turn without a valid vote is shown again, shorter. Its length may have confused the judge, cut off its answer, or
    exceeded its context.
    """

    def __init__(self, calls: Calls, settings: JudgeConfig) -> None:
        self._calls, self._settings = calls, settings
        self._chars = view_chars(calls, settings)
        self._plain = partial(plain_words, knows=knows if calls.asks_demo_model else None)
        self.name = f"{calls.model} prompt {PROMPT_VERSION}"

    def doubt(self) -> None:
        return None

    async def judge(self, turn: Evidence) -> Opinion:
        settings = self._settings
        seen = self.view(turn)
        votes: list[Vote] = []
        while not votes or not decided([vote.score for vote in votes], settings.votes, settings.threshold):
            count = settings.votes - len(votes) if votes else first_round(settings.votes, settings.threshold)
            votes += await self.ask(turn, seen, count)
        return await self._sum_up(turn, seen, votes)

    def view(self, turn: Evidence) -> View:
        """The text that a vote is based on: the turn's ordinary sentences."""
        return self._view(turn, self._chars, plain=True)

    def _view(self, turn: Evidence, chars: int, plain: bool) -> View:
        return view_turn(turn, self._settings.history_chars, chars, self._plain if plain else None)

    async def ask(self, turn: Evidence, seen: View, count: int) -> list[Vote]:
        """This many votes, asked in parallel. `seen` is the turn's view."""
        return await together(self._vote(turn, seen) for _ in range(count))

    async def _sum_up(self, turn: Evidence, seen: View, votes: list[Vote]) -> Opinion:
        scores = [vote.score for vote in votes]
        reward = majority(scores, self._settings.threshold)
        hints: list[str] = []
        if self._settings.hints == "with_vote" and reward is not None:
            rules = hint_rules(self._settings, turn)
            rest = await self._hints_of_the_rest(turn, seen, reward)
            hints = list(dict.fromkeys(hint_candidates(rest, reward, rules) + hint_candidates(votes, reward, rules)))
        reason = why_none(scores) if reward is None else None
        return Opinion(self.name, reward, tuple(scores), tuple(hints), reason)

    async def _hints_of_the_rest(self, turn: Evidence, seen: View, reward: float) -> list[Vote]:
        """One vote on the complete view, only for its hint, if the reply contains more than ordinary sentences."""
        whole = self._view(turn, self._chars, plain=False)
        if reward == 0 or whole.next_state == seen.next_state:
            return []
        return [await self._vote_on_less(turn, whole, plain=False)]

    async def close(self) -> None:
        """Do nothing: the creator of the calls closes them."""

    async def _vote(self, turn: Evidence, seen: View) -> Vote:
        """One vote on the ordinary sentences, or on everything if they do not decide."""
        vote = await self._vote_on_less(turn, seen, plain=True)
        if vote.score:
            return vote
        whole = self._view(turn, self._chars, plain=False)
        return vote if whole == seen else await self._vote_on_less(turn, whole, plain=False)

    async def _vote_on_less(self, turn: Evidence, seen: View, plain: bool) -> Vote:
        """A vote on `seen`, or on as much less as brings a valid one."""
        chars, shown = min(self._chars, len_of(seen)), seen
        while True:
            vote = await self._vote_on(shown)
            if vote.score is not None:
                return vote
            chars = max(chars // _SHORTER, LEAST_CHARS)
            shorter = self._view(turn, chars, plain)
            if len_of(shorter) >= len_of(shown):
                return vote
            shown = shorter

    async def _vote_on(self, seen: View) -> Vote:
        fence = new_fence()
        try:
            said = await self._calls.ask(judge_messages(seen.request, seen.answer, seen.next_state, seen.role, fence, seen.earlier))
        except Refused as refused:
            if refused.too_long:  # later turns need not find out again
                self._chars = max(min(self._chars, len_of(seen) // 2), LEAST_CHARS)
            return _NO_VOTE
        return _NO_VOTE if said is None else read_vote(said, fence)


def view_chars(calls: Calls, settings: JudgeConfig) -> int:
    """How many characters of a turn the judge is shown at first."""
    return settings.view_chars or (DEMO_CHARS if calls.asks_demo_model else VIEW_CHARS)


def len_of(seen: View) -> int:
    """Characters of a view."""
    return len(seen.request) + len(seen.answer) + len(seen.next_state or "") + len(seen.earlier)


async def write_hint(calls: Calls, settings: JudgeConfig, turn: Evidence) -> tuple[str, ...]:
    """Ask for a hint apart from the votes (`judge.hints: apart`): at most one candidate."""
    seen, fence = view_turn(turn, settings.history_chars, view_chars(calls, settings)), new_fence()
    messages = hint_messages(seen.request, seen.answer, seen.next_state, seen.role, fence, seen.earlier)
    try:
        said = await calls.ask(messages, settings.hint_model)
    except Refused:
        return ()
    hint = read_hint(said, fence) if said is not None else None
    return tuple(hint_candidates([Vote(0, hint)], 0.0, hint_rules(settings, turn)))
