"""Notes from what people reply: one more question to the judge, which asks what the reply means. It is asked about turns with a
hint, and about other replies of people who have notes, who may take one back.

A wish that holds from now on, a wish with a condition, and a fact become notes (`clawctl.run.notes`). A retraction ends a note if
the judge gives its number. Everything else changes nothing. Many replies contain text of other authors, so a note needs a quotation
from the person's own sentences, and its sentence obeys the rules for hints.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.judge.client import CallRefused, JudgeClient
from clawctl.judge.fences import new_fence
from clawctl.judge.hints import HintRules, hint_rules, visible_text, why_not
from clawctl.judge.plain import own_sentences, plain_words
from clawctl.judge.prompts import KIND_SCHEMA, ReplyKind, kind_messages, read_kind, read_kind_in_form
from clawctl.judge.protocol import Evidence
from clawctl.judge.rules import rule_opinion
from clawctl.judge.view import VIEW_CHARS, view_turn
from clawctl.privacy.redaction import Redactor, redactor_of
from clawctl.run.directory import RunDir
from clawctl.run.notes import BadNote, Kind, Note, add_note, change_note, read_notes
from clawctl.run.reward import OUTCOME
from clawctl.run.rows import Verdict

log = logging.getLogger(__name__)

_LONGEST_REPLY = 1000  # characters: most of a longer one is text that the person did not write
_SHORTEST_RETRACTION = 12  # characters: "Thanks!" takes nothing back
_SHORTEST = 4  # characters of a note, which may be written in Chinese
_MOST_SHOWN = 40  # notes in a question, the newest ones
_VIEW_CHARS = 8000  # of the turn in a question
_QUOTED = re.compile(
    r"\"[^\"]*\"|“[^”]*”|„[^“”]*[“”]|”[^”]*”|‚[^‘’]*[‘’]|«[^»]*»|»[^«]*«|‹[^›]*›|›[^‹]*‹|「[^」]*」|『[^』]*』|《[^》]*》|`[^`]*`|"
    r"(?<!\w)['‘](?:[^'’\n]|['’](?=\w))+['’](?!\w)"
)


class ReplyNotes:
    """Writes the notes that people's replies ask for, once per turn."""

    def __init__(self, run: RunDir, recipe: Recipe, client: JudgeClient) -> None:
        self._run, self._recipe, self._client = run, recipe, client
        self._redactor: Redactor | None = None
        self._writing = asyncio.Lock()  # writers that wait for a file's lock in threads may starve one another

    async def take(self, turn: Evidence, verdict: Verdict, is_unfit: Callable[[], Awaitable[bool]]) -> bool:
        """Ask what the reply to `turn` means, and write or end a note. Returns whether a note was written.

        The next state of `turn` has the comment of its rating. `is_unfit` is called only if there is something to ask. Raises
        ClawError as `JudgeClient.complete` does.
        """
        said = own_words(turn)
        is_praise = not verdict.hint and (verdict.reward or 0) > 0  # "Perfect. You may use emoji again."
        if not said or len(said) > _LONGEST_REPLY or (is_praise and len(said) < _SHORTEST_RETRACTION):
            return False
        notes = await asyncio.to_thread(read_notes, self._run, turn.user)
        if not verdict.hint and not any(note.in_force for note in notes):
            return False  # without a hint it can only take something back
        if any(turn.turn_id in note.turns for note in notes) or await is_unfit():  # an earlier worker wrote it before it stopped
            return False
        in_force = [note for note in notes if note.in_force][-_MOST_SHOWN:]
        kind = await self._asked(turn, said, verdict.hint or "(none)", in_force)
        if kind is None or not is_own(kind.quote, said) or kind.number > len(in_force) or (is_praise and kind.kind != "retraction"):
            return False
        named = in_force[kind.number - 1] if kind.number else None
        try:
            async with self._writing:
                if kind.kind == "retraction":
                    await asyncio.to_thread(self._retract, turn, kind, named, bool(in_force))
                    return False
                return await asyncio.to_thread(self._add, turn, verdict, kind, named, said)
        except (BadNote, ClawError, OSError) as error:
            log.warning("a note of %s was not written: %s", turn.user, error)
            return False

    async def _asked(self, turn: Evidence, said: str, hint: str, notes: list[Note]) -> ReplyKind | None:
        """The judge's answer, constrained where the endpoint can. None if it is invalid."""
        chars = min(self._recipe.judge.view_chars or VIEW_CHARS, _VIEW_CHARS)
        view, fence = view_turn(turn, 0, chars, plain_words), new_fence()
        listed = [f"{number}. {_line(note)}" for number, note in enumerate(notes, 1)]
        blocks = [("request", view.request), ("answer", view.answer), ("reply", said), ("hint", hint)]
        messages = kind_messages([*blocks, ("notes", "\n".join(listed) or "(none)")], fence)
        answer = await self._client.complete_in_form(messages, KIND_SCHEMA)
        if answer is not None:
            return read_kind_in_form(answer)
        try:
            text = await self._client.complete(messages)
        except CallRefused:
            return None
        return None if text is None else read_kind(text, fence)

    def _add(self, turn: Evidence, verdict: Verdict, kind: ReplyKind, named: Note | None, said: str) -> bool:
        if kind.kind not in ("standing", "condition", "fact") or is_disputed(turn, verdict, self._recipe):
            return False
        if (problem := why_not(" ".join(kind.sentence.split()), _rules(turn, said))) is not None:
            log.debug("a sentence is no note: %s", problem)
            return False
        note_kind: Kind = "fact" if kind.kind == "fact" else "wish"
        replaces = named.id if named is not None and named.kind == note_kind else None
        add_note(
            self._run, turn.user, kind.sentence, self._clean, replaces, said=kind.quote, turns=(turn.turn_id,), kind=note_kind,
            when=kind.when or None, words=kind.words,
        )  # fmt: skip
        return True

    def _retract(self, turn: Evidence, kind: ReplyKind, named: Note | None, has_notes: bool) -> None:
        if named is not None:
            change: dict[str, Any] = {
                "state": "retracted",
                "reason": f"taken back: {self._clean(kind.quote)}",
                "turns": (*named.turns, turn.turn_id),
            }
            change_note(self._run, turn.user, named.id, **change)
            log.info("%s took a note back", turn.user)
        elif has_notes:
            log.warning("%s takes a note back, but not clearly which one: `clawctl notes retire` does it", turn.user)

    def _clean(self, text: str) -> str:
        if self._redactor is None:
            self._redactor = redactor_of(self._recipe.privacy)
        return self._redactor.text(text)


