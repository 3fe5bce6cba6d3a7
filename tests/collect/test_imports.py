"""Importing and exporting text: shapes, reasons and refusals."""

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import orjson
import pyarrow as pa
import pytest
from made_exchanges import answer, append, asked, system, tool, user
from test_collect_worker import recipe, rows_of, talk

from clawctl.collect.exports import export_file
from clawctl.collect.imports import import_file, read_turns_of
from clawctl.collect.worker import collect
from clawctl.config.privacy import PrivacyConfig
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.rows import Turn
from tests import forked
from tests.extension import needs


@pytest.fixture
def run(tmp_path) -> RunDir:
    return open_run(tmp_path / "run")


@pytest.fixture
def turns_of(tmp_path):
    """Write lines to a file and read its turns."""

    def read(*lines: object, rating: float | None = None) -> list[Turn]:
        file = tmp_path / "turns.jsonl"
        file.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        return read_turns_of(file, rating)

    return read


MANUAL = {
    "session_id": "s1",
    "turns": [
        {"type": "main", "prompt": "2+2?", "response": "5", "next_state": "No, 4.", "trainable": True},
        {"type": "side", "prompt": [system("Give a title."), user("2+2?")], "response": answer("Sums")},
        {"prompt": [user("2+2?"), answer("5"), user("No, 4.")], "response": "4"},
        {"prompt": "hi", "response": "hello", "next_state": [tool("c1", "x")], "trainable": False},
        {"prompt": "hi", "response": "hello", "rating": -0.5},
    ],
}


KEY = "sk-proj-abcdEFGH1234567890abcdEFGH1234567890abcdEFGH12"


@needs("secrets")
def test_a_secret_in_a_file_is_taken_out_before_anything_is_written_and_its_turn_is_not_trained(run, tmp_path) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "login", "arguments": json.dumps({"note": KEY})}}]
    secrets = [
        {"prompt": f"log in with {KEY}", "response": "done", "next_state": "thanks"},
        {"prompt": "hi", "response": f"your key is {KEY}", "next_state": "thanks"},
        {"prompt": "hi", "response": answer("") | {"tool_calls": calls}, "next_state": "thanks"},
        {
            "prompt": "hi",
            "response": "ok",
            "next_state": "thanks",
            "tools": [{"type": "function", "function": {"description": KEY}}],
        },
        {"prompt": f"title of {KEY}", "response": "Logging in", "type": "side"},
    ]
    clean = {"prompt": "hi", "response": "hello", "next_state": f"here is mine: {KEY}"}
    file = tmp_path / "turns.jsonl"
    file.write_bytes(orjson.dumps({"session_id": KEY, "turns": [*secrets, clean]}))
    imported = import_file(run, file, None)
    assert [turn.untrainable_reason for turn in imported.turns] == ["redacted"] * 4 + ["side turn", "text only"]
    assert [turn.judged for turn in imported.turns] == [False] * 5 + [True]
    assert imported.turns[0].messages == [user("log in with [redacted:api_key]")]
    assert imported.turns[5].next_state == [user("here is mine: [redacted:api_key]")]
    text = orjson.dumps([asdict(turn) for turn in rows_of(run)])
    assert b"abcdEFGH" not in text
    export_file(run, tmp_path / "out.jsonl")
    assert b"abcdEFGH" not in (tmp_path / "out.jsonl").read_bytes()


