"""A part of `scripts/bench once`: whether a judge finds out what a reply means for later requests.

    scripts/bench once_kinds [--endpoint http://127.0.0.1:8000/v1 --model NAME [--api-key KEY]]

The replies go through the judge stage, each by a key of its own, and the notes of the keys then show what it made of them. Without
an endpoint, a server replays what a large model answered to the judge's prompts for the 400 replies in
`once_kinds_strangers.jsonl`. It was shown the prompts alone, one at a time. Two authors who had not read the rules wrote the
replies, in the voices of 29 people. With an endpoint, its judge reads the 127 replies of `once_kinds.jsonl`, whose author knew the
rules, or with --strangers the 400.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clawctl.config import Recipe
from clawctl.engines.vllm.child import free_port
from clawctl.judge.worker import judge
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.fitness import read_fitness
from clawctl.run.notes import add_note, read_notes
from clawctl.run.rows import Turn
from clawctl.run.shards import read_verdicts, write_turns
from scripts.asgi import serving
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
    some = slice(None, None, 8 if options.quick else 1)
    settings = {"endpoint": options.endpoint, "model": options.model, "api_key": options.api_key}
    with tempfile.TemporaryDirectory(prefix="clawctl-bench-") as folder:
        if options.endpoint is None:
            rows = recorded(Path(folder), STRANGERS[some])
        else:
            rows = kinds(Path(folder), settings, (STRANGERS if options.strangers else SENTENCES)[some])
        report("once", rows, options.json)


def recorded(root: Path, sentences: Sequence[dict[str, Any]]) -> list[Row]:
    """The rows of the recorded judge."""

    async def answer(request: Request) -> JSONResponse:
        text = (await request.json())["messages"][1]["content"]
        said = _recorded_answer(text, sentences)
        return JSONResponse({"choices": [{"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}]})

    port = free_port()
    with serving(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])]), port):
        settings = {"endpoint": f"http://127.0.0.1:{port}/v1", "model": "recorded", "api_key": "none", "fitness": "skip"}
        return [replace(row, case="kinds, recorded") for row in kinds(root, settings, sentences)]


def _recorded_answer(prompt: str, sentences: Sequence[dict[str, Any]]) -> str:
    """What was answered to a prompt: a score with a hint, or what the reply means if the person's notes are among the blocks."""
    blocks = dict(part.split(">\n", 1) for part in prompt.split(f"<{prompt[1:7]} ") if ">\n" in part)
    reply = blocks.get("reply", blocks.get("came back from user", "")).strip()
    given = next(line["recorded"] for line in sentences if reply in line["said"] and line["request"] == blocks["request"].strip())
    if "notes" in blocks:
        return json.dumps({name: given[name] for name in ("quote", "kind", "sentence", "when", "words", "number")})
    return f"\\boxed{{{given['score']}}} [HINT_START]{given['hint']}[HINT_END]"


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
