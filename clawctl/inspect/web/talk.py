"""The page Talk: a conversation with the run, or with two of its versions on the same words.

The browser sends forms to this server, which asks the run's server like any client, with its own key. So the browser holds no key,
and what is said is captured, rated and remembered as over the API. Conversations are kept in memory while the server runs.
"""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from clawctl.chat_stream import ChatStream, call, stream_answer
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.http_client import RequestFailed
from clawctl.inspect.web.buttons import Buttons
from clawctl.inspect.web.frame import number_in
from clawctl.inspect.web.text import marked
from clawctl.run.directory import recipe_file
from clawctl.run.endpoint import Endpoint, own_endpoint
from clawctl.run.handles import turn_of
from clawctl.run.notes import read_notes
from clawctl.run.policies import readable_live

_MOST = 50  # conversations in memory
_LONGEST = 20_000  # characters of a message
_KEY = "default"  # the name of the server's own key in turns and notes
_RATINGS = {"good": 1, "bad": -1}
_PROGRESS = {"new": "noted", "prompted": "noted", "practised": "practising", "learned": "learned"}


@dataclass(slots=True, kw_only=True)
class TalkAnswer(ChatStream):
    """One answer. It receives the stream of a chat completion."""

    version: int | None  # that was live when it was asked, or was asked for
    counts: bool  # serve captures the answers of the live version alone
    element: str  # id of the element that shows it
    pieces: "asyncio.Queue[dict[str, Any]]"  # for the browser
    done: bool = False
    rating: str | None = None

    @property
    def turn_id(self) -> str | None:
        return turn_of(self.completion) if self.completion else None

    def show(self, piece: str) -> None:
        self.pieces.put_nowait({"id": self.element, "more": marked(piece)})


@dataclass(slots=True)
class TalkSide:
    """One version's part of a conversation. `version` None: the live one."""

    version: int | None
    session: str = field(default_factory=lambda: f"talk-{secrets.token_hex(8)}")
    messages: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Talk:
    """A conversation: what the person said, and the answers of each side."""

    sides: list[TalkSide]
    blind: bool  # the page does not name the versions
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.time)
    said: list[tuple[str, list[TalkAnswer]]] = field(default_factory=list)

    @property
    def is_busy(self) -> bool:
        return any(not answer.done for _, answers in self.said[-1:] for answer in answers)


