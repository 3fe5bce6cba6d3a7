"""Practice: the model answers earlier requests of this run again, and a teacher that reads a note teaches it to answer without it.

A note ("Answer in one short sentence.") is said once. In a prompt it would cost its tokens in every request; here it becomes the
hint of the teacher (context distillation: Askell et al., arXiv 2112.00861). `clawctl practice` does this for all notes of a
person while nobody waits (`practising.py`), and `clawctl play practice --option note="…"` for one sentence at once. There are three
kinds of turns, none of which needs a judge or a reward:

- `told`: version 0 answers with the note in its prompt. Trained on the prompt without it, such answers teach what the policy would
  never say by itself, such as another language.
- `alone`: the live policy answers without the note (on-policy: GKD, Agarwal et al., arXiv 2306.13649). They come afterwards
  and correct what the policy makes of its own beginnings.
- `elsewhere`: every fourth turn, version 0 answers a request of another job, which the note does not concern, and the policy is
  trained to go on answering it in the same way. Such a turn gets more weight once the policy answers it differently.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from random import Random
from typing import Any, NamedTuple

import orjson

from clawctl.asking import Refused, ask
from clawctl.config import Recipe
from clawctl.environments import Outcome, Split, Task
from clawctl.environments.hint_trial import settle_hint_place
from clawctl.environments.note_cost import answered, is_costly
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint
from clawctl.run.hint_places import with_hint
from clawctl.run.holdout import HELD_OUT
from clawctl.run.images import has_images
from clawctl.run.notes import Note, notes_for, remembered
from clawctl.run.rows import HintPlace, Message, is_plain
from clawctl.run.shards import read_columns, read_each

_COLUMNS = ("kind", "user", "session_id", "created_at", "messages", "tools", "untrainable_reason", "episode")
_ELSEWHERE = 4  # every fourth turn


class Asked(NamedTuple):
    """A request as it was sent."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Exercise:
    """One turn of practice."""

    kind: str  # "told", "alone" or "elsewhere"
    messages: list[Message]  # as they are sent
    hint: str  # what the teacher reads; "": nothing
    place: HintPlace | None  # where `messages` contain the hint; None: they do not
    tools: list[dict[str, Any]] | None = None


class Practice:
    """Practises one note, or all notes of a person, on earlier requests. Held-out sessions are left out."""

    version = "1"

    def __init__(
        self, note: str = "", user: str = "", requests: int = 12, max_tokens: int = 64, told: float = 0.6, anyway: bool = False,
        history_chars: int = 8000,
    ) -> None:  # fmt: skip
        """`note`: what the person wants, in words. `user`: only requests of this API key. `requests`: how many of the newest ones.
        `history_chars`: of the conversation before a request (`without_oldest`). `max_tokens`: of an answer. `told`: share of the
        exercises, the first ones, that are answered with the note in the prompt. `anyway`: practise also a note that costs the
        untrained model right answers when it is told.
        """
        if note and not note.strip():
            raise ClawError("play.options.note is empty", "write what you want in one sentence", 2)
        if not 0 <= told <= 1:
            raise ClawError(f"play.options.told is {told:g}", "set a share from 0 to 1", 2)
        for name, value, least in (("requests", requests, 1), ("max_tokens", max_tokens, 1), ("history_chars", history_chars, 0)):
            if value < least:
                raise ClawError(f"play.options.{name} is {value}", f"set at least {least}", 2)
        self._note, self._user, self._count, self._max_tokens, self._told = note.strip(), user, requests, max_tokens, told
        self._anyway, self._history_chars, self._requests = anyway, history_chars, list[Asked]()
        self._place: HintPlace = "block"
        self._notes: Sequence[Note] = ()
        self._chars = 0

    def prepare(self, run: RunDir, recipe: Recipe, server: Endpoint) -> None:
        """Read the requests, and find out where the untrained model follows a hint. Raises ClawError."""
        if not self._note:
            raise ClawError("play.options.note is not set", "write what you want in one sentence", 2)
        if not recipe.train.uses_hints:
            raise ClawError(
                f"train.method {recipe.train.method.kind} does not learn from hints",
                "set train.method to opd_topk, opd, combine or hybrid",
            )
        self._requests = self._newest(run)
        if not self._requests:
            problem = f"{run.root} has no earlier requests to practise on"
            raise ClawError(
                problem, "talk to the model first; `clawctl collect` publishes requests once they are followed by another"
            )
        place = recipe.train.hints.hint_place
        self._place = settle_hint_place(run, base_of(server)) if place == "auto" else place
        if not self._anyway:
            self._refuse_costly(base_of(server))

    def practise(self, run: RunDir, notes: Sequence[Note], place: HintPlace, chars: int) -> None:
        """Practise all notes of a person, each on the requests to which it applies, as many as a prompt has in `chars` characters.
        Where none applies, version 0 is followed."""
        self._notes, self._place, self._chars = notes, place, chars
        self._requests = self._newest(run)
        if any(note.words for note in notes):
            self._requests = [
                request for request in self._requests if self._hint_for(request.messages) or not is_held_back(request)
            ]

    def _newest(self, run: RunDir) -> list[Asked]:
        newest = earlier_requests(run, self._user)[-self._count :]
        return [request._replace(messages=without_oldest(request.messages, self._history_chars)) for request in newest]

    def _hint_for(self, request: list[Message]) -> str:
        """What the teacher reads with a request, as serve would write it into the prompt."""
        return self._note or "\n".join(note.text for note in notes_for(self._notes, text_of(request), self._chars))

    def _refuse_costly(self, base: Endpoint) -> None:
        try:
            before, after = answered(base, None, self._place), answered(base, self._note, self._place)
        except Refused as refused:
            problem = f"{base.url} did not answer the short questions that show what a note costs: {refused}"
            raise ClawError(problem, "read its log; --option anyway=true asks none") from refused
        if is_costly(before, after):
            raise ClawError(
                f"being told this note costs the untrained model what it knows: {sum(after)} of {len(after)} short questions are "
                f"answered right with it, {sum(before)} without",
                "practice would take that over; --option anyway=true practises it all the same",
            )

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """`count` exercises, in the order in which they are to be answered."""
        if split == "eval":
            return []
        rng, exercises = Random(seed), list[Exercise]()
        requests, others = _endless(self._requests, rng), _endless([Asked(messages) for messages in other_requests()], rng)
        for number in range(count):
            is_other = number % _ELSEWHERE == _ELSEWHERE - 1
            messages, tools = next(others) if is_other else next(requests)
            if is_other or not (hint := self._hint_for(messages)):
                exercises.append(Exercise("elsewhere", messages, "", None, tools))
            elif number < self._told * count:
                exercises.append(Exercise("told", with_hint(messages, hint, self._place), hint, self._place, tools))
            else:
                exercises.append(Exercise("alone", messages, hint, None, tools))
        return [Task(f"{exercise.kind}-{number}", exercise) for number, exercise in enumerate(exercises)]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        """Ask once. The answer is not graded."""
        exercise: Exercise = task.spec
        server = endpoint if exercise.kind == "alone" else base_of(endpoint)
        tools: dict[str, Any] = {"tools": exercise.tools} if exercise.tools else {}
        answer = await ask(server, exercise.messages, max_tokens=self._max_tokens, **tools)
        example = {"prompt": str(exercise.messages[-1].get("content")), "reply": answer}
        return Outcome(hint=exercise.hint, hint_place=exercise.place, example=example)


