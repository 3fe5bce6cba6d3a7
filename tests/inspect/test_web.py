"""The pages over HTTP. `scripts/bench web` uses them in a real browser."""

import re
import time
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest
from starlette.testclient import TestClient

from clawctl.inspect.better import Rate, lower
from clawctl.inspect.rows import TurnReader, read_rows
from clawctl.inspect.web.derived_data import last_line, prepare
from clawctl.inspect.web.filters import Filter, fate, matching, uncertainty
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.pages import Pages
from clawctl.inspect.web.text import visible
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, open_run, publish_bytes, sole_worker
from clawctl.run.feedback import LABEL, FeedbackFile, Ratings
from clawctl.run.fitness import Fitness, JudgeIdentity, publish_fitness
from clawctl.run.keys import add_key
from clawctl.run.notes import change_note, read_notes
from clawctl.run.policies import begin_policy, live_version, move_live, publish_policy
from clawctl.run.progress import StepReport, report
from clawctl.run.rows import Feedback, Policy
from clawctl.run.shards import write_turns, write_verdicts
from scripts.benchmarks.web_run import HOSTILE, VERSIONS, make_run, turn
from tests.extension import needs
from tests.inspect.example_run import verdict
from tests.waiting import until

PAGES = (
    "/", "/conversations", "/turns", "/versions", "/judge", "/environments", "/notes", "/data",
    f"/version?n={VERSIONS - 1}", "/version?n=4",
    f"/answers?n={VERSIONS - 1}&against=6", "/measured?n=4&suite=ability&metric=correct",
    "/conversation?id=s0&user=default", f"/turns?step={VERSIONS - 1}",
)  # fmt: skip


class Site:
    """The pages of a run, and a client that is logged in."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.key = run, Key()
        self.following = FollowedRun(run, prepare)
        self.app = Pages(run, self.following, self.key).app(30080)
        self.stranger = TestClient(self.app, base_url="http://127.0.0.1:30080")
        self.client = TestClient(self.app, base_url="http://127.0.0.1:30080")
        assert self.client.get(f"/login?key={self.key.key}").status_code == 200

    def text(self, path: str) -> str:
        answer = self.client.get(path)
        assert answer.status_code == 200, path
        return answer.text

    def post(self, path: str, **form: str) -> httpx.Response:
        return self.client.post(path, data={"token": self.key.form_token, **form}, follow_redirects=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Tests that change the run make one of their own."""
    return Site(make_run(tmp_path_factory.mktemp("web") / "run", 500))


def counted(page: str) -> int:
    match = re.search(r'class="count"[^>]*>\s*([\d,]+)', page)
    assert match is not None
    return int(match[1].replace(",", ""))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_loads_nothing_from_elsewhere(site: Site, path: str) -> None:
    page = site.text(path)
    assert page.rstrip().endswith("</html>")
    assert not re.search(r"(src|href|action)=\"(?!/|#|data:,)", page)
    assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=|<script(?! src)", page), "the content policy would refuse it"


@pytest.mark.parametrize("path", ["/", "/versions", "/judge", "/data", "/environments", "/version?n=4"])
def test_every_number_that_is_a_link_leads_to_as_many_turns(site: Site, path: str) -> None:
    links = re.findall(r'<a class="num" href="(/turns\?[^"]*)">([\d,]+)</a>', site.text(path))
    assert links
    for href, text in links[:40]:
        assert counted(site.text(href.replace("&amp;", "&"))) == int(text.replace(",", "")), href


