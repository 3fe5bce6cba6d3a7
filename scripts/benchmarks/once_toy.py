"""The same wishes in a world whose every answer a rule can score: word problems, and a model of 5 million weights.

    scripts/bench once --toy [--case told-once] [--axes emoji,units] [--seeds 3] [--json FILE]

  told-once, few   a person for each axis, all with keys and policies of their own at one server, asks 12 (3) problems and says a
                   wish once, in a sentence of `scripts/wishes/words`; eight steps of practice each
  three-notes      people with three wishes at once, 16 steps
  retracted        the wishes of told-once are taken back and practised away
  conditional      people who want a list, or an emoji, where something is multiplied: by notes with a condition, and by the
                   weights when they are learned, or after 32 steps; 6 of the 12 problems that each asks are such. `elsewhere` is
                   the share in all others
  sessions         sessions until the first answers of three in a row do what the person wants, these included: with the note in the
                   prompt, and without it with practice between the sessions
  changed-mind     another wish for the same axis in place of one that was practised: updates until 0.75 of the answers follow
  disputed         a person says of every right answer that another number is right, and it is trained eight times;
                   `correctness_told` is that of answers with such a sentence in the prompt
  tail             one person says a wish, takes it back once it was practised, and says the next one, for 200 updates: right
                   answers, and answers that do not end (`loops`), against those of version 0

`next_answer` has the note in its prompt, `weights_only` has not, `told` is version 0 with the wish in the request. `correctness` is
compared with version 0 told the same. `side_effect` is the mean change of the 15 or 17 axes that nobody spoke of, and
`side_effect_of_chance` that of version 0 with other seeds. The training section is that of recipes/smollm2.yaml.
"""

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from clawctl.asking import completion, new_client
from clawctl.run.endpoint import Endpoint
from clawctl.run.policies import live_version
from scripts.benchmarks.circle import wait_until
from scripts.benchmarks.once_toy_circle import (
    LONGEST_S,
    MAX_TOKENS,
    Person,
    are_over,
    ask_and_wish,
    end_notes,
    notes_of,
    register,
    say_wish,
    talk,
    write_recipe,
)
from scripts.benchmarks.once_toy_days import changed_mind, disputed, sessions
from scripts.benchmarks.real_circle import Circle, running
from scripts.benchmarks.table import Row, make_parser, names_among, report
from scripts.wishes.axes import AXES, USUAL, is_correct, measure
from scripts.wishes.people import unmet
from scripts.wishes.problems import Split, WordProblem, make_problems
from scripts.wishes.wording import Wants, hint

