"""A wish is said once: it holds from the next answer, is practised while nobody asks anything, and then needs no reminder.

  told-once NAME   a person asks 12 requests and says `/remember WISH`; 24 other requests are answered at once with the note, and
                   after `clawctl practice` without it. `told` is version 0 with the wish in each request
  few NAME         the same with 3 earlier requests
  three-notes      three wishes, all of which have to be met
  retracted        a wish that was learned is taken back and practised away
  two-people       two keys with opposite wishes, each met by the notes in its own prompts
  control          a sentence that asks for nothing
  judge, reply, both NAME   without notes and practice: everyday requests, each followed by the wish in the person's next message
                   (`reply`), as the comment of a rating (`judge`), or as both; `train.hint` has that name, for --steps steps.
                   `teacher` is version 0 with the teacher's prompts
  facts            40 facts that were told once, and what is left of them when the person is forgotten (`once_facts`)
  kinds            what a judge makes of people's replies (`once_kinds`): a recorded one, or that at --endpoint with --model

`--toy` runs the same in a world whose every answer a rule can score (`once_toy`).

All of it runs through real stages with recipes/smollm2.yaml: `clawctl up` serves, collects, judges, trains and practises. The
requests, wishes and scorers are those of `scripts/bench real`. `--quick` makes two steps of one wish.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from clawctl.run.hint_places import after_reply, with_hint
from clawctl.run.keys import add_key
from clawctl.run.notes import Note, read_notes
from clawctl.run.policies import live_version
from clawctl.run.rows import Message
from scripts.benchmarks.circle import CLAWCTL, wait_until
from scripts.benchmarks.once_kinds import STRANGERS, kinds, recorded
from scripts.benchmarks.real_circle import MAX_TOKENS, NEW, NOTES, Circle, lines, rate, running, talk, write_recipe
from scripts.benchmarks.real_scorers import meets, unreadable
from scripts.benchmarks.table import Row, make_parser, names_among, report

CASES = ("told-once", "few", "three-notes", "retracted", "two-people", "control")
HINTS = ("judge", "reply", "both")
THREE = ("short", "captain", "emoji")
LONGEST_S = 3600.0


def main() -> None:
    if "--toy" in sys.argv[1:]:
        from scripts.benchmarks.once_toy import main as toy

        toy()
        return
    parser = make_parser(__doc__ or "")
    parser.add_argument("--toy", action="store_true", help="the cases of `once_toy`; `--toy --help` names them")
    parser.add_argument(
        "--case", type=names_among((*CASES, *HINTS, "facts", "kinds")), default=",".join(CASES), help="cases to run"
    )
    parser.add_argument("--notes", type=names_among(NOTES), default="short,list,spanish", help="wishes that are said")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--steps", type=int, default=16, help="most steps of practice for a note")
    parser.add_argument("--endpoint", help="base URL of a judge, for the case kinds")
    parser.add_argument("--model", default="judge", help="name of the judge's model")
    parser.add_argument("--api-key", default="none", help="key of the judge's endpoint")
    options = parser.parse_args()
    cases = ["told-once"] if options.quick else options.case
    notes, steps = (["short"], 2) if options.quick else (options.notes, options.steps)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1 if options.quick else options.seeds):
            root = Path(folder) / str(seed)
            root.mkdir()
            for name in notes:
                if "told-once" in cases:
                    rows += once(f"told-once {name}", [name], root, steps, seed, 12, "retracted" in cases)
                if "few" in cases:
                    rows += once(f"few {name}", [name], root, steps, seed, 3)
                for hint in HINTS:
                    if hint in cases:
                        rows += reacted(f"{hint} {name}", hint, name, root, steps, seed)
            if "three-notes" in cases:
                rows += once("three-notes", THREE, root, steps, seed, 12)
            if "two-people" in cases:
                rows += two_people(root)
            if "control" in cases:
                rows += once("control", ["nothing"], root, 4, seed, 12)
        if "facts" in cases:
            from scripts.benchmarks.once_facts import fact_rows

            rows += fact_rows(Path(folder))
        if "kinds" in cases:
            settings = {"endpoint": options.endpoint, "model": options.model, "api_key": options.api_key}
            rows += recorded(Path(folder), STRANGERS) if options.endpoint is None else kinds(Path(folder), settings)
    report("once", _means(rows), options.json)


def once(case: str, names: Sequence[str], root: Path, steps: int, seed: int, past: int, retracted: bool = False) -> list[Row]:
    """Say wishes once, and measure the next answers, and the answers without a reminder."""
    changes = {"train": {"seed": seed}, "practice": {"idle_s": 1, "steps": steps}}
    recipe = write_recipe(root / f"{case.replace(' ', '-')}.yaml", changes)
    run = recipe.with_suffix("")
    with running(run, recipe):
        circle = Circle(run)
        talk(circle, None, past)
        wait_until(circle.run.hint_place.exists, LONGEST_S, f"{case}: no place of notes was chosen")
        before = answers(circle, "off")
        facts = statistics.fmean(circle.facts(0, None))
        for name in names:
            remember(circle, NOTES[name])
        tokens = note_tokens(circle)
        rows = [
            Row(case, "untrained", share(names, before), "share"),
            Row(case, "next_answer", share(names, answers(circle, "on")), "share"),
        ]
        began = time.monotonic()
        wait_until(lambda: all(is_over(note, steps) for note in notes_of(circle)), LONGEST_S, f"{case}: practice did not end")
        notes = notes_of(circle)
        place = circle.place
        informed = circle.answers(
            0, [circle.told(text, "\n".join(NOTES[name] for name in names)) for text in requests()], MAX_TOKENS
        )
        after = answers(circle, "off")
        right = statistics.fmean(circle.facts(live_version(circle.run) or 0, None))
        rows += [
            Row(case, "told", share(names, informed), "share"),
            Row(case, "weights_only", share(names, after), "share"),
            Row(case, "learned", sum(note.state == "learned" for note in notes), f"of {len(names)} notes"),
            Row(case, "not_understood", sum(note.state == "not understood" for note in notes), f"of {len(names)} notes"),
            Row(case, "steps", max(note.steps for note in notes), "steps"),
            Row(case, "followed", statistics.fmean(note.followed[-1][1] for note in notes) if notes[0].followed else None, ""),
            Row(case, "facts_change", right - facts, "share"),
            Row(case, "unreadable_share", sum(unreadable(answer, False) for answer in after) / len(after), "share"),
            Row(case, "practice_s", time.monotonic() - began, "s"),
            Row(case, "prompt_tokens_saved", 1 - note_tokens(circle) / tokens, f"of {tokens} tokens"),
        ]
        print(f"{case} seed {seed} ({place}): {[(note.id, note.state, note.steps, note.followed, note.reason) for note in notes]}")
        print("\n".join(f"  {text!r} -> {answer!r}" for text, answer in zip(requests()[:3], after, strict=False)), flush=True)
        if retracted:
            for note in notes:
                circle.post(f"/notes/{note.id}", None, {})
            began = time.monotonic()
            wait_until(lambda: not any(note.steps for note in notes_of(circle)), LONGEST_S, f"{case}: nothing was practised away")
            rows.append(Row("retracted", f"{names[0]}_after", share(names, answers(circle, "off")), "share"))
        else:
            back = [*CLAWCTL, "policies", "rollback", "0", "--run", str(run)]  # unlearned on purpose
            subprocess.run(back, check=True, stdout=subprocess.DEVNULL)
            wait_until(lambda: live_version(circle.run) == 0, LONGEST_S, f"{case}: version 0 is not live")
            rows.append(Row(case, "returned_to_prompt", note_tokens(circle) / tokens, f"of {tokens} tokens, at the next request"))
        return rows


def note_tokens(circle: Circle) -> int:
    """Tokens that the notes add to a prompt."""
    body = {"model": circle.server.model, "messages": circle.told(requests()[0]), "max_tokens": 1}
    noted, plain = (circle.post("/chat/completions", body, {"X-Capture": "off", "X-Notes": notes}) for notes in ("on", "off"))
    return int(noted["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"])


def reacted(case: str, hint: str, name: str, root: Path, steps: int, seed: int) -> list[Row]:
    """Say the same wish after each of `steps` batches of answers, and measure what the version then answers that was not told."""
    changes = {
        "train": {"seed": seed, "hint": hint, "hint_place": "line"},
        "serve": {"notes": "off"}, "up": {"stages": ["serve", "collect", "judge", "train"]},
    }  # fmt: skip
    recipe = write_recipe(root / f"{case.replace(' ', '-')}.yaml", changes)
    with running(recipe.with_suffix(""), recipe):
        circle = Circle(recipe.with_suffix(""))
        before, facts = answers(circle, "off"), statistics.fmean(circle.facts(0, None))
        teacher = circle.answers(
            0, [hindsight(hint, NOTES[name], *pair) for pair in zip(requests(), before, strict=True)], MAX_TOKENS
        )
        texts, batch = lines("past_requests.txt"), circle.recipe.train.batch_turns
        for step in range(steps):
            with ThreadPoolExecutor(batch) as threads:
                prompts = [texts[(step * batch + number) % len(texts)] for number in range(batch)]
                sessions = [f"{step}-{number}" for number in range(batch)]
                list(threads.map(partial(react, circle, hint, NOTES[name]), prompts, sessions))
            wait_until(partial(is_live, circle, step + 1), LONGEST_S, f"{case}: version {step + 1} did not go live")
        after = answers(circle, "off") if steps else before
        right = statistics.fmean(circle.facts(live_version(circle.run) or 0, None)) if steps else facts
    return [
        Row(case, "untrained", share([name], before), "share"),
        Row(case, "teacher", share([name], teacher), "share"),
        Row(case, "weights_only", share([name], after), "share"),
        Row(case, "facts_change", right - facts, "share"),
        Row(case, "unreadable_share", sum(unreadable(answer, False) for answer in after) / len(after), "share"),
    ]


def hindsight(hint: str, wish: str, text: str, answer: str) -> list[Message]:
    """The prompt of the teacher of such an answer."""
    messages: list[Message] = [{"role": "user", "content": text}]
    if hint != "judge":
        messages = after_reply(messages, {"role": "assistant", "content": answer}, [{"role": "user", "content": wish}]) or []
    return messages if hint == "reply" else with_hint(messages, wish, "line")


def react(circle: Circle, hint: str, wish: str, text: str, session: str) -> None:
    """Ask a request, and react to its answer."""
    headers = {"X-Session-Id": session, "X-Turn-Type": "main"}
    body: dict[str, Any] = {"model": circle.server.model, "messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS}
    answer = circle.post("/chat/completions", body, headers)
    body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": wish if hint != "judge" else "Thanks."}]
    circle.post("/chat/completions", {**body, "max_tokens": 1}, {**headers, "X-Session-Done": "true"})
    if hint != "reply":
        rate(circle, str(answer["id"]), wish)


def is_live(circle: Circle, version: int) -> bool:
    return (live_version(circle.run) or 0) >= version


def two_people(root: Path) -> list[Row]:
    """Opposite wishes of two keys, met by the notes in their prompts."""
    recipe = write_recipe(root / "two.yaml", {"up": {"stages": ["serve", "collect"]}, "train": {"hint_place": "line"}})
    wishes = {"anna": "list", "bert": "short"}
    with running(root / "two", recipe):
        circle = Circle(root / "two")
        rows = []
        for name, wish in wishes.items():
            key = add_key(circle.run, name)
            headers = {"authorization": f"Bearer {key}"}
            wait_until(partial(posts, circle, headers, NOTES[wish]), 30, "the key is not accepted")
            rows.append(Row("two-people", wish, share([wish], answers(circle, "on", key)), "share"))
        return rows


def posts(circle: Circle, headers: dict[str, str], text: str, **fields: Any) -> bool:
    try:
        circle.post("/notes", {"text": text, **fields}, headers)
    except OSError:
        return False
    return True


def remember(circle: Circle, wish: str) -> None:
    """Say a wish in the chat."""
    body = {"model": circle.server.model, "messages": [{"role": "user", "content": f"/remember {wish}"}], "max_tokens": MAX_TOKENS}
    circle.post("/chat/completions", body, {"X-Session-Done": "true", "X-Session-Id": f"remember-{len(wish)}"})


def notes_of(circle: Circle) -> list[Note]:
    return read_notes(circle.run, "default")


def is_over(note: Note, steps: int) -> bool:
    return note.state in ("learned", "not understood") or note.steps >= steps or not note.practise


def requests() -> list[str]:
    return lines("new_requests.txt")[:NEW] * 2


def answers(circle: Circle, notes: Literal["on", "off"], key: str | None = None) -> list[str]:
    """Answers of the live version to requests that nobody has asked before. They are not captured."""
    return circle.answers_at(circle.quiet(notes, key), [circle.told(text) for text in requests()], MAX_TOKENS)


def share(names: Sequence[str], given: Sequence[str]) -> float:
    """The share of answers that meet all wishes."""
    return sum(all(meets(name, answer) for name in names) for answer in given) / len(given)


def _means(rows: Sequence[Row]) -> list[Row]:
    """The mean of each metric over the seeds, and its lowest value if there are several."""
    values: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        values.setdefault((row.case, row.metric), []).append(row)
    result = []
    for same in values.values():
        measured = [row.value for row in same if row.value is not None]
        result.append(replace(same[0], value=statistics.fmean(measured) if measured else None))
        if len(measured) > 1:
            result.append(replace(same[0], metric=f"{same[0].metric}_lowest", value=min(measured)))
    return result


if __name__ == "__main__":
    main()