def test_a_mean_leads_to_the_values_by_task_that_it_is_made_of(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 40)
    row = next(iter(read_rows(run).rows)).turn["turn_id"]
    values = {"student-1": 1.0, "student-2": 0.0, row: 0.5, "<img src=x>": 1.0}
    for version, change in ((1, 0.0), (2, -0.5)):
        record = read_sealed(run.eval_record(version).read_bytes())
        of_version = {task: max(0.0, value + change) for task, value in values.items()}
        mean = sum(of_version.values()) / len(values)
        record["suites"]["ability"]["satisfaction"] = {"mean": mean, "ci95": [0.0, 1.0], "n": len(values)}
        record["values"] = {"ability": {"satisfaction": of_version}}
        record["evidence"] = [{"suite": "ability", "metric": "satisfaction", "version": 0, "wins": 3, "ties": 1, "losses": 0}]
        publish_bytes(run.eval_record(version), sealed(orjson.dumps(record)))
    site = Site(run)
    for path in ("/", "/versions", "/version?n=1"):
        (link,) = set(re.findall(r'href="(/measured\?n=1&amp;suite=ability&amp;metric=satisfaction)"', site.text(path)))
    page = site.text(f"{link}&against=2".replace("&amp;", "&"))
    assert counted(page) == 4
    assert [float(value) for value in re.findall(r'<td class="r num">([\d.]+)</td>', page)] == [
        0.0,
        0.0,
        0.5,
        0.0,
        1.0,
        0.5,
        1.0,
        0.5,
    ]
    assert f'href="/turn?id={row}"' in page
    assert "What is 1 + 1?" in page
    assert "<img" not in page
    assert "metric=satisfaction&amp;against=0" in site.text("/version?n=1")
    assert "no values by task" in site.text("/measured?n=1&suite=ability&metric=correct")
    assert site.client.get("/measured?n=1&suite=ability&metric=unknown").status_code == 404


def test_every_version_is_marked_over_time_and_the_gate_is_told_in_words(site: Site) -> None:
    marks = re.findall(r'data-marks="([^"]*)"', site.text("/"))[0].replace("&#34;", '"')
    labels = [mark["label"] for mark in orjson.loads(marks)]
    assert {"v3", "(v4)", "v5", "(v7)", f"v{VERSIONS - 1}"} <= set(labels), "versions that never went live are in brackets"
    assert re.search(r"promoted <span class=\"dim\">better on 3 of 3 metrics", site.text("/versions"))
    record = read_sealed(site.run.eval_record(3).read_bytes())
    row = {
        "suite": "ability",
        "metric": "correct",
        "version": 2,
        "wins": 3,
        "ties": 1,
        "losses": 2,
        "verdict": "open",
        "e_worse": 0.4,
    }
    publish_bytes(site.run.eval_record(3), sealed(orjson.dumps({**record, "evidence": [row]})))
    site.following.refresh()
    page = site.text("/version?n=3")
    assert "too few to tell: the test is open" in page
    assert "e-value for worse 0.4" in page


@needs("secrets")
def test_notes_are_added_retired_and_put_back_on_their_page(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 4))
    assert "Nobody has said a wish yet" in site.text("/notes")
    assert (
        site.post("/note", to="add", key="anna", text="Use <b>bold</b>. My key is " + "sk-" + "a1B2c3D4e5F6g7H8" * 3).status_code
        == 303
    )
    (note,) = read_notes(site.run, "anna")
    assert "a1B2" not in note.text
    change_note(site.run, "anna", note.id, state="learned", learned=4, steps=6, followed=((2, 0.42), (4, 0.95)))
    page = site.text("/notes")
    assert "Use &lt;b&gt;bold&lt;/b&gt;" in page
    assert re.search(r'learned by <a href="/version\?n=4">v4</a>.*6 steps', page)
    assert re.search(r"v2</a> 0\.42,.*v4</a> 0\.95", page)
    assert site.post("/note", to="retire", key="anna", id=note.id).status_code == 303
    assert read_notes(site.run, "anna")[0].state == "retracted"
    assert "put back" in site.text("/notes")
    assert site.post("/note", to="back", key="anna", id=note.id).status_code == 303
    assert (read_notes(site.run, "anna")[0].state, read_notes(site.run, "anna")[0].learned) == ("new", None)
    (site.run.notes / "anna" / "bad.md").write_text("---\nkind: dream\n---\nx")
    assert "bad.md is not a note" in site.text("/notes")


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"to": "add", "key": "anna", "text": " "}, 400),
        ({"to": "add", "key": "../anna", "text": "x"}, 409),
        ({"to": "retire", "key": "anna", "id": "../../recipe"}, 409),
        ({"to": "burn", "key": "anna"}, 400),
    ],
)
def test_a_form_of_notes_that_is_wrong_changes_nothing(site: Site, form: dict[str, str], status: int) -> None:
    assert site.post("/note", **form).status_code == status
    assert site.client.post("/note", data={"to": "add", "key": "anna", "text": "x"}).status_code == 403  # without the form's token
    assert list(site.run.notes.rglob("*.md")) == []