NEW = 192  # problems that measure
CASES = ("told-once", "few", "three-notes", "conditional", "sessions", "changed-mind", "disputed")
CONDITION: dict[str, Any] = {"when": "something is multiplied", "words": ["boxes", "bags"]}
CONDITIONAL: dict[str, Wants] = {"list": {"layout": "list"}, "emoji": {"emoji": "emoji"}}  # what people want there
CONDITIONAL_STEPS = 32
LEARNED_AT = 0.9  # as recipes have it, so that the leak decides about such notes
TAIL_UPDATES = 200
THREE = (("emoji", "units", "greeting"), ("language", "signoff", "digits"))  # axes of people who have three wishes


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one version to the problems that measure."""

    met: float  # share that meets all of the person's wishes
    correct: float
    shares: Mapping[str, Mapping[str, float]]  # of the values of each axis


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--toy", action="store_true", help="chosen: these cases")
    parser.add_argument(
        "--case",
        type=names_among((*CASES, "retracted", "tail")),
        default=",".join(CASES),
        help="cases to run; retracted belongs to told-once",
    )
    parser.add_argument("--axes", type=names_among(AXES), default=",".join(AXES), help="axes of told-once and few")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    options = parser.parse_args()
    cases = ["told-once"] if options.quick else options.case
    axes = ["emoji"] if options.quick else options.axes
    rows: dict[tuple[str, str], list[Row]] = {}
    alone: dict[str, Callable[[Path, int], list[Row]]] = {
        "conditional": conditional, "tail": tail, "sessions": sessions, "changed-mind": changed_mind, "disputed": disputed,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1 if options.quick else options.seeds):
            for case in set(cases) - {"retracted"}:
                root = Path(folder) / f"{case}-{seed}"
                if case in alone:
                    made = alone[case](root, seed)
                else:
                    steps = 2 if options.quick else 16 if case == "three-notes" else 8
                    made = run(case, people_of(case, axes, seed), root, steps, seed, "retracted" in cases)
                for row in made:
                    rows.setdefault((row.case, row.metric), []).append(row)
    report(
        "once",
        [Row(*name, statistics.fmean(row.value or 0 for row in same), same[0].unit) for name, same in rows.items()],
        options.json,
    )


def people_of(case: str, axes: Sequence[str], seed: int) -> dict[str, Wants]:
    """The names of the people and what each wants: values that are rare."""
    drawn_by = Random(f"{case} {seed}")
    values = {axis: drawn_by.choice([value for value in AXES[axis] if value != USUAL[axis]]) for axis in AXES}
    if case == "three-notes":
        return {f"three{number}": {axis: values[axis] for axis in some} for number, some in enumerate(THREE)}
    return {axis: {axis: values[axis]} for axis in axes}


def run(case: str, wants: Mapping[str, Wants], root: Path, steps: int, seed: int, is_retracted: bool) -> list[Row]:
    """All people of a case at one server, until each of their notes has had its steps."""
    with running(root, write_recipe(root.with_suffix(".yaml"), len(wants), steps, seed)):
        circle = Circle(root)
        people = register(circle, wants)
        usual, again = [measured(circle, {}, base(circle), [talk(x) for x in problems(seed)], s) for s in (seed, seed + 1)]
        for number, person in enumerate(people):
            ask_and_wish(circle, person, make_problems(3 if case == "few" else 12, 100 * seed + number))
        began = time.monotonic()
        told = [measured(circle, p.wants, base(circle), [talk(x, p.wishes) for x in problems(seed)], seed) for p in people]
        noted = [measured(circle, p.wants, circle.quiet("on", p.key), [talk(x) for x in problems(seed)], seed) for p in people]
        wait_until(partial(are_over, circle, people, steps), LONGEST_S, f"{case}: practice did not end")
        practised_s = time.monotonic() - began
        after = [measured(circle, p.wants, circle.quiet("off", p.key), [talk(x) for x in problems(seed)], seed) for p in people]
        rows = rows_of(f"toy {case}", people, (usual, told, noted, after))
        rows.append(Row(f"toy {case}", "side_effect_of_chance", side_effect(usual, again, {}), "share"))
        rows.append(Row(f"toy {case}", "practice_s", practised_s, "s"))
        for person, now, then in zip(people, after, told, strict=True):
            note = notes_of(circle, person)[0]
            print(f"{case} {person.name} {person.wants} {person.wishes} {note.state} {note.steps} {note.followed} {note.reason}")
            print(f"  told {then.met:.2f} {then.correct:.2f}, now {now.met:.2f} {now.correct:.2f}", flush=True)
        if is_retracted and case == "told-once":
            for person in people:
                end_notes(circle, person)
            wait_until(lambda: not any(n.steps for p in people for n in notes_of(circle, p)), LONGEST_S, "not practised away")
            last = [measured(circle, p.wants, circle.quiet("off", p.key), [talk(x) for x in problems(seed)], seed) for p in people]
            changes = [now.met - share_met(usual, p.wants) for now, p in zip(last, people, strict=True)]
            rows.append(Row("toy retracted", "above_start", statistics.fmean(changes), "share"))
            rows.append(Row("toy retracted", "above_start_worst", max(changes), "share"))
        return rows


def conditional(root: Path, seed: int) -> list[Row]:
    """Wishes for some problems alone, by the prompt and by the weights."""
    with running(root, write_recipe(root.with_suffix(".yaml"), len(CONDITIONAL), CONDITIONAL_STEPS, seed, LEARNED_AT)):
        circle = Circle(root)
        people = register(circle, CONDITIONAL)
        there, elsewhere = drawn(seed, NEW, True), drawn(seed, NEW, False)
        usual = [shares(circle, people, lambda _: base(circle), some) for some in (there, elsewhere)]
        for number, person in enumerate(people):
            past = 100 * seed + number + 1
            ask_and_wish(circle, person, [*drawn(past, 6, True, "train"), *drawn(past, 6, False, "train")], **CONDITION)
        noted = [shares(circle, people, lambda person: circle.quiet("on", person.key), some) for some in (there, elsewhere)]
        wait_until(partial(are_over, circle, people, CONDITIONAL_STEPS), LONGEST_S, "conditional: practice did not end")
        after = [shares(circle, people, lambda person: circle.quiet("off", person.key), some) for some in (there, elsewhere)]
        notes = [note for person in people for note in notes_of(circle, person)]
        for note in notes:
            print(f"conditional {note.text} {note.state} {note.steps} {note.followed} {note.reason}", flush=True)
    rows = []
    for index, person in enumerate(people):
        case = f"toy conditional {person.name}"
        rows += [
            Row(case, "untrained", usual[0][index], "share"),
            Row(case, "prompt", noted[0][index], "share"),
            Row(case, "prompt_elsewhere_change", noted[1][index] - usual[1][index], "share"),
            Row(case, "weights_only", after[0][index], "share"),
            Row(case, "weights_elsewhere", after[1][index], "share"),
            Row(case, "stays_in_prompt", notes[index].state != "learned", "0 or 1"),
        ]
    return rows


def tail(root: Path, seed: int) -> list[Row]:
    """Notes that come and go in one policy."""
    with running(root, write_recipe(root.with_suffix(".yaml"), 1, 8, seed)):
        circle = Circle(root)
        [person] = register(circle, {"tail": {}})
        values, policy = rare_values(seed), circle.run.of("tail")
        before = asyncio.run(endings(base(circle), seed))
        ask_and_wish(circle, person, make_problems(12, 100 * seed + 7))
        wishes = 0
        while (live_version(policy) or 0) < TAIL_UPDATES:
            axis, value = next(values)
            wishes += 1
            wish = hint({axis: value}, Random(f"{seed} {axis}"), "all")
            say_wish(circle, person, wish)
            wait_until(partial(are_over, circle, [person], 8), LONGEST_S, f"tail: practice of {wish!r} did not end")
            end_notes(circle, person)
            wait_until(lambda: not any(note.steps for note in notes_of(circle, person)), LONGEST_S, "not practised away")
        after = asyncio.run(endings(circle.quiet("off", person.key), seed))
        made = live_version(policy) or 0
    return [
        Row("toy tail", "updates", made, f"by {wishes} wishes that came and went"),
        Row("toy tail", "ability_change", after[0] - before[0], "share of right answers"),
        Row("toy tail", "loops_before", before[1], "share of answers that do not end"),
        Row("toy tail", "loops", after[1], "share of answers that do not end"),
    ]


def rare_values(seed: int) -> Iterator[tuple[str, str]]:
    """Axes with a value that is not the usual one, in a drawn order, and then in another."""
    rng = Random(f"tail {seed}")
    while True:
        for axis in rng.sample(list(AXES), len(AXES)):
            yield axis, rng.choice([value for value in AXES[axis] if value != USUAL[axis]])


async def endings(endpoint: Endpoint, seed: int) -> tuple[float, float]:
    """The shares of answers that are right, and that are cut because they have as many tokens as they may."""
    tasks = make_problems(NEW, seed, "eval")
    async with new_client(endpoint) as client:
        fields = {"model": endpoint.model, "max_tokens": MAX_TOKENS}
        answers = (completion(endpoint, client, messages=talk(p), seed=number, **fields) for number, p in enumerate(tasks))
        choices = [answer["choices"][0] for answer in await asyncio.gather(*answers)]
    right = sum(is_correct(problem, choice["message"]["content"]) for problem, choice in zip(tasks, choices, strict=True))
    return right / len(tasks), sum(choice["finish_reason"] == "length" for choice in choices) / len(tasks)


def shares(
    circle: Circle, people: Sequence[Person], endpoint: Callable[[Person], Any], tasks: Sequence[WordProblem]
) -> list[float]:
    """The share of answers that meet each person's wishes."""
    answered = (circle.answers_at(endpoint(person), [talk(problem) for problem in tasks], MAX_TOKENS) for person in people)
    return [
        sum(not unmet(person.wants, answer) for answer in answers) / len(answers)
        for person, answers in zip(people, answered, strict=True)
    ]


