"""Clients that record every complete answer. The audit must find all of them in the run."""

import itertools
import json
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import httpx

from clawctl.run.endpoint import Endpoint
from clawctl.run.handles import turn_of
from scripts.wishes.chat import WANTS
from scripts.wishes.people import Wisher
from scripts.wishes.problems import make_problems

MAX_TOKENS = 64
THINK_S = 0.5  # mean
_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}
    for name in ("look_up", "count")
]


class CutOff(Exception):
    """The client closed the connection in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that arrived completely."""

    turn_id: str
    way: str  # "chat", "stream", "messages", "responses"
    question: str  # the last message to the model
    text: str
    at: float  # time.monotonic()


@dataclass(frozen=True, slots=True)
class Rated:
    """A rating that the server acknowledged."""

    turn_id: str
    rating: float


class Client(threading.Thread):
    """One person who has consecutive sessions over all APIs. The client retries while the server is down."""

    def __init__(self, endpoint: Endpoint, seed: int, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.answered: list[Answered] = []
        self.rated: list[Rated] = []
        self.cut_off, self.broken, self.refused = 0, 0, 0  # ended by the client; by a kill; by an unexplained status
        self._endpoint, self._stop_asked = endpoint, stop
        self._dice, self._number = random.Random(f"client {seed} {number}"), number
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        self._http = httpx.Client(headers=headers, timeout=60, transport=httpx.HTTPTransport(retries=0))

    def run(self) -> None:
        for session in itertools.count():
            if self._stop_asked.is_set():
                break
            self._session(f"{self._number}-{session}")
        self._http.close()

    def _session(self, name: str) -> None:
        seed = self._dice.getrandbits(32)
        person, task = Wisher(WANTS, seed), make_problems(1, seed)[0]
        way = self._dice.choice(["chat", "chat", "stream", "stream", "messages", "responses"])
        headers = self._dice.choice([{}, {"X-Session-Id": f"s{name}"}])
        messages = [{"role": "user", "content": f"{person.open(task)} ({name})"}]
        if way in ("chat", "stream") and self._dice.random() < 0.3:
            messages = self._with_tools(messages, name)
        for turn in range(4):
            answered = self._ask_until_whole(way, messages, headers)
            if answered is None:
                return
            self._rate_now_and_then(answered)
            reaction = person.react(task, answered.text, turn)
            if reaction.text is None or self._stop_asked.wait(self._dice.expovariate(1 / THINK_S)):
                return
            messages = [*messages, {"role": "assistant", "content": answered.text}, {"role": "user", "content": reaction.text}]
            if reaction.done and self._dice.random() < 0.5:
                headers = {**headers, "X-Session-Done": "true"}

    def _with_tools(self, messages: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        """Extend a conversation by two parallel tool calls and their results."""
        calls = [
            {"id": f"call_{name}_{tool}", "type": "function", "function": {"name": tool, "arguments": '{"q": "apples"}'}}
            for tool in ("look_up", "count")
        ]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": f"{i + 2} apples"} for i, call in enumerate(calls)]
        return [*messages, {"role": "assistant", "content": None, "tool_calls": calls}, *results]

    def _ask_until_whole(self, way: str, messages: list[dict[str, Any]], headers: dict[str, str]) -> Answered | None:
        """Ask and retry, like a client whose server is down. Returns None if the client is stopped."""
        while not self._stop_asked.is_set():
            try:
                answered = self._ask(way, messages, headers)
            except CutOff:
                self.cut_off += 1
            except httpx.HTTPStatusError as error:
                self.broken += error.response.status_code >= 500
                self.refused += error.response.status_code < 500
                time.sleep(0.3)
            except (httpx.HTTPError, json.JSONDecodeError):
                self.broken += 1
                time.sleep(0.2)
            else:
                self.answered.append(answered)
                return answered
        return None

    def _ask(self, way: str, messages: list[dict[str, Any]], headers: dict[str, str]) -> Answered:
        question = str(messages[-1]["content"])
        if way == "stream":
            return self._stream(messages, headers, question)
        body: dict[str, Any] = {"model": self._endpoint.model}
        if way == "responses":
            body |= {"input": messages, "max_output_tokens": MAX_TOKENS, "store": False}
        else:
            body |= {"messages": messages, "max_tokens": MAX_TOKENS} | self._tools(messages)
        path = {"chat": "chat/completions"}.get(way, way)
        answer = self._http.post(f"{self._endpoint.url}/{path}", json=body, headers=headers)
        answer.raise_for_status()
        answered = answer.json()
        return Answered(turn_of(answered["id"]) or "", way, question, _text_of(way, answered), time.monotonic())

    def _stream(self, messages: list[dict[str, Any]], headers: dict[str, str], question: str) -> Answered:
        """Stream an answer. It is complete if it ends with `[DONE]`. The client closes one stream in six after a few pieces."""
        body = {"model": self._endpoint.model, "messages": messages, "max_tokens": MAX_TOKENS, "stream": True} | self._tools(
            messages
        )
        most = self._dice.randint(1, 12) if self._dice.random() < 1 / 6 else None
        name, pieces, done = "", [], False
        with self._http.stream("POST", f"{self._endpoint.url}/chat/completions", json=body, headers=headers) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    done = True
                elif data:
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise httpx.RemoteProtocolError("the stream ended with an error")
                    name = chunk["id"]
                    pieces += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
                if most is not None and len(pieces) > most and not done:
                    raise CutOff
        if not done:
            raise httpx.RemoteProtocolError("the stream ended before [DONE]")
        return Answered(turn_of(name) or "", "stream", question, "".join(pieces), time.monotonic())

    def _tools(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"tools": _TOOLS} if any(message["role"] == "tool" for message in messages) else {}

    def _rate_now_and_then(self, answered: Answered) -> None:
        """Rate one answer in ten. A rating counts as acknowledged only after status 200."""
        if self._dice.random() >= 0.1:
            return
        rating = self._dice.choice([-1.0, 1.0])
        url, body = f"{self._endpoint.url}/feedback", {"turn_id": answered.turn_id, "rating": rating}
        try:
            self._http.post(url, json=body).raise_for_status()
            self.rated.append(Rated(answered.turn_id, rating))
        except httpx.HTTPError:
            self.broken += 1


def _text_of(way: str, answer: dict[str, Any]) -> str:
    if way == "chat":
        return str(answer["choices"][0]["message"]["content"] or "")
    if way == "messages":
        return "".join(part["text"] for part in answer["content"] if part["type"] == "text")
    said = [item for item in answer["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in said for part in item["content"] if part["type"] == "output_text")
