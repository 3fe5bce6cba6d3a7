"""SIGKILL any worker in the middle of its work: no answered turn is lost, none is trained twice, no half file is ever read."""

import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.shards import read_turn_ids
from scripts.benchmarks.chaos import broken_laws
from scripts.benchmarks.chaos_audit import Found, Watcher, audit
from scripts.benchmarks.chaos_clients import Rated
from scripts.benchmarks.chaos_kill import Outcome, kill, numbers, problems_of
from scripts.benchmarks.table import Row
from tests import forked

VICTIMS = ("serve", "collect", "judge", "train", "all")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("chaos")
    return kill(folder, len(VICTIMS), seed=0, clients=6, victims=VICTIMS, begin=lambda words, log: forked.Command(words[4:], log))


def test_killed_workers_lose_no_answer_and_train_no_turn_twice(outcome: Outcome) -> None:
    assert {name: listed for name, listed in problems_of(outcome).items() if listed} == {}
    assert broken_laws([Row("kill", *number) for number in numbers(outcome)]) == []
    assert len(outcome.answered) > 20
    assert outcome.counts.trained > 0


def test_after_the_kills_all_is_read_judged_and_learned_from(outcome: Outcome) -> None:
    assert outcome.learned
    assert outcome.drained
    assert outcome.starts == 4 + 4 + 4  # four stages at first, four killed one by one, four at once
    assert outcome.ended_alone == 0
    assert outcome.refused == 0


# ---- the audit itself: what it must find, put there by hand --------------------------------------------------------------


@pytest.fixture
def copy(outcome: Outcome, tmp_path: Path) -> RunDir:
    shutil.copytree(outcome.run.root, tmp_path / "run")
    return open_run(tmp_path / "run", create=False)


def audited(outcome: Outcome, run: RunDir) -> Found:
    return audit(run, outcome.answered, outcome.rated, [])


def test_the_audit_reports_turns_without_a_shard_and_duplicate_turns(outcome: Outcome, copy: RunDir) -> None:
    gone, *_, double = published(copy.trajectories, ".parquet")
    lost, doubled = set(read_turn_ids(gone)), set(read_turn_ids(double))
    gone.unlink()
    shutil.copy(double, double.with_name("99999999999999999999-ffffff.parquet"))
    counts = audited(outcome, copy)
    assert set(counts.lost) == lost
    assert set(counts.doubled) == doubled


def test_the_audit_finds_an_answer_that_the_client_did_not_receive(outcome: Outcome, copy: RunDir) -> None:
    first, *others = outcome.answered
    counts = audit(copy, [replace(first, text=first.text + "!"), *others], [], [])
    assert counts.altered == [first.turn_id]
    unheard = audit(copy, [replace(first, turn_id="0" * 24), *others], [Rated("0" * 24, 1.0)], [])
    assert unheard.lost == ["0" * 24]
    assert unheard.lost_ratings == ["0" * 24]


def test_the_audit_finds_turns_of_two_steps_and_steps_whose_records_differ(outcome: Outcome, copy: RunDir) -> None:
    ledger = copy.train / "ledger"
    first = orjson.loads((ledger / "1.json").read_bytes())
    beyond = max(int(path.stem) for path in ledger.glob("[0-9]*.json")) + 1
    (ledger / f"{beyond}.json").write_bytes(orjson.dumps({**first, "step": beyond}))
    shutil.copytree(copy.policies / "1", copy.policies / str(beyond))
    policy = copy.policies / str(beyond) / "policy.json"
    row = orjson.loads(policy.read_bytes())
    del row["crc32"]  # as if it were written by hand
    policy.write_bytes(orjson.dumps({**row, "version": beyond}))
    shutil.copy(copy.train / "turns" / "1.parquet", copy.train / "turns" / f"{beyond}.parquet")
    counts = audited(outcome, copy)
    assert set(counts.trained_twice) == {turn_id for turn_ids in first["turns"].values() for turn_id in turn_ids}
    assert len(counts.inconsistent_steps) == 2  # no row in steps.jsonl; and the parent is another


def test_the_audit_finds_a_policy_that_learned_from_turns_of_another_person(outcome: Outcome, copy: RunDir) -> None:
    assert audited(outcome, copy).trained_others_turns == []
    anna = copy.of("anna")
    shutil.copytree(copy.version_folder(1), anna.version_folder(1))
    for source, target in ((copy.ledger_entry(1), anna.ledger_entry(1)), (copy.record(1), anna.record(1))):
        target.parent.mkdir(parents=True)
        shutil.copy(source, target)
    policy = anna.version_folder(1) / "policy.json"
    row = orjson.loads(policy.read_bytes())
    del row["crc32"]  # as if it were written by hand
    policy.write_bytes(orjson.dumps({**row, "name": "anna"}))
    first = orjson.loads(copy.ledger_entry(1).read_bytes())
    learned = {line.split()[0] for line in audited(outcome, copy).trained_others_turns}
    assert learned == {turn_id for turn_ids in first["turns"].values() for turn_id in turn_ids}


def test_a_concurrent_reader_notices_half_a_file(copy: RunDir) -> None:
    watcher = Watcher(copy)
    watcher.poll()
    assert watcher.half == []
    shard = published(copy.verdicts, ".parquet")[0]
    (copy.verdicts / f"{shard.stem}-half.parquet").write_bytes(shard.read_bytes()[:-100])
    (copy.train / "feed.json").write_bytes(b'{"used": 3')
    watcher.poll()
    assert sorted(line.partition(":")[0] for line in watcher.half) == [f"{shard.stem}-half.parquet", "feed.json"]


def test_a_law_that_is_not_kept_is_named() -> None:
    rows = [
        Row("kill", "lost_turns", 1.0, "turns"),
        Row("kill", "trained_twice", 0.0, "turns"),
        Row("kill", "rounds", 8.0, "rounds"),
    ]
    assert broken_laws(rows) == ["kill lost_turns = 1"]
