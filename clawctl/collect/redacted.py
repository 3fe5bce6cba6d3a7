"""Redacts turns that were not captured: imported turns and turns of the user's own code."""

from dataclasses import replace

from clawctl.collect.rows import SIDE_TURN
from clawctl.privacy.redaction import REDACTED, Redactor
from clawctl.run.rows import Turn

NOT_WANTED = "marked untrainable in the file"


def redacted(turn: Turn, redactor: Redactor) -> Turn:
    """Return the turn without its secrets. If it had any, it loses the ids that would reveal them and is not trained."""
    original = [turn.messages, turn.tools or [], [turn.response] if turn.response else []]
    messages, tools, response = (redactor.messages(each) for each in original)
    next_state = None if turn.next_state is None else redactor.messages(turn.next_state)
    clean = replace(turn, messages=messages, tools=tools or None, response=response[0] if response else None, next_state=next_state)
    same = [messages, tools, response] == original and not redactor.ids_hold_secret(turn)
    if same or turn.untrainable_reason in (SIDE_TURN, NOT_WANTED):
        return clean
    return replace(
        clean, prompt_ids=None, completion_ids=None, logprobs=None, allowed=None, images=None, trainable=False,
        untrainable_reason=REDACTED,
    )  # fmt: skip
