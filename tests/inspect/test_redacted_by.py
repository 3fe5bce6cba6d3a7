"""`inspect health` and `inspect why` name the rule of redaction that keeps turns out of training, and the cure."""

from pathlib import Path

import pytest

from clawctl.inspect.health import read_health
from clawctl.inspect.health_lines import show_health
from clawctl.inspect.why import show_why
from clawctl.run.directory import open_run
from clawctl.run.shards import write_turns
from tests.inspect.example_run import turn

RULE = "the password of a command or query, in the tool descriptions"


def test_health_and_why_name_the_rule_that_made_turns_untrainable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(tmp_path / "run")
    turns = [turn(f"t{number}", index=number, reason="redacted", redacted_by=RULE) for number in range(3)]
    write_turns(run.trajectories / "a.parquet", [*turns, turn("t9", index=9, reason="redacted", redacted_by="a card number, in x")])
    assert read_health(run)["redacted_by"] == {RULE: 3, "a card number, in x": 1}
    show_health(run, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"3 turns, most of the redacted ones, because of {RULE}" in said
    assert "privacy.not_secrets" in said
    show_why(run, "t1", tokens=False, as_json=False)
    why = " ".join(capsys.readouterr().out.split())
    assert RULE in why
    assert "privacy.not_secrets" in why
