"""Compares answers of two versions to a captured request. `eval` reaches this module through the seam `clawctl.judging`.

A chat model is asked twice, with the answers in both orders. A reward model scores each answer.
"""

from dataclasses import fields, replace

from clawctl.config import Recipe
from clawctl.judge.client import CallRefused, JudgeClient
from clawctl.judge.fences import new_fence
from clawctl.judge.panel import LLMJudge, gather_all, make_judge
from clawctl.judge.prompts import NOTHING_CAME_BACK, compare_messages, read_choice, read_vote, unseen_answer_messages  # fmt: skip
from clawctl.judge.protocol import Evidence
from clawctl.judge.view import VIEW_CHARS, view_turn
from clawctl.judging import Preference
from clawctl.run.directory import RunDir
from clawctl.run.rows import Message, Turn

_SHARE = {"first": 1.0, "neither": 0.5, "second": 0.0}


def open_judge(run: RunDir, recipe: Recipe) -> "Comparing":
    """Open the recipe's judge for comparisons. Raises ClawError if the judge cannot be created."""
    return Comparing(run, recipe)


class Comparing:
    """Implements `clawctl.judging.AnswerJudge` with the recipe's judge."""

    def __init__(self, run: RunDir, recipe: Recipe) -> None:
        self._settings = recipe.judge
        self._client = JudgeClient(run, recipe, patience_s=recipe.judge.timeout_s)
        self._judge = make_judge(run, recipe.judge, self._client)
        self._compares = isinstance(self._judge, LLMJudge)
        self._chars = recipe.judge.view_chars or VIEW_CHARS
        self.name = self._judge.name

    @property
    def spent(self) -> tuple[int, int]:
        spent = self._client.spent
        return spent.calls, spent.prompt_tokens + spent.completion_tokens

    async def prefer(self, turn: Turn, first: Message, second: Message) -> Preference:
        if not self._compares:
            scores = [await self.verdict(turn, answer) for answer in (first, second)]
            valid = [score for score in scores if score is not None]
            if len(valid) < 2:
                return Preference(None, tuple(scores))
            return Preference(0.5 + (valid[0] > valid[1]) / 2 - (valid[0] < valid[1]) / 2, tuple(scores))
        blocks, (left, right) = self._seen(turn, first, second)
        forwards, backwards = await gather_all([self._choice(blocks, left, right), self._choice(blocks, right, left)])
        votes = (
            {"A": "first", "B": "second", "0": "neither"}.get(forwards or ""),
            {"A": "second", "B": "first", "0": "neither"}.get(backwards or ""),
        )
        if None in votes:
            return Preference(None, votes)
        return Preference(_SHARE[votes[0] or ""] if votes[0] == votes[1] else 0.5, votes)

    async def verdict(self, turn: Turn, answer: Message) -> float | None:
        if not self._compares:
            return (await self._judge.judge(replace(_evidence(turn), response=answer))).reward
        blocks, (text,) = self._seen(turn, answer)
        fence = new_fence()
        reply = await self._ask(unseen_answer_messages(blocks, text, fence))
        score = None if reply is None else read_vote(reply, fence).score
        return None if score is None else float(score)

    async def _choice(self, blocks: list[tuple[str, str]], a: str, b: str) -> str | None:
        fence = new_fence()
        reply = await self._ask(compare_messages(blocks, a, b, fence))
        return None if reply is None else read_choice(reply, fence)

    async def _ask(self, messages: list[dict]) -> str | None:
        try:
            return await self._client.complete(messages)
        except CallRefused:
            return None

    def _seen(self, turn: Turn, *answers: Message) -> tuple[list[tuple[str, str]], list[str]]:
        """The named texts that both orders share, and the answers. Each text is cleaned and cut as for a vote."""
        evidence, chars = _evidence(turn), self._chars * 2 // (2 + len(answers))
        view = view_turn(evidence, self._settings.history_chars, chars)
        next_state = NOTHING_CAME_BACK if view.next_state is None else view.next_state
        blocks = [("earlier", view.earlier)] if view.earlier else []
        blocks += [("request", view.request), ("answer that was given", view.answer), (f"came back from {view.role}", next_state)]
        shown = [view_turn(replace(evidence, response=answer), 0, chars).answer for answer in answers]
        return blocks, shown

    async def close(self) -> None:
        await self._judge.close()
        await self._client.close()


def _evidence(turn: Turn) -> Evidence:
    return Evidence(**{field.name: getattr(turn, field.name) for field in fields(Evidence)})
