"""A part of `scripts/bench once`: whether a judge finds out what a reply means for later requests.

    scripts/bench once_kinds --endpoint http://127.0.0.1:8000/v1 --model NAME [--api-key KEY]

The sentences of `once_kinds.jsonl` are replies to answers, each by a key of its own. They go through the judge stage, and the notes
of the keys then show what it made of them. A capable judge does not run on two cores, so there is no figure without an endpoint.
The author of the sentences knew the rules, so the figures are not independent. --strangers takes 170 replies by an author who had
not read them (`once_kinds_strangers.jsonl`), with the recorded answers of a large model that was shown the judge's prompts and
nothing else. A test replays them through the stage.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.fitness import read_fitness
from clawctl.run.notes import add_note, read_notes
from clawctl.run.rows import Turn
from clawctl.run.shards import read_verdicts, write_turns
from scripts.benchmarks.table import Row, make_parser, report


def read_sentences(name: str) -> list[dict[str, Any]]:
    """{"kind": "standing", "request": …, "answer": …, "said": …}; "notes" are those of the key before, of which "ends" is the
    number."""
    return [orjson.loads(line) for line in Path(__file__).with_name(name).read_bytes().splitlines()]


SENTENCES, STRANGERS = read_sentences("once_kinds.jsonl"), read_sentences("once_kinds_strangers.jsonl")


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--endpoint", help="base URL of an OpenAI-compatible server")
    parser.add_argument("--model", default="judge", help="name of the model")
    parser.add_argument("--api-key", default="none", help="key of the endpoint")
    parser.add_argument("--strangers", action="store_true", help="the replies of an author who had not read the rules")
    options = parser.parse_args()
    if options.endpoint is None:
        raise SystemExit("a capable judge cannot run here: name one with --endpoint and --model")
    sentences = STRANGERS if options.strangers else SENTENCES
    settings = {"endpoint": options.endpoint, "model": options.model, "api_key": options.api_key}
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        report("once_kinds", kinds(Path(folder), settings, sentences[:: 8 if options.quick else 1]), options.json)


def kinds(root: Path, settings: dict[str, Any], sentences: Sequence[dict[str, Any]] = SENTENCES) -> list[Row]:
    """The rows of one judge. `settings` are those of `judge`."""
    run = open_run(root / "kinds")
    for number, sentence in enumerate(sentences):
        for text in sentence.get("notes", ()):
            add_note(run, _key(number), text)
    write_turns(run.trajectories / "1-kinds.parquet", [_turn(number, sentence) for number, sentence in enumerate(sentences)])
    judge(run, Recipe.model_validate({"judge": {"votes": 1, **settings}}), once=True)
    if (fitness := read_fitness(run)) is not None and not fitness.fit:
        print(fitness.line)
    made = [made_of(run, number, sentence) for number, sentence in enumerate(sentences)]
    hinted = [verdict.hint is not None for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]

    def share(metric: str, applies: Callable[[dict[str, Any]], bool], is_met: Callable[[dict[str, Any], str], bool]) -> Row:
        of = [(sentence, result) for sentence, result in zip(sentences, made, strict=True) if applies(sentence)]
        return Row("kinds", metric, sum(is_met(*pair) for pair in of) / len(of) if of else None, f"of {len(of)}")

    return [
        *(share(f"{kind}_found", _is(kind), _found) for kind in ("standing", "condition", "fact", "retraction")),
        share(
            "taken_for_standing", _is("correction", "once", "none"), lambda _, result: result in ("standing", "condition", "fact")
        ),
        share("injected", lambda sentence: bool(sentence.get("injected")), lambda _, result: result != "nothing"),
        share(
            "wrong_note_ended", lambda _: True, lambda sentence, result: result.startswith("ends") and not _found(sentence, result)
        ),
        Row("kinds", "turns_with_hint", sum(hinted) / len(hinted), f"of {len(hinted)}"),
    ]


def made_of(run: RunDir, number: int, sentence: dict[str, Any]) -> str:
    """What the stage made of a sentence: "standing", "condition" or "fact" (a note of this kind), "ends 2", or "nothing"."""
    notes = read_notes(run, _key(number))
    before = sentence.get("notes", [])
    ended = [before.index(note.text) + 1 for note in notes if note.text in before and note.state == "retracted"]
    for note in notes:
        if _turn_id(number) in note.turns and not ended:
            return "fact" if note.kind == "fact" else "condition" if note.words else "standing"
    return f"ends {ended[0]}" if ended else "nothing"


def _is(*names: str) -> Callable[[dict[str, Any]], bool]:
    return lambda sentence: sentence["kind"] in names


def _found(sentence: dict[str, Any], result: str) -> bool:
    """Whether the result is the right one. A retraction that names no note ends none."""
    if sentence["kind"] == "retraction":
        return result == (f"ends {sentence['ends']}" if sentence["ends"] else "nothing")
    return bool(result == sentence["kind"])


def _key(number: int) -> str:
    return f"p{number}"


def _turn_id(number: int) -> str:
    return f"kinds{number}"


def _turn(number: int, sentence: dict[str, Any]) -> Turn:
    messages, reply = ([{"role": "user", "content": sentence[name]}] for name in ("request", "said"))
    return Turn(
        turn_id=_turn_id(number), session_id=f"s{number}", parent_turn_id=None, turn_index=0, kind="main", source="serve",
        task_id=None, group_id=None, user=_key(number), created_at=float(number), messages=messages, tools=None,
        response={"role": "assistant", "content": sentence["answer"]}, next_state=reply, prompt_ids=[1], completion_ids=[2],
        logprobs=[-0.5], policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0, top_k=0, finish_reason="stop",
        outcome_reward=None, feedback=None, trainable=True, untrainable_reason=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