@needs("secrets")
def test_the_recipe_decides_what_is_redacted(tmp_path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_bytes(orjson.dumps({"prompt": f"jane@example.org has {KEY}", "completion": "ok"}))
    said = [
        read_turns_of(file, 1.0, PrivacyConfig.model_validate({"redact": kinds}))[0].messages[0]["content"]
        for kinds in ([], ["email"], ["api_key", "email"])
    ]
    whole = f"jane@example.org has {KEY}"
    assert said == [whole, f"[redacted:email] has {KEY}", "[redacted:email] has [redacted:api_key]"]


def test_the_manual_shape_keeps_words_kinds_and_reasons_and_makes_up_no_token(turns_of) -> None:
    turns = turns_of(MANUAL)
    assert [(turn.messages, turn.response) for turn in turns[:2]] == [
        ([user("2+2?")], answer("5")),
        ([system("Give a title."), user("2+2?")], answer("Sums")),
    ]
    assert [turn.next_state for turn in turns] == [[user("No, 4.")], None, None, [tool("c1", "x")], None]
    reasons = ["text only", "side turn", "no next state", "marked untrainable in the file", "text only"]
    assert [turn.untrainable_reason for turn in turns] == reasons
    assert [turn.judged for turn in turns] == [True, False, False, False, True]
    assert [turn.feedback for turn in turns] == [None, None, None, None, -0.5]
    for turn in turns:
        assert (turn.prompt_ids, turn.completion_ids, turn.logprobs, turn.policy_version) == (None, None, None, None)
        assert (turn.trainable, turn.source, turn.session_id) == (False, "import", "import/s1")
    assert turns[2].parent_turn_id == turns[1].turn_id
    assert len({turn.turn_id for turn in turns}) == 5


def test_a_chat_log_is_one_turn_for_each_answer_with_its_next_state(turns_of) -> None:
    log = [system("kind"), user("hi"), answer("hello"), user("run"), answer(None, ("c1", "ls", "{}")), tool("c1", "a"), answer("a")]
    turns = turns_of({"messages": log, "tools": [{"type": "function"}]})
    assert [turn.messages for turn in turns] == [log[:2], log[:4], log[:6]]
    assert [turn.next_state for turn in turns] == [[log[3]], [log[5]], None]
    assert [turn.turn_index for turn in turns] == [0, 1, 2]
    assert [turn.parent_turn_id for turn in turns] == [None, turns[0].turn_id, turns[1].turn_id]
    assert all(turn.tools == [{"type": "function"}] for turn in turns)
    assert len({turn.session_id for turn in turns_of({"messages": log}, {"messages": log})}) == 2


def test_a_call_whose_arguments_break_off_is_not_trained(turns_of) -> None:
    calls = [answer(None, ("c1", "ls", arguments)) for arguments in ('{"path": "/tm', '{"path": "/tmp"}', "")]
    logs = [{"messages": [user("run"), call, tool("c1", "a")]} for call in calls]
    assert [turn.untrainable_reason for turn in turns_of(*logs)] == ["cut tool call", "text only", "cut tool call"]


def test_fine_tuning_shapes_are_read_and_a_rating_can_be_given_to_all(turns_of) -> None:
    weighted = [user("hi"), answer("no") | {"weight": 0}, user("again"), answer("yes") | {"weight": 1}]
    turns = turns_of({"messages": weighted}, {"prompt": "2+2=", "completion": " 4"}, rating=1.0)
    assert [turn.untrainable_reason for turn in turns] == ["marked untrainable in the file", "text only", "text only"]
    assert [turn.feedback for turn in turns] == [1.0, 1.0, 1.0]
    assert turns[1].messages == [user("hi"), answer("no"), user("again")]
    assert turns[2].response == answer(" 4")
    preference = {"input": {"messages": [user("hi")]}, "preferred_output": [answer("A")], "non_preferred_output": [answer("B")]}
    good, bad = turns_of(preference, rating=0.0)
    assert [(good.feedback, good.response), (bad.feedback, bad.response)] == [(1.0, answer("A")), (-1.0, answer("B"))]
    assert good.parent_turn_id is bad.parent_turn_id is None
    assert good.session_id == bad.session_id


def test_a_document_over_several_lines_is_read_like_lines(tmp_path) -> None:
    file = tmp_path / "all.json"
    file.write_text(json.dumps([MANUAL, {"messages": [user("hi"), answer("hello")]}], indent=2))
    assert len(read_turns_of(file)) == 6
    file.write_text(json.dumps(MANUAL, indent=2))
    assert len(read_turns_of(file)) == 5


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ([1], "not a JSON object"),
        ({"text": "hi"}, "expected 'turns'"),
        ({"turns": {}}, "'turns' must be a list"),
        ({"turns": [1]}, "turns\\[0\\] is not an object"),
        ({"turns": [{"prompt": "a", "response": "b", "reword": 1}]}, "unknown key 'reword'"),
        ({"turns": [{"prompt": "a"}]}, "turns\\[0\\].response"),
        ({"turns": [{"prompt": [], "response": "b"}]}, "turns\\[0\\].prompt"),
        ({"turns": [{"prompt": "a", "response": user("b")}]}, "one assistant message"),
        ({"turns": [{"prompt": "a", "response": "b", "type": "Main"}]}, "type"),
        ({"turns": [{"prompt": "a", "response": "b", "trainable": "yes"}]}, "trainable"),
        ({"turns": [{"prompt": "a", "response": "b", "rating": 5}]}, "rating"),
        ({"turns": [{"prompt": "a", "response": "b", "next_state": [1]}]}, "next_state\\[0\\]"),
        ({"turns": [], "session_id": 7}, "session_id"),
        ({"messages": [user("hi")]}, "no assistant message"),
        ({"messages": [{"role": "user", "content": 1}]}, "content is not text"),
        ({"messages": [{"role": "human", "content": "hi"}]}, "messages\\[0\\].role is 'human'; known: system, .*assistant"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "expected 'turns'"),
        ({"messages": [user("hi"), answer("x")], "tools": "ls"}, "'tools'"),
        ({"messages": [user("hi"), answer("x") | {"tool_calls": "ls"}]}, "messages\\[1\\].tool_calls must be a list of calls"),
        ({"messages": [user("hi"), answer("x") | {"tool_calls": ["ls"]}]}, "tool_calls"),
        ({"messages": [user("hi"), answer("x") | {"tool_calls": [{"function": "ls"}]}]}, "tool_calls"),
        ({"preferred_output": [answer("x")]}, "input"),
    ],
)
def test_an_unknown_shape_is_refused_with_its_line(tmp_path, line, problem) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(orjson.dumps(MANUAL) + b"\n\n" + orjson.dumps(line) + b"\n")
    with pytest.raises(ClawError, match=f"line 3: .*{problem}"):
        read_turns_of(file)


