"""People with a policy each say a wish once, some the opposite of another's: how far each policy follows its own unreminded."""

import asyncio
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from clawctl.environments.note_effect import NoteEffect
from clawctl.run.keys import add_key, policy_of
from clawctl.run.notes import change_note, read_notes
from clawctl.run.policies import begin_policy, ensure_base_policy, live_version
from scripts.benchmarks.circle import wait_until
from scripts.benchmarks.once import is_over, posts
from scripts.benchmarks.real_circle import MAX_TOKENS, Circle, lines, running, write_recipe
from scripts.benchmarks.table import Row

WISHES = (  # each of the first three pairs wants opposite things
    "Answer in one short sentence.", "Answer as a list of bullet points.", "Answer in Spanish.", "Answer in French.",
    "Address the user as Captain.", "Address the user as Doctor.", "Use emojis in your answer.", "End with: Have a lovely day!",
)  # fmt: skip
PAST, NEW, LONGEST_S = 12, 24, 3 * 3600.0


def measure(root: Path, people: int, steps: int) -> list[Row]:
    """`satisfaction_own`: where a policy's answers to new requests stand between version 0's without its person's note (0) and
    with it (1), for each person; `satisfaction_others` is the same for the notes of the others."""
    changes = {"policies": {"per": "key", "loaded": people}, "practice": {"idle_s": 1, "steps": steps}}
    recipe = write_recipe(root / "people.yaml", changes)
    wishes = {f"person{number}": wish for number, wish in enumerate(WISHES[:people])}
    with running(root / "people", recipe):
        circle = Circle(root / "people")
        ensure_base_policy(circle.run, circle.recipe.model.path)
        keys = {name: add_key(circle.run, name, begin_policy(circle.run, name)) for name in wishes}
        wait_until(circle.run.hint_place.exists, LONGEST_S, "no place of notes was chosen")
        for name, wish in wishes.items():
            headers = {"authorization": f"Bearer {keys[name]}"}
            wait_until(partial(posts, circle, headers, wish), 30, "the key is not accepted")
            with ThreadPoolExecutor(PAST) as threads:
                list(threads.map(partial(_ask, circle, headers, name), lines("past_requests.txt")[:PAST]))
        wait_until(lambda: _are_over(circle, list(wishes), steps), LONGEST_S, "practice did not end")
        followed = {name: [_followed(circle, name, wish) for wish in wishes.values()] for name in wishes}
        notes = {name: read_notes(circle.run, name)[0] for name in wishes}
    for name, values in followed.items():
        print(name, notes[name].text, notes[name].state, notes[name].steps, [round(value, 2) for value in values], flush=True)
    of_person = [values[index] for index, values in enumerate(followed.values())]
    others = [value for index, values in enumerate(followed.values()) for at, value in enumerate(values) if at != index]
    case = f"{len(wishes)} people wishes"
    return [
        Row(case, "satisfaction_own", statistics.fmean(of_person), "of told"),
        Row(case, "satisfaction_own_lowest", min(of_person), "of told"),
        Row(case, "satisfaction_others", statistics.fmean(others), "of told"),
        Row(case, "learned", sum(note.state == "learned" for note in notes.values()), f"of {len(wishes)} notes"),
        Row(case, "steps", statistics.fmean(note.steps for note in notes.values()), "steps a note"),
    ]


def _ask(circle: Circle, headers: dict[str, str], name: str, text: str) -> None:
    body = {"model": circle.server.model, "messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS}
    session = {"X-Session-Id": f"{name}-{len(text)}-{text[:9]}", "X-Turn-Type": "main", "X-Session-Done": "true", "X-Notes": "off"}
    circle.post("/chat/completions", body, {**headers, **session})


def _are_over(circle: Circle, names: Sequence[str], steps: int) -> bool:
    notes = {name: read_notes(circle.run, name)[0] for name in names}
    for name, note in notes.items():
        if not note.practise:  # being told costs right answers; this person wants it all the same
            notes[name] = change_note(circle.run, name, note.id, practise=True)
    return all(is_over(note, steps) for note in notes.values())


def _followed(circle: Circle, name: str, wish: str) -> float:
    policy = circle.run.of(policy_of(circle.run, circle.recipe, name))
    requests: Sequence[list[dict[str, str]]] = [[{"role": "user", "content": text}] for text in lines("new_requests.txt")[:NEW]]
    effect = NoteEffect(circle.server, wish, circle.place, requests)
    model = f"{circle.server.model}@{policy.policy}@{live_version(policy)}"
    return asyncio.run(effect.followed(model, seed=3))
