"""Simulated people over HTTP: they ask, read the answer, and comment on it.

    python -m scripts.wishes.chat --run RUN --people 16 --sessions 200

Like real clients, half of the sessions send session headers and half send none; half of them stream. People express their wishes
only in the text of their messages.
"""

import argparse
import asyncio
import itertools
import json
import logging
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from clawctl.asking import Refused, ask, new_client
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, open_run, recipe_file
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.policies import live_version
from scripts.wishes.axes import is_correct
from scripts.wishes.people import Wisher, unmet
from scripts.wishes.problems import WordProblem, make_problems

log = logging.getLogger("people")

_START_S = 180.0  # the time that a server may need to load its model before it listens
_KEPT_REFUSALS = 20
WANTS = {"greeting": "greets"}  # all people of a crowd wish for the same


@dataclass(frozen=True, slots=True)
class FirstReply:
    """The first reply of a session, and how the person rates it."""

    asked_at: float  # unix seconds
    answered_at: float
    satisfaction: float  # 1 if every wish is met
    correct: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session from the person's side."""

    turns: list[tuple[str, str]]  # (the person's message, the reply)
    first: FirstReply | None  # None: the first request was refused
    satisfied: bool
    requests: int
    refusal: Refused | None  # why the session broke off, or None


async def converse(
    client: Client,
    endpoint: Endpoint,
    person: Wisher,
    problem: WordProblem,
    session_id: str | None,
    stream: bool = False,
    think_s: float = 0.0,
) -> Conversation:
    """Play one session to its end.

    With `session_id`, each request sends the session headers, and the last message closes the session. Without it, no session
    headers are sent.
    """
    messages: list[dict[str, Any]] = []
    turns: list[tuple[str, str]] = []
    first, satisfied, closing = None, False, False
    text: str | None = person.open(problem)
    while text is not None:
        messages.append({"role": "user", "content": text})
        headers = {} if session_id is None else {"X-Session-Id": session_id, **({"X-Session-Done": "true"} if closing else {})}
        asked_at = time.time()
        try:
            reply = await ask(endpoint, messages, headers, stream, client)
        except Refused as refused:
            return Conversation(turns, first, satisfied, len(turns) + 1, refused)
        messages.append({"role": "assistant", "content": reply})
        first = first or FirstReply(asked_at, time.time(), float(not unmet(person.wants, reply)), is_correct(problem, reply))
        turns.append((text, reply))
        if closing:
            break
        reaction = person.react(problem, reply, len(turns) - 1)
        text, closing, satisfied = reaction.text, reaction.done, reaction.satisfied
        await asyncio.sleep(think_s)
    return Conversation(turns, first, satisfied, len(turns), None)


@dataclass(frozen=True, slots=True)
class Crowd:
    """The number of people, and when they stop."""

    people: int
    sessions: int | None = None  # None: until stopped
    seed: int = 0
    stop_at_version: int | None = None
    think_s: float = 0.0


async def play(run: RunDir, endpoint: Endpoint, crowd: Crowd, stop: threading.Event) -> dict[str, Any]:
    """Run `crowd.people` people concurrently, each with one session after another. Sessions that have begun are completed.

    Returns a summary.
    """
    numbers = itertools.count() if crowd.sessions is None else iter(range(crowd.sessions))  # shared, so each session is played once
    visit_id = uuid4().hex[:6]  # a later visit of the same people to the same run begins new sessions
    done: list[Conversation] = []
    began = time.time()

    async def one_person(client: Client) -> None:
        for number in numbers:
            if stop.is_set() or _arrived(run, crowd.stop_at_version):
                return
            done.append(await _one_session(client, endpoint, crowd, number, visit_id))
            await asyncio.sleep(crowd.think_s)

    async with new_client(endpoint) as client:
        await _wait_for_server(client, endpoint, stop)
        await asyncio.gather(*(one_person(client) for _ in range(crowd.people)))
    return _summary(done, began)


async def _one_session(client: Client, endpoint: Endpoint, crowd: Crowd, number: int, visit_id: str) -> Conversation:
    """Play session `number` of the crowd. The number fixes its person, problem, headers and streaming."""
    with_headers, stream = number % 2 == 0, number // 2 % 2 == 0
    seed = crowd.seed * 1_000_003 + number
    person, problem = Wisher(WANTS, seed), make_problems(1, seed)[0]
    session_id = f"people-{visit_id}-{number}" if with_headers else None
    result = await converse(client, endpoint, person, problem, session_id, stream, crowd.think_s)
    if result.refusal:
        log.warning("session %d was refused: %s", number, result.refusal)
        await asyncio.sleep(0.5)  # do not flood a server that refuses requests
    return result


def _arrived(run: RunDir, version: int | None) -> bool:
    live = live_version(run) if version is not None else None
    return live is not None and version is not None and live >= version


async def _wait_for_server(client: Client, endpoint: Endpoint, stop: threading.Event) -> None:
    deadline = time.monotonic() + _START_S
    while not stop.is_set():
        try:
            await client.request("/health", timeout_s=_START_S, method="GET")
            return
        except RequestFailed as error:
            if time.monotonic() > deadline:
                raise ClawError(f"{endpoint.url} does not answer: {error}", "check the server's log") from error
            await asyncio.sleep(0.3)


def _summary(done: list[Conversation], began: float) -> dict[str, Any]:
    refusals = [str(conversation.refusal) for conversation in done if conversation.refusal]
    return {
        "sessions": len(done),
        "requests": sum(conversation.requests for conversation in done),
        "refused": len(refusals),
        "refusals": refusals[:_KEPT_REFUSALS],
        "satisfied": sum(conversation.satisfied for conversation in done),
        "began_at": began,
        "seconds": time.time() - began,
        "first_replies": sorted((asdict(c.first) for c in done if c.first), key=lambda reply: reply["asked_at"]),
    }


def wait_for_endpoint(run: RunDir, stop: threading.Event) -> Endpoint:
    """This run's server, once it has announced itself. Raises ClawError if it does not."""
    recipe = load_recipe(recipe_file(run.root))
    deadline = time.monotonic() + _START_S
    while True:
        try:
            return own_endpoint(run, recipe)
        except ClawError:
            if stop.is_set() or time.monotonic() > deadline:
                raise
            stop.wait(0.3)


def main() -> None:
    """Command line of `python -m scripts.wishes.chat`."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.wishes.chat", description="Let simulated people talk to a run's server."
    )
    parser.add_argument("--run", type=Path, required=True, help="the run directory")
    parser.add_argument("--people", type=int, default=16, help="number of concurrent conversations (default 16)")
    parser.add_argument("--sessions", type=int, help="stop after this many sessions; unset: continue")
    parser.add_argument("--seed", type=int, default=0, help="seed that selects the people (default 0)")
    parser.add_argument("--stop-at-version", type=int, help="begin no session once this policy version is live")
    parser.add_argument("--think-s", type=float, default=0.0, help="pause before each message (default 0)")
    given = parser.parse_args()
    stop = stop_on_signals()
    logging.basicConfig(level="WARNING", format="%(name)s: %(message)s")
    crowd = Crowd(given.people, given.sessions, given.seed, given.stop_at_version, given.think_s)
    try:
        run = open_run(given.run, create=False)
        summary = asyncio.run(play(run, wait_for_endpoint(run, stop), crowd, stop))
    except ClawError as error:
        parser.exit(error.exit_code, f"people: {error.problem}\n  {error.fix}\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
