"""Played episodes, as `inspect episodes` and the page show them."""

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from clawctl.errors import ClawError
from clawctl.inspect.episodes import OVERDUE_S, EpisodeReader, plans_of, show_episodes
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.pages import Pages
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.episodes import EpisodeSpec, SpecFile
from clawctl.run.feedback import FeedbackFile
from clawctl.run.outcomes import SessionOutcome


@pytest.fixture
def played(tmp_path: Path) -> RunDir:
    """Two tasks with two attempts: one solved once, one never; a failed try, an episode that runs, and one whose worker died."""
    run, now = open_run(tmp_path / "run"), time.time()
    began = {"sum-1.0": "done", "sum-1.1": "done", "sum-2.0": "turns", "sum-2.1": "sandbox", "sum-2.1 again": "", "sum-3.0": ""}
    specs, outcomes = SpecFile(run), FeedbackFile(run.feedback)
    for index, (name, ending) in enumerate(began.items()):
        number, attempt = int(name[4]), int(name[6])
        spec = EpisodeSpec(
            f"e1-{index}", now - 50 + index, "e1", "toolcall", "7", f"sum-{number}", "abc", "train", 3, number, f"e1-{number}",
            attempt, 2, int("again" in name), now + 60, {}, "host:1",
        )  # fmt: skip
        spec = replace(spec, deadline=now - OVERDUE_S - 5) if number == 3 else spec
        specs.append(spec)
        if ending:
            failed = ending == "sandbox"
            reward = None if failed else float(index == 0)
            outcomes.append(
                SessionOutcome(
                    f"o{index}", now, "default", spec.session_id, "failed" if failed else "done", reward, {}, {}, ending=ending,
                    timings={"play": 1.5}, settled=not failed, episode=asdict(spec),
                )
            )  # fmt: skip
    return run


def test_a_plan_counts_its_episodes_by_ending_and_its_solved_tasks(played: RunDir) -> None:
    (plan,) = plans_of(EpisodeReader(played).poll(), time.time())
    assert (plan.environment, plan.tasks, plan.episodes, plan.running) == ("toolcall", 3, 6, 1)
    assert plan.endings == {"done": 2, "turns": 1, "sandbox": 1, "killed": 1}
    assert plan.mean_reward == pytest.approx(1 / 3)  # a failed episode has no reward
    assert plan.pass_at_k == 1.0  # the second and third task are not settled


def test_a_reader_that_stays_reads_new_lines_and_begins_again_if_lines_were_removed(played: RunDir) -> None:
    reader = EpisodeReader(played)
    before = reader.poll()
    outcome = next(episode.outcome for episode in before if episode.outcome is not None)
    FeedbackFile(played.feedback).append(
        replace(outcome, episode={**(outcome.episode or {}), "session_id": "e1-4"}, ending="done", reward=1.0, status="done")
    )
    assert {episode.spec.session_id for episode in reader.poll() if episode.ending(time.time()) == "running"} == set()
    for path in published(played.episodes, ".jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        path.unlink()
        path.write_bytes(lines[0] + b"{}\n")
    assert [episode.spec.session_id for episode in reader.poll()] == ["e1-0"]
    assert reader.damaged == 1


def test_the_terminal_shows_plans_and_the_episodes_of_one(played: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    show_episodes(played, None, as_json=False)
    shown = capsys.readouterr().out
    assert "toolcall" in shown
    assert "2 done, 1 turns, 1 sandbox, 1 killed" in shown
    show_episodes(played, "e1", as_json=True)
    episodes = json.loads(capsys.readouterr().out)["episodes"]
    assert [episode["ending"] for episode in episodes] == ["done", "done", "turns", "sandbox", "running", "killed"]
    assert episodes[0]["outcome"]["reward"] == 1.0
    with pytest.raises(ClawError, match="no episode belongs"):
        show_episodes(played, "e9", as_json=False)


def test_a_run_without_episodes_shows_how_to_play_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_episodes(open_run(tmp_path / "run"), None, as_json=False)
    assert "clawctl collect --env" in capsys.readouterr().out


def test_the_page_of_environments_shows_the_plans(played: RunDir) -> None:
    key = Key()
    client = TestClient(Pages(played, FollowedRun(played), key).app(30080), base_url="http://127.0.0.1:30080")
    assert client.get(f"/login?key={key.key}").status_code in (200, 303)
    text = client.get("/environments").text
    assert "toolcall" in text
    assert "2 done, 1 turns, 1 sandbox, 1 killed" in re.sub("<[^>]+>", "", text)
    links = re.findall(r'<a class="num" href="(/episodes\?[^"]*)">(\d+)</a>', text)
    assert len(links) == 6  # all, running, and the four endings
    for link, count in links:
        page = client.get(link.replace("&amp;", "&")).text
        assert f">{count} episode" in page, link
        assert page.count("not collected") == int(count), link
    assert client.get("/episodes?plan=e9").status_code == 404