def drawn(seed: int, count: int, multiplied: bool, split: Split = "eval") -> list[WordProblem]:
    """Problems in which something is multiplied, or is not."""
    return [problem for problem in make_problems(8 * count, seed, split) if (problem.op == "x") == multiplied][:count]


def rows_of(
    case: str, people: Sequence[Person], answers: tuple[Answers, Sequence[Answers], Sequence[Answers], Sequence[Answers]]
) -> list[Row]:
    usual, told, noted, after = answers
    costs = [then.correct - usual.correct for then in told]
    changes = [now.correct - then.correct for now, then in zip(after, told, strict=True)]
    effects = [side_effect(usual, now, person.wants) for now, person in zip(after, people, strict=True)]
    understood = [index for index, then in enumerate(told) if then.met >= 0.5]  # wishes that version 0 follows
    rows = [
        Row(case, "people", len(people), "people"),
        Row(case, "understood", len(understood), f"of {len(people)} wishes"),
        Row(case, "untrained", statistics.fmean(share_met(usual, person.wants) for person in people), "share"),
        Row(case, "told", statistics.fmean(then.met for then in told), "share"),
        Row(case, "next_answer", statistics.fmean(now.met for now in noted), "share"),
        Row(case, "weights_only", statistics.fmean(now.met for now in after), "share"),
        Row(case, "weights_only_worst", min((after[index].met for index in understood), default=None), "share"),
        Row(case, "side_effect", statistics.fmean(effects), "share"),
        Row(case, "correctness_told_change", statistics.fmean(costs), "share"),
        Row(case, "correctness_change", statistics.fmean(changes), "share"),
    ]  # fmt: skip
    return rows


