"""The attacks of the benchmark `hostile`, case `rules`, with a separate seed."""

import argparse

from scripts.benchmarks.hostile import missed_bars
from scripts.benchmarks.hostile_rules import rows


def test_pages_that_imitate_test_runs_are_ignored_and_real_runs_are_accepted(tmp_path) -> None:
    values = {row.metric: row.value for row in rows(argparse.Namespace(quick=True, seed=7), tmp_path)}
    assert values["believed_pages"] == 0
    assert all((values[f"{part}_pages_tried"] or 0) > 1000 for part in ("first", "held_out", "fresh", "unread"))
    assert values["real_results_judged"] == values["real_exit_codes_read"] == 1.0


def test_every_bar_of_the_case_has_its_row(tmp_path) -> None:
    measured = [row for row in rows(argparse.Namespace(quick=True, seed=0), tmp_path) if row.case == "rules"]
    assert not [problem for problem in missed_bars(measured) if problem.startswith("rules")]
    assert "believed_pages" in {row.metric for row in measured}