def test_filters_match_the_rows(site: Site) -> None:
    rows = read_rows(site.run).rows
    for query, expected in (
        (
            "user=anna&verdict=bad",
            [r for r in rows if r.turn["user"] == "anna" and r.worth.value is not None and r.worth.value < 0],
        ),
        ("version=3&fate=trained", [r for r in rows if r.turn["policy_version"] == 3 and fate(r) == "trained"]),
        ("verdict=uncertain", [r for r in rows if uncertainty(r)]),
        ("task=sums-3", [r for r in rows if r.turn["task_id"] == "sums-3"]),
        ("version=no&since=later", rows),
    ):
        assert counted(site.text(f"/turns?{query}")) == len(expected), query
        assert expected, query


def test_a_filter_is_its_query_string() -> None:
    wanted = Filter(user="anna", version=3, since=12.5, q="a b&c")
    assert Filter.read(httpx.QueryParams(wanted.query())) == wanted


def test_words_are_found_in_requests_answers_and_next_states(site: Site) -> None:
    for text in ("three laptops", "Ein Mutex", "no, shorter please", "ein mutex"):
        page = site.text(f"/turns?{httpx.QueryParams({'q': text})}")
        assert counted(page) > 0, text
    assert counted(site.text("/turns?q=EIN+MUTEX")) == 0, "capitals count if there are any"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_words_are_text(site: Site, name: str) -> None:
    for path in (f"/conversation?id={name}&user=default", f"/turn?id={name}-1", "/conversations", "/judge", "/turns"):
        page = site.text(path)
        assert not re.search("[\x00-\x08\x1b\x9b\u202a-\u202e\u2066-\u2069]", page), path
        assert "<script>window" not in page
        assert "<img" not in page
        assert "<svg" not in page
        assert len(page) < 300_000, path
    whole = site.client.get(f"/text?id={name}-1&part=answer")
    assert whole.headers["content-type"].startswith("text/plain")
    assert not re.search("[\x1b\x9b\u202e]", whole.text)


def test_a_page_that_is_shown_is_answered_once_the_run_has_changed_and_not_before(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 5))
    first = site.client.get("/")
    stamp = first.headers["etag"]
    assert stamp.replace('"', "&#34;") in first.text, "the page carries the stamp with which it asks"
    site.following.start()
    try:
        began = time.monotonic()
        request, said = ({"role": role, "content": "hello"} for role in ("user", "assistant"))
        added = turn("new", "new", 0, time.time(), [request], said, None)
        write_turns(site.run.turn_shard("z"), [added])
        later = site.client.get("/", headers={"If-None-Match": stamp})
        assert (later.status_code, later.headers["etag"] != stamp) == (200, True)
        assert "6 conversations" in later.text or "6</a>" in later.text
        assert time.monotonic() - began < 14, "it is not the end of the wait that answers"
        site.run.log("train").write_text("12:00:00 I clawctl.train.loop: step 3 has 8 turns\n")
        assert site.client.get("/", headers={"If-None-Match": later.headers["etag"]}).status_code == 200
    finally:
        site.following.stop()
    site.following.is_ending = lambda: True  # does not wait
    stamp = site.client.get("/notes").headers["etag"]
    assert site.client.get("/", headers={"If-None-Match": stamp}).status_code == 304
    assert "etag" not in site.stranger.get("/", headers={"If-None-Match": stamp}).headers
    assert last_line(site.run.log("train")) == "step 3 has 8 turns"