def earlier_requests(run: RunDir, user: str = "") -> list[Asked]:
    """The requests of the run's main turns with their tools, oldest first and each once. Episodes, held-out sessions, plain prompts
    and images, which captures only refer to, are left out. Damaged shards are skipped; judge and trainer quarantine them."""
    rows: list[dict[str, Any]] = []
    for _, shard in read_each(run.trajectories, lambda path: read_columns(path, "turns", _COLUMNS), skip_damaged=True):
        rows += shard
    requests: dict[bytes, Asked] = {}
    # Other turns of such a session may name another reason
    held = {(row["user"], row["session_id"]) for row in rows if row["untrainable_reason"] == HELD_OUT}
    for row in sorted(rows, key=lambda row: row["created_at"]):
        is_wanted = row["kind"] == "main" and (not user or row["user"] == user) and not is_plain(row["messages"])
        is_wanted = is_wanted and not remembered(text_of(row["messages"]))  # it asks for nothing that could be practised
        is_wanted = is_wanted and (row["user"], row["session_id"]) not in held and not has_images(row["messages"])
        if is_wanted and row["episode"] is None:
            requests[orjson.dumps([row["messages"], row["tools"]])] = Asked(row["messages"], row["tools"] or None)
    return list(requests.values())


def is_held_back(request: Asked) -> bool:
    """Whether a request to which no note applies, half of them, shows how far practice leaks and is therefore not practised."""
    return zlib.crc32(text_of(request.messages).encode(errors="replace")) % 2 == 0


def without_oldest(request: list[Message], chars: int) -> list[Message]:
    """A request without the oldest turns of its conversation, so that what is left before the last user message has at most `chars`
    characters as JSON. The system prompt stays, and so does all that follows the last user message."""
    users = [index for index, message in enumerate(request) if message.get("role") == "user"]
    if not users:
        return request
    kept = users[-1]
    for start in reversed(users):
        if len(orjson.dumps(request[start : users[-1]])) > chars:
            break
        kept = start
    return [*request[: users[0]], *request[kept:]]


def text_of(request: Sequence[Message]) -> str:
    """The text of the last user message; "" if it has none."""
    content = next((message.get("content") for message in reversed(request) if message.get("role") == "user"), "")
    return content if isinstance(content, str) else ""


def other_requests() -> list[list[Message]]:
    """Requests of other jobs: titles, translations, labels, data. A note about everyday answers does not concern them."""
    lines = files("clawctl.environments").joinpath("other_requests.jsonl").read_bytes().splitlines()
    return [orjson.loads(line)["messages"] for line in lines]


def base_of(endpoint: Endpoint) -> Endpoint:
    """The same server, asked for version 0."""
    return replace(endpoint, model=f"{endpoint.model.partition('@')[0]}@0")


def _endless(items: Sequence[Asked], rng: Random) -> Iterator[Asked]:
    """The items in random order, again and again."""
    while True:
        order = list(items)
        rng.shuffle(order)
        yield from order
