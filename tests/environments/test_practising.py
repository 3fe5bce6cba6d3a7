"""Notes become weights: what is tried, when practice waits, what is measured, and what is practised away."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.asking import Refused, ServerHealth
from clawctl.config import Recipe, load_recipe
from clawctl.environments.hint_trial import EVERYDAY
from clawctl.environments.note_cost import short_questions
from clawctl.environments.note_effect import NoteEffect, Range
from clawctl.environments.practice import Asked, Practice, is_held_back
from clawctl.environments.practising import _Practising
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import Endpoint
from clawctl.run.fitness import Fitness, JudgeIdentity, publish_fitness
from clawctl.run.gaps import Gaps
from clawctl.run.hint_places import with_hint
from clawctl.run.keys import add_key, begin_policies, remove_key
from clawctl.run.notes import Note, add_note, change_note, find_note, read_notes, remove_note, write_note
from clawctl.run.policies import list_versions, read_policy
from clawctl.run.shards import write_turns
from tests.circle import stages, turns_of, verdicts_of, wait_for
from tests.environments.test_practice_environment import recipe
from tests.eval.answering_server import announce, answering
from tests.inspect.example_run import turn
from tests.serve.served import Server, logprobs_of, recipe_data

REQUESTS: list[list[dict[str, Any]]] = [[{"role": "user", "content": text}] for text in ("hello", "how are you", "thanks a lot")]
NOTE = "please help me with my homework"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("practising") / "run", model_path) as running:
        yield running


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def worker(run: RunDir, restart_s: float = 60.0, **practice: Any) -> _Practising:
    settings = recipe().model_dump() | {"practice": practice}
    return _Practising(run, Recipe.model_validate(settings), threading.Event(), restart_s)


# ---- what a note does ------------------------------------------------------------------------------------------------------


def test_the_effect_of_a_note_is_how_much_better_it_explains_the_answers(server: Server, model_path: Path) -> None:
    """Against a forward pass over prompt and answer."""
    effect = NoteEffect(Endpoint(server.url, "key", "tiny"), NOTE, "line", REQUESTS, max_tokens=6)
    measured = asyncio.run(effect.range())
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(model_path)

    def prompt(messages: list[dict[str, Any]]) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def expected(requests: list[list[dict[str, Any]]]) -> float:
        ratios = []
        for index, (plain, given) in enumerate(zip(REQUESTS, requests, strict=True)):
            body = {"model": "tiny@0", "messages": given, "max_tokens": 6, "seed": index, "return_token_ids": True}
            headers = {"authorization": "Bearer key", "x-capture": "off"}
            answer = httpx.post(f"{server.url}/chat/completions", json=body, headers=headers, timeout=60).json()
            ids = answer["choices"][0]["token_ids"]
            with_note = logprobs_of(model, prompt(with_hint(plain, NOTE, "line")), ids)
            without = logprobs_of(model, prompt(plain), ids)
            ratios.append(sum(with_note) - sum(without))
        return sum(ratios) / len(ratios)

    assert measured.plain == pytest.approx(expected(REQUESTS), abs=1e-4)
    assert measured.noted == pytest.approx(expected([with_hint(request, NOTE, "line") for request in REQUESTS]), abs=1e-4)
    assert measured.noted > measured.plain
    assert asyncio.run(effect.followed("tiny@0")) == pytest.approx(0, abs=1e-4)  # the same answers, drawn with the same seeds
    assert asyncio.run(effect.followed("tiny@0", seed=1)) != pytest.approx(0, abs=1e-4), "other answers"


def test_a_version_is_placed_between_the_untold_and_the_told_base() -> None:
    effects = Range(-0.2, 0.3)
    assert [round(effects.followed(value), 6) for value in (-0.2, 0.05, 0.3, 0.8)] == [0, 0.5, 1, 2]
    assert Range(0.1, 0.1).followed(0.1) == 0


def test_measuring_is_not_captured_and_reads_no_notes(server: Server) -> None:
    before = len(server.captured())
    add_note(server.run, "default", "today")
    effect = NoteEffect(Endpoint(server.url, "key", "tiny"), NOTE, "line", REQUESTS[:1], max_tokens=2)
    first = asyncio.run(effect.range())
    for path in server.run.notes.rglob("*.md"):
        path.unlink()
    assert asyncio.run(NoteEffect(Endpoint(server.url, "key", "tiny"), NOTE, "line", REQUESTS[:1], 2).range()) == first
    assert len(server.captured()) == before


# ---- which notes are due -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "is_due"),
    [
        ({}, True),
        ({"state": "prompted"}, True),
        ({"state": "practised", "steps": 3}, True),
        ({"state": "practised", "steps": 4, "reason": "it still needs its reminder after 4 steps"}, False),
        ({"state": "practised", "steps": 4}, True),  # its last step has not been measured
        ({"state": "practised", "steps": 4, "practise": False}, False),
        ({"state": "prompted", "practise": False}, False),
        ({"state": "prompted", "practise": False, "steps": 2}, True),  # it cost right answers, so it is practised away
        ({"state": "learned", "steps": 3}, False),
        ({"state": "not understood"}, False),
        ({"state": "retracted"}, False),
        ({"state": "retracted", "steps": 2}, True),
        ({"state": "superseded", "steps": 2}, True),
        ({"state": "learned", "steps": 2, "until": date(2020, 1, 1)}, True),
        ({"state": "not understood", "steps": 2, "until": date(2020, 1, 1)}, False),
        ({"kind": "fact"}, False),
        ({"text": "x" * 2001}, False),
    ],
)
def test_a_note_is_due_until_it_is_learned_or_has_used_its_steps(run: RunDir, changes: dict[str, Any], is_due: bool) -> None:
    note = replace(Note("a", NOTE), **changes)
    assert worker(run, steps=4)._is_due(note) is is_due


def test_a_new_note_that_costs_no_right_answer_is_practised(server: Server) -> None:
    practising = _Practising(server.run, load_recipe(server.run.root.parent / "run.yaml"), threading.Event())
    note = add_note(server.run, "default", "The sky is blue.").note
    practising._try("default", note, "line")
    assert (find_note(server.run, "default", note.id).state, practising._is_due(note)) == ("prompted", True)


@pytest.mark.parametrize("is_costly", [True, False])
def test_a_note_that_costs_right_answers_stays_in_the_prompt_and_says_why(run: RunDir, is_costly: bool) -> None:
    right = {question["question"]: question["answers"][0] for question in short_questions()}

    def answer(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        is_told = text.endswith(NOTE)
        return "no idea" if is_told and is_costly else right[text.removesuffix(f" {NOTE}")]

    with answering(answer) as server:
        announce(run, server.url)
        practising, note = worker(run), add_note(run, "default", NOTE).note
        practising._try("default", note, "line")
    tried = find_note(run, "default", note.id)
    assert (tried.state, tried.practise) == ("prompted", not is_costly)
    assert ("0 of 24 short questions right, and 24 without" in (tried.reason or "")) is is_costly
    assert practising._is_due(tried) is not is_costly


@pytest.mark.parametrize(
    ("knows", "told_knows", "state", "practise"),
    [(24, 24, "learned", True), (4, 24, "prompted", False), (4, 4, "learned", True)],  # the last: its person wants it anyway
)
def test_a_note_whose_practice_cost_right_answers_is_not_learned_and_is_practised_away(
    run: RunDir, knows: int, told_knows: int, state: str, practise: bool
) -> None:
    questions = short_questions()
    number = {row["question"]: at for at, row in enumerate(questions)}

    def answer(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        question = text.removesuffix(f" {NOTE}")
        answered = knows if body["model"].endswith("@3") else told_knows if text != question else 24
        return questions[number[question]]["answers"][0] if number[question] < answered else "no idea"

    with answering(answer) as server:
        announce(run, server.url)
        write_note(run, "default", Note("a", NOTE, state="practised", steps=4))
        practising = worker(run, steps=8, learned_at=0.5)
        practising._conclude("default", find_note(run, "default", "a"), "line", 3, 0.9, 0.0)
    note = find_note(run, "default", "a")
    assert (note.state, note.practise, note.steps) == (state, practise, 4)
    assert ("after 4 steps the model answers 4 of 24 short questions right, and 24 before" in (note.reason or "")) is not practise
    assert practising._is_due(note) is not practise
    practising._count_step("default", [note], [])
    assert find_note(run, "default", "a").steps == (4 if practise else 3)


def test_a_note_for_some_requests_must_not_be_followed_in_the_others_of_its_person(server: Server) -> None:
    """A version may leave everyday questions alone and still answer all sums with a list."""
    practice = _Practising(server.run, load_recipe(server.run.root.parent / "run.yaml"), threading.Event())
    requests = [Asked(request) for request in REQUESTS]
    note = Note("thanks", NOTE, words=("thanks",))
    followed, elsewhere = practice._followed(note, requests, "line", None)
    measured = {tuple(request[0]["content"] for request in effect._requests) for effect in practice._effects.values()}
    held_back = [request[0]["content"] for request in REQUESTS[:2] if is_held_back(Asked(request))]
    assert measured == {("thanks a lot",), tuple(islice(cycle(held_back), len(EVERYDAY))), EVERYDAY}
    assert (followed, elsewhere) == pytest.approx((0, 0), abs=1e-4), "version 0 follows no note that it is not told"


@pytest.mark.parametrize(
    ("follows", "state", "text"),
    [("the note", "prompted", NOTE), ("the own words", "prompted", "be brief, ok?"), ("nothing", "not understood", NOTE)],
)
def test_where_a_judge_can_tell_a_note_that_is_not_followed_is_not_understood(
    run: RunDir, follows: str, state: str, text: str
) -> None:
    """The person's own words are tried as well."""
    wanted = {"the note": NOTE, "the own words": "be brief, ok?", "nothing": "-"}[follows]

    def answer(body: dict[str, Any]) -> str:
        said = body["messages"][-1]["content"]
        if said.startswith("An assistant was told"):
            assert body["model"] == "able"
            return "<think>no?</think> Yes." if "briefly" in said else "No"
        return "briefly" if said.endswith(f" {wanted}") else "at length"

    with answering(answer) as server:
        announce(run, server.url)
        publish_fitness(run, Fitness(JudgeIdentity(server.url, "able", "1", 0.0, 9), 12, 12, 0, 0.0))
        practising, note = worker(run), add_note(run, "default", NOTE, said="be brief, ok?").note
        practising._try("default", note, "line")
    tried = find_note(run, "default", note.id)
    assert (tried.state, tried.text) == (state, text)
    assert ("in 0.00 of its answers" in (tried.reason or "")) is (state == "not understood")


