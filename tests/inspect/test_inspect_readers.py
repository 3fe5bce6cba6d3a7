import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.errors import ClawError
from clawctl.inspect.health import is_judging
from clawctl.inspect.health_lines import show_health
from clawctl.inspect.policies import show_policies
from clawctl.inspect.rows import CachedFiles
from clawctl.inspect.sessions import show_sessions
from clawctl.inspect.turns import show_turns
from clawctl.run.directory import RunDir, claimed, open_run, publish_bytes, quarantine, sole_worker
from clawctl.run.feedback import FeedbackFile
from clawctl.run.fitness import Fitness, JudgeIdentity, publish_fitness
from clawctl.run.rows import TEXT_ONLY, Feedback
from clawctl.run.shards import UnreadableShard, write_turns, write_verdicts
from tests.eval.answering_server import announce, answering
from tests.inspect.example_run import HOSTILE, turn, verdict

Capture = pytest.CaptureFixture[str]


def said(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


def files_of(run: RunDir) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns for path in sorted(run.root.rglob("*")) if path.is_file() and path.parent != run.locks
    }


def test_sessions_count_the_fates_of_their_turns(run: RunDir, capsys: Capture) -> None:
    show_sessions(run, as_json=True)
    report = said(capsys)
    assert report["problems"] == []
    assert [session["session"] for session in report["sessions"]] == ["s1", "s2", "s3"]
    assert report["sessions"][0] == {
        "session": "s1", "user": "default", "turns": 5, "main": 5, "side": 0, "trainable": 4, "judged": 4, "trained": 2,
        "mean_reward": (-1 + 1 + 0 + 1) / 4, "first_seen": 1000.0, "last_seen": 1004.0,
    }  # fmt: skip
    assert (report["sessions"][1]["side"], report["sessions"][1]["mean_reward"]) == (1, None)


def test_turns_show_the_step_that_trained_them_or_the_reason_why_not(run: RunDir, capsys: Capture) -> None:
    show_turns(run, None, as_json=True)
    turns = {row["turn"]: row for row in said(capsys)["turns"]}
    assert [turns[name]["trained_in_step"] for name in ("t1", "t2", "t3")] == [1, 1, None]
    why = {name: row["why_not_trained"] for name, row in turns.items() if row["trained_in_step"] is None}
    assert why == {
        "t3": "neutral", "t4": "waiting for the trainer", "t5": "no next state", "t6": "side turn", "t7": "waiting for the judge",
    }  # fmt: skip
    first = turns["t1"]
    assert (first["asked"], first["answered"], first["came_back"]) == ("question t1", "answer t1", "reaction t1")
    assert (first["reward"], first["votes"], first["hint"]) == (-1.0, [-1, -1, None], "Write plain sentences.")
    assert set(first) == {
        "dead_steps",
        "images",
        "parent_evidence",
        "policy", "redacted_by",
        "turn", "session", "parent", "index", "kind", "user", "created_at", "policy_version", "asked", "answered", "came_back",
        "reward", "votes", "hint", "hints", "judge", "trained_in_step", "why_not_trained",
    }  # fmt: skip


def test_a_turn_that_the_trainer_skipped_is_shown_as_skipped(run: RunDir, capsys: Capture) -> None:
    entry = {"step": 2, "outcome": "skipped", "reason": "loss is not finite", "turns": {"a": ["t4"]}}
    publish_bytes(run.train / "ledger" / "skipped-t4.json", orjson.dumps(entry))
    show_turns(run, "s1", as_json=True)
    assert said(capsys)["turns"][3]["why_not_trained"] == "skipped: loss is not finite"


def test_a_turn_of_a_version_too_old_for_the_trainer_is_stale(run: RunDir, capsys: Capture) -> None:
    (run.root / "recipe.yaml").write_text("train: {max_staleness: 0}\n")
    show_turns(run, "s1", as_json=True)
    assert said(capsys)["turns"][3]["why_not_trained"] == "stale"


def test_a_rating_that_came_late_shows_until_its_turn_is_trained(run: RunDir, capsys: Capture) -> None:
    for turn_id in ("t2", "t3", "t4"):
        FeedbackFile(run.feedback).append(
            Feedback(f"f-{turn_id}", 5000.0, "default", turn_id, -1.0 if turn_id == "t3" else 0.0, None)
        )
    show_turns(run, "s1", as_json=True)
    turns = {row["turn"]: (row["reward"], row["why_not_trained"]) for row in said(capsys)["turns"]}
    assert (turns["t2"], turns["t3"], turns["t4"]) == ((1.0, None), (-1.0, "waiting for the trainer"), (0.0, "neutral"))


