import base64
import re
from pathlib import Path

import orjson
import pytest

from clawctl.errors import ClawError
from clawctl.inspect.report import show_report, write_report
from clawctl.run.directory import RunDir, open_run, publish_bytes
from clawctl.run.notes import add_note, change_note
from clawctl.run.policies import publish_policy
from clawctl.run.rows import Policy
from tests.inspect.example_run import HOSTILE, eval_record


def test_the_page_contains_its_picture_the_versions_and_the_changes(run: RunDir, tmp_path: Path) -> None:
    png, page = write_report(run, tmp_path / "out")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    text = page.read_text()
    assert "data:image/png;base64,iVBOR" in text
    assert "0.70 [0.60, 0.80]" in text
    assert "From policy 0 to policy 1: satisfaction from 0.20 to 0.70" in text
    assert "4, because 2 + 2 = 4" in text
    assert text.count("clawctl inspect") == 3
    assert not re.search(r"(src|href)=(?!\"data:)|@import", text), "nothing is loaded from anywhere"


def test_hostile_words_are_text_in_the_page(run: RunDir, tmp_path: Path) -> None:
    publish_bytes(run.eval / "1.json", orjson.dumps(eval_record(1, 0.7, 0.8, True, HOSTILE)))
    _, page = write_report(run, tmp_path / "out")
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert len(text) < 500_000


def test_versions_that_were_refused_or_overtaken_are_in_the_table(run: RunDir, tmp_path: Path) -> None:
    for version in (2, 3):
        publish_policy(
            run, Policy(version, version - 1, version, "combine", "full", "crafts", [], None, {}, 5000.0), lambda folder: None
        )
    overtaken = {"version": 2, "suites": {}, "examples": [], "decision": {"promote": False, "reason": "overtaken by 3"}}
    publish_bytes(run.eval / "2.json", orjson.dumps(overtaken))
    publish_bytes(run.eval / "3.json", orjson.dumps(eval_record(3, 0.1, 0.5, False)))
    _, page = write_report(run, tmp_path / "out")
    assert "not live: overtaken by 3" in page.read_text()
    assert "not live: because" in page.read_text()


def test_a_run_with_one_measured_version_has_a_picture(run: RunDir, tmp_path: Path) -> None:
    (run.eval / "1.json").unlink()
    png, _ = write_report(run, tmp_path / "out")
    assert png.stat().st_size > 5000


def test_without_measurements_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    with pytest.raises(ClawError, match=r"has no measured policy"):
        write_report(run, tmp_path / "out")


def test_a_run_without_measurements_has_a_picture_of_its_training(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in run.eval.iterdir():
        path.unlink()
    steps = [
        {"step": step, "reward_mean": step / 4, "mismatch_mean": None if step == 2 else 0.01, "loss": 0.1} for step in (1, 2, 3)
    ]
    publish_bytes(run.train / "steps.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in steps))
    show_report(run, tmp_path / "out", as_json=False)
    page, picture = map(Path, capsys.readouterr().out.split())
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    text = page.read_text()
    assert text.count("data:image/png;base64,iVBOR") == 1
    assert "Reward or loss of each step" in text
    assert "Before and after" not in text
    note = add_note(run, "anna", "I am ill, so be brief.").note
    change_note(run, "anna", note.id, state="learned", learned=2, followed=((1, 0.4), (2, 1.2)))
    alone = write_report(run, tmp_path / "alone")[0].read_bytes()
    change_note(run, "anna", add_note(run, "anna", "Of another policy.").note.id, policy="anna", followed=((1, 0.4),))
    png, page = write_report(run, tmp_path / "out")
    assert png.read_bytes() == alone
    assert "I am ill" not in page.read_text()
    first, second = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)"', page.read_text())
    assert (first[0], second[0][:14]) == ("How far each version follows a note without a reminder", "Reward or loss")
    assert base64.b64decode(first[1]) == png.read_bytes() != base64.b64decode(second[1])
