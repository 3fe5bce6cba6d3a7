"""A run of the pretrained model through all stages: a person talks, says one wish once, and the model practises it.

`clawctl up` serves, collects, judges, trains and practises with recipes/smollm2.yaml. Versions are measured
at the same server by their number. No measurement is captured.
"""

import asyncio
import json
import statistics
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml

from clawctl.asking import ask, new_client
from clawctl.config import load_recipe
from clawctl.environments.hint_trial import settle_hint_place
from clawctl.run.directory import open_run
from clawctl.run.endpoint import QUIET, Endpoint, own_endpoint
from clawctl.run.hint_places import with_hint
from clawctl.run.notes import Note, change_note, read_notes
from clawctl.run.rows import HintPlace, Message
from scripts.benchmarks.circle import ROOT, running
from scripts.benchmarks.real_scorers import facts_right, meets, unreadable

DATA = ROOT / "scripts" / "benchmarks" / "real"
RECIPE = ROOT / "recipes" / "smollm2.yaml"
PAST, NEW, FACTS = 12, 24, 20  # requests of the person, requests that measure, questions
ANSWERS = 2  # to each request that measures: a share of 24 answers has a standard error of 0.1
MAX_TOKENS, FACT_TOKENS = 48, 30  # of an answer
LONGEST_S = 1800.0


def lines(name: str) -> list[str]:
    return [line for line in (DATA / name).read_text().splitlines() if line.strip()]


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(name)]


NOTES = {row["name"]: row["note"] for row in rows("notes.jsonl")}


@dataclass(frozen=True, slots=True)
class Measured:
    """One version's answers: shares of answers that meet each wish, are unreadable, or are right."""

    met: dict[str, float]
    unreadable: float
    facts: float | None  # None: not asked
    examples: list[str]