def test_a_rating_of_a_last_turn_shows_that_it_will_be_trained_after_all(run: RunDir, capsys: Capture) -> None:
    FeedbackFile(run.feedback).append(Feedback("f-t5", 5000.0, "default", "t5", -1.0, None))
    show_turns(run, "s1", as_json=True)
    turns = {row["turn"]: (row["reward"], row["why_not_trained"]) for row in said(capsys)["turns"]}
    assert turns["t5"] == (-1.0, "waiting for the trainer")


def test_an_imported_text_waits_for_its_judge_and_its_trainer_and_is_never_stale(run: RunDir, capsys: Capture) -> None:
    (run.root / "recipe.yaml").write_text("train: {max_staleness: 0}\n")
    text = {"source": "import", "prompt_ids": None, "completion_ids": None, "logprobs": None, "policy_version": None}
    rows = [turn(name, "s5", reason=TEXT_ONLY, **text) for name in ("u1", "u2")]
    write_turns(run.trajectories / "d.parquet", rows[:1])
    write_turns(run.trajectories / "e.parquet", rows[1:])
    write_verdicts(run.verdicts / "d.parquet", [verdict("u1", 1.0)])
    show_turns(run, "s5", as_json=True)
    why = {row["turn"]: row["why_not_trained"] for row in said(capsys)["turns"]}
    assert why == {"u1": "waiting for the trainer", "u2": "waiting for the judge"}
    show_sessions(run, as_json=True)
    session = next(row for row in said(capsys)["sessions"] if row["session"] == "s5")
    assert (session["trainable"], session["judged"]) == (2, 1)


def test_one_session_is_shown_with_its_full_text(run: RunDir, capsys: Capture) -> None:
    text = "first line\nsecond line " + "word " * 300 + "end"
    write_turns(run.trajectories / "c.parquet", [turn("t8", "s4", response={"role": "assistant", "content": text})])
    show_turns(run, "s4", as_json=False)
    shown = capsys.readouterr().out
    assert " ".join(text.split()) in " ".join(shown.split())
    assert "question t1" not in shown
    assert "not trained: waiting for the judge" in shown


def test_an_unknown_session_is_a_wrong_command(run: RunDir) -> None:
    with pytest.raises(ClawError, match="no turn of session 'nobody'") as error:
        show_turns(run, "nobody", as_json=False)
    assert error.value.exit_code == 2


def test_policies_show_training_measurements_and_decisions(run: RunDir, capsys: Capture) -> None:
    show_policies(run, as_json=True)
    base, learned = said(capsys)["policies"]
    assert (base["version"], base["live"], base["kind"], base["loss"]) == (0, False, "base", None)
    assert (learned["live"], learned["step"], learned["method"], learned["turns"]) == (True, 1, "combine", 2)
    assert (learned["loss"], learned["grad_norm"]) == (0.25, 1.5)
    assert learned["metrics"]["ability"]["satisfaction"] == {"mean": 0.7, "ci95": pytest.approx([0.6, 0.8]), "n": 36}
    assert learned["decision"]["promote"] is True
    show_policies(run, as_json=False)
    shown = capsys.readouterr().out
    assert "1 ← live" in shown
    assert "0.70 [0.60, 0.80]" in shown


def test_health_counts_waiting_turns_and_reasons_for_untrained_ones(run: RunDir, capsys: Capture) -> None:
    (run.captures / "w-0.jsonl").write_bytes(b"{}\n" * 9 + b'{"torn')
    publish_bytes(run.train / "feed.json", orjson.dumps({"waiting": 1, "used": 2, "skipped": 0, "refused": {"neutral": 1}}))
    with sole_worker(run, "train"):
        show_health(run, as_json=True)
    health = said(capsys)
    assert health["stages"] == {"serve": False, "collect": False, "judge": False, "train": True, "eval": False, "up": False}
    assert (health["live_version"], health["newest_version"]) == (1, 1)
    assert health["captures"] == {"files": 1, "exchanges": 9, "lost": None}
    assert health["turns"] == {
        "collected": 7, "open": 0, "waiting_for_collect": 2, "waiting_for_judge": 1, "waiting_for_trainer": 1, "trained": 2,
    }  # fmt: skip
    assert health["shards_without_verdicts"] == 1
    assert health["not_trained"] == {"neutral": 1, "no next state": 1, "side turn": 1}
    assert health["feed"]["refused"] == {"neutral": 1}
    assert health["disk_bytes"]["trajectories"] > 0
    show_health(run, as_json=False)
    assert "2 for collect, 1 for judge, 1 for trainer" in capsys.readouterr().out


