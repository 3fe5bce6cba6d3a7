"""After `forget`, no byte of the conversation is in the run, all other data is untouched, and training continues without it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from clawctl.errors import ClawError
from clawctl.privacy.command import parse_selection
from clawctl.privacy.forget import forget
from clawctl.privacy.rewriting import rewrite_appended
from clawctl.privacy.rollback import learned_from
from clawctl.privacy.selection import Selection, select
from clawctl.run.directory import RunDir, claimed, open_run, publish_bytes, published, sole_worker
from clawctl.run.notes import add_note, keys_with_notes, read_notes
from clawctl.run.policies import live_version, publish_policy
from clawctl.run.rows import Policy, Verdict
from clawctl.run.shards import read_turns, read_verdicts, write_turns, write_verdicts
from tests import forked
from tests.inspect.example_run import run as example
from tests.inspect.example_run import turn
from tests.serve.served import Server, build_model
from tests.waiting import exit_code_of, until

__all__ = ["example"]

MARKER = "xyzzy plugh 7331"
OTHER = "somebody else entirely"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"))


def chat(server: Server, session: str | None, text: str, turns: int = 2, done: bool = False) -> list[dict[str, Any]]:
    """A conversation of some turns; the user's words repeat `text` in each."""
    messages: list[dict[str, Any]] = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{text} {number}"})
        headers = ({"X-Session-Id": session} if session else {}) | ({"X-Session-Done": "1"} if done and number == turns - 1 else {})
        reply = server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, extra_headers=headers)  # type: ignore[arg-type]
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return messages


def collect(run: RunDir) -> None:
    assert forked.run("collect", "--once", "--run", run.root).returncode == 0


def every_text(run: RunDir, model_path: Path) -> Iterator[tuple[str, str]]:
    """The text of all files of the run: bytes, unpacked shards and decoded token ids."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    for path in sorted(path for path in run.root.rglob("*") if path.is_file()):
        name = str(path.relative_to(run.root))
        yield name, name
        yield name, path.read_bytes().decode(errors="replace")
        rows: list[dict[str, Any]] = []
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
        elif path.parent == run.captures:
            rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        for row in rows:
            yield name, repr(row)
            for ids in (row.get("prompt_ids"), row.get("completion_ids")):
                yield name, tokenizer.decode(ids or [])


def plant_what_stages_would_write(run: RunDir, ids: list[str]) -> None:
    """Verdicts with hints, two policies, ledger, feedback, a judge's journal, trained rows, and quarantined files."""
    for path in published(run.trajectories, ".parquet"):
        rows = [(row, row.turn_id in ids) for row in read_turns(path)]
        verdicts = [
            Verdict(row.turn_id, 1.0, [1], f"About {MARKER if is_own else OTHER}: be brief.", [], "crafts@0", None, 0.1)
            for row, is_own in rows
        ]
        write_verdicts(run.verdicts / path.name, verdicts)
    for version, trained in ((1, ["someone-elses"]), (2, ids[:1]), (3, ["another"])):
        publish_policy(
            run, Policy(version, version - 1, version, "combine", "full", "tiny", trained, None, {}, 0.0), lambda folder: None
        )
        (run.train / "ledger").mkdir(exist_ok=True)
        entry = {"step": version, "outcome": "trained", "reason": None, "turns": {"a": trained}}
        publish_bytes(run.train / "ledger" / f"{version}.json", orjson.dumps(entry))
    for folder, name in (("feedback", "f.jsonl"), ("judge", "journal.jsonl"), ("train/turns", "2.jsonl")):
        (run.root / folder).mkdir(parents=True, exist_ok=True)
        lines = [{"turn_id": turn_id, "comment": MARKER} for turn_id in ids] + [{"turn_id": "kept", "comment": OTHER}]
        (run.root / folder / name).write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (run.train / "checkpoints" / "2").mkdir(parents=True)
    record = run.train / "checkpoints" / "2" / "turns.parquet"
    write_turns(record, [row for path in published(run.trajectories, ".parquet") for row in read_turns(path)])
    os.link(record, run.train / "turns" / "2.parquet")
    (run.verdicts / "waiting.jsonl").write_bytes(b"\n" + orjson.dumps({"turn_id": ids[0], "hint": MARKER}) + b"\n")
    publish_bytes(run.quarantine / "captures-x-0.jsonl", f'{{"exchange_id":"torn {MARKER}\n'.encode())
    publish_bytes(run.quarantine / "captures-x-0.jsonl.reason.txt", b"torn line\n")
    publish_bytes(run.quarantine / "trajectories-b.parquet", f"PAR1 {MARKER}".encode())


