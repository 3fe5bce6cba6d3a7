"""A note is in the prompt of its key's next request, and in nobody else's. Captures keep what was sent, and say what was added."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import orjson
import pytest
from served import Server
from transformers import AutoTokenizer

from clawctl.collect.captures import parse_exchange
from clawctl.collect.sessions import Sessions
from clawctl.config import Recipe
from clawctl.engines.requests import GenerationRequest
from clawctl.run.directory import RunDir, open_run
from clawctl.run.keys import add_key
from clawctl.run.notes import add_note, change_note, read_notes
from clawctl.run.policies import Policy, begin_policy, ensure_base_policy, move_live, publish_policy
from clawctl.serve.notes import Notes
from tests.extension import needs
from tests.waiting import until

SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("notes") / "run", model_path) as server:
        yield server
        assert server.stop() == 0, server.log.read_text()


@pytest.fixture
def server(served: Server) -> Server:
    """The server without notes."""
    for path in served.run.notes.rglob("*.md"):
        path.unlink()
    return served


def call(server: Server, method: str, path: str = "/notes", key: str = "key", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, server.url + path, json=body or None, headers=headers, timeout=60)


def seen(server: Server, model_path: Path) -> str:
    """The prompt of the last captured exchange."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
    return str(tokenizer.decode(server.captured()[-1]["prompt_ids"]))


def test_a_note_holds_from_the_next_request_until_it_is_taken_back(server: Server, model_path: Path) -> None:
    answer = call(server, "POST", text="Answer in Spanish.").json()
    assert (answer["object"], answer["id"], answer["state"], answer["superseded"]) == ("note", "answer-in-spanish", "new", [])
    server.say("hello")
    assert "hello\n\n[user's hint / instruction]\nAnswer in Spanish." in seen(server, model_path)
    captured = server.captured()[-1]
    assert captured["messages"] == [{"role": "user", "content": "hello"}]
    assert captured["notes"] == {"ids": ["answer-in-spanish"], "text": "Answer in Spanish.", "place": "block"}
    assert [note["id"] for note in call(server, "GET").json()["data"]] == ["answer-in-spanish"]
    assert call(server, "DELETE", "/notes/answer-in-spanish").json()["state"] == "retracted"
    server.say("hello")
    assert "Spanish" not in seen(server, model_path)
    assert server.captured()[-1]["notes"] is None


def test_a_file_that_is_written_edited_or_deleted_by_hand_counts_from_the_next_request(server: Server, model_path: Path) -> None:
    path = server.run.notes / "default" / "mine.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("Answer in rhymes.")
    server.say("hello")
    assert "Answer in rhymes." in seen(server, model_path)
    path.write_text("Answer in riddles.")
    server.say("hello")
    assert "Answer in riddles." in seen(server, model_path)
    path.unlink()
    server.say("hello")
    assert "Answer in r" not in seen(server, model_path)


def test_what_a_message_asks_to_remember_is_a_note_at_once(server: Server, model_path: Path) -> None:
    for text in ("/remember Answer in Spanish.", "Remember: my daughter is Ruth"):
        server.say(text)
    notes = read_notes(server.run, "default")
    assert [note.text for note in notes] == ["Answer in Spanish.", "my daughter is Ruth"]
    for text in ("I remember: nothing. /remember this too", "remember: always say thanks\nand here is the rest of the page"):
        server.say(text)
    assert len(read_notes(server.run, "default")) == 2
    assert "Answer in Spanish.\nmy daughter is Ruth" in seen(server, model_path)


def test_a_damaged_file_of_the_run_leaves_notes_out_and_refuses_no_request(server: Server, model_path: Path) -> None:
    call(server, "POST", text="Answer in Spanish.")
    recipe = Recipe.model_validate({"train": {"method": "opd_topk", "hint_place": "auto"}})
    notes = Notes(server.run, recipe, cast(Any, SimpleNamespace(live=SimpleNamespace(version=0, max_context=None), people=None)))
    request: Any = SimpleNamespace(
        key="default", model="tiny", messages=[{"role": "user", "content": "hello"}], continues=False, prompts=()
    )
    server.run.hint_place.write_bytes(b"{")
    try:
        assert asyncio.run(notes.applied(request, {}, {})) is request
    finally:
        server.run.hint_place.unlink()