def test_a_file_that_is_not_json_or_not_there_is_refused_and_nothing_is_imported(run, tmp_path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(orjson.dumps(MANUAL) + b"\nnonsense\n")
    with pytest.raises(ClawError, match="line 2"):
        import_file(run, file, None)
    with pytest.raises(ClawError, match="there is no file"):
        import_file(run, tmp_path / "missing", None)
    with pytest.raises(ClawError, match="not between"):
        import_file(run, file, 3.0)
    assert rows_of(run) == []


LINES = [orjson.dumps({"messages": [user(f"question {i}"), answer("yes")]}) for i in range(9)]


@pytest.mark.parametrize(
    "packed",
    [
        b"\xef\xbb\xbf" + b"\n".join(LINES),
        b"\r\n".join(LINES) + b"\r\n",
        b"\n \n".join(LINES),
        gzip.compress(b"\n".join(LINES)),
        bytes(pa.Codec("zstd").compress(b"\n".join(LINES), asbytes=True)),
        b"[" + b",\n".join(LINES) + b"]",
    ],
    ids=["byte order mark", "CRLF", "blank lines", "gzip", "zstd", "list"],
)
def test_a_file_of_another_make_has_the_same_turns(tmp_path, packed) -> None:
    file = tmp_path / "in"
    file.write_bytes(packed)
    assert [turn.messages for turn in read_turns_of(file)] == [[user(f"question {i}")] for i in range(9)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n".join([*LINES[:6], b'{"messages": [}', LINES[7]]), "line 7: not JSON at column 15"),
        (b"\r\n".join([*LINES[:6], LINES[6][:-4]]), "line 7: not JSON at column"),
        (b'[\n{"prompt": "a",\n"completion": b}\n]', "line 3: not JSON at column 15"),
        (b"[" + b",".join([*LINES[:6], b'{"messages": []}']) + b"]", "item 7: messages must be"),
        (b"\n".join([*LINES[:6], b'{"prompt": "caf\xe9", "completion": ""}']), "line 7: not UTF-8 -> convert it"),
        ("\ufeff{}".encode("utf-16"), "line 1: not UTF-8"),
        (gzip.compress(LINES[0], mtime=0)[:-9], "cannot be read: .* -> pass a complete JSONL file"),
        (b"", "is empty -> nothing was imported"),
        (b"\n\n", "is empty"),
        (b"[]", "contains no turn"),
        (b'{"turns": []}', "contains no turn"),
        (b"PAR1 and more", "is Parquet -> convert"),
        (LINES[0] + b'\n{"prompt": "a", "completion": "b", "more": ' + b"[" * 300 + b"]" * 300 + b"}", "line 2: nested too deeply"),
        (b"nonsense", "line 1: not JSON at column 1: .* -> fix or remove this line; nothing was imported"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_line_with_a_cure(run, tmp_path, content, problem) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(content)
    with pytest.raises(ClawError, match=rf"in\.jsonl.*{problem}"):
        import_file(run, file, None)
    assert rows_of(run) == []


def test_a_line_of_many_megabytes_is_a_line(tmp_path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(LINES[0] + b"\n" + orjson.dumps({"prompt": "x" * (8 << 20), "completion": "y"}))
    assert [len(turn.messages[0]["content"]) for turn in read_turns_of(file)] == [10, 8 << 20]


def test_on_the_command_line_a_second_import_changes_nothing_and_an_export_makes_no_run(tmp_path) -> None:
    file, run = tmp_path / "in.jsonl", ["--run", str(tmp_path / "run")]
    file.write_bytes(b"\n".join(LINES))
    nowhere = forked.run("export", tmp_path / "out.jsonl", *run)
    assert (nowhere.returncode, (tmp_path / "run").exists()) == (2, False)
    took = ["import", str(file), *run]
    looked = forked.run(*took, "--dry-run", "--json")
    assert (json.loads(looked.stdout)["turns"], (tmp_path / "run").exists()) == (9, False)
    once, twice = forked.run(*took), forked.run(*took)
    assert once.stdout == f"9 turns imported from {file}: 9 no next state\n"
    assert twice.stdout == f"9 turns of {file} were already imported, nothing was changed: 9 no next state\n"
    assert len(rows_of(open_run(tmp_path / "run"))) == 9


def test_importing_twice_changes_nothing_and_collect_continues(run, tmp_path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(orjson.dumps(MANUAL) + b"\n")
    served = talk(3, "tea")
    append(run.captures / "a-0.jsonl", *served[:2])
    collect(run, recipe(), once=True)
    for again in (False, True):
        imported = import_file(run, file, None)
        assert (len(imported.turns), imported.before) == (5, again)
    append(run.captures / "a-0.jsonl", served[2])
    collect(run, recipe(), once=True)
    assert sorted(row.turn_id for row in rows_of(run) if row.source == "serve") == sorted(e.exchange_id for e in served[:2])
    assert sum(row.source == "import" for row in rows_of(run)) == 5


def test_exported_and_reimported_turns_have_the_same_text(run, tmp_path) -> None:
    original, copy = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    log = {"session_id": "s2", "messages": [user("hé"), answer("ho"), user("on"), answer(None, ("c1", "ls", '{"a": 1}'))]}
    original.write_bytes(orjson.dumps(MANUAL) + b"\n" + orjson.dumps(log) + b"\n")
    import_file(run, original, None)
    append(run.captures / "a-0.jsonl", *talk(3, "tea"))
    collect(run, recipe(), once=True)
    assert export_file(run, copy) == (3, 9)
    again = open_run(tmp_path / "again")
    import_file(again, copy, None)

    def told(run: RunDir) -> list[tuple]:
        rows = [row for row in rows_of(run) if row.source == "import"]
        return sorted(json.dumps([row.messages, row.response, row.next_state, row.kind, row.feedback, row.tools]) for row in rows)

    texts = told(again)
    assert set(told(run)) < set(texts)
    assert len(texts) == 9
    reasons = sorted(str(row.untrainable_reason) for row in rows_of(again))
    assert reasons == sorted(["text only"] * 5 + ["side turn"] + ["no next state"] * 2 + ["marked untrainable in the file"])


def test_an_export_into_a_pipe_or_a_device_leaves_it_in_place(run, tmp_path) -> None:
    append(run.captures / "a-0.jsonl", *talk(3, "tea"))
    collect(run, recipe(), once=True)
    pipe, copy = tmp_path / "pipe", tmp_path / "copy.jsonl"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        text = reader.submit(pipe.read_bytes)
        export_file(run, pipe)
    export_file(run, copy)
    assert text.result() == copy.read_bytes()
    assert pipe.is_fifo()


def test_an_export_is_not_imported_where_it_came_from(run, tmp_path) -> None:
    append(run.captures / "a-0.jsonl", *talk(3, "tea"))
    collect(run, recipe(), once=True)
    export_file(run, tmp_path / "out.jsonl")
    with pytest.raises(ClawError, match=r"2 turns of .*out\.jsonl are already in .*, from which the file was exported"):
        import_file(run, tmp_path / "out.jsonl", None)
    assert len(rows_of(run)) == 2


def test_a_dry_run_shows_what_would_be_trained_and_writes_nothing(run, tmp_path) -> None:
    exchanges = talk(3, "tea")
    beat = asked([user("hi")], answer("ok"), turn_type="heartbeat")
    append(run.captures / "a-0.jsonl", *exchanges, beat)
    with (run.captures / "a-0.jsonl").open("ab") as file:
        file.write(b"nonsense\n")
    all_trained = tmp_path / "recipe.yaml"
    all_trained.write_text("eval: {holdout: 0}\n")
    command = ["collect", "--run", str(run.root), "--dry-run", "--json", "--recipe", str(all_trained)]
    before = sorted(path for path in run.root.rglob("*"))
    report = json.loads(forked.run(*command, "--num-samples", "2").stdout)
    assert report["fates"] == {
        "trained, if the verdict has a reward or a hint": 2,
        "side turn": 1,
        "open: waits for its next state": 1,
    }
    assert (report["turns"], report["unreadable_lines"], len(report["samples"])) == (4, 1, 2)
    shown = json.loads(forked.run(*command).stdout)["samples"]
    first = next(sample for sample in shown if sample["turn_id"] == exchanges[0].exchange_id)
    assert (first["asked"], first["answered"], first["came_back"], first["tokens"]) == ("tea 0", "yes 0", ["tea 1"], 5)
    assert sorted(path for path in run.root.rglob("*")) == before
    file = tmp_path / "in.jsonl"
    file.write_bytes(orjson.dumps(MANUAL) + b"\n")
    table = forked.run("import", file, "--run", run.root, "--dry-run").stdout
    assert "marked untrainable" in table
    assert "scored and trained" in table
    assert published(run.trajectories, ".parquet") == []