def test_no_byte_of_a_forgotten_session_remains_while_the_server_continues(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        run = server.run
        chat(server, "mine", MARKER, turns=3, done=True)
        chat(server, "theirs", OTHER, turns=3, done=True)
        collect(run)
        chat(server, "mine", f"and again {MARKER}", turns=1)  # not collected yet
        chat(server, "open", OTHER, turns=1)
        others = [row for row in server.captured() if MARKER not in repr(row)]
        ids = [row["exchange_id"] for row in server.captured() if MARKER in repr(row)]
        assert len(ids) == 4
        plant_what_stages_would_write(run, ids)
        assert sum(MARKER in text for _, text in raw_texts(run)) >= 6

        planned = forget(run, Selection(session="mine"), dry_run=True, retrain=False)
        assert (planned.turns, planned.sessions, planned.policies) == (4, 1, [2, 3])
        assert sorted(row["exchange_id"] for row in server.captured() if MARKER in repr(row)) == sorted(ids)
        done = forget(run, Selection(session="mine"), dry_run=False, retrain=False)
        assert (done.turns, done.policies) == (4, [2, 3])
        assert done.removed_whole == ["quarantine/captures-x-0.jsonl", "quarantine/trajectories-b.parquet"]

        files = [name for name, text in every_text(run, model_path) if MARKER in text or "plugh" in text]
        assert files == []
        assert not [name for name, text in every_text(run, model_path) if any(i in text for i in ids) and "policy.json" not in name]
        assert server.captured() == others
        chat(server, "later", OTHER, turns=1)
        assert server.captured()[: len(others)] == others
        assert len(server.captured()) == len(others) + 1, "the writer noticed that its file is gone"
        assert server.health()["capture"]["lost"] == 0
        collect(run)
        assert {row.session_id for path in published(run.trajectories, ".parquet") for row in read_turns(path)} == {"theirs"}
        verdicts = [row for path in published(run.verdicts, ".parquet") for row in read_verdicts(path)]
        assert len(verdicts) == 3
        (ratings,) = published(run.root / "feedback", ".jsonl")
        assert ratings.read_bytes() == orjson.dumps({"turn_id": "kept", "comment": OTHER}) + b"\n"
        assert forget(run, Selection(session="mine"), dry_run=False, retrain=False).turns == 0


def raw_texts(run: RunDir) -> Iterator[tuple[str, str]]:
    for path in (path for path in run.root.rglob("*") if path.is_file()):
        yield path.name, path.read_bytes().decode(errors="replace")


def test_a_conversation_without_a_header_is_identified_by_its_earlier_turns(tmp_path: Path, model_path: Path) -> None:
    with Server(tmp_path / "run", model_path) as server:
        messages = chat(server, None, MARKER, turns=2)
        chat(server, None, OTHER, turns=2)
        collect(server.run)  # the last turns of both are open and only in captures
        first = next(row for row in server.captured() if MARKER in repr(row))
        assert messages[1]["content"] == first["response"]["content"]
        assert forget(server.run, Selection(session=f"s{first['exchange_id']}"), dry_run=False, retrain=False).turns == 2
        assert [name for name, text in every_text(server.run, model_path) if MARKER in text] == []
        assert len(server.captured()) == 2


def test_a_user_takes_everything_along(example: RunDir) -> None:
    done = forget(example, Selection(user="other"), dry_run=False, retrain=False)
    assert (done.turns, done.policies) == (1, [])
    assert [row.turn_id for path in published(example.trajectories, ".parquet") for row in read_turns(path)] == [
        "t1", "t2", "t3", "t4", "t5", "t6",
    ]  # fmt: skip


def test_notes_go_with_their_user_and_with_the_turn_that_they_came_from(example: RunDir) -> None:
    victim = next(turn for path in published(example.trajectories, ".parquet") for turn in read_turns(path))
    other = "anna" if victim.user != "anna" else "bert"
    add_note(example, "carl", "Answer in Spanish.")
    add_note(example, other, "Answer in German.")
    add_note(example, other, "Answer in verse.", turns=(victim.turn_id,))
    assert forget(example, Selection(user="carl"), False, False).notes == ["carl/answer-in-spanish"]
    assert keys_with_notes(example) == [other]
    forget(example, Selection(session=victim.session_id, user=victim.user), False, False)
    assert [note.text for note in read_notes(example, other)] == ["Answer in German."]


def test_before_means_whole_sessions_for_their_later_turns_repeat_the_earlier(example: RunDir) -> None:
    write_turns(example.trajectories / "c.parquet", [turn("t8", "s9", created_at=1500.0)])
    done = forget(example, Selection(before=1001.0), dry_run=False, retrain=False)
    assert (done.turns, done.policies) == (5, [1])
    assert not (example.trajectories / "a.parquet").exists()
    assert not (example.verdicts / "a.parquet").exists()
    assert orjson.loads((example.train / "ledger" / "1.json").read_bytes())["turns"] == {"a": []}
    assert [row.turn_id for path in published(example.trajectories, ".parquet") for row in read_turns(path)] == ["t6", "t7", "t8"]


def test_two_users_may_name_a_session_alike_and_schema_and_rest_of_a_shard_stay(example: RunDir) -> None:
    path = example.trajectories / "b.parquet"
    before = pq.read_table(path)
    forget(example, Selection(session="s3"), dry_run=False, retrain=False)
    after = pq.read_table(path)
    assert after.schema.metadata == before.schema.metadata
    assert after.to_pylist() == before.to_pylist()[:1]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_broken_off_forget_is_ended_by_the_next(example: RunDir) -> None:
    """Trajectories are deleted last: while they exist, the same turns are found again."""
    (example.verdicts / "a.parquet").unlink()
    assert forget(example, Selection(session="s1"), dry_run=False, retrain=False).turns == 5
    assert select(example, Selection(session="s1")).turn_ids == set()


@pytest.mark.parametrize("stage", ["collect", "train", "practice"])
def test_forget_is_refused_while_a_worker_has_the_data_in_memory(example: RunDir, stage: str) -> None:
    with sole_worker(example, stage), pytest.raises(ClawError, match=f"is already the {stage} worker") as caught:
        forget(example, Selection(session="s1"), dry_run=False, retrain=False)
    assert "serve can keep running" in caught.value.fix
    assert len(select(example, Selection(session="s1")).turn_ids) == 5


def test_a_worker_that_may_be_stopped_ends_cleanly_and_its_place_is_free_again_afterwards(example: RunDir) -> None:
    worker = subprocess.Popen([sys.executable, "-m", "clawctl", "collect", "--run", str(example.root)], stderr=subprocess.DEVNULL)
    try:
        until((example.locks / "collect.owner").exists)
        assert forget(example, Selection(session="s1"), dry_run=False, retrain=False, end_workers=True).turns == 5
        assert exit_code_of(worker) == 0
        with sole_worker(example, "collect"):
            pass
    finally:
        worker.kill()
        worker.wait()


def test_a_judge_with_these_turns_in_hand_is_waited_for(example: RunDir) -> None:
    with claimed(example, "judge-b"), pytest.raises(ClawError, match="a judge is working on b"):
        forget(example, Selection(session="s2"), dry_run=False, retrain=False)
    assert len(select(example, Selection(session="s2")).turn_ids) == 1


def test_a_policy_learned_from_the_turns_of_its_ancestors(example: RunDir) -> None:
    for version in (2, 3):
        publish_policy(
            example,
            Policy(version, version - 1, version, "combine", "full", "crafts", [f"x{version}"], None, {}, 0.0),
            lambda folder: None,
        )
    assert learned_from(example, {"t2"}) == [1, 2, 3]
    assert learned_from(example, {"x3"}) == [3]
    assert learned_from(example, {"nobody"}) == []


def test_an_earlier_forgotten_turn_can_still_be_trained_away(example: RunDir) -> None:
    forget(example, Selection(session="s1"), dry_run=False, retrain=False)
    done = forget(example, None, dry_run=False, retrain=True)
    assert done.policies == [1]
    assert live_version(example) == 0
    assert not (example.policies / "1").exists()
    assert forget(example, None, dry_run=False, retrain=True).policies == []


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ((None, None, None), "no data is selected"),
        (("s", "u", None), "several selections are given"),
        ((None, None, "yesterday"), "is not a day"),
    ],
)
def test_an_unclear_selection_is_refused(typed: tuple[str | None, str | None, str | None], problem: str) -> None:
    with pytest.raises(ClawError, match=problem) as caught:
        parse_selection(*typed, retrain=False)
    assert caught.value.exit_code == 2


