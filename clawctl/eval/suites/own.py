"""The suite `own`: versions answer held-out turns of the run's own users, on the exact captured prompts.

A judge compares the answers of two versions, blind and in both orders. The judge sees the user's real reaction to the captured
answer. Guards detect answers that please only a judge: refusals, excessive length, another language, invalid tool calls. A turn
that calls a tool has no preference, because the suite never runs users' tools; its calls are checked instead.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from clawctl.asking import Refused, count_call
from clawctl.at_once import at_once
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings
from clawctl.eval.suites.answers import Answered, answer, calls_in, client_of, is_refusal, is_valid_call, language_of
from clawctl.eval.suites.held_out import HeldOut, asked_before, hashed, held_out_turns, key_name, repeated, whole_turns
from clawctl.http_client import Client
from clawctl.intervals import estimate
from clawctl.judging import ANSWER_JUDGES, AnswerJudge, Preference
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint
from clawctl.run.rows import Message, Turn

log = logging.getLogger("eval")

_LONGER, _AT_LEAST = 3, 128  # an answer may be this many times as long as the captured one, and at least this many tokens
_SHOWN = 4000  # characters of a text that are stored for people to read
_CANNOT_ANSWER = (400, 413, 422)  # statuses that refuse this one prompt, for example because it is too long
NO_TURNS = "no turn is held out yet: eval.holdout keeps a share of new sessions for this"


class Own:
    """`compare` compares two versions; `__call__` measures one."""

    metrics = ("preferred", "accepted", "guards", "answered", "length", "language", "tool_calls")

    async def __call__(self, endpoint: Endpoint, settings: SuiteSettings) -> Measured:
        run = run_of(settings)
        chosen = _in_order(run, settings)[: settings.problems]
        if not chosen:
            return Measured({})
        turns = whole_turns(run, chosen)
        async with _judge(settings) as judge, client_of(endpoint) as client:

            async def answer_to(turn: Turn) -> tuple[Turn, Answered, float | None] | None:
                answered = await _answer(client, endpoint, settings, turn, turn.turn_id)
                return None if answered is None else (turn, answered, await _verdict(judge, turn, answered))

            answers = [answer for answer in await at_once(settings.concurrency, answer_to, turns) if answer is not None]
        values: dict[str, dict[str, float]] = {}
        for turn, answered, verdict in answers:
            accepted = {} if verdict is None else {"accepted": (verdict + 1) / 2}
            for metric, value in (accepted | guards(turn, answered, settings.max_tokens)).items():
                values.setdefault(metric, {})[turn.turn_id] = value
        metrics = {metric: estimate(list(values[metric].values())) for metric in self.metrics if metric in values}
        shown = [
            {"task_id": turn.turn_id, "turn_id": turn.turn_id, "prompt": asked_in(turn), "reply": answered.visible[:_SHOWN]}
            for turn, answered, _ in answers[:3]
        ]
        return Measured(metrics, examples=shown, values=values)

    async def compare(
        self, candidate: Endpoint, reference: Endpoint, settings: SuiteSettings, begin: int, count: int
    ) -> Sequence[Comparison]:
        """For each task: the comparison `preferred`, except for turns that call a tool, and the guards of both answers."""
        run = run_of(settings)
        chosen = repeated(_in_order(run, settings, candidate, reference))[begin : begin + count]
        if not chosen:
            return []
        turns = {turn.turn_id: turn for turn in whole_turns(run, chosen)}
        async with _judge(settings) as judge, client_of(candidate) as client:

            async def comparisons_of(task: HeldOut) -> list[Comparison]:
                turn = turns[task.turn_id]
                new = await _answer(client, candidate, settings, turn, task.task_id)
                old = None if new is None else await _answer(client, reference, settings, turn, task.task_id)
                if new is None or old is None:
                    return []
                return await _compared(judge, turn, task.task_id, new, old, settings.max_tokens)

            tasks = [task for task in chosen if task.turn_id in turns]
            compared = await at_once(max(1, settings.concurrency // 2), comparisons_of, tasks)
        comparisons = [comparison for some in compared for comparison in some]
        judged = [comparison for comparison in comparisons if comparison.metric == "preferred"]
        invalid = sum(comparison.detail["invalid"] for comparison in judged)
        if judged and 2 * invalid > len(judged):
            raise CannotMeasure(f"the judge gave no valid answer on {invalid} of {len(judged)} pairs of answers")
        return comparisons


def run_of(settings: SuiteSettings) -> RunDir:
    """The run of the settings. Raises ClawError outside of a run."""
    if settings.run is None or settings.recipe is None:
        raise ClawError("this suite measures on the conversations of a run, and there is none", "start `clawctl eval --run RUN`", 2)
    return settings.run


def _in_order(run: RunDir, settings: SuiteSettings, *pair: Endpoint) -> list[HeldOut]:
    turns = held_out_turns(run, settings, asked_before(run, *pair) if pair else float("inf"))
    if not turns:
        log.info("suite own: %s", NO_TURNS)
    return turns


@asynccontextmanager
async def _judge(settings: SuiteSettings) -> AsyncIterator[AnswerJudge]:
    """The recipe's judge. If it cannot judge at the moment, this does not count against a version."""
    assert settings.run is not None
    assert settings.recipe is not None
    judge = ANSWER_JUDGES.load("recipe", "judge")(settings.run, settings.recipe)
    try:
        yield judge
    except ClawError as error:
        raise CannotMeasure(f"{error.problem} ({error.fix})", unreachable=True) from error
    finally:
        calls, tokens = judge.spent  # the judge's calls count towards the candidate's budget
        for call in range(calls):
            count_call({"total_tokens": tokens if call == 0 else 0})
        await judge.close()