def test_turns_of_open_sessions_are_no_backlog(run: RunDir, capsys: Capture) -> None:
    (run.captures / "w-0.jsonl").write_bytes(b"{}\n" * 10)  # 7 are published
    publish_bytes(run.root / "collect.json", orjson.dumps({"schema_version": 1, "open": {"turns": 2, "since": 1000.0}}))
    show_health(run, as_json=True)
    turns = said(capsys)["turns"]
    assert (turns["open"], turns["waiting_for_collect"]) == (2, 1)
    show_sessions(run, as_json=True)
    assert said(capsys)["open"] == {"turns": 2, "since": 1000.0}
    show_sessions(run, as_json=False)
    assert "2 turns in open sessions, the oldest" in capsys.readouterr().out


def test_a_judge_shows_where_it_has_work(run: RunDir, capsys: Capture) -> None:
    with claimed(run, "judge-b"):
        show_health(run, as_json=True)
    assert said(capsys)["stages"]["judge"] is True
    write_verdicts(run.verdicts / "b.parquet", [verdict("t6", None), verdict("t7", 1.0)])
    show_health(run, as_json=True)
    assert said(capsys)["stages"]["judge"] is None


def test_a_judge_that_works_on_any_shard_is_running(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    for stem in ("x", "y"):
        (run.trajectories / f"{stem}.parquet").touch()
    assert is_judging(run) is False
    with claimed(run, "judge-y"):
        assert is_judging(run) is True
    assert is_judging(run) is False


def test_lost_captures_are_the_servers_own_count(run: RunDir, capsys: Capture) -> None:
    health = {"status": "degraded", "capture": {"on": True, "written": 5, "lost": 3, "last_error": "No space left on device"}}
    with answering(lambda body: "", health=health) as server:
        announce(run, server.url)
        show_health(run, as_json=True)
        show_health(run, as_json=False)
    report, _, shown = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(report + "}")["captures"]["lost"] == 3
    assert "3 lost" in shown
    assert "No space left on device" in " ".join(shown.split())


def test_health_shows_what_an_unfit_judge_got_and_what_to_do_instead(run: RunDir, capsys: Capture) -> None:
    show_health(run, as_json=True)
    assert said(capsys)["judge"] is None
    fitness = Fitness(JudgeIdentity("this run's server: tiny", "tiny@0", "1", 0.6, 4096), 12, 3, 9, 4000.0)
    publish_fitness(run, fitness)
    show_health(run, as_json=True)
    shown = said(capsys)["judge"]
    assert (shown["used"], shown["model"], shown["right"], shown["of"], shown["without_vote"]) == (False, "tiny@0", 3, 12, 9)
    assert "tiny" not in str({**shown, "model": "", "line": ""})  # no address
    show_health(run, as_json=False)
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "tiny@0 is not used as the judge: 3 of 12 planted turns right, 9 without a valid vote; set judge.endpoint" in text
    publish_fitness(run, replace(fitness, right=10, without_vote=0))
    show_health(run, as_json=False)
    assert "tiny@0 judges: 10 of 12 planted turns right" in capsys.readouterr().out


def test_looking_at_health_does_not_take_a_dead_workers_place(run: RunDir, capsys: Capture) -> None:
    (run.locks / "collect.owner").write_text(f"process {2**22 + 1} on {os.uname().nodename}")
    show_health(run, as_json=True)
    assert said(capsys)["stages"]["collect"] is False
    assert not (run.locks / "collect.lock").exists()


def test_quarantined_files_are_shown_with_their_reason(run: RunDir, capsys: Capture) -> None:
    quarantine(run, run.verdicts / "a.parquet", "a.parquet: [bold]not a shard[/bold]")
    show_health(run, as_json=False)
    assert "quarantine/verdicts-a.parquet: a.parquet: [bold]not a shard[/bold]" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["trajectories", "verdicts"])
def test_an_unreadable_shard_is_a_problem_line_and_stays_where_it_is(run: RunDir, capsys: Capture, folder: str) -> None:
    broken = run.root / folder / "zzz.parquet"
    broken.write_bytes(b"PAR1 no it is not")
    before = files_of(run)
    for show in (show_sessions, show_policies, show_health):
        show(run, False)
    show_turns(run, None, False)
    shown = capsys.readouterr().out
    assert shown.count(f"problem: {folder}/zzz.parquet") == 3, "policies need no shard"
    show_sessions(run, True)
    assert said(capsys)["problems"][0].startswith(f"{folder}/zzz.parquet: ")
    assert files_of(run) == before