def test_forget_requires_a_confirmation(example: RunDir) -> None:
    command = [sys.executable, "-m", "clawctl", "forget", "--run", str(example.root), "--user", "default"]
    refused = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert refused.returncode == 2
    assert "6 of 2 sessions" in refused.stdout
    assert "clawctl cannot ask for confirmation without a terminal" in refused.stderr
    assert subprocess.run([*command, "--yes", "--json"], capture_output=True, check=False).returncode == 0
    assert [row.user for path in published(example.trajectories, ".parquet") for row in read_turns(path)] == ["other"]


@pytest.mark.parametrize("selected", [["--session", "nope"], ["--user", "nope"]])
@pytest.mark.parametrize("mode", [[], ["--yes"], ["--dry-run"], ["--yes", "--json"]])
def test_a_session_or_user_that_has_nothing_here_is_an_error(example: RunDir, selected: list[str], mode: list[str]) -> None:
    ended = forked.run("forget", "--run", str(example.root), *selected, *mode)
    assert ended.returncode == 2
    assert "this run has no matching turn" in ended.stderr
    assert "inspect sessions" in ended.stderr


def test_nothing_that_is_old_enough_is_no_error(example: RunDir) -> None:
    assert forked.run("forget", "--run", str(example.root), "--before", "1980-01-01", "--yes").returncode == 0