class TalkPage(Buttons):
    """Answers the page and its forms."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._talks: dict[str, Talk] = {}

    def talk(self, request: Request) -> Response:
        snapshot, talk = self._following.snapshot, self._talks.get(request.query_params.get("id", ""))
        notes = [] if talk is None else [note for note in read_notes(self._run, _KEY) if note.created_at >= talk.began - 1]
        return self._page(
            "talk.html",
            "/talk",
            talk=talk,
            notes=notes[::-1],
            progress=_PROGRESS,
            key=_KEY,
            row_of=snapshot.joined.row,
            live=snapshot.health["live_version"],
            versions=[policy["version"] for policy in snapshot.policies][::-1],
        )

    async def say(self, request: Request) -> Response:
        """A message. With the field `stream`, the answer is lines of JSON as it arrives; otherwise the page when it is complete."""
        form = request.state.form
        message, talk = form.get("words", "").strip()[:_LONGEST], self._talks.get(form.get("id", ""))
        if not message:
            raise HTTPException(400, "the message is empty")
        try:
            if talk is not None and talk.is_busy:
                raise ClawError("the last answer is not complete yet", "wait for it, or begin another conversation")
            talk = talk or self._begin(form)
            endpoints = [self._endpoint(side.version) for side in talk.sides]
        except ClawError as error:
            return self._problem(error, "/talk")
        number = len(talk.said)
        lines = self._answered(talk, message, endpoints)
        if form.get("stream") == "yes":
            return StreamingResponse(lines, media_type="application/x-ndjson")
        async for _ in lines:
            pass
        return RedirectResponse(f"/talk?id={talk.id}#x-{number}", 303)

    def _begin(self, form: dict[str, str]) -> Talk:
        other, blind = form.get("other", ""), form.get("blind") == "yes"
        sides = [TalkSide(number_in(form.get("version"), None))]
        if other:
            sides.append(TalkSide(number_in(other, None)))
        if blind:
            random.SystemRandom().shuffle(sides)
        talk = Talk(sides, blind and len(sides) > 1)
        while len(self._talks) >= _MOST:
            del self._talks[next(iter(self._talks))]
        self._talks[talk.id] = talk
        return talk

    def _endpoint(self, version: int | None = None) -> Endpoint:
        return own_endpoint(self._run, load_recipe(recipe_file(self._run.root)), version)

    async def _answered(self, talk: Talk, message: str, endpoints: list[Endpoint]) -> AsyncIterator[bytes]:
        """Ask each side, and yield what arrives. If the browser leaves, the requests end."""
        live, number, pieces = readable_live(self._run), len(talk.said), asyncio.Queue[dict[str, Any]]()
        answers = [
            TalkAnswer(
                version=live if side.version is None else side.version,
                counts=side.version is None,
                element=f"a-{number}-{index}",
                pieces=pieces,
            )
            for index, side in enumerate(talk.sides)
        ]
        talk.said.append((message, answers))
        asking = []
        for side, answer, endpoint in zip(talk.sides, answers, endpoints, strict=True):
            side.messages.append({"role": "user", "content": message})
            asking.append(asyncio.create_task(_ask(side, answer, endpoint)))
        try:
            yield orjson.dumps({"talk": talk.id, "html": self._exchange(talk, number)}) + b"\n"
            while not all(answer.done for answer in answers) or not pieces.empty():
                yield orjson.dumps(await pieces.get()) + b"\n"
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            self._following.changed += 1

    def _exchange(self, talk: Talk, number: int) -> str:
        """The HTML of the newest message with its empty answers."""
        module: Any = self._templates.get_template("said.html").module
        return str(module.said(talk, number, {}, self._key.form_token))

    async def rate(self, request: Request) -> Response:
        """Rate an answer, with a comment that may be remembered, or remember a wish without a rating."""
        form = request.state.form
        talk, comment = self._talks.get(form.get("id", "")), form.get("comment", "").strip()
        answers = [answer for _, answers in talk.said for answer in answers] if talk is not None else []
        answer = next((answer for answer in answers if answer.element == form.get("answer")), None)
        given = form.get("rating")
        if talk is None or not answer or answer.completion is None or given not in (*_RATINGS, "note"):
            raise HTTPException(400, "the form names no answer, or no rating")
        if given == "note" and not comment:
            raise HTTPException(400, "write what is to be remembered")
        rating = {"completion_id": answer.completion, "rating": _RATINGS.get(given), "comment": comment or None}
        path, body = ("/notes", {"text": comment}) if given == "note" else ("/feedback", rating)
        try:
            if answer.counts or given == "note":
                await call(self._endpoint(), "POST", path, body)
        except ClawError as error:
            return self._problem(error, f"/talk?id={talk.id}")
        answer.rating = answer.rating if given == "note" else given
        self._following.changed += 1
        return RedirectResponse(f"/talk?id={talk.id}#{answer.element}", 303)

    def reveal(self, request: Request) -> Response:
        """Name the versions of a blind conversation."""
        talk = self._talks.get(request.state.form.get("id", ""))
        if talk is None:
            raise HTTPException(400, "the form names no conversation")
        talk.blind = False
        self._following.changed += 1
        return RedirectResponse(f"/talk?id={talk.id}", 303)


async def _ask(side: TalkSide, answer: TalkAnswer, endpoint: Endpoint) -> None:
    """Stream one side's answer. A failure is shown as the answer's problem, and the message can be sent again."""
    headers = {"X-Session-Id": side.session, "X-Turn-Type": "main"}
    try:
        await stream_answer(endpoint, headers, side.messages, answer)
    except (ClawError, RequestFailed) as error:
        answer.problem = str(getattr(error, "problem", error))
    finally:
        if answer.text:
            side.messages.append({"role": "assistant", "content": answer.text})
        else:
            side.messages.pop()
        answer.done = True
        answer.pieces.put_nowait({"id": answer.element, "more": ""})
