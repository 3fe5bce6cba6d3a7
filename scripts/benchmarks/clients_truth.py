"""Derives the truth about a driven client's requests from the typed messages, without any code of collect.

Each message that the driver types contains the name of its conversation and its number: `#rose-2 Tell me more`. A client may change
its history, but it keeps the person's words. A request therefore belongs to the last such name in a user message. The number of
answers after that message is the step of the request: a tool call answers `#rose-1`, and a text answers the result of the call. The
driver scripts the model, so the number of steps of each message and the output of the tool are known.

One of the requests with the same name and step is the turn. The others are internal calls of the client, which are labelled by
hand: `asides` are texts that such calls of this client contain. If two requests without such a text have the same step, or a step
has no request, the truth is unknown and the run fails with Unclear.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clawctl.run.rows import Exchange, Message, Turn

NAME = re.compile(r"#([a-z]+)-(\d+)\b")

PRINTS = "hi-{}"  # output of the tools that the driver orders


class Unclear(Exception):
    """The requests do not match the conversations."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The truth about one request."""

    main: bool
    talk: str = ""
    parent: str | None = None
    begins: str | None = None  # a text in its next state; None: it has no next state


@dataclass(frozen=True, slots=True)
class Counts:
    requests: int
    sessions_wrong: int
    parents_wrong: int
    next_states_wrong: int
    kinds_wrong: int
    with_next_state: int
    trainable: int

    @property
    def wrong(self) -> int:
        return self.sessions_wrong + self.parents_wrong + self.next_states_wrong + self.kinds_wrong


def facts_of(
    exchanges: Sequence[Exchange], talks: Mapping[str, Sequence[int]], asides: Sequence[str], prints: str = PRINTS
) -> dict[str, Fact]:
    """Return the truth about each request by its id.

    `talks` is the number of steps of each message of each conversation. `prints` is a text in each tool result, in which `{}` is
    the name of its message.
    """
    order = [
        (talk, number + 1, step) for talk, steps in talks.items() for number, count in enumerate(steps) for step in range(count)
    ]
    requests: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    facts: dict[str, Fact] = {}
    for exchange in sorted(exchanges, key=lambda exchange: exchange.created_at):
        position = None if _is_aside(exchange, asides) else place_of(exchange.messages)
        if position is None:
            facts[exchange.exchange_id] = Fact(False)
        else:
            requests[position].append(exchange.exchange_id)
    if unknown := requests.keys() - set(order):
        raise Unclear(f"no message takes these steps: {sorted(unknown)}")
    if lost := [position for position in order if len(requests[position]) != 1]:
        raise Unclear(f"asked {', '.join(f'{len(requests[p])} times for {p[0]}-{p[1]}.{p[2]}' for p in lost)}")
    for at, position in enumerate(order):
        before = order[at - 1] if at and order[at - 1][0] == position[0] else None
        after = order[at + 1] if at + 1 < len(order) and order[at + 1][0] == position[0] else None
        begins = None if after is None else f"#{_name(after)}" if after[2] == 0 else prints.format(_name(position))
        facts[requests[position][0]] = Fact(True, position[0], requests[before][0] if before else None, begins)
    return facts


def count(facts: Mapping[str, Fact], rows: Mapping[str, Turn], asides: Sequence[str]) -> Counts:
    """Count the requests that were read wrongly. A request without a row is wrong in all respects."""
    sessions: dict[str, Counter[str]] = defaultdict(Counter)
    for turn_id, fact in facts.items():
        if fact.main and turn_id in rows:
            sessions[fact.talk][rows[turn_id].session_id] += 1
    home = {talk: talks.most_common(1)[0][0] for talk, talks in sessions.items()}
    shared = {session for session, times in Counter(home.values()).items() if times > 1}
    wrong: Counter[str] = Counter()
    with_next_state = trainable = 0
    for turn_id, fact in facts.items():
        row = rows.get(turn_id)
        wrong["kinds"] += row is None or row.kind != ("main" if fact.main else "side")
        if not fact.main:
            wrong["next states"] += row is not None and row.trainable
            continue
        wrong["sessions"] += row is None or row.session_id != home[fact.talk] or row.session_id in shared
        wrong["parents"] += row is None or row.parent_turn_id != fact.parent
        wrong["next states"] += row is None or not _is_next_state(row.next_state, fact.begins, asides)
        with_next_state += fact.begins is not None
        trainable += row is not None and row.trainable and fact.begins is not None
    return Counts(len(facts), wrong["sessions"], wrong["parents"], wrong["next states"], wrong["kinds"], with_next_state, trainable)


def place_of(messages: Sequence[Message]) -> tuple[str, int, int] | None:
    """Return the conversation and the number of the request's message, and the number of answers after it."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") == "user" and (names := NAME.findall(_text(messages[at]))):
            return names[-1][0], int(names[-1][1]), sum(message.get("role") == "assistant" for message in messages[at + 1 :])
    return None


def _is_aside(exchange: Exchange, asides: Sequence[str]) -> bool:
    """Whether the system prompt or the last user message contains one of these texts."""
    instructions = [message for message in exchange.messages if message.get("role") in ("system", "developer")]
    last = next((message for message in reversed(exchange.messages) if message.get("role") == "user"), {})
    return any(text in _text(message) for message in (*instructions, last) for text in asides)


def _is_next_state(came: Sequence[Message] | None, begins: str | None, asides: Sequence[str]) -> bool:
    if came is None or begins is None:
        return came is None and begins is None
    text = "\n".join(_text(message) for message in came)
    return begins in text and not any(aside in text for aside in asides)


def _name(key: tuple[str, int, int]) -> str:
    return f"{key[0]}-{key[1]}"


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