def test_a_running_step_shows_its_microbatch(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 60))
    with sole_worker(site.run, "train"):
        site.following.refresh()
        site.following.start()
        until(lambda: site.following.changed and "running" in site.text("/"))
        with StepReport(site.run).of_step(5):
            report(3, 8)
            until(lambda: "step 5: microbatch 3 of 8" in site.text("/"))
            assert '<progress max="8" value="2"' in site.text("/")
        until(lambda: "microbatch" not in site.text("/"))
        site.following.stop()


def test_a_run_in_which_nothing_happens_is_not_read_again(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 5))
    site.following.start()
    try:
        time.sleep(3)
        seen = site.following.snapshot, site.following.changed
        time.sleep(3)
        assert (site.following.snapshot, site.following.changed) == seen
    finally:
        site.following.stop()


def test_hidden_characters_are_shown_by_their_names() -> None:
    assert visible("a\u202eb") == 'a<span class="ctl" title="U+202E RIGHT-TO-LEFT OVERRIDE">202E</span>b'
    assert visible("<b>\x1b") == '&lt;b&gt;<span class="ctl" title="U+001B control character">001B</span>'
    assert visible("👩\u200d💻") == "👩\u200d💻", "joiners belong to scripts and emoji"


def test_without_the_key_only_the_login_form_is_shown(site: Site) -> None:
    for path in PAGES:
        answer = site.stranger.get(path)
        assert "Log in" in answer.text
        assert "laptop" not in answer.text
        assert site.run.root.name + "<" not in answer.text
    assert site.stranger.get("/login?key=wrong").status_code == 403
    assert site.stranger.post("/login", data={"key": "wrong"}).status_code == 403
    assert site.stranger.post("/rollback", data={"version": "0", "token": site.key.form_token}).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421), ({"Host": "127.0.0.1.evil.example:30080"}, 421), ({"Host": "[::1"}, 421),
        ({"Host": "localhost:9999"}, 200), ({"Host": "[::1]:30080"}, 200), ({"Host": ""}, 421),
    ],
)  # fmt: skip
def test_only_names_of_this_machine_are_answered(site: Site, headers: dict[str, str], status: int) -> None:
    assert site.stranger.get("/login", headers=headers).status_code == status


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}],
)
def test_a_form_of_another_page_changes_nothing(site: Site, headers: dict[str, str]) -> None:
    form = {"version": "0", "token": site.key.form_token}
    assert site.client.post("/rollback", data=form, headers=headers).status_code == 403
    assert site.client.post("/rollback", data={"version": "0"}).status_code == 403
    assert site.client.post("/rollback", json=form).status_code == 413
    assert site.client.get("/rollback?version=0").status_code == 405
    assert site.run.live.read_text().strip() == str(VERSIONS - 1)


def test_every_answer_has_the_security_headers(site: Site) -> None:
    for client, path in ((site.client, "/"), (site.stranger, "/"), (site.client, "/nothing"), (site.client, "/static/style.css")):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
    cookie = site.stranger.get(f"/login?key={site.key.key}").headers["set-cookie"]
    site.stranger.cookies.clear()
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()


def test_static_files_are_those_of_the_package_alone(site: Site) -> None:
    assert site.client.get("/static/uPlot.iife.min.js").headers["content-type"].startswith("text/javascript")
    for name in ("..%2Fpages.py", "uPlot.LICENSE", "%2Fetc%2Fpasswd"):
        assert site.client.get(f"/static/{name}").status_code == 404


def test_answers_name_their_versions_only_after_a_choice(site: Site) -> None:
    path = f"/answers?n={VERSIONS - 1}&against=6"
    before, after = site.text(path), site.text(f"{path}&pick=a")
    assert "A: version" not in before
    assert re.search(r"A: version (8|6)", after)
    new_is_a = "A: version 8" in after
    assert ("v8 1" in after) == new_is_a, "the preferred one is counted"
    assert before.index("New answer 0") < before.index("Old answer 0") if new_is_a else before.index("New answer 0")


