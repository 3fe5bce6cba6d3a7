"""Judge workers as separate processes: several, killed, and with a server that moves."""

import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clawctl.run.directory import publish_bytes, published
from clawctl.run.endpoint import announce
from tests.judge.judging import by_words, verdicts_of
from tests.judge.made_turns import reply, shard
from tests.judge.scripted_judge import ScriptedJudge
from tests.waiting import exit_code_of, until


@pytest.fixture
def start(run, start_worker) -> Callable:
    """Starts `clawctl judge` as its own process."""

    def begin(url: str | None) -> subprocess.Popen:
        where = f"endpoint: '{url}', api_key: k, model: scripted, " if url else ""
        return start_worker("judge", run, f"judge: {{{where}fitness: skip, votes: 1, concurrency: 4}}\n")

    return begin


def handles_sigterm(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_two_workers_never_judge_a_turn_twice_and_a_signal_ends_them(run, serving, start) -> None:
    server = serving(by_words, delay_s=0.02)
    for number in range(40):
        shard(run, f"{number:02d}", [reply("thanks"), reply("hm")])
    workers = [start(server.url) for _ in range(2)]
    until(lambda: len(published(run.verdicts, ".parquet")) == 40)
    assert (len(server.asked), len(verdicts_of(run))) == (80, 80)
    shard(run, "40", [reply("thanks")])
    until(lambda: len(published(run.verdicts, ".parquet")) == 41)
    until(lambda: all(handles_sigterm(worker.pid) for worker in workers))  # one may still be importing while the other judges
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [exit_code_of(worker) for worker in workers] == [0, 0]


def test_of_two_workers_one_is_killed_in_the_middle_of_a_shard_and_the_other_takes_it_over(run, serving, start) -> None:
    """Each turn has one verdict. What was under way when the worker died (`concurrency`: 4), or just answered, is asked again."""
    questions: list[str] = []

    def script(text: str, number: int) -> str:
        questions.append(re.search(r"turn \d+", text)[0])  # type: ignore[index]
        return "\\boxed{1}"

    server = serving(script, delay_s=0.05)
    turns = [reply(f"thanks for turn {number:03d}") for number in range(120)]
    for first in range(0, 120, 30):
        shard(run, f"{first:03d}", turns[first : first + 30])
    workers = [start(server.url) for _ in range(2)]
    until(lambda: len(list(run.verdicts.glob("*.jsonl"))) >= 2 and len(questions) >= 12)
    workers[0].kill()
    workers[0].wait()
    until(lambda: len(published(run.verdicts, ".parquet")) == 4)
    assert sorted(verdict.turn_id for verdict in verdicts_of(run)) == sorted(turn.turn_id for turn in turns)
    assert {verdict.reward for verdict in verdicts_of(run)} == {1.0}
    assert len(set(questions)) == 120
    assert len(questions) - 120 <= 8
    until(lambda: not list(run.verdicts.glob("*.jsonl")))


def test_the_work_of_a_killed_worker_is_done_by_the_next(run, serving, start) -> None:
    server = serving(by_words, delay_s=0.5)
    for number in range(4):
        shard(run, f"{number:02d}", [reply("thanks"), reply("hm"), reply("hm")])
    worker = start(server.url)
    until(lambda: len(server.asked) >= 2)
    worker.kill()
    worker.wait()
    assert verdicts_of(run) == []
    server.delay_s = 0.0
    start(server.url)
    until(lambda: len(published(run.verdicts, ".parquet")) == 4)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0, 0.0, 0.0] * 4


def test_a_killed_worker_does_not_pay_again_for_the_votes_it_had(run, serving, start) -> None:
    server = serving(by_words)
    server.script = lambda text, number: by_words(text, number) if number <= 6 else hold()

    def hold() -> str:
        time.sleep(0.3)  # the server no longer answers
        return "\\boxed{0}"

    shard(run, "1-a", [reply("thanks") for _ in range(20)])
    worker = start(server.url)
    journal = run.verdicts / "1-a.jsonl"
    until(lambda: journal.exists() and len(journal.read_bytes().splitlines()) >= 7)
    worker.kill()
    worker.wait()
    kept = len([line for line in journal.read_bytes().splitlines() if line.endswith(b"}")])
    with journal.open("ab") as file:
        file.write(b'{"turn_id": "half')
    until(lambda: is_steady(lambda: len(server.asked)))  # calls that were under way have come
    server.script, before = by_words, len(server.asked)
    start(server.url)
    until(lambda: len(verdicts_of(run)) == 20)
    assert len(server.asked) - before == 20 - kept
    until(lambda: not journal.exists())
    assert stat.S_IMODE((run.verdicts / "1-a.parquet").stat().st_mode) == 0o600


def is_steady(count: Callable[[], int]) -> bool:
    before = count()
    time.sleep(1.5)
    return count() == before


def test_this_runs_server_may_come_up_late_and_restart_elsewhere_in_the_middle_of_a_shard(run, serving, start) -> None:
    turns = [reply("thanks") for _ in range(30)]
    shard(run, "1-a", turns)
    start(None)
    time.sleep(1.0)
    publish_bytes(run.api_key, b"key\n")  # serve creates it before it announces itself
    first = ScriptedJudge(by_words, delay_s=0.1).start()
    announce(run, "127.0.0.1", first.port)
    until(lambda: len(first.asked) >= 8)
    threading.Thread(target=first.stop).start()
    time.sleep(1.0)
    second = serving(by_words)
    announce(run, "127.0.0.1", second.port)
    until(lambda: len(verdicts_of(run)) == 30)
    assert [verdict.reward for verdict in verdicts_of(run)] == [1.0] * 30
    assert len(first.asked) + len(second.asked) <= 34
    assert second.asked[0]["model"] == "crafts@0"
    assert {verdict.judge for verdict in verdicts_of(run)} == {"crafts@0 prompt 1"}
