"""People of the toy world at a running server: their keys, their policies, what they ask and what they wish."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import yaml

from clawctl.run.hint_places import with_hint
from clawctl.run.keys import add_key
from clawctl.run.notes import Note, change_note, read_notes
from clawctl.run.policies import begin_policy, ensure_base_policy
from clawctl.run.rows import HintPlace
from scripts.benchmarks.circle import ROOT, wait_until
from scripts.benchmarks.once import is_over
from scripts.benchmarks.real_circle import RECIPE, Circle
from scripts.wishes.problems import WordProblem
from scripts.wishes.wording import Wants, hint

MODEL = ROOT / "scripts/benchmarks/models/wishes"
PLACE: HintPlace = "block"  # the model has read hints there
MAX_TOKENS, LONGEST_S = 96, 3600.0


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    wants: Wants
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def wishes(self) -> list[str]:
        """Each in a sentence that the model's training may never have seen."""
        return [hint({axis: value}, Random(f"{self.name} {axis}"), "all") for axis, value in self.wants.items()]


def write_recipe(path: Path, people: int, steps: int, seed: int, learned_at: float = 1.0) -> Path:
    """`learned_at`: 1 makes all steps."""
    sections: dict[str, Any] = yaml.safe_load(RECIPE.read_text())
    sections["model"]["path"] = str(MODEL)
    sections["serve"] |= {"port": 0, "temperature": 1.0, "threads": 1}
    sections["train"] |= {"hint_place": PLACE, "seed": seed, "when": "always"}
    sections["policies"] = {"per": "key", "loaded": people}
    sections["practice"] |= {"idle_s": 0.5, "steps": steps, "max_tokens": MAX_TOKENS, "learned_at": learned_at}
    path.write_text(yaml.safe_dump(sections, sort_keys=False))
    return path


def register(circle: Circle, wants: Mapping[str, Wants]) -> list[Person]:
    """People by their names and what each wants, with keys and policies of their own."""
    ensure_base_policy(circle.run, circle.recipe.model.path)
    people = [Person(name, wanted, add_key(circle.run, name, begin_policy(circle.run, name))) for name, wanted in wants.items()]
    for person in people:
        wait_until(partial(_is_known, circle, person), 30, "the key is not accepted")
    return people


def _is_known(circle: Circle, person: Person) -> bool:
    body = {"model": circle.server.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    try:
        circle.post("/chat/completions", body, {**person.headers, "X-Capture": "off"})
    except OSError:
        return False
    return True


def ask_and_wish(circle: Circle, person: Person, tasks: Sequence[WordProblem], **condition: Any) -> None:
    for wish in person.wishes:
        say_wish(circle, person, wish, **condition)
    ask_problems(circle, person, tasks)


def say_wish(circle: Circle, person: Person, wish: str, **condition: Any) -> None:
    circle.post("/notes", {"text": wish, **condition}, person.headers)


def ask_problems(
    circle: Circle, person: Person, tasks: Sequence[WordProblem], notes: Literal["on", "off"] = "off"
) -> list[tuple[str, str]]:
    """Ask each problem in a session of its own. Returns the answers with their ids."""
    session = {**person.headers, "X-Turn-Type": "main", "X-Session-Done": "true", "X-Notes": notes}

    def ask(problem: WordProblem) -> tuple[str, str]:
        body = {"model": circle.server.model, "messages": talk(problem), "max_tokens": MAX_TOKENS}
        answer = circle.post("/chat/completions", body, {**session, "X-Session-Id": f"{person.name}-{problem.task_id}"})
        return str(answer["choices"][0]["message"]["content"]), str(answer["id"])

    with ThreadPoolExecutor(12) as threads:
        return list(threads.map(ask, tasks))


def end_notes(circle: Circle, person: Person) -> None:
    """Take back all that the person wished."""
    for note in notes_of(circle, person):
        circle.post(f"/notes/{note.id}", None, person.headers)


def talk(problem: WordProblem, wishes: Sequence[str] = ()) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": problem.text}]
    return with_hint(messages, "\n".join(wishes), PLACE) if wishes else messages


def notes_of(circle: Circle, person: Person) -> list[Note]:
    return read_notes(circle.run, person.name)


def are_over(circle: Circle, people: Sequence[Person], steps: int) -> bool:
    for person in people:
        for note in notes_of(circle, person):
            if not note.practise:  # being told costs right answers; these people want it all the same
                change_note(circle.run, person.name, note.id, practise=True)
    return all(is_over(note, steps) for person in people for note in notes_of(circle, person) if note.in_force)