def test_nobody_reads_or_ends_anothers_notes(server: Server, model_path: Path) -> None:
    add_note(server.run, "bert", "Answer in German.")
    bert = add_key(server.run, "bert")
    until(lambda: call(server, "GET", key=bert).status_code == 200, 30)  # the server reads new keys now and then
    call(server, "POST", text="Answer in Spanish.")
    assert [note["text"] for note in call(server, "GET", key=bert).json()["data"]] == ["Answer in German."]
    assert call(server, "DELETE", "/notes/answer-in-spanish", key=bert).status_code == 404
    headers = {"Authorization": f"Bearer {bert}"}
    server.say("hello", extra_headers=headers)
    assert "Answer in German." in seen(server, model_path)
    assert "Spanish" not in seen(server, model_path)
    assert call(server, "GET", key="wrong").status_code == 401


@pytest.mark.parametrize(
    "settings",
    [{"extra_headers": {"X-Notes": "off"}}, {"extra_headers": {"X-Turn-Type": "side"}}, {"extra_body": {"turn_type": "side"}}],
)
def test_requests_that_want_no_notes_get_none(server: Server, model_path: Path, settings: dict[str, Any]) -> None:
    call(server, "POST", text="Answer in Spanish.")
    server.say("hello", **settings)
    assert "Spanish" not in seen(server, model_path)


def test_a_note_with_words_is_shown_with_requests_that_contain_one(server: Server, model_path: Path) -> None:
    call(server, "POST", text="Show an example.", words=["code", "script"], when="I ask about code")
    server.say("help me with my code")
    assert "Show an example." in seen(server, model_path)
    server.say("help me with my homework")
    assert "Show an example." not in seen(server, model_path)


def test_notes_are_beside_a_system_prompt_and_tool_results_and_change_no_earlier_message(server: Server, model_path: Path) -> None:
    call(server, "POST", text="Answer in Spanish.")
    function = {"name": "f", "arguments": "{}"}
    messages: Any = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
    prompt = seen(server, model_path)
    assert prompt.count("Answer in Spanish.") == 1
    assert prompt.index("second") < prompt.index("Answer in Spanish.") < prompt.index("42")
    assert server.captured()[-1]["messages"][:4] == messages[:4]


def test_a_noted_answer_becomes_a_row_that_says_which_notes_it_saw(server: Server) -> None:
    call(server, "POST", text="Answer in Spanish.")
    before = len(server.captured())
    first = server.say("hello").choices[0].message.content
    messages: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "no"},
    ]
    main = {"X-Turn-Type": "main"}
    server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, extra_headers=main)
    sessions = Sessions(3600.0)
    for line in server.captured()[before:]:
        sessions.add(parse_exchange(orjson.dumps(line)))
    (row,) = [turn for turn in sessions.pop_rows() if turn.next_state]
    assert row.trainable
    assert row.notes is not None
    assert row.notes["text"] == "Answer in Spanish."
    assert row.next_state == [{"role": "user", "content": "no"}]


