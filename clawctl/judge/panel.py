"""The path from a turn to its verdict: view → votes → reward and hints → verdict.

Ratings and outcomes take precedence over rules, and rules over the recipe's judge.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from clawctl.config import JudgeConfig, Recipe
from clawctl.errors import ClawError
from clawctl.judge.client import CallRefused, JudgeClient
from clawctl.judge.fences import new_fence
from clawctl.judge.fitness import check_fitness
from clawctl.judge.hints import HintRules, hint_candidates, hint_rules
from clawctl.judge.notes import ReplyNotes
from clawctl.judge.plain import plain_words
from clawctl.judge.prompts import (  # fmt: skip
    PROMPT_VERSION,
    VOTE_SCHEMA,
    Vote,
    hint_messages,
    judge_messages,
    read_hint,
    read_vote,
    read_vote_in_form,
)
from clawctl.judge.protocol import Evidence, Judge, Opinion
from clawctl.judge.rules import only_rules, rating_opinion, rule_opinion
from clawctl.judge.shares import read_share
from clawctl.judge.view import MIN_CHARS, VIEW_CHARS, TurnView, view_turn
from clawctl.judge.votes import as_votes, decided, first_round, likeliest, majority, why_none
from clawctl.run.directory import RunDir
from clawctl.run.feedback import Ratings, with_comment
from clawctl.run.fitness import UNFIT, Fitness
from clawctl.run.reward import PRACTICE, RATING
from clawctl.run.rows import Verdict

log = logging.getLogger(__name__)

_NOTE_PATIENCE_S = 30.0  # for the question about a turn that a person or a rule decided
_SHORTER = 4  # if a view gives no valid vote, its length is divided by this

T = TypeVar("T")


class Panel:
    """Gives each turn its verdict."""

    def __init__(self, run: RunDir, recipe: Recipe, patience_s: float | None) -> None:
        """Raises ClawError if the recipe's judge cannot be created."""
        self._run, self._recipe = run, recipe
        self.settings = recipe.judge
        self.client = JudgeClient(run, recipe, patience_s)
        self.judge = make_judge(run, recipe.judge, self.client)
        self.ratings = Ratings(run)
        self.ratings.poll()
        is_checked = recipe.judge.ask and recipe.judge.fitness == "check"
        self.checked = self.judge if is_checked and isinstance(self.judge, LLMJudge) else None
        self._checking: asyncio.Task[Fitness] | None = None
        is_asked = recipe.judge.notes and recipe.judge.ask and isinstance(self.judge, LLMJudge)
        self._notes = ReplyNotes(run, recipe, self.client) if is_asked else None

    async def verdict(self, turn: Evidence) -> Verdict:
        """The verdict on one turn. Turns that no step could use are not judged."""
        if not turn.judged:
            return Verdict(turn.turn_id, None, [], None, [], "nobody", f"not trainable: {turn.untrainable_reason}", None)
        if (hint := (turn.episode or {}).get("hint")) is not None:  # played for practice: the teacher decides, not a judge
            return Verdict(turn.turn_id, None, [], hint or None, [hint] if hint else [], PRACTICE, "practice", None)
        begun = time.monotonic()
        turn = with_rating(self.ratings, turn)
        opinion = rating_opinion(turn, self.settings) or self.rule(turn) or only_rules(turn, self.settings)
        is_asked = opinion is None
        if opinion is None and not self.settings.ask:
            is_asked, opinion = False, Opinion("nobody", None, reason="no judge is asked (judge.ask)")
        if opinion is None and await self._is_unfit():
            is_asked, opinion = False, Opinion(self.judge.name, None, reason=UNFIT)
        if opinion is None:
            opinion = await self.judge.judge(turn)
        turn = self._with_comment(turn)
        if opinion.reward is not None and turn.next_state is not None and await self._writes_hints_apart():
            is_asked, opinion = True, replace(opinion, hints=await _separate_hint(self.client, self.settings, turn))
        latency_s = time.monotonic() - begun if is_asked else None
        hints, votes = list(opinion.hints), list(opinion.votes)
        hint = hints[0] if hints else None
        verdict = Verdict(turn.turn_id, opinion.reward, votes, hint, hints, opinion.judge, opinion.reason, latency_s)
        return with_comment(verdict, self.ratings.of(turn.user, turn.turn_id))

    async def take_note(self, turn: Evidence, verdict: Verdict) -> bool:
        """Write or end the note that the person's reply asks for, if the judge finds one. Returns whether one was written.

        A verdict that needed no judge does not wait long for one: its note is then lost, which is logged.
        """
        if self._notes is None or not turn.judged or verdict.judge == PRACTICE:
            return False
        taking = self._notes.take(self._with_comment(with_rating(self.ratings, turn)), verdict, self._is_unfit)
        if verdict.latency_s is not None:
            return await taking
        try:
            return await asyncio.wait_for(taking, _NOTE_PATIENCE_S)
        except (TimeoutError, ClawError) as error:
            problem = error.problem if isinstance(error, ClawError) else f"the judge did not answer in {_NOTE_PATIENCE_S:.0f} s"
            log.warning("the comment on a turn makes no note: %s", problem)
            return False

    def check(self) -> "asyncio.Task[Fitness] | None":
        """Begin to check the judge, unless this was done. None if the recipe's judge is not checked."""
        if self.checked is None:
            return None
        if self._checking is None or (self._checking.done() and self._checking.exception() is not None):
            self._checking = asyncio.create_task(check_fitness(self._run, self._recipe, self.client, self.checked.planted_vote))
        return self._checking

    async def _is_unfit(self) -> bool:
        """Whether the judge failed its check. Waits for the result."""
        checking = self.check()
        return checking is not None and not (await asyncio.shield(checking)).fit

    async def _writes_hints_apart(self) -> bool:
        """Whether a separate call may write a hint. A hint by an unfit judge would be trained like its votes."""
        if self.settings.hints != "apart" or not self.settings.ask:
            return False
        return self.settings.hint_model not in (None, self.client.model) or not await self._is_unfit()

    def rule(self, turn: Evidence) -> Opinion | None:
        """The opinion of the rules, or None if the recipe does not use them or none decides."""
        return rule_opinion(turn, self.settings.execution_tools) if self.settings.rules else None

    def _with_comment(self, turn: Evidence) -> Evidence:
        """The turn with its rating's comment appended to the next state. Only hints use the comment, never verdicts."""
        rating = self.ratings.of(turn.user, turn.turn_id)
        if rating is None or not rating.comment:
            return turn
        return replace(turn, next_state=[*(turn.next_state or []), {"role": "user", "content": rating.comment}])

    def doubt(self, verdict: Verdict) -> ClawError | None:
        """Why this verdict cannot be published yet, or None if it can."""
        return self.judge.doubt() if verdict.judge == self.judge.name and verdict.reward is not None else None

    def rated_since(self, turn: Evidence, verdict: Verdict) -> Verdict:
        """The verdict, updated by a rating that arrived while the turn was judged. The votes are kept for the record."""
        turn = with_rating(self.ratings, turn)
        if not turn.judged or turn.feedback is None:
            return verdict
        rated = replace(verdict, reward=float(turn.feedback), judge=RATING, reason=None)
        return with_comment(rated, self.ratings.of(turn.user, turn.turn_id))

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self.judge.close()
        await self.client.close()


