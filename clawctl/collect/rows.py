"""Turns an exchange and its next state into a row of `trajectories/`: trainable, or with the reason why not."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from clawctl.collect.canonical import CanonicalRequest, handles, role_of, text_of
from clawctl.collect.nodes import Match, ParentEvidence
from clawctl.cut_calls import CUT_CALL, Decode, has_cut_call
from clawctl.run.holdout import HELD_OUT
from clawctl.run.images import has_images
from clawctl.run.outcomes import EPISODE_FAILED, WITHOUT_OUTCOME, SessionOutcome, group_of_agent
from clawctl.run.rows import NO_NEXT_STATE, REGENERATED, Exchange, Message, Turn

log = logging.getLogger(__name__)

# All reasons, in order of precedence. After SIDE_TURN, ERROR and CANCELLED come CUT_CALL (`clawctl.cut_calls`) and serve's own
# reason. After IMAGES, NO_TOKEN_IDS and NO_POLICY_VERSION come HELD_OUT (`clawctl.run.holdout`), EPISODE_FAILED and WITHOUT_OUTCOME
# (`clawctl.run.outcomes`), REGENERATED and NO_NEXT_STATE (`clawctl.run.rows`).
SIDE_TURN = "side turn"
ERROR = "error"
CANCELLED = "cancelled"
NO_TOKEN_IDS = "no token ids"
IMAGES = "images"  # the engine does not report their positions in the ids, so the trainer would compute different logprobs
NO_POLICY_VERSION = "no policy version"


def untrainable_reason(
    exchange: Exchange,
    kind: str,
    has_feedback: bool,
    repeated: bool,
    decode: Decode | None = None,
    outcome: SessionOutcome | None = None,
    held_out: bool = False,
) -> str | None:
    """Return the reason why this turn cannot be trained, or None.

    `has_feedback`: the turn has a next state or a rating by its user. `repeated`: the same request was sent again, so another
    answer was wanted. `decode` turns token ids into text, if a tokenizer is known. `outcome` is that of its episode. `held_out`:
    its session measures versions. A later rating or outcome does not change `held_out`.

    An answer that hit its length limit (finish_reason "length") is trainable: its tokens are exact, and the next state reacts to
    just these tokens. A truncated tool call is not: the client could not run it, so the next state only reports that.
    """
    exact = exchange.prompt_ids and exchange.completion_ids and exchange.logprobs
    reasons = [
        (kind == "side", SIDE_TURN),
        (exchange.status == "error", ERROR),
        (exchange.status == "cancelled", CANCELLED),
        (_is_cut(exchange, decode), CUT_CALL),
        (exchange.untrainable_reason is not None, exchange.untrainable_reason),
        (has_images(exchange.messages) and exchange.images is None, IMAGES),
        (not exact, NO_TOKEN_IDS),
        (exchange.policy_version is None, NO_POLICY_VERSION),
        (held_out, HELD_OUT),
        (outcome is not None and outcome.status == "failed", EPISODE_FAILED),
        (outcome is None and exchange.hints.get("episode") is not None, WITHOUT_OUTCOME),
        (not has_feedback and repeated, REGENERATED),
        (not has_feedback and (outcome is None or (outcome.reward is None and outcome.hint is None)), NO_NEXT_STATE),
    ]
    return next((reason for applies, reason in reasons if applies), None)


def _is_cut(exchange: Exchange, decode: Decode | None) -> bool:
    finish = exchange.finish_reason or "broken off"
    return has_cut_call(exchange.tools, exchange.response, finish, exchange.completion_ids, decode)


def next_state(conversation: CanonicalRequest, messages: Sequence[Message], match: Match) -> list[Message] | None:
    """Return the messages after the parent's answer in the child's request: all tool results and user messages.

    The messages end at the next answer, if there is one; that answer is not ours. Transient context is excluded: it is a known
    form, or was elsewhere in the parent's request. System messages count only if nothing else came, because some clients send tool
    results as system messages (gptme). None if nothing is left: the request asks the model to continue.
    """
    if not match.replies:
        return None
    begin, roles = match.index, conversation.roles
    end = roles.find("a", begin + 1) if "a" in roles[begin + 1 :] else len(roles)
    # A client may show each call of an answer with its result
    calls = set(match.node.handles)
    while (before := roles.rfind("a", 0, begin)) >= 0 and calls & set(handles(messages[conversation.positions[before]])):
        begin = before
    indices = [
        conversation.positions[i]
        for i in range(begin + 1, end)
        if roles[i] != "a" and not (roles[i] == "u" and conversation.digests[i] in match.dropped)
    ]
    if not indices and end == len(roles):
        begin = conversation.positions[match.index] + 1
        indices = [
            index
            for index in range(begin, len(messages))
            if role_of(messages[index]) == "system" and text_of(messages[index].get("content"))
        ]
    return [messages[index] for index in sorted(indices)] or None


@dataclass(frozen=True, slots=True)
class ClosedTurn:
    """A turn to which nothing can be added but the outcome of its session."""

    exchange: Exchange
    session_id: str
    parent_id: str | None
    index: int
    kind: Literal["main", "side"]
    next_state: list[Message] | None
    repeated: bool  # the same request was answered again, and the conversation continued from the other answer
    feedback: float | None = None
    evidence: ParentEvidence | None = None
    held_out: bool = False

    def row(self, outcome: SessionOutcome | None = None, decode: Decode | None = None) -> Turn:
        """The row of the turn.

        An outcome counts for main turns that were requested before it was given. It does not count for an answer that was
        regenerated, because the episode continued from another answer.
        """
        exchange = self.exchange
        if outcome is not None and (outcome.created_at < exchange.created_at or self.kind == "side"):
            outcome = None
        answered = self.next_state is not None or self.feedback is not None
        reason = untrainable_reason(exchange, self.kind, answered, self.repeated, decode, outcome, self.held_out)
        group = _text(exchange.hints.get("group_id"))
        agent = None if outcome is None else outcome.agent_of(exchange.exchange_id)
        return Turn(
            turn_id=exchange.exchange_id,
            session_id=self.session_id,
            parent_turn_id=self.parent_id,
            turn_index=self.index,
            kind=self.kind,
            source="serve",
            task_id=_text(exchange.hints.get("task_id")),
            group_id=group if group is None or agent is None else group_of_agent(group, agent),
            user=exchange.key,
            created_at=exchange.created_at,
            messages=exchange.messages,
            tools=exchange.tools,
            response=exchange.response,
            next_state=self.next_state,
            prompt_ids=exchange.prompt_ids,
            completion_ids=exchange.completion_ids,
            logprobs=exchange.logprobs,
            policy_version=exchange.policy_version,
            policy_version_end=exchange.policy_version_end,
            temperature=exchange.temperature,
            top_p=exchange.top_p,
            top_k=exchange.top_k,
            finish_reason=exchange.finish_reason,
            outcome_reward=None if outcome is None or reason == REGENERATED else outcome.reward_of(exchange.exchange_id),
            step_reward=None if outcome is None or reason == REGENERATED else outcome.steps.get(exchange.exchange_id),
            feedback=self.feedback,
            trainable=reason is None,
            untrainable_reason=reason,
            allowed=exchange.allowed,
            parent_evidence=self.evidence,
            redacted_by=exchange.redacted_by,
            policy_name=exchange.policy_name,
            images=exchange.images,
            notes=exchange.notes,
        )


def with_episode(rows: list[Turn], outcome: SessionOutcome) -> list[Turn]:
    """Return the rows of a session, with the episode's data in each row that was requested before its outcome."""
    session, until = (outcome.key, outcome.session_id), outcome.created_at
    turns = [row for row in rows if (row.user, row.session_id) == session and row.created_at <= until]
    first = min((row.policy_version for row in turns if row.policy_version is not None), default=None)
    last = max((row.policy_version_end for row in turns if row.policy_version_end is not None), default=None)
    episode = outcome.in_row((first, last))
    turn_ids = {row.turn_id for row in turns}
    if lost := outcome.steps.keys() - turn_ids:
        log.warning("the outcome of session %s rewards %d turns that it does not have: %s", session[1], len(lost), min(lost))
    return [replace(row, episode=episode) if row.turn_id in turn_ids else row for row in rows]


def _text(claim: object) -> str | None:
    return claim if isinstance(claim, str) and claim else None