def test_a_rating_that_is_being_written_meanwhile_is_not_lost(tmp_path: Path) -> None:
    """Its writer opens the file by name for each line and takes no lock."""
    path = tmp_path / "w-0.jsonl"
    path.write_bytes(b'{"turn_id":"mine"}\n{"turn_id":"a"}\n')
    with path.open("ab", buffering=0) as late:
        writing = threading.Timer(0.02, lambda: late.write(b'{"turn_id":"b"}\n'))
        writing.start()
        assert rewrite_appended(path, lambda row: row["turn_id"] == "mine") == 1
        writing.join()
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b'{"turn_id":"a"}\n{"turn_id":"b"}\n'


def test_torn_lines_go_with_any_rewriting_and_readable_ones_stay(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    lines = [
        orjson.dumps({"exchange_id": name, "key": key, "created_at": 1.0, "messages": [], "response": None})
        for name, key in (("a", "x"), ("b", "y"))
    ]
    (run.captures / "w-0.jsonl").write_bytes(b"\n".join([lines[0], b'{"exchange_id":"c","mess', lines[1], b'{"exch']))
    forget(run, Selection(user="x"), dry_run=False, retrain=False)
    (left,) = published(run.captures, ".jsonl")
    assert left.name != "w-0.jsonl", (
        "a reader that knows the old file by name and place must not go on reading in the middle of this one"
    )
    assert left.read_bytes() == lines[1] + b"\n"