def problems(seed: int) -> list[WordProblem]:
    return make_problems(NEW, seed, "eval")


def base(circle: Circle) -> Any:
    return circle.endpoint(0)


def measured(circle: Circle, wants: Wants, endpoint: Any, conversations: Sequence[list[Any]], seed: int) -> Answers:
    given = circle.answers_at(endpoint, conversations, MAX_TOKENS, seed)
    seen: dict[str, Counter[str]] = {axis: Counter() for axis in AXES}
    for answer in given:
        for axis, value in measure(answer).items():
            seen[axis][value or "unreadable"] += 1
    return Answers(
        sum(not unmet(wants, answer) for answer in given) / len(given),
        sum(is_correct(problem, answer) for problem, answer in zip(problems(seed), given, strict=True)) / len(given),
        {axis: {value: n / len(given) for value, n in counts.items()} for axis, counts in seen.items()},
    )


def share_met(usual: Answers, wants: Wants) -> float:
    """Of answers without wishes: the product over the axes, which are independent."""
    share = 1.0
    for axis, value in wants.items():
        share *= usual.shares[axis].get(value, 0.0)
    return share


def side_effect(before: Answers, now: Answers, spoken_of: Wants) -> float:
    """The mean total variation distance of the axes that nobody spoke of."""
    others = [axis for axis in AXES if axis not in spoken_of]
    return statistics.fmean(
        sum(
            abs(before.shares[axis].get(value, 0) - now.shares[axis].get(value, 0))
            for value in {*before.shares[axis], *now.shares[axis]}
        )
        / 2
        for axis in others
    )


if __name__ == "__main__":
    main()