async def _answer(client: Client, endpoint: Endpoint, settings: SuiteSettings, turn: Turn, task_id: str) -> Answered | None:
    """Answer the captured prompt with the captured turn's sampling. None if the server cannot take this prompt.

    Both versions use the same seed, so that equal weights give equal answers. Raises Refused.
    """
    seed = int.from_bytes(hashed(settings.seed, task_id)[:4]) >> 1
    sampling = {"temperature": turn.temperature, "top_p": turn.top_p, "seed": seed, "max_tokens": settings.max_tokens}
    top_k = {"top_k": turn.top_k} if turn.top_k else {}
    try:
        return await answer(client, endpoint, turn.prompt_ids or (), **sampling, **top_k)
    except Refused as refused:
        if refused.status not in _CANNOT_ANSWER:
            raise
        log.info("suite own: %s cannot answer turn %s: %s", endpoint.model, turn.turn_id, refused)
        return None


async def _verdict(judge: AnswerJudge, turn: Turn, answered: Answered) -> float | None:
    if calls_a_tool(turn) or turn.next_state is None:
        return None
    return await judge.verdict(turn, answered.message)


async def _compared(
    judge: AnswerJudge, turn: Turn, task_id: str, new: Answered, old: Answered, max_tokens: int
) -> list[Comparison]:
    key = key_name(turn.user)
    texts = {"request": asked_in(turn), "given": _text(turn.response), "came_back": _texts(turn.next_state)}
    shown = {"candidate": new.visible[:_SHOWN], "reference": old.visible[:_SHOWN]}
    detail: dict[str, Any] = {"turn_id": turn.turn_id, **texts, **shown}
    comparisons = []
    if not calls_a_tool(turn) and turn.next_state is not None:
        same = new.visible == old.visible
        preference = Preference(0.5, ("the same text",)) if same else await judge.prefer(turn, new.message, old.message)
        detail_of_votes = {**detail, "votes": list(preference.votes), "invalid": preference.first is None, "judge": judge.name}
        share = 0.5 if preference.first is None else preference.first
        comparisons.append(Comparison("preferred", task_id, share, 1 - share, key, detail_of_votes))
    ours, other = guards(turn, new, max_tokens), guards(turn, old, max_tokens)
    comparisons += [Comparison(name, task_id, ours[name], other[name], key, detail) for name in ours if name in other]
    return comparisons


# ---- checks that need no judge ---------------------------------------------------------------------------------------------


def guards(turn: Turn, answered: Answered, max_tokens: int) -> dict[str, float]:
    """Scores of checks that need no judge, from 0 to 1; 1 means no problem.

    - `answered`: the answer is not empty and is no refusal, unless the captured answer was a refusal.
    - `length`: it ends by itself, and is not much longer than the captured answer.
    - `language`: it has the language of the request or of the captured answer.
    - `tool_calls`: all of its calls are valid, and it has a call if the captured answer had one.
    - `guards`: the lowest of these. Each answer has it, although not each has a language or calls.
    """
    given, said = _text(turn.response), answered.visible
    calls = list(calls_in(said))
    scores = {"answered": float(bool(said) and (not is_refusal(said) or is_refusal(given)))}
    captured = len(turn.completion_ids or ())
    limit = max(_LONGER * captured, _AT_LEAST)
    cut = answered.finish_reason == "length" and answered.tokens >= max_tokens > captured
    scores["length"] = 0.0 if cut else min(1.0, limit / max(answered.tokens, 1))
    expected = {language_of(given), language_of(asked_in(turn))} - {None}
    if expected and (language := language_of(said)) is not None:
        scores["language"] = float(language in expected)
    if turn.tools and (calls or calls_a_tool(turn)):
        wanted = bool(calls) or not calls_a_tool(turn)
        scores["tool_calls"] = float(wanted and all(is_valid_call(call, turn.tools) for call in calls))
    return {"guards": min(scores.values()), **scores}


def calls_a_tool(turn: Turn) -> bool:
    """Whether the captured answer called a tool, or a tool's result followed it."""
    results = any(message.get("role") in ("tool", "function") for message in turn.next_state or [])
    return results or bool((turn.response or {}).get("tool_calls"))


def asked_in(turn: Turn) -> str:
    """The user's last message."""
    from_user = [message for message in turn.messages if message.get("role") == "user"]
    return _text(from_user[-1])[:_SHOWN] if from_user else ""


def _texts(messages: Sequence[Message] | None) -> str | None:
    return None if messages is None else "\n\n".join(map(_text, messages))[:_SHOWN]


def _text(message: Message | None) -> str:
    content = (message or {}).get("content")
    if isinstance(content, list):
        content = "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")[:_SHOWN]