def make_judge(run: RunDir, settings: JudgeConfig, client: JudgeClient) -> Judge:
    """The judge that the recipe selects: a chat model, unless the recipe names a reward model."""
    if settings.custom_rm is not None:
        from clawctl.judge.custom import CustomJudge

        return CustomJudge(settings.custom_rm, settings, run)
    if settings.prm is not None:
        from clawctl.judge.prm import PRMJudge  # imports torch

        return PRMJudge(settings.prm, settings)
    return LLMJudge(client, settings)


class LLMJudge:
    """Requests up to `judge.votes` votes on a turn, but no more than are needed to decide. Each vote has its own fence.

    If the judge's answers begin with the score and the endpoint gives probabilities, the first vote decides: it has the share of
    each score that sampled votes would approach.

    A vote is based on the turn's ordinary sentences (`clawctl.judge.plain`), and on the complete view only if these do not decide.
    A hint may also come from the rest of a reply, such as a log or a list, if the vote on the complete view agrees.
    """

    def __init__(self, client: JudgeClient, settings: JudgeConfig) -> None:
        self._client, self._settings = client, settings
        self._chars = settings.view_chars or VIEW_CHARS
        self.name = f"{client.model} prompt {PROMPT_VERSION}"
        self._has_shares = True  # False: the endpoint gives none, or the judge reasons first

    async def judge(self, turn: Evidence) -> Opinion:
        settings, view = self._settings, self.view(turn)
        votes = [await self.vote(turn, view)] if self._has_shares else []
        share = votes[0].share if votes else None
        first = first_round(settings.votes, settings.threshold)
        while share is None and not (votes and decided([vote.score for vote in votes], settings.votes, settings.threshold)):
            count = (first if len(votes) < first else settings.votes) - len(votes)
            votes += await gather_all(self.vote(turn, view) for _ in range(count))
        scores = [vote.score for vote in votes] if share is None else as_votes(share, settings.votes)
        reward = majority(scores, settings.threshold) if share is None else likeliest(share, settings.threshold)
        hints: list[str] = []
        if settings.hints == "with_vote" and reward is not None:
            rules = hint_rules(turn)
            while share is not None and len(votes) < settings.votes and _lacks_hint(votes, reward, rules):
                votes.append(await self.vote(turn, view))
            more_votes = await self._votes_on_complete_view(turn, view, reward)
            hints = list(dict.fromkeys(hint_candidates(more_votes, reward, rules) + hint_candidates(votes, reward, rules)))
        reason = why_none(scores) if reward is None else None
        return Opinion(self.name, reward, tuple(scores), tuple(hints), reason)

    def view(self, turn: Evidence, chars: int | None = None, is_plain: bool = True) -> TurnView:
        """The text that a vote is based on: the turn's ordinary sentences, or its complete text."""
        return view_turn(turn, self._settings.history_chars, chars or self._chars, plain_words if is_plain else None)

    async def vote(self, turn: Evidence, view: TurnView, is_plain: bool = True) -> Vote:
        """One vote on `view`.

        A view that gives no valid vote is shortened and tried again. Its length may have confused the judge, cut off its answer, or
        exceeded its context. If the ordinary sentences do not decide, the complete view is used, unless `is_plain` is False.
        """
        shown, chars = view, min(self._chars, len(view))
        while True:
            vote = Vote(score=None, hint=None)
            try:
                vote = await self._call(shown) or vote
            except CallRefused as refused:
                if refused.too_long:  # later turns start with the shorter length
                    self._chars = max(min(self._chars, len(shown) // 2), MIN_CHARS)
            if vote.score is None:
                chars = max(chars // _SHORTER, MIN_CHARS)
                shorter = self.view(turn, chars, is_plain)
                if len(shorter) < len(shown):
                    shown = shorter
                    continue
            if _score_of(vote) or not is_plain or (whole := self.view(turn, is_plain=False)) == view:
                return vote
            shown, chars, is_plain = whole, min(self._chars, len(whole)), False

    async def _call(self, shown: TurnView) -> Vote | None:
        """The vote of one call. None without an answer. Raises CallRefused.

        If it has no valid score, a second call constrains the answer, where the endpoint can: a judge that reasons freely is right
        more often, so the constraint does not come first.
        """
        fence = new_fence()
        messages = judge_messages(shown.request, shown.answer, shown.next_state, shown.role, fence, shown.earlier)
        vote = await self._free_vote(messages, fence)
        if vote is None or vote.score is not None:
            return vote
        answer = await self._client.complete_in_form(messages, VOTE_SCHEMA)
        return vote if answer is None else read_vote_in_form(answer)

    async def _free_vote(self, messages: list[dict], fence: str) -> Vote | None:
        """The vote of an answer in the judge's own form, which may reason first. Its score may be invalid."""
        if not self._has_shares:
            answer = await self._client.complete(messages)
            return None if answer is None else read_vote(answer, fence)
        scored = await self._client.complete_with_logprobs(messages)
        if scored is None:
            return None
        vote, share = read_vote(scored[0], fence), read_share(scored[1])
        self._has_shares = share is not None or (vote.score is None and scored[1] is not None)
        return vote if vote.score is None else replace(vote, share=share)

    async def planted_vote(self, turn: Evidence) -> Vote | None:
        """The vote of one call on a turn, for `check_fitness`. None without an answer."""
        try:
            vote = await self._call(self.view(turn))
        except CallRefused:
            return Vote(score=None, hint=None)
        return None if vote is None else replace(vote, score=_score_of(vote))

    async def _votes_on_complete_view(self, turn: Evidence, view: TurnView, reward: float) -> list[Vote]:
        """One vote on the complete view, for its hint only. No vote if the reply has only ordinary sentences."""
        whole = self.view(turn, is_plain=False)
        if reward == 0 or whole.next_state == view.next_state:
            return []
        return [await self.vote(turn, whole, is_plain=False)]

    def doubt(self) -> None:
        return None

    async def close(self) -> None:
        """Do nothing: the creator of the client closes it."""


def _score_of(vote: Vote) -> int | None:
    """The likeliest score if the vote has probabilities, otherwise the sampled one."""
    score = vote.score if vote.share is None else likeliest(vote.share, 0.0)
    return None if score is None else int(score)


def _lacks_hint(votes: list[Vote], reward: float, rules: HintRules) -> bool:
    """Whether a further vote may give the hint that the verdict lacks: it is bad, or the sampled score was another one."""
    agrees = any(vote.score == reward for vote in votes)
    return reward != 0 and not (agrees if reward > 0 else hint_candidates(votes, reward, rules))


async def _separate_hint(client: JudgeClient, settings: JudgeConfig, turn: Evidence) -> tuple[str, ...]:
    """Request a hint separately from the votes (`judge.hints: apart`). Returns at most one candidate."""
    view, fence = view_turn(turn, settings.history_chars, settings.view_chars or VIEW_CHARS), new_fence()
    messages = hint_messages(view.request, view.answer, view.next_state, view.role, fence, view.earlier)
    try:
        answer = await client.complete(messages, settings.hint_model)
    except CallRefused:
        return ()
    hint = read_hint(answer, fence) if answer is not None else None
    return tuple(hint_candidates([Vote(0, hint)], 0.0, hint_rules(turn)))


def with_rating(ratings: Ratings, turn: Evidence) -> Evidence:
    """The turn with its user's newest rating and an outcome that arrived after its row. `ratings` is not refreshed."""
    outcome = ratings.late_outcome(turn.user, turn.turn_id)
    if outcome is not None and outcome.decides:
        turn = replace(turn, outcome_reward=outcome.reward)
    rating = ratings.of(turn.user, turn.turn_id)
    return turn if rating is None else replace(turn, feedback=rating.rating)


async def gather_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. If one fails, the others are cancelled before its exception is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
