"""The page Talk, in front of a real server: what is said there counts as over the API."""

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from clawctl.run.directory import RunDir, open_run
from clawctl.run.notes import change_note, read_notes
from clawctl.run.shards import read_turns
from scripts.real_clients import serving
from tests import forked
from tests.inspect.test_web import Site
from tests.waiting import until


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    run = open_run(tmp_path_factory.mktemp("talk") / "run")
    with serving(run):
        yield Site(run)


def captured(run: RunDir) -> list[dict[str, object]]:
    return [orjson.loads(line) for path in sorted(run.captures.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def test_a_talk_without_scripts_is_captured_rated_and_remembered(site: Site) -> None:
    sent = site.post("/say", words="Greet me [[say:hello <b>there</b>]]")
    assert sent.status_code == 303
    where = sent.headers["location"]
    talk = re.findall(r"id=(\w+)", where)[0]
    page = site.text(where)
    assert "hello &lt;b&gt;there&lt;/b&gt;" in page
    assert "version 0" in page
    rated = site.post("/rate", id=talk, answer="a-0-0", rating="bad", comment="Be formal.")
    assert rated.status_code == 303
    assert 'value="bad" aria-pressed="true"' in site.text(where)
    assert site.post("/rate", id=talk, answer="a-0-0", rating="note", comment="Answer in one sentence.").status_code == 303
    (note,) = read_notes(site.run, "default")
    page = site.text(where)
    assert f'href="/notes#n-default-{note.id}">Answer in one sentence.' in page
    assert '<span class="mark good" aria-current="step">noted</span>' in page
    change_note(site.run, "default", note.id, state="learned", learned=0, steps=2, followed=((0, 0.93),))
    page = site.text(where)
    assert '<span class="mark good" aria-current="step">learned</span> by <a href="/version?n=0">v0</a>' in re.sub(
        r"\s+", " ", page
    )
    assert "followed without a reminder: 0.93" in page
    assert f'id="n-default-{note.id}"' in site.text("/notes")
    assert site.post("/say", words="Shorter [[say:good day]]", id=talk).headers["location"] == f"/talk?id={talk}#x-1"
    exchanges = [exchange for exchange in captured(site.run) if "Greet me" in orjson.dumps(exchange).decode()]
    assert [len(exchange["messages"]) for exchange in exchanges] == [1, 3]  # type: ignore[arg-type]
    ratings = [orjson.loads(line) for path in site.run.feedback.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert [(rating["rating"], rating["comment"], rating["key"]) for rating in ratings] == [(-1, "Be formal.", "default")]
    assert forked.run("collect", "--run", site.run.root, "--once", "--end-sessions").returncode == 0
    turns = [turn for path in site.run.trajectories.glob("*.parquet") for turn in read_turns(path)]
    first = next(turn for turn in turns if turn.feedback == -1)
    assert [turn.session_id for turn in turns if turn.parent_turn_id == first.turn_id] == [first.session_id]
    site.following.refresh()
    assert f'href="/turn?id={first.turn_id}">why</a> bad' in re.sub(r"\s+", " ", site.text(where))


def test_two_versions_answer_the_same_words_and_stay_unnamed_until_they_are_revealed(site: Site) -> None:
    before = len(captured(site.run))
    lines = [
        orjson.loads(line)
        for line in site.post("/say", words="Both [[say:good morning]]", version="0", other="live", blind="yes", stream="yes")
        .text.strip()
        .split("\n")
    ]
    talk = lines[0]["talk"]
    for side in ("a-0-0", "a-0-1"):
        assert f'id="{side}" aria-busy="true"' in lines[0]["html"]
        assert "".join(line["more"] for line in lines[1:] if line["id"] == side) == "good morning"
    page = site.text(f"/talk?id={talk}")
    heads = re.findall(r'<section class="answer"><h2>([^<]*)</h2>', page)
    assert heads == ["A", "B"]
    assert site.post("/reveal", id=talk).status_code == 303
    assert "<h2>version 0</h2>" in site.text(f"/talk?id={talk}")
    page = site.text(f"/talk?id={talk}")
    assert "not captured, because a fixed version answered" in page
    for side in ("a-0-0", "a-0-1"):
        assert site.post("/rate", id=talk, answer=side, rating="good").status_code == 303
    until(lambda: len(captured(site.run)) > before)
    new = captured(site.run)[before:]
    lines_of_feedback = [line for path in site.run.feedback.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    good = [rating for rating in map(orjson.loads, lines_of_feedback) if rating["rating"] == 1]
    assert [rating["turn_id"] for rating in good] == [exchange["exchange_id"] for exchange in new], "as over the API"


def test_a_refusal_is_shown_and_the_conversation_goes_on(site: Site) -> None:
    sent = site.post("/say", words="To a version [[say:hello]]", version="77")
    page = site.text(sent.headers["location"])
    assert 'class="warn"' in page
    assert "77" in page
    assert site.post("/say", words="again", id=re.findall(r"id=(\w+)", sent.headers["location"])[0]).status_code == 303


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("/say", {"words": "  "}, 400),
        ("/rate", {"id": "none", "answer": "a-0-0", "rating": "bad"}, 400),
        ("/reveal", {"id": "none"}, 400),
    ],
)
def test_a_wrong_form_of_talk_says_so(site: Site, path: str, form: dict[str, str], status: int) -> None:
    before = len(captured(site.run))
    assert site.post(path, **form).status_code == status
    assert site.client.post(path, data={"words": "x", **form}).status_code == 403, "without the form's token"
    assert site.stranger.post(path, data={"token": site.key.form_token, **form}).status_code == 401
    assert (
        site.client.post(path, data={"token": site.key.form_token, **form}, headers={"Origin": "http://e.vil"}).status_code == 403
    )
    assert len(captured(site.run)) == before


def test_without_a_server_talk_names_the_cure(tmp_path: Path) -> None:
    site = Site(open_run(tmp_path / "run"))
    assert "Send" in site.text("/talk")
    answer = site.post("/say", words="hello")
    assert answer.status_code == 409
    assert "no server has registered" in answer.text