def own_words(turn: Evidence) -> str:
    """What a person replied, in their own sentences. Empty if a tool alone answered, or if no person is in the conversation."""
    if turn.source != "serve" or turn.episode is not None:
        return ""
    replies = [own_sentences(visible_text([message])) for message in turn.next_state or [] if message.get("role") == "user"]
    return "\n".join(reply for reply in replies if reply)


def is_own(quote: str, said: str) -> bool:
    """Whether a quotation stands in `said`, outside of quotation marks that the person set around other people's words."""
    words = re.findall(r"\w+", quote)
    if not words:
        return False
    spans = [match.span() for match in _QUOTED.finditer(said)]
    matches = re.finditer(r"\W+".join(map(re.escape, words)), said, re.IGNORECASE)
    return any(not any(begin <= match.start() and match.end() <= end for begin, end in spans) for match in matches)


def is_disputed(turn: Evidence, verdict: Verdict, recipe: Recipe) -> bool:
    """Whether an environment or a test run finds the answer good, while the person complains."""
    tools = [message for message in turn.next_state or [] if message.get("role") == "tool"]
    ran = rule_opinion(replace(turn, next_state=tools), recipe.judge.execution_tools) if tools else None
    is_good = max(turn.outcome_reward or 0.0, turn.step_reward or 0.0, (ran and ran.reward) or 0.0) > 0
    return is_good and (verdict.judge == OUTCOME or (verdict.reward or 0.0) <= 0)


def _rules(turn: Evidence, said: str) -> HintRules:
    """The rules for hints, for which text in the reply that is not the person's own counts as that of a tool."""
    rules = hint_rules(turn)
    replies = "\n".join(visible_text([message]) for message in turn.next_state or [] if message.get("role") == "user")
    return replace(rules, min_chars=_SHORTEST, own_words=said, returned=f"{rules.returned}\n{replies}")


def _line(note: Note) -> str:
    text = " ".join(note.text.split())[:300]
    return f"{text} (when: {note.when})" if note.when else text
