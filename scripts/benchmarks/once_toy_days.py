"""Cases of `once_toy` in which people come back: sessions until they are content, a changed mind, and disputed answers."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from clawctl.run.notes import change_note
from clawctl.run.policies import live_version
from scripts.benchmarks.circle import wait_until
from scripts.benchmarks.once_toy_circle import (
    LONGEST_S,
    MAX_TOKENS,
    Person,
    are_over,
    ask_and_wish,
    ask_problems,
    end_notes,
    notes_of,
    register,
    say_wish,
    talk,
    write_recipe,
)
from scripts.benchmarks.real_circle import Circle, rate, running
from scripts.benchmarks.table import Row
from scripts.wishes.axes import AXES, USUAL, is_correct
from scripts.wishes.people import unmet
from scripts.wishes.problems import WordProblem, make_problems
from scripts.wishes.wording import hint

PEOPLE = 6
IN_A_ROW, MOST_SESSIONS, A_SESSION = 3, 12, 3  # sessions that count, most sessions, problems of one
FOLLOWED, ANSWERS = 0.75, 64  # the share of so many answers at which a changed wish is followed
UPDATES = 8  # that learn from disputed answers
NO_UPDATE_S = 60.0  # after which a batch of disputed answers is not trained


def sessions(root: Path, seed: int) -> list[Row]:
    """Half of the people have their notes in the prompt. The others have none there, and practise between their sessions."""
    axes = Random(f"sessions {seed}").sample(list(AXES), PEOPLE)
    ways = ("notes", "weights")
    wants = {f"{way}-{axis}": {axis: rare(axis, seed)} for way in ways for axis in axes}
    in_a_row, needed = dict.fromkeys(wants, 0), dict.fromkeys(wants, 0)
    with running(root, write_recipe(root.with_suffix(".yaml"), len(wants), 8, seed)):
        circle = Circle(root)
        people = register(circle, wants)
        for number in range(1, MOST_SESSIONS + 1):
            for person in (some for some in people if not needed[some.name]):
                by_notes = person.name.startswith("notes")
                tasks = make_problems(A_SESSION, 10_000 * seed + 100 * number + people.index(person))
                (first, _), *_ = ask_problems(circle, person, tasks, "on" if by_notes else "off")
                is_unmet = bool(unmet(person.wants, first))
                in_a_row[person.name] = 0 if is_unmet else in_a_row[person.name] + 1
                if in_a_row[person.name] == IN_A_ROW:
                    needed[person.name] = number
                if is_unmet and not notes_of(circle, person):
                    say_wish(circle, person, *person.wishes)
                    if by_notes:
                        change_note(circle.run, person.name, notes_of(circle, person)[0].id, practise=False)
            practising = [some for some in people if some.name.startswith("weights")]
            wait_until(lambda: are_over(circle, practising, 8), LONGEST_S, "sessions: practice did not end")  # noqa: B023
    rows = []
    for way in ways:
        counted = [count or MOST_SESSIONS for name, count in needed.items() if name.startswith(way)]
        rows.append(Row(f"toy sessions by {way}", "joint_average", statistics.fmean(counted), "sessions"))
        rows.append(Row(f"toy sessions by {way}", "worst_person", max(counted), "sessions"))
    return rows


def changed_mind(root: Path, seed: int) -> list[Row]:
    """Wishes that were practised are replaced by others for the same axis."""
    axes = Random(f"changed {seed}").sample(list(AXES), PEOPLE)
    first = {axis: rare(axis, seed) for axis in axes}
    then = {axis: Random(f"{axis} {seed}").choice([value for value in AXES[axis] if value != first[axis]]) for axis in axes}
    with running(root, write_recipe(root.with_suffix(".yaml"), len(axes), 8, seed)):
        circle = Circle(root)
        people = register(circle, {axis: {axis: value} for axis, value in first.items()})
        for number, person in enumerate(people):
            ask_and_wish(circle, person, make_problems(12, 100 * seed + number))
        wait_until(lambda: are_over(circle, people, 8), LONGEST_S, "changed-mind: practice did not end")
        learned = [met(circle, person, person.name, first[person.name], seed) for person in people]
        before = [met(circle, person, person.name, then[person.name], seed) for person in people]
        began = {person.name: live_version(circle.run.of(person.name)) or 0 for person in people}
        for person in people:
            end_notes(circle, person)
            say_wish(circle, person, hint({person.name: then[person.name]}, Random(f"then {person.name}"), "all"))
        updates = dict[str, int]()

        def all_follow() -> bool:
            for person in people:
                share = met(circle, person, person.name, then[person.name], seed)
                made = (live_version(circle.run.of(person.name)) or 0) - began[person.name]
                if share >= FOLLOWED:
                    updates.setdefault(person.name, made)
            return len(updates) == len(people) or are_over(circle, people, 8)

        wait_until(all_follow, LONGEST_S, "changed-mind: practice did not end")
        last = [met(circle, person, person.name, then[person.name], seed) for person in people]
    print(f"changed-mind {first} {then} {updates}", flush=True)
    return [
        Row("toy changed-mind", "learned", statistics.fmean(learned), "share"),
        Row("toy changed-mind", "before", statistics.fmean(before), "share that does what is wanted next"),
        Row("toy changed-mind", "updates_to_follow", statistics.fmean(updates.get(axis, 9) for axis in axes), "updates"),
        Row("toy changed-mind", "updates_to_follow_most", max(updates.get(axis, 9) for axis in axes), "updates"),
        Row("toy changed-mind", "after", statistics.fmean(last), "share"),
    ]


def disputed(root: Path, seed: int) -> list[Row]:
    """A person who says of right answers that another number is right."""
    rng = Random(f"disputed {seed}")
    with running(root, write_recipe(root.with_suffix(".yaml"), 1, 8, seed)):
        circle = Circle(root)
        [person] = register(circle, {"disputed": {}})
        policy, batch = circle.run.of(person.name), circle.recipe.train.batch_turns
        before, right_when_told = right(circle, person, seed), right(circle, person, seed, partial(dispute, Random(f"told {seed}")))
        for number in range(UPDATES):
            live = live_version(policy) or 0
            tasks = make_problems(batch, 1000 * seed + number)
            for problem, (answer, completion) in zip(tasks, ask_problems(circle, person, tasks), strict=True):
                if is_correct(problem, answer):
                    rate(circle, completion, dispute(rng, problem), headers=person.headers)
            waited = time.monotonic()
            while (live_version(policy) or 0) == live and time.monotonic() - waited < NO_UPDATE_S:
                time.sleep(0.5)
        after, made = right(circle, person, seed), live_version(policy) or 0
    return [
        Row("toy disputed", "updates", made, f"of {UPDATES}"),
        Row("toy disputed", "correctness", before, "share"),
        Row(
            "toy disputed", "correctness_told", right_when_told, "share when the dispute is in the prompt, as the teacher reads it"
        ),
        Row("toy disputed", "correctness_change", after - before, "share"),
    ]


def rare(axis: str, seed: int) -> str:
    return Random(f"{axis} {seed}").choice([value for value in AXES[axis] if value != USUAL[axis]])


def met(circle: Circle, person: Person, axis: str, value: str, seed: int) -> float:
    """The share of the live version's answers without notes that have this value."""
    requests = [talk(problem) for problem in make_problems(ANSWERS, seed, "eval")]
    answers = circle.answers_at(circle.quiet("off", person.key), requests, MAX_TOKENS, seed)
    return sum(not unmet({axis: value}, answer) for answer in answers) / len(answers)


def dispute(rng: Random, problem: WordProblem) -> str:
    return f"No, the answer is {problem.c + rng.choice([-3, -2, -1, 1, 2, 3])}."


def right(circle: Circle, person: Person, seed: int, sentence: Callable[[WordProblem], str] | None = None) -> float:
    """The share of right answers; with a `sentence` in each prompt."""
    tasks = make_problems(3 * ANSWERS, seed, "eval")
    prompts = [talk(problem, [sentence(problem)] if sentence else ()) for problem in tasks]
    answers = circle.answers_at(circle.quiet("off", person.key), prompts, MAX_TOKENS, seed)
    return sum(map(is_correct, tasks, answers)) / len(tasks)
