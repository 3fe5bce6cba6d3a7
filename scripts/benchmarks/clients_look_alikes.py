"""Random concurrent conversations with one key that look alike and must not be merged.

All people use the same few messages and get the same few answers. Some conversations are runs of one scheduled prompt, some are
forks, and some are subagents with their parent's task. Clients truncate, shorten or rewrite their histories. One request in twelve
is not captured, and its answer must not be attributed to another turn.

A turn is merged if it is linked to a turn of another conversation although the messages of its request distinguish the two. A next
state is false if it comes from no request that continues this turn or a turn with the same messages.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from clawctl.collect.sessions import Sessions
from clawctl.run.rows import Message
from scripts.benchmarks.clients_families import Asked, Script, calling, result_of, said, tools, user

SAYINGS = (
    "continue", "yes", "no, the other one", "thanks", "what is 2+2?", "Check the backups and report what is wrong with them.",
    "write a poem about the sea", "rules\nbe brief\ngo", "be brief\ngo", "why?",
    "Summarise what you did so far, in three sentences, please.",
)  # fmt: skip
ANSWERS = (
    "4", "Done.", "Certainly.", "yes", "All backups are well, and there is nothing wrong with any of them.", "one two",
    "one two three",
    "I have written the poem about the sea as you asked me to, in four lines.", "ok", "It is because of the weather that we have.",
)  # fmt: skip
SYSTEMS = ("You are an agent.", "You are a sub-agent.", None)


@dataclass
class Person:
    """One conversation: its messages, and the way in which its client sends them."""

    name: str
    system: str | None
    style: str
    session: str | None
    history: list[Message] = field(default_factory=list)
    wholes: list[list[Message]] = field(default_factory=list)  # the history at each of its requests
    turns: list[str | None] = field(default_factory=list)  # the turn of each request; None if it was not captured
    ends: list[str | None] = field(default_factory=list)
    call: Message | None = None

    def shown(self) -> list[Message]:
        return STYLES[self.style](self.history)


def _without_reminders(history: list[Message]) -> list[Message]:
    return [*history[:-1], user(f"<reminder>\nKeep to the rules.\n</reminder>\n\n{history[-1]['content']}")] if history else []


def _appended(history: list[Message]) -> list[Message]:
    return [{**m, "content": f"{m['content']}</end>"} if m["role"] == "assistant" and m.get("content") else m for m in history]


def _final_answers(history: list[Message]) -> list[Message]:
    last = max((i for i, m in enumerate(history) if m["role"] == "user"), default=0)
    return [
        m for i, m in enumerate(history) if i >= last or m["role"] == "user" or (m["role"] == "assistant" and "tool_calls" not in m)
    ]


STYLES: dict[str, Callable[[list[Message]], list[Message]]] = {
    "plain": list,
    "reminder": lambda history: _without_reminders(history) if history[-1]["role"] == "user" else history,
    "appended": _appended,
    "final answers": _final_answers,
    "window": lambda history: history[-5:],
}


@dataclass(frozen=True, slots=True)
class Look:
    """One request of the corpus and its true properties."""

    request: Asked
    whole: list[Message]  # its complete conversation up to this request
    person: Person


def drawn(seed: int, people: int = 12, rounds: int = 60) -> list[Look]:
    dice, script, looks = random.Random(seed), Script(seed), []
    crowd = [_newcomer(dice, number) for number in range(people)]
    for step in range(rounds):
        person = dice.choice(crowd)
        if step % 9 == 8 and person.call is None and person.history:  # a fork: another person continues the same history
            crowd.append(
                Person(
                    f"fork {step}",
                    person.system,
                    person.style,
                    None if person.session is None else f"fork{step}",
                    list(person.history),
                )
            )
            person = crowd[-1]
        new = [result_of(person.call, "all well")] if person.call is not None else [user(dice.choice(SAYINGS))]
        person.history += new
        with_tools = person.style in ("plain", "final answers") and person.system == SYSTEMS[0]
        person.call = (
            calling(script.call_id(), "check", None) if with_tools and "call" not in str(new) and dice.random() < 0.3 else None
        )
        answer = person.call or said(dice.choice(ANSWERS))
        messages = [*([{"role": "system", "content": person.system}] if person.system else []), *person.shown()]
        hints = {"session_id": person.session} if person.session else {}
        request = script.ask(messages, answer, person.name, "main", tools=tools("check") if with_tools else None, hints=hints)
        if dice.random() >= 1 / 12:
            looks.append(Look(request, list(person.history), person))
        person.history.append(answer)
    return looks


def _newcomer(dice: random.Random, number: int) -> Person:
    session = f"s{number}" if dice.random() < 0.2 else None
    return Person(f"person {number}", dice.choice(SYSTEMS), dice.choice(list(STYLES)), session)


@dataclass(frozen=True, slots=True)
class Found:
    requests: int
    linked: int  # requests with the correct parent
    missed: int  # requests with a captured turn before them that were not linked
    merged: int
    false_next_states: int


def measure(looks: list[Look]) -> Found:
    sessions = Sessions(3600.0, rules=())
    for look in looks:
        sessions.add(look.request.exchange)
    sessions.tick(1e15)
    rows = {row.turn_id: row for row in sessions.pop_rows()}
    by_id = {look.request.exchange.exchange_id: look for look in looks}
    linked = missed = merged = false = 0
    for look in looks:
        row = rows[look.request.exchange.exchange_id]
        parent = by_id.get(row.parent_turn_id or "")
        if parent is None:
            missed += _has_parent(look, looks)
        elif continues(look, parent):
            linked += 1
        else:
            merged += 1
        if row.next_state is not None and not any(
            continues(other, look) and _brings(other, look, row.next_state) for other in looks if other is not look
        ):
            false += 1
    return Found(len(looks), linked, missed, merged, false)


def continues(look: Look, parent: Look) -> bool:
    """Whether no message of the request distinguishes its true previous turn from `parent`."""
    seen = [*parent.whole, parent.request.exchange.response or {}]
    if seen == look.whole[: len(seen)] and len(seen) < len(look.whole):
        return True
    shown = [m for m in look.request.exchange.messages if m["role"] != "system"]
    before = _plain(shown)
    last = max((i for i, m in enumerate(before) if m["role"] == "assistant"), default=-1)
    parent_shown = [m for m in parent.request.exchange.messages if m["role"] != "system"]
    ours = before[: last + 1]
    for whole in (
        _plain(seen),
        _plain([*parent_shown, parent.request.exchange.response or {}]),
        _final_answers([*_plain(seen), user("")])[:-1],
    ):
        if ours and (whole[-len(ours) :] == ours or before[: len(whole)] == whole):
            return True
    return False


def _plain(messages: list[Message]) -> list[Message]:
    """Remove the text that the styles add."""
    plain = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            content = content.removeprefix("<reminder>\nKeep to the rules.\n</reminder>\n\n").removesuffix("</end>")
        plain.append({**message, "content": content})
    return plain


def _has_parent(look: Look, looks: list[Look]) -> bool:
    return any(other is not look and _is_turn_before(other, look) for other in looks)


def _is_turn_before(other: Look, look: Look) -> bool:
    seen = [*other.whole, other.request.exchange.response or {}]
    named = {other.person.session, look.person.session} - {None}
    is_ours = other.person is look.person or (
        len(named) < 2 and other.person.history[: len(seen)] == look.person.history[: len(seen)]
    )
    return is_ours and len(seen) + 1 == len(look.whole) and look.whole[: len(seen)] == seen


def _brings(look: Look, parent: Look, next_state: list[Message]) -> bool:
    shown = [m for m in look.request.exchange.messages if m["role"] != "system"]
    return any(shown[at : at + len(next_state)] == next_state for at in range(len(shown)))


def measure_all(seeds: range) -> Found:
    measured = [measure(drawn(seed)) for seed in seeds]
    return Found(
        *(
            sum(values)
            for values in zip(*((f.requests, f.linked, f.missed, f.merged, f.false_next_states) for f in measured), strict=True)
        )
    )