def test_without_enough_requests_nothing_is_played_and_the_log_says_so(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    add_note(run, "default", NOTE)
    write_turns(run.trajectories / "a.parquet", [turn("a"), turn("b", user="anna")])
    with caplog.at_level("INFO"):
        assert worker(run)._round("default", True) is False
        assert worker(run)._round("anna", True) is False
    assert [record.getMessage() for record in caplog.records] == [
        "default has notes to practise, and 1 of the 3 requests that practice needs"
    ]


def test_without_a_trainer_nothing_is_played_and_none_that_ended_is_waited_for(
    run: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    add_note(run, "default", NOTE)
    write_turns(run.trajectories / "a.parquet", [turn(name) for name in "abc"])
    with caplog.at_level("INFO"):
        assert worker(run)._round("default", True) is False
        assert worker(run, restart_s=0.2)._wait_for_step(0) == 0
    assert [record.getMessage() for record in caplog.records] == [
        "practice waits for a trainer: no `clawctl train` works on this run",
        "the trainer has made no step from the answers of practice; is `clawctl train` running?",
    ]


def test_what_a_person_does_to_a_note_during_practice_stays_done(run: RunDir) -> None:
    """They take one back, edit one and delete one while its step is made."""
    names = ("taken-back", "edited", "deleted", "kept")
    for name in names:
        write_note(run, "default", Note(name, name, state="practised", steps=1))
    read = read_notes(run, "default")
    change_note(run, "default", "taken-back", state="retracted", reason="no more")
    change_note(run, "default", "edited", text="other words", state="new", steps=0)
    remove_note(run, "default", "deleted")
    practising = worker(run)
    practising._count_step("default", read, read)
    practising._change("default", read[names.index("taken-back")], state="learned", learned=3, reason=None)
    notes = {note.id: note for note in read_notes(run, "default")}
    assert {name: (note.state, note.steps, note.learned) for name, note in notes.items()} == {
        "taken-back": ("retracted", 2, None), "edited": ("new", 0, None), "kept": ("practised", 2, None),
    }  # fmt: skip
    assert notes["taken-back"].reason == "no more"


def test_an_expired_note_that_was_learned_is_practised_away_and_needs_its_reminder_again(run: RunDir) -> None:
    write_note(run, "default", Note("a", NOTE, state="learned", learned=3, steps=1, until=date(2020, 1, 1)))
    worker(run)._count_step("default", read_notes(run, "default"), [])
    note = find_note(run, "default", "a")
    assert (note.steps, note.state, note.learned, note.shown_state) == (0, "prompted", None, "expired")


class TooLongForTheServer(_Practising):
    def _round(self, key: str, alone: bool) -> bool:
        self._say(key)
        raise Refused("status 400: too long")


def test_notes_of_a_removed_key_are_not_practised_and_trouble_with_one_key_stops_no_other(
    run: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its key, a person's turns would be answered, and trained, by the shared policy."""
    for name in ("anna", "bert", "carl"):
        add_key(run, name)
        add_note(run, name, NOTE)
    remove_key(run, "bert")
    with caplog.at_level("INFO"):
        assert TooLongForTheServer(run, recipe(), threading.Event())._rounds() is False
    refused = "the server refused a request of practice: status 400: too long"
    assert [record.getMessage() for record in caplog.records] == ["anna", refused, "carl"]


def test_a_batch_whose_play_failed_is_played_again(run: RunDir) -> None:
    """No server is announced, so the play fails. The next round must not wait for a step of answers that nobody gave."""
    write_turns(run.trajectories / "a.parquet", [turn(name) for name in "abc"])
    practising = worker(run)
    with pytest.raises(ClawError):
        practising._play("default", [replace(add_note(run, "default", NOTE).note, state="prompted")], "line", True)
    assert practising._ahead["default"] == 0


# ---- what is practised -----------------------------------------------------------------------------------------------------


def test_each_request_is_practised_with_the_notes_that_apply_to_it(run: RunDir) -> None:
    write_turns(run.trajectories / "a.parquet", [
        turn("a", messages=[{"role": "user", "content": "fix my code"}]),
        turn("b", messages=[{"role": "user", "content": "hello"}]),
        turn("c", messages=[{"role": "user", "content": "good morning"}]),
    ])  # fmt: skip
    everywhere, for_code = Note("a", "Be brief."), Note("b", "Show an example.", words=("code",))
    practice = Practice(user="default", told=1)
    practice.practise(run, [everywhere, for_code], "line", 2000)
    hints = {task.spec.messages[-1]["content"]: task.spec.hint for task in practice.tasks("train", 8, 0) if task.kind == "told"}
    assert hints == {
        "fix my code Be brief.\nShow an example.": "Be brief.\nShow an example.",
        "hello Be brief.": "Be brief.",
        "good morning Be brief.": "Be brief.",
    }
    practice.practise(run, [for_code], "line", 2000)
    hints = {task.spec.messages[-1]["content"]: task.spec.hint for task in practice.tasks("train", 8, 0)}
    assert hints["good morning"] == ""  # version 0's way
    assert "hello" not in hints  # it shows whether the note leaks


def test_without_a_note_in_force_the_untrained_models_way_is_practised(run: RunDir) -> None:
    write_turns(run.trajectories / "a.parquet", [turn("a"), turn("b")])
    practice = Practice(user="default", told=1)
    practice.practise(run, [], "line", 2000)
    assert {(task.kind, task.spec.hint) for task in practice.tasks("train", 8, 0)} == {("elsewhere", "")}


# ---- gaps ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "why"),
    [({"idle_s": 61.0}, None), ({"idle_s": 3.0}, "60 s without a request have not passed"), ({}, "the server does not answer")],
)
def test_practice_waits_until_nobody_has_asked_anything_for_a_while(health: dict[str, Any], why: str | None) -> None:
    with answering(lambda body: "yes", health=health) as server:
        there = ServerHealth(partial(Endpoint, server.url, "key", "tiny"))
        assert Gaps("idle", 60.0, there.idle_for).why_not() == why


def test_the_server_says_for_how_long_nobody_has_asked_anything(server: Server) -> None:
    server.say("hello")
    assert 0 <= server.health()["idle_s"] < 5
    server.say("hello", extra_headers={"X-Capture": "off"})
    idle_s = server.health()["idle_s"]
    server.say("hello", extra_headers={"X-Capture": "off"})
    assert server.health()["idle_s"] >= idle_s


# ---- the whole way -----------------------------------------------------------------------------------------------------------


def practising(model_path: Path, **sections: Any) -> dict[str, Any]:
    """A recipe whose stages practise notes."""
    data = recipe_data(model_path, temperature=1.0)
    return data | {
        "judge": {"ask": False},
        "collect": {"shard_age_s": 0.2},
        "train": {
            "method": "opd_topk", "topk": 8, "teacher": "base", "divergence": "forward", "lora": {"rank": 4}, "batch_turns": 4,
            "hint_place": "line", "threads": 1, "batch_wait_s": 60,
        },
        "play": {"parallel": 4},
        "eval": {"holdout": 0},
        "practice": {"when": "idle", "idle_s": 0.2, "steps": 2, "max_tokens": 6, "learned_at": 1.0},
        "up": {"stages": ["serve", "collect", "judge", "train", "practice"]},
        **sections,
    }  # fmt: skip


def test_a_note_is_practised_and_measured_and_what_is_taken_back_is_practised_away(tmp_path: Path, model_path: Path) -> None:
    data = practising(model_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    with stages(tmp_path, path) as run:
        server = Endpoint(f"{yaml.safe_load((run.root / 'serve.json').read_text())['url']}", "key", "tiny")
        for request in REQUESTS:
            body = {"model": "tiny", "messages": request, "max_tokens": 4, "session_done": True}
            httpx.post(f"{server.url}/chat/completions", json=body, headers={"authorization": "Bearer key"}, timeout=60)
        wait_for(lambda: len(verdicts_of(run)) == len(REQUESTS), "the requests are judged", tmp_path)
        write_note(run, "default", replace(add_note(run, "default", NOTE).note, state="prompted"))

        def note() -> Note:
            return read_notes(run, "default")[0]

        wait_for(lambda: note().followed, "the note is practised and measured", tmp_path)
        assert (note().state, note().steps) in (("practised", 2), ("learned", 2))
        assert note().followed[0][0] == 2
        played = [turn for turn in turns_of(run) if turn.episode is not None]
        assert {(turn.episode or {})["hint"] for turn in played} == {NOTE, ""}
        assert all(turn.notes is None for turn in played)
        assert len({(turn.episode or {})["plan"] for turn in played}) == 1, "the second step was played with the first"
        assert [read_policy(run, version).metrics["practised"] for version in (1, 2)] == [4, 4]
        write_note(run, "default", replace(note(), state="practised", followed=(), reason=None))
        wait_for(lambda: note().followed, "a measurement that was broken off is made up for", tmp_path)
        assert note().followed[0][0] == 2, "no step was needed for it"
        write_note(run, "default", replace(note(), state="retracted"))
        wait_for(lambda: note().steps == 0, "what was taken back is practised away", tmp_path)
        later = [turn for turn in turns_of(run) if turn.episode is not None and turn.created_at > played[-1].created_at]
        assert {(turn.episode or {})["hint"] for turn in later[1:]} <= {"", NOTE}
        assert note().state == "retracted"
        for text in ("say thanks a lot", "ask how they are"):
            other = add_note(run, "default", text).note
            write_note(run, "default", replace(other, state="prompted"))
            hinted = lambda: any(text in str((turn.episode or {}).get("hint")) for turn in turns_of(run))  # noqa: B023, E731
            wait_for(hinted, "a note that is deleted meanwhile ends no stage", tmp_path)
            (run.notes / "default" / f"{other.id}.md").unlink()


def test_a_note_of_a_key_with_its_own_policy_is_practised_in_that_policy_alone(tmp_path: Path, model_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(practising(model_path, policies={"per": "key"})))
    with stages(tmp_path, path) as run:
        url, key = yaml.safe_load((run.root / "serve.json").read_text())["url"], add_key(run, "anna", "anna")
        begin_policies(run)
        headers, answered = {"authorization": f"Bearer {key}"}, list[int]()
        wait_for(lambda: httpx.get(f"{url}/models", headers=headers).status_code == 200, "the key is known", tmp_path)
        for request in REQUESTS:
            body = {"model": "tiny", "messages": request, "max_tokens": 4, "session_done": True}
            answered.append(httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=60).status_code)
        assert set(answered) == {200}
        wait_for(lambda: len(verdicts_of(run)) == len(REQUESTS), "the requests are judged", tmp_path)
        write_note(run, "anna", replace(add_note(run, "anna", NOTE).note, state="prompted"))
        wait_for(lambda: read_notes(run, "anna")[0].followed, "the note is practised and measured", tmp_path)
        played = [turn for turn in turns_of(run) if turn.episode is not None]
        assert {(turn.user, turn.policy_name) for turn in played} == {("anna", "anna")}
        assert list_versions(run) == [0], "the shared policy has learned nothing"
        assert read_policy(run.of("anna"), 1).metrics["practised"] == 4
        assert read_notes(run, "anna")[0].followed[0][0] == 2