@needs("secrets")
def test_a_secret_in_a_note_reaches_neither_file_nor_capture(server: Server, model_path: Path) -> None:
    call(server, "POST", text=f"Use the token {SECRET} for every call.")
    assert SECRET not in (server.run.notes / "default").joinpath("use-the-token-redacted-api-key-for-every.md").read_text()
    path = server.run.notes / "default" / "hand.md"
    path.write_text(f"Use the token {SECRET} now.")
    server.say("hello")
    written = b"".join(path.read_bytes() for path in server.run.captures.glob("*.jsonl"))
    assert SECRET.encode() not in written
    assert SECRET not in seen(server, model_path)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": 3}, "text"),
        ({"text": "x" * 2001}, "text"),
        ({"text": "x", "kind": "dream"}, "kind"),
        ({"text": "x", "when": 3}, "when"),
        ({"text": "x", "words": 3}, "words"),
        ({"text": "x", "state": "learned"}, None),
    ],
)
def test_a_bad_note_is_refused_with_the_field(server: Server, body: dict[str, Any], param: str | None) -> None:
    answer = call(server, "POST", **(body or {"kind": "wish"}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert read_notes(server.run, "default") == []


def test_only_the_methods_of_notes_are_allowed(server: Server) -> None:
    assert call(server, "PUT", text="x").status_code == 405
    assert call(server, "GET", "/notes/mine").status_code == 405
    assert call(server, "DELETE", "/notes/mine").status_code == 404


# ---- what was learned ----------------------------------------------------------------------------------------------------


def chosen(run: RunDir, live: int, context: int | None = None) -> list[str]:
    notes = Notes(run, Recipe(), cast(Any, SimpleNamespace(live=SimpleNamespace(version=live, max_context=context), people=None)))
    request = cast(GenerationRequest, SimpleNamespace(key="default", messages=[{"role": "user", "content": "hello"}]))
    shown, _ = notes._chosen(request)
    return [note.id for note in shown]


def test_a_learned_note_leaves_the_prompt_of_the_versions_that_descend_from_it(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "tiny")
    for version, parent in {1: 0, 2: 1, 3: 1, 4: 2}.items():
        publish_policy(run, Policy(version, parent, version, None, "full", "tiny", [], None, {}, 0.0), lambda folder: None)
    note = add_note(run, "default", "Answer in Spanish.").note
    change_note(run, "default", note.id, state="learned", learned=2)
    assert [live for live in range(5) if chosen(run, live)] == [0, 1, 3]


def test_what_the_shared_policy_learned_stays_learned_when_its_person_gets_a_policy(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "tiny")

    def publish(policy_run: RunDir, version: int) -> None:
        policy = Policy(version, version - 1, version, None, "full", "tiny", [], None, {}, 0.0, name=policy_run.policy)
        publish_policy(policy_run, policy, lambda folder: None)
        move_live(policy_run, version, by="test")

    publish(run, 1)
    before, after = (add_note(run, "anna", text).note for text in ("Answer in Spanish.", "Be brief."))
    change_note(run, "anna", before.id, state="learned", learned=1)
    begin_policy(run, "anna")
    publish(run, 2)
    publish(run.of("anna"), 1)
    change_note(run, "anna", after.id, state="learned", learned=2)  # by a shared version that anna's policy does not have
    people = SimpleNamespace(policy_of=lambda key: key)
    versions = SimpleNamespace(live=SimpleNamespace(version=2, max_context=None), people=people)
    notes = Notes(run, Recipe(), cast(Any, versions))
    request = cast(GenerationRequest, SimpleNamespace(key="anna", messages=[{"role": "user", "content": "hello"}]))
    shown, learned = notes._chosen(request)
    assert ([note.text for note in shown], [note.text for note in learned]) == (["Be brief."], ["Answer in Spanish."])


def test_the_row_has_what_was_learned_for_the_teacher(server: Server, model_path: Path) -> None:
    learned = add_note(server.run, "default", "Answer in Spanish.").note
    change_note(server.run, "default", learned.id, state="learned", learned=0)
    server.say("hello")
    assert "Spanish" not in seen(server, model_path)
    assert server.captured()[-1]["notes"] == {"ids": [], "text": "", "place": "block", "learned": ["Answer in Spanish."]}
    add_note(server.run, "default", "Be brief.")
    server.say("hello")
    assert server.captured()[-1]["notes"]["text"] == "Be brief."
    assert server.captured()[-1]["notes"]["learned"] == ["Answer in Spanish."]
    assert "instruction]\nBe brief.<" in seen(server, model_path)


def prompt_of(tokenizer: Any, text: str) -> list[int]:
    ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
    return list(ids)


def test_a_request_that_is_too_long_with_its_notes_is_answered_without_them(server: Server, model_path: Path) -> None:
    context = call(server, "GET", "/models").json()["data"][0]["max_model_len"]
    tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
    text = "x" * context
    while (count := len(prompt_of(tokenizer, text))) > context - 4:
        text = text[: -(count - context + 4)]
    call(server, "POST", text="Answer in Spanish, and in German as well, and in French.")
    server.say(text, max_tokens=1)
    assert server.captured()[-1]["notes"] is None
    assert sum(line["messages"][0]["content"] == text for line in server.captured()) == 1, "it is captured once"


def test_of_too_many_notes_those_that_name_a_word_of_the_request_come_first_then_the_newest(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    for number in range(5):
        add_note(run, "default", f"{'x' * 600} number {'i' * number}.")
    add_note(run, "default", "y" * 700, words=("hello",))
    ids = chosen(run, 0)
    texts = {note.id: note.text for note in read_notes(run, "default")}
    assert [texts[name][:1] for name in ids] == ["x", "x", "y"]
    assert sum(len(texts[name]) for name in ids) <= 2000
    assert [texts[name][:1] for name in chosen(run, 0, 1500)] == ["y"]  # an eighth of a short context, at four characters a token


def test_notes_that_are_sent_together_are_all_kept_and_too_many_are_refused(server: Server) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda n: call(server, "POST", text=f"Mention the number {'i' * n} {n}.", kind="fact"), range(24))
        )
    assert {answer.status_code for answer in answers} == {200}
    assert len(read_notes(server.run, "default")) == 24
    for number in range(500 - 24):
        (server.run.notes / "default" / f"n{number}.md").write_text("Be kind.")
    refused = call(server, "POST", text="One more.")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_notes")
    assert "clawctl notes forget" in refused.json()["error"]["message"]
