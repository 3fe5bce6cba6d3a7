"""`inspect compare`: two runs beside each other, and which differences are larger than chance."""

import json
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from clawctl.errors import ClawError
from clawctl.inspect.compare import compare, show_comparison
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.pages import Pages
from clawctl.run.directory import RunDir, open_run
from clawctl.run.policies import move_live
from clawctl.run.shards import write_turns, write_verdicts
from tests.inspect.example_run import turn, verdict


def make(root: Path, bad: int, of: int) -> None:
    run = open_run(root)
    write_turns(run.turn_shard("a"), [turn(f"t{n}", index=n) for n in range(of)])
    write_verdicts(run.verdict_shard("a"), [verdict(f"t{n}", -1.0 if n < bad else 1.0) for n in range(of)])


def test_scores_of_the_live_versions_differ_if_their_intervals_do_not_overlap(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "earlier")
    earlier = RunDir(tmp_path / "earlier")
    move_live(earlier, 0)
    rows = {row["what"]: (row["shown"], row["differ"]) for row in compare([earlier, run])["rows"]}
    assert rows["ability satisfaction"] == (["0.20 [0.10, 0.30]", "0.70 [0.60, 0.80]"], "higher in the second")
    assert rows["ability correctness"] == (["0.80 [0.70, 0.90]", "0.85 [0.75, 0.95]"], "no difference larger than chance")
    assert rows["live version"][0] == ["0", "1"]


def test_differences_are_told_apart_from_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Newcombe 1998, table II, method 10: 56/70 and 48/80 differ by 0.0524 to 0.3339, and 5/56 and 0/29 by -0.0381 to 0.1926
    for name, bad, of in (("often", 56, 70), ("rarer", 48, 80), ("some", 5, 56), ("none", 0, 29), ("few", 2, 4)):
        make(tmp_path / name, bad, of)
    verdicts = {}
    for first, other in (("often", "rarer"), ("rarer", "often"), ("some", "none"), ("often", "few")):
        rows = compare([open_run(tmp_path / first), open_run(tmp_path / other)])["rows"]
        verdicts[first, other] = next(row["differ"] for row in rows if row["what"] == "complaints per 100")
    assert verdicts == {
        ("often", "rarer"): "fewer in the second",
        ("rarer", "often"): "more in the second",
        ("some", "none"): "no difference larger than chance",
        ("often", "few"): "too few to compare (at least 10 each)",
    }
    show_comparison(open_run(tmp_path / "often"), open_run(tmp_path / "rarer"), True)
    shown = json.loads(capsys.readouterr().out)
    assert [run["complaints"]["of"] for run in shown["runs"]] == [70, 80]
    assert shown["runs"][0]["complaints"]["per_100"] == 80.0
    show_comparison(open_run(tmp_path / "often"), open_run(tmp_path / "rarer"), False)
    assert "80.0 [69.2, 87.7] of 70" in capsys.readouterr().out  # Wilson's interval of 56 of 70
    with pytest.raises(ClawError, match="is not a run directory"):
        open_run(tmp_path / "nothing", create=False)


def page(run: RunDir, beside: RunDir | None, path: str = "/compare") -> tuple[int, str]:
    key = Key()
    client = TestClient(Pages(run, FollowedRun(run), key, beside).app(30080), base_url="http://127.0.0.1:30080")
    assert "Log in" in client.get(path).text
    client.get(f"/login?key={key.key}")
    answer = client.get(path)
    return answer.status_code, answer.text


def test_the_page_shows_the_same_rows_for_the_run_that_the_command_names(tmp_path: Path) -> None:
    for name, bad, of in (("often", 56, 70), ("<b>rarer", 48, 80), ("third", 1, 20)):
        make(tmp_path / name, bad, of)
    often, rarer = open_run(tmp_path / "often"), open_run(tmp_path / "<b>rarer")
    status, text = page(often, rarer, f"/compare?beside={tmp_path}/third&run={tmp_path}/third")
    assert status == 200
    for row in compare([often, rarer])["rows"]:
        assert f'<th scope="row">{row["what"]}<' in text
        assert all(f'<td class="r">{shown}</td>' in text for shown in row["shown"])
        assert row["differ"] in text
    assert "<b>" not in text
    assert "third" not in text, "no request chooses a folder"
    status, text = page(often, None, f"/compare?beside={tmp_path}/third")
    assert (status, "third" in text) == (404, False)
    assert ">Compare</a>" not in page(often, None, "/")[1]