class Circle:
    """A server with its stages and what can be asked of it. `note` is what the person wants."""

    def __init__(self, root: Path) -> None:
        self.run, self.recipe = open_run(root, create=False), load_recipe(root / "recipe.yaml")

    def endpoint(self, version: int) -> Endpoint:
        server = own_endpoint(self.run, self.recipe, version=version)
        return replace(server, headers={**server.headers, **QUIET})

    @cached_property
    def place(self) -> HintPlace:
        """Where practice will put hints. `auto` tries the places, unless this run has a record."""
        chosen = self.recipe.train.hints.hint_place
        return settle_hint_place(self.run, self.endpoint(0)) if chosen == "auto" else chosen

    @cached_property
    def server(self) -> Endpoint:
        return own_endpoint(self.run, self.recipe)

    def quiet(self, notes: Literal["on", "off"], key: str | None = None) -> Endpoint:
        """The live version, with a key's notes or without them. What is asked there is not captured."""
        server = self.server
        return Endpoint(server.url, key or server.api_key, server.model, {"X-Capture": "off", "X-Notes": notes})

    def post(self, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> dict[str, Any]:
        """The JSON answer of the run's server to a captured request; without a body it is a DELETE."""
        given = {"authorization": f"Bearer {self.server.api_key}", "content-type": "application/json", **headers}
        sent, method = (None, "DELETE") if body is None else (orjson.dumps(body), "POST")
        request = urllib.request.Request(f"{self.server.url}{path}", sent, given, method=method)
        with urllib.request.urlopen(request, timeout=300) as response:
            return dict(orjson.loads(response.read()))

    def answers(
        self, version: int, conversations: Sequence[list[Message]], max_tokens: int, seed: int = 0, temperature: float | None = None
    ) -> list[str]:
        """The version's answers, requested together. Each has a seed of its own: with one seed for all, the first tokens of all
        answers would be drawn with the same random number."""
        return self.answers_at(self.endpoint(version), conversations, max_tokens, seed, temperature)

    @staticmethod
    def answers_at(
        endpoint: Endpoint, conversations: Sequence[list[Message]], max_tokens: int, seed: int = 0, temperature: float | None = None
    ) -> list[str]:
        """The same of any endpoint."""
        sampling: dict[str, Any] = {} if temperature is None else {"temperature": temperature}

        async def all_of_them() -> list[str]:
            async with new_client(endpoint) as client:
                request = (
                    ask(endpoint, messages, client=client, max_tokens=max_tokens, seed=1000 * seed + number, **sampling)
                    for number, messages in enumerate(conversations)
                )
                return await asyncio.gather(*request)

        return asyncio.run(all_of_them())

    def measure(self, version: int, note: str | None = None, with_facts: bool = True, seed: int = 0) -> Measured:
        """What a version answers to requests that it has not seen; with `note`, told in each request."""
        requests = [self.told(request, note) for request in lines("new_requests.txt")[:NEW] * ANSWERS]
        answers = self.answers(version, requests, MAX_TOKENS, seed=seed)
        met = {name: sum(meets(name, answer) for answer in answers) / len(answers) for name in NOTES}
        bad = sum(unreadable(answer, False) for answer in answers) / len(answers)
        right = statistics.fmean(self.facts(version, note)) if with_facts else None
        return Measured(met, bad, right, answers[:3])

    def facts(self, version: int, note: str | None) -> list[bool]:
        """Which of the questions of fact the version gets right."""
        return self.facts_at(self.endpoint(version), note)

    def facts_at(self, endpoint: Endpoint, note: str | None = None) -> list[bool]:
        """The same of any endpoint."""
        questions = rows("facts.jsonl")[:FACTS]
        answers = self.answers_at(endpoint, [self.told(q["question"], note) for q in questions], FACT_TOKENS, temperature=0)
        return list(map(facts_right, questions, answers))

    def told(self, request: str, note: str | None = None) -> list[Message]:
        messages = [{"role": "user", "content": request}]
        return messages if note is None else with_hint(messages, note, self.place)

    def others(self) -> list[tuple[list[int], int]]:
        """Ids of other jobs' requests with version 0's answers, and the first id of each answer. The note does not concern them."""
        from transformers import AutoTokenizer

        requests = [row["messages"] for row in rows("other_requests.jsonl")]
        tokenizer: Any = AutoTokenizer.from_pretrained(self.recipe.model_path)
        answers = self.answers(0, requests, MAX_TOKENS, seed=1)
        result = []
        for messages, answer in zip(requests, answers, strict=True):
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
            result.append((tokenizer(prompt + answer, add_special_tokens=False).input_ids, start))
        return result

    def nll(self, version: int, others: Sequence[tuple[list[int], int]]) -> float:
        """Mean negative log-likelihood of these answers under a version, in nats a token."""
        endpoint = self.endpoint(version)

        async def all_of_them() -> list[float]:
            async with new_client(endpoint) as client:

                async def score(ids: list[int], first: int) -> list[float]:
                    body = orjson.dumps({"model": endpoint.model, "ids": ids, "first": first})
                    headers = {"authorization": f"Bearer {endpoint.api_key}"}
                    response = await client.request("/v1/score", body, 300.0, headers=headers)
                    return list(orjson.loads(response.body)["logprobs"])

                return [value for values in await asyncio.gather(*(score(*other) for other in others)) for value in values]

        logprobs = asyncio.run(all_of_them())
        return -sum(logprobs) / len(logprobs)


def talk(circle: Circle, wish: str | None, past: int = PAST, remember: bool = False) -> str:
    """Ask everyday requests, each in a session of its own, and rate the first answer badly with the wish as the comment, which is
    a note if it is to `remember`. Returns that answer."""
    texts = lines("past_requests.txt")[:past]
    with ThreadPoolExecutor(past) as threads:
        said = list(threads.map(lambda number: say(circle, texts[number], f"everyday-{number}", MAX_TOKENS), range(past)))
    if wish is not None:
        rate(circle, said[0][1], wish, remember)
    return said[0][0]


def say(circle: Circle, text: str, session: str, max_tokens: int = 256) -> tuple[str, str]:
    """Ask one request, which is captured and is its whole session. Returns the answer and its id."""
    body = {"model": circle.server.model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    headers = {"X-Session-Id": session, "X-Turn-Type": "main", "X-Session-Done": "true"}
    answer = circle.post("/chat/completions", body, headers)
    return str(answer["choices"][0]["message"]["content"]), str(answer["id"])


def rate(circle: Circle, completion: str, wish: str, remember: bool = False, headers: dict[str, str] | None = None) -> None:
    """Rate an answer badly, in words."""
    circle.post("/feedback", {"completion_id": completion, "rating": -1, "comment": wish, "remember": remember}, headers or {})


@dataclass(frozen=True, slots=True)
class Practised:
    """What `clawctl practice` made of a note."""

    costly: bool  # it asks before it practises this note, because telling it costs right answers
    steps: int
    version: int  # the last one that it measured
    harm: str | None  # why it will not keep what it practised
    learned: bool
    seconds: float


def practise(circle: Circle, note: str, steps: int) -> Practised:
    """Note a wish, and wait until `clawctl practice` has finished with it. A costly one is practised all the same."""
    circle.post("/notes", {"text": note}, {})
    began, costly = time.monotonic(), False
    while not is_over(wish := last_note(circle), steps):
        if not wish.practise and wish.steps:
            break  # it is given up because of what its steps have cost
        if not wish.practise:
            costly = True
            change_note(circle.run, "default", wish.id, practise=True)
        if time.monotonic() - began > LONGEST_S:
            raise SystemExit(f"practice did not end within {LONGEST_S:.0f} s: {wish}")
        time.sleep(0.2)
    harm = None if wish.practise else wish.reason
    return Practised(costly, wish.steps, wish.followed[-1][0], harm, wish.state == "learned", time.monotonic() - began)


def last_note(circle: Circle) -> Note:
    return read_notes(circle.run, "default")[-1]


def is_over(note: Note, steps: int) -> bool:
    """Whether a note is learned, or needs its reminder after its last step."""
    return note.state == "learned" or (note.steps >= steps and bool(note.followed) and note.reason is not None)


def write_recipe(path: Path, changes: dict[str, Any]) -> Path:
    """recipes/smollm2.yaml on a free port, with `changes` to its sections."""
    recipe = yaml.safe_load(RECIPE.read_text())
    for section, values in {"serve": {"port": 0}, **changes}.items():
        recipe[section] = {**recipe.get(section, {}), **values}
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


__all__ = [
    "NOTES", "Circle", "Measured", "Practised", "is_over", "last_note", "practise", "rate", "running", "say", "talk",
    "write_recipe",
]  # fmt: skip