def test_an_unfit_judge_is_shown_on_the_overview_and_on_the_page_of_the_judge(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 5))
    publish_fitness(site.run, Fitness(JudgeIdentity("http://127.0.0.1:9/v1", "tiny@0", "1", 0.6, 4096), 12, 3, 9, 4000.0))
    site.following.refresh()
    for page in ("/", "/judge"):
        assert "tiny@0 is not used as the judge: 3 of 12 planted turns right, 9 without a valid vote" in site.text(page)


def test_a_label_is_a_rating_below_that_of_the_turns_own_user(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 60))
    row = next(row for row in site.following.snapshot.rows if uncertainty(row) and row.turn["user"] == "default")
    turn_id = row.turn["turn_id"]
    answer = site.post("/label", turn=turn_id, rating="bad", comment="say less", back="//evil.example")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    ratings = Ratings(site.run)
    ratings.poll()
    label = ratings.of("default", turn_id)
    assert label is not None
    assert (label.key, label.rating, label.comment) == (LABEL, -1.0, "say less")
    site.following.refresh()
    assert site.following.snapshot.joined.row(turn_id).worth.text == "-1 by rating"
    assert turn_id not in site.text("/judge")
    FeedbackFile(site.run.feedback).append(Feedback("own", 1.0, "default", turn_id, 1.0, None))
    site.following.refresh()
    assert site.following.snapshot.joined.row(turn_id).worth.value == 1.0, "its own user decides, even earlier"
    with pytest.raises(Exception, match="reserved for labels"):
        add_key(site.run, LABEL)


def test_the_buttons_move_live_and_forget_people(tmp_path: Path) -> None:
    site = Site(make_run(tmp_path / "run", 60))
    assert "policy 6 is now live" in site.post("/rollback", version="6").text
    assert "v6" in site.text("/")
    assert "policy 8 is now live" in site.post("/promote", version="8").text
    assert site.post("/rollback", version="99").status_code == 409
    page = site.post("/forget", user="anna").text
    assert "cannot be undone" in page
    assert any(row.turn["user"] == "anna" for row in site.following.snapshot.rows)
    assert "were deleted" in site.post("/forget", user="anna", sure="yes").text
    assert counted(site.text("/turns?user=anna")) == 0
    assert counted(site.text("/turns?q=meeting")) == 0, "nor can their words be found"
    assert not any(row.turn["user"] == "anna" for row in read_rows(site.run).rows)


def with_anna(folder: Path) -> RunDir:
    """A run with a second policy: version 1 of anna answered twelve turns, five of them badly, and version 2 is live."""
    run = make_run(folder, 60)
    policy_run = run.of(begin_policy(run, "anna"))
    for version in (1, 2):
        policy = Policy(
            version, version - 1, version, "rl", "adapter", "crafts", [f"anna{version}"], None, {}, time.time() - 60, "anna"
        )
        publish_policy(policy_run, policy, lambda folder: None)
        move_live(policy_run, version, by="train")
    policy_run.steps.write_text('{"step": 1, "reward_mean": 0.777, "turns": 1}\n')
    turns = [
        turn(f"anna{n}", f"anna/own{n}", 0, time.time() - 90 + n, [], {"role": "assistant", "content": ""}, None, "anna", 1, None)
        for n in range(12)
    ]
    write_turns(run.turn_shard("b-0"), [replace(row, policy_name="anna") for row in turns])
    write_verdicts(run.verdict_shard("b-0"), [verdict(f"anna{n}", -1.0 if n < 5 else 1.0) for n in range(12)])
    return run