def test_unreadable_records_of_training_and_eval_are_problem_lines(run: RunDir, capsys: Capture) -> None:
    (run.eval / "1.json").write_bytes(b"{")
    (run.train / "ledger" / "1.json").write_bytes(b"[]")
    (run.train / "steps.jsonl").write_bytes(b"nonsense\n" + orjson.dumps({"step": 1, "loss": 0.5}) + b"\n")
    (run.policies / "LIVE").write_text("latest")
    show_policies(run, as_json=True)
    health = said(capsys)
    assert [re.split(r"[:,]", problem)[0] for problem in health["problems"]] == [
        "policies/LIVE is not a number", "train/steps.jsonl", "eval/1.json",
    ]  # fmt: skip
    assert health["policies"][1]["loss"] == 0.5
    show_sessions(run, as_json=True)
    health = said(capsys)
    assert health["problems"] == ["ledger/1.json: unexpected content"]
    assert health["sessions"][0]["trained"] == 2, "policy.json knows as well"


def test_hostile_words_reach_the_terminal_as_words(run: RunDir, capsys: Capture) -> None:
    message = {"role": "user", "content": HOSTILE}
    write_turns(
        run.trajectories / "h.parquet",
        [
            turn(
                "t9", "[red]s9\x1b[2J", messages=[message], response={"role": "assistant", "content": HOSTILE}, next_state=[message]
            )
        ],
    )
    for show in (show_sessions, show_health):
        show(run, False)
    show_turns(run, None, False)
    show_turns(run, "[red]s9\x1b[2J", False)
    shown = capsys.readouterr().out
    assert "[judge] [red]boo[/red] red" in shown
    assert "[red]s9" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    show_turns(run, None, True)
    raw = capsys.readouterr().out
    assert not re.search("[^\x20-\x7e\n]", raw)
    assert json.loads(raw)["turns"][0]["asked"] in {HOSTILE, "question t1"}


def test_a_run_without_anything_in_it_can_be_looked_at(tmp_path: Any, capsys: Capture) -> None:
    from clawctl.run.directory import open_run

    empty = open_run(tmp_path / "empty")
    for show in (show_sessions, show_policies, show_health):
        show(empty, True)
        show(empty, False)
    show_turns(empty, None, False)
    assert "0 turns" in capsys.readouterr().out


def on_a_terminal(columns: int, *arguments: str) -> str:
    """What `clawctl inspect` shows there."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    shown = subprocess.Popen(
        [sys.executable, "-m", "clawctl", "inspect", *arguments], stdout=theirs, env={**os.environ, "NO_COLOR": "1"}
    )
    os.close(theirs)
    read = b""
    with suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:  # EIO: the other end is closed
        while piece := terminal.read(65536):
            read += piece
    assert shown.wait() == 0
    return re.sub("\x1b\\[[0-9;]*m", "", read.decode().replace("\r\n", "\n"))


def test_on_eighty_columns_nothing_that_matters_is_cut(run: RunDir) -> None:
    of_turns = ("question t1", "answer t1", "reaction t1", "Write plain sentences.", "step 1", "waiting for the trainer")
    for view, words in (
        ("sessions", ("session", "turns", "trained", "reward", "last seen", "s1")),
        ("policies", ("1 ← live", "satisfaction", "0.70 [0.60, 0.80]", "gate, version 1, promoted: ")),
        ("turns", of_turns),
    ):
        shown = on_a_terminal(80, view, "--run", str(run.root))
        assert max(map(len, shown.splitlines())) <= 80, shown
        for word in words:
            assert word in shown, shown


def test_a_session_is_found_by_the_beginning_of_its_id(run: RunDir, capsys: Capture) -> None:
    write_turns(run.trajectories / "k.parquet", [turn("t8", "kitchen"), turn("t9", "s11")])
    for typed in ("kit", "kit…"):
        show_turns(run, typed, as_json=True)
        assert [row["turn"] for row in said(capsys)["turns"]] == ["t8"]
    show_turns(run, "s1", as_json=True)
    assert "t9" not in {row["turn"] for row in said(capsys)["turns"]}, "a whole id is that session alone"
    with pytest.raises(ClawError, match="4 sessions have an id that begins with 's'"):
        show_turns(run, "s", as_json=True)


def test_a_shard_that_is_merged_while_it_is_read_is_no_problem(tmp_path: Path) -> None:
    part, whole = tmp_path / "a.parquet", tmp_path / "b.parquet"
    part.write_bytes(b"rows")

    def read(path: Path) -> str:
        if path == part:
            part.rename(whole)
            raise UnreadableShard("a.parquet: it is not there")
        return path.read_text()

    files = CachedFiles(tmp_path, ".parquet", read)
    assert files.poll()
    assert (files.found, files.problems()) == ({whole: "rows"}, [])