def test_the_pages_of_a_policy_show_its_versions_turns_and_steps_alone(tmp_path: Path) -> None:
    site = Site(with_anna(tmp_path / "run"))
    shared, personal = site.text("/"), site.text("/?policy=anna")
    assert '<option value="anna" selected>' in personal
    assert '<option value="default" selected>' in shared
    assert "(5 of 12)" in personal
    assert "(5 of 12)" not in shared
    assert '/version?n=2&amp;policy=anna">v2</a>' in personal
    anna = ("/?policy=anna", "/versions?policy=anna", "/version?n=1&policy=anna")
    for path in (*anna, "/", "/versions", f"/version?n={VERSIONS - 1}"):
        page = site.text(path)
        for href, count in re.findall(r'<a class="num" href="(/turns\?[^"]*)">([\d,]+)</a>', page):
            assert counted(site.text(href.replace("&amp;", "&"))) == int(count), (path, href)
    assert counted(site.text("/turns?policy=anna")) == 12
    assert counted(site.text("/turns?policy=anna&version=1")) == 12
    assert counted(site.text("/turns?version=1")) < 12
    assert "0.777" in site.text("/versions?policy=anna")
    assert "0.777" not in site.text("/versions")
    assert 'Version 1 <span class="dim">of anna' in site.text("/version?n=1&policy=anna")
    assert "policy=anna" in site.text("/turn?id=anna3")


@pytest.mark.parametrize("policy", ["unknown", "../..", "7", "a/b", "\u202e"])
def test_a_policy_that_the_run_does_not_have_is_refused(site: Site, policy: str) -> None:
    for path in ("/", "/versions", "/version?n=1", "/answers?n=1", "/measured?n=1"):
        assert site.client.get(path, params={**dict(httpx.URL(path).params), "policy": policy}).status_code == 404, path
    assert site.client.get("/turns", params={"policy": policy}).status_code == 200
    assert site.post("/promote", version="1", policy=policy).status_code == 400


def test_a_run_with_one_policy_offers_no_choice(site: Site) -> None:
    assert not any("policy=" in page or 'name="policy"><option' in page for page in map(site.text, ("/", "/versions", "/turns")))


def test_the_button_moves_the_policy_that_is_shown(tmp_path: Path) -> None:
    site = Site(with_anna(tmp_path / "run"))
    live = live_version(site.run)
    form = dict(
        re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', site.text("/version?n=1&policy=anna").split("Go live")[1])
    )
    answer = site.client.post("/rollback", data=form)
    assert "policy 1 is now live" in answer.text
    assert "/versions?policy=anna" in answer.text
    assert (live_version(site.run), live_version(site.run.of("anna"))) == (live, 1)
    assert "v2 → " in site.text("/versions?policy=anna")


def test_a_reader_that_stays_reads_only_new_files(run: RunDir) -> None:
    reader = TurnReader(run)
    first = reader.poll()
    assert reader.poll() is first, "nothing has changed"
    added = turn("new", "new", 0, time.time(), [{"role": "user", "content": "hello"}], {"role": "assistant", "content": "hi"}, None)
    write_turns(run.turn_shard("z"), [added])
    assert [row.turn["turn_id"] for row in reader.poll().rows] == [*(row.turn["turn_id"] for row in first.rows), "new"]
    newest = reader.poll().rows[-1:].with_texts()
    assert newest[0].turn["response"] == {"role": "assistant", "content": "hi"}
    run.turn_shard("z").unlink()
    assert list(newest) == [], "it went with the shard"
    assert list(reader.poll().rows) == list(read_rows(run).rows) == list(first.rows)


def test_intervals_are_those_of_the_literature() -> None:
    assert Rate(10, 100).share_interval == pytest.approx((0.0552, 0.1744), abs=1e-4)  # Brown, Cai and DasGupta 2001
    # Newcombe 1998, table II, method 10: 56/70 - 48/80 has the interval 0.0524 to 0.3339, so zero is outside
    assert lower(Rate(48, 80), Rate(56, 70)) == "better"
    assert lower(Rate(56, 70), Rate(48, 80)) == "worse"
    assert lower(Rate(9, 10), Rate(3, 10)) == "worse"  # 0.1705 to 0.8090
    assert lower(Rate(5, 56), Rate(0, 29)) == "no difference"  # -0.0381 to 0.1926


def test_the_empty_run_has_all_pages_too(tmp_path: Path) -> None:
    site = Site(open_run(tmp_path / "empty"))
    for path in ("/", "/conversations", "/turns", "/versions", "/judge", "/environments", "/data"):
        assert "</html>" in site.text(path)
    assert not matching(site.following.snapshot.rows, Filter(q="x"))
