"""A person's actions on the pages in a real browser. Each flow starts logged in, in a separate window."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-not-found, import-untyped, unused-ignore]
from playwright.sync_api import Browser, Page, sync_playwright

from clawctl.run.directory import RunDir
from clawctl.run.feedback import LABEL, Ratings
from clawctl.run.notes import change_note, read_notes
from clawctl.run.policies import begin_policy, move_live
from clawctl.run.rows import Feedback
from clawctl.run.shards import write_turns
from scripts.benchmarks.web_run import HOSTILE, VERSIONS, turn

_PAGES = {
    "overview": "/", "conversations": "/conversations?verdict=bad", "turns": "/turns",
    "conversation": "/conversation?id=s0&user=default",
    "versions": "/versions", "version": f"/version?n={VERSIONS - 1}", "answers": f"/answers?n={VERSIONS - 1}&against=0",
    "judge": "/judge", "environments": "/environments", "data": "/data",
}  # fmt: skip
_PATIENCE_S = 15


@dataclass
class Visit:
    """One window."""

    page: Page
    url: str
    link: str
    run: RunDir
    errors: list[str] = field(default_factory=list)  # errors in the console
    expected: str = "^$"  # errors that the flow provokes

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def text(self) -> str:
        return str(self.page.locator("main").inner_text())

    def number(self, text: str) -> int:
        return int(text.replace(",", "").split()[0])


FLOWS: dict[str, Callable[[Visit], None]] = {}
_WINDOWS: dict[str, dict[str, Any]] = {}  # settings of a flow's window
_TALKS: set[str] = set()  # flows of the run that has a server


def flow(talks: bool = False, **window: Any) -> Callable[[Callable[[Visit], None]], Callable[[Visit], None]]:
    def add(work: Callable[[Visit], None]) -> Callable[[Visit], None]:
        name = work.__name__.replace("_", " ")
        FLOWS[name], _WINDOWS[name] = work, window
        if talks:
            _TALKS.add(name)
        return work

    return add


Place = tuple[RunDir, dict[str, Any]]  # a run, and the output of `inspect web --json` on it


def play_flows(place: Place, served: Place, executable: str, show: Path | None = None) -> dict[str, str]:
    """The flows that failed, each with the reason. `served`: a run with a server. With `show`, screenshots in light and
    dark."""
    failed = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        if show is not None:
            _show(browser, place[1], show)
        for name, work in FLOWS.items():
            try:
                _play(browser, *(served if name in _TALKS else place), name, work)
            except Exception as error:  # noqa: BLE001 - whatever fails is what is counted
                failed[name] = f"{type(error).__name__}: {str(error)[:600]}"
        browser.close()
    return failed


def _play(browser: Browser, run: RunDir, link: dict[str, Any], name: str, work: Callable[[Visit], None]) -> None:
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **_WINDOWS[name]})
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_S * 1000)
    visit = Visit(page, link["url"].rstrip("/"), link["login"], run)
    page.on("console", lambda message: visit.errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((visit.url, "data:")) else visit.errors.append(request.url))
    try:
        page.goto(link["login"])
        page.wait_for_url(link["url"])
        work(visit)
        wrong = [error for error in visit.errors if not re.search(visit.expected, error)]
        assert not wrong, f"the console has errors: {wrong[:3]}"
    finally:
        context.close()


def _show(browser: Browser, link: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scheme, width in (("light", 1200), ("dark", 1200), ("light", 360)):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type, unused-ignore]
        page = context.new_page()
        page.goto(link["login"])
        page.wait_for_url(link["url"])
        for name, path in _PAGES.items():
            page.goto(link["url"].rstrip("/") + path)
            page.wait_for_timeout(150)
            page.screenshot(path=folder / f"{name}-{scheme}-{width}.png")
        context.close()


# ---- looking -----------------------------------------------------------------------------------------------------------------


@flow()
def the_first_page_answers_the_question(visit: Visit) -> None:
    assert visit.page.locator(".better .verdict").inner_text().startswith(("yes", "no", "mixed", "not"))
    visit.page.wait_for_selector(".chart canvas")
    assert visit.page.locator(".chart canvas").count() == 2
    assert not visit.page.locator("details.table").first.get_attribute("open")


@flow()
def every_number_leads_to_as_many_rows(visit: Visit) -> None:
    for path in ("/", "/versions", "/judge", "/data", f"/version?n={VERSIONS - 1}"):
        visit.go(path)
        links = visit.page.locator("a.num[href^='/turns?']").evaluate_all("all => all.map(one => [one.textContent, one.href])")
        assert links, f"{path} links no number"
        for text, href in links[:12]:
            visit.page.goto(href)
            number = visit.number(visit.page.locator(".count").inner_text())
            assert number == visit.number(text), f"{path}: {text} leads to {number} rows ({href})"


@flow()
def a_person_finds_a_conversation_by_its_words(visit: Visit) -> None:
    visit.page.get_by_role("link", name="Conversations", exact=True).click()
    visit.page.get_by_label("text").fill("laptops")
    visit.page.get_by_role("button", name="Show").click()
    assert visit.number(visit.page.locator(".count").inner_text()) > 0
    visit.page.locator(".list .title").first.click()
    assert "laptops" in visit.text()
    visit.page.get_by_role("link", name="why").first.click()
    assert "Where it comes from" in visit.text()
    visit.page.go_back()
    visit.page.go_back()
    assert visit.page.get_by_label("text").input_value() == "laptops"


@flow()
def filters_are_kept_together(visit: Visit) -> None:
    visit.go("/turns")
    for label, value in (("key", "anna"), ("version", "3"), ("verdict", "bad")):
        visit.page.get_by_label(label).select_option(value)
    visit.page.get_by_role("button", name="Show").click()
    rows = visit.page.locator("table.turns tbody tr")
    assert rows.count() > 0
    for text in rows.all_inner_texts():
        assert "anna" in text, text
        assert "v3" in text, text
        assert "bad" in text, text
    visit.page.get_by_role("link", name="clear").click()
    assert visit.page.get_by_label("key").input_value() == ""


@flow()
def the_tokens_of_a_trained_turn_have_colours(visit: Visit) -> None:
    visit.go(f"/turns?step={VERSIONS - 1}")
    visit.page.locator("td.wide a").first.click()
    tokens = visit.page.locator(".stream .t")
    assert tokens.count() == 24
    by_ratio = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    visit.page.get_by_role("link", name="opd advantage").click()
    by_advantage = visit.page.locator(".stream .t").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(by_advantage)) > 3
    assert by_ratio != by_advantage
    visit.page.get_by_text("every token with its numbers").click()
    assert visit.page.locator("#tokens tbody tr").count() == 24


@flow()
def dead_branches_are_in_the_lineage(visit: Visit) -> None:
    visit.go("/versions")
    assert visit.page.locator("tr.dead").count() == 2
    assert "refused by the gate" in visit.page.locator("tr.dead").first.inner_text()
    visit.page.locator("tr.dead th a").first.click()
    assert "mine.py:Style satisfaction fell" in visit.text()


@flow()
def answers_are_blind_until_the_reader_chooses(visit: Visit) -> None:
    visit.go(f"/version?n={VERSIONS - 1}")
    visit.page.get_by_role("button", name="Compare").click()
    heads = visit.page.locator(".sides h2")
    assert heads.all_inner_texts() == ["A", "B"]
    first = visit.page.locator(".sides .words").first.inner_text()
    visit.page.get_by_role("link", name="A is better").click()
    assert re.fullmatch(r"A: version \d+", heads.first.inner_text())
    assert visit.page.locator(".sides .words").first.inner_text() == first
    assert "<b>bold?</b>" in visit.text(), "an answer is text"
    visit.page.get_by_role("link", name="next task").click()
    assert heads.all_inner_texts() == ["A", "B"]


@flow()
def new_turns_appear_without_a_restart(visit: Visit) -> None:
    text = f"a request that came at {time.time():.3f}"
    new_turn = turn(
        "later1", "later", 0, time.time(), [{"role": "user", "content": text}], {"role": "assistant", "content": "yes"}, None
    )
    write_turns(visit.run.turn_shard("99999999-later"), [new_turn])
    _until(lambda: text in _reloaded(visit, "/conversations"), "the new turn is listed")


@flow()
def a_page_follows_the_run_and_keeps_what_a_person_began(visit: Visit) -> None:
    visit.go("/conversations")
    visit.page.get_by_label("text").fill("half a wor")
    visit.page.locator(".list a").first.focus()
    for number in range(3):
        count = visit.page.locator(".count").inner_text()
        text = f"a request without a reload {time.time():.3f}"
        question, reply = {"role": "user", "content": text}, {"role": "assistant", "content": "yes"}
        new_turn = turn(f"live{number}", f"live{number}", 0, time.time(), [question], reply, None)
        write_turns(visit.run.turn_shard(f"99999999-live{number}"), [new_turn])
        visit.page.wait_for_function("before => document.querySelector('.count').innerText !== before", arg=count)
        assert text in visit.page.locator(".list li").first.inner_text()
        assert visit.page.get_by_label("text").input_value() == "half a wor"
    visit.go("/versions")
    move_live(visit.run, 6, by="a test")
    visit.page.wait_for_selector("#v-6 .mark.live")
    move_live(visit.run, VERSIONS - 1, by="a test")
    visit.page.wait_for_selector(f"#v-{VERSIONS - 1} .mark.live")


@flow()
def the_keyboard_alone_is_enough(visit: Visit) -> None:
    keyboard = visit.page.keyboard
    keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to content"
    _tab_to(visit, "Conversations")
    keyboard.press("Enter")
    visit.page.wait_for_url("**/conversations")
    keyboard.press("Tab")
    keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "main"
    keyboard.press("Tab")
    keyboard.type("Freitag OR nothing")
    keyboard.press("Enter")
    visit.page.wait_for_url("**q=Freitag**")
    visit.go("/conversations")
    _tab_to(visit, visit.page.locator(".list .title").first.inner_text())
    outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus is visible"
    keyboard.press("Enter")
    visit.page.wait_for_url("**/conversation?**")
    _tab_to(visit, "label")
    keyboard.press("Enter")
    assert visit.page.locator("details.labelling").first.get_attribute("open") is not None
    focused = "document.activeElement.closest('.queued')?.id"
    visit.go("/judge")
    keyboard.press("n")  # the focus is on no turn, so nothing is rated
    visit.go("/judge#queue")
    first, second = (visit.page.locator("#queue .queued").nth(index).get_attribute("id") for index in (0, 1))
    assert visit.page.evaluate(focused) == first
    keyboard.press("Shift+Tab")
    keyboard.type("funny")  # a comment
    assert visit.page.locator("#queue input[name=comment]").first.input_value() == "funny"
    keyboard.press("Tab")
    keyboard.press("n")
    visit.page.wait_for_selector(f"[id='{second}'] button:focus")
    ratings = Ratings(visit.run)
    label = next(rating for rating in ratings.read() if isinstance(rating, Feedback) and f"q-{rating.turn_id}" == first)
    assert (label.key, label.rating, label.comment) == (LABEL, -1.0, "funny")


@flow(viewport={"width": 360, "height": 740})
def no_page_is_wider_than_a_telephone(visit: Visit) -> None:
    for path in [*_PAGES.values(), *(f"/conversation?id={name}&user=default" for name in HOSTILE), _trained(visit)]:
        visit.go(path)
        width = visit.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"{path} is {width} px wide"


@flow(color_scheme="dark")
def the_dark_pages_are_dark_and_can_be_read(visit: Visit) -> None:
    _check_colours(visit, dark=True)


@flow(color_scheme="light")
def the_light_pages_can_be_read(visit: Visit) -> None:
    _check_colours(visit, dark=False)


@flow(java_script_enabled=False)
def without_javascript_everything_but_the_charts_works(visit: Visit) -> None:
    for path in _PAGES.values():
        visit.go(path)
    visit.go("/")
    assert visit.page.locator("details.table[open]").count() == 2
    visit.go("/judge")
    before = visit.page.locator("#queue article").first.get_attribute("id")
    visit.page.get_by_role("button", name="neutral").first.click()
    assert visit.page.locator(f"#queue [id='{before}']").count() == 0


# ---- talking ---------------------------------------------------------------------------------------------------------------------


def _say(visit: Visit, text: str, number: int, shown: str) -> None:
    visit.page.wait_for_selector("button.main:not([disabled])")
    visit.page.get_by_label("Your message").fill(text)
    visit.page.keyboard.press("Enter")
    visit.page.locator(f"#a-{number}-0").get_by_text(shown, exact=True).wait_for()
    visit.page.wait_for_selector(f"#x-{number} form.label")


def _talk(visit: Visit) -> None:
    visit.page.get_by_role("link", name="Talk", exact=True).click()
    _say(visit, "Greet me [[say:hello there]]", 0, "hello there")
    wish = f"Be formal at {time.time():.3f}."
    visit.page.get_by_label("What it should have done").fill(wish)
    visit.page.get_by_role("button", name="bad").click()
    visit.page.wait_for_selector("button[value=bad][aria-pressed=true]")
    visit.page.get_by_label("What it should have done").fill(wish)
    visit.page.get_by_role("button", name="remember this").click()
    visit.page.get_by_role("link", name=wish).wait_for()
    assert visit.page.locator("[aria-current=step]").first.inner_text() == "noted"
    _say(visit, "Again [[say:good day]]", 1, "good day")
    (note,) = (note for note in read_notes(visit.run, "default") if note.text == wish)
    change_note(visit.run, "default", note.id, state="practised")
    visit.page.wait_for_function("() => document.querySelector('[aria-current=step]').innerText === 'practising'")
    change_note(visit.run, "default", note.id, state="learned", learned=0, followed=((0, 0.95),))
    visit.page.wait_for_function("() => document.querySelector('[aria-current=step]').innerText === 'learned'")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= visit.page.evaluate("innerWidth")
    visit.page.get_by_role("link", name=wish).click()
    visit.page.wait_for_url("**/notes#n-default-*")
    assert wish in visit.text()
    lines = [line for path in visit.run.feedback.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert any(wish in line and '"rating":-1' in line for line in lines), "the complaint counts as over the API"


@flow(talks=True, viewport={"width": 1280, "height": 900})
def a_person_talks_complains_and_sees_the_wish_noted_and_learned(visit: Visit) -> None:
    _talk(visit)


@flow(talks=True, viewport={"width": 390, "height": 844})
def a_person_talks_and_complains_on_a_telephone(visit: Visit) -> None:
    _talk(visit)


@flow(talks=True)
def two_versions_answer_side_by_side_without_their_names(visit: Visit) -> None:
    visit.go("/talk")
    visit.page.get_by_label("version").select_option("0")
    visit.page.get_by_label("beside it").select_option("live")
    visit.page.get_by_label("names").select_option("yes")
    _say(visit, "Both [[say:good morning]]", 0, "good morning")
    heads = visit.page.locator(".answer h2")
    assert heads.all_inner_texts() == ["A", "B"]
    visit.page.get_by_role("button", name="show which version is which").click()
    visit.page.wait_for_function("() => document.querySelector('.answer h2').innerText.startsWith('version')")
    _say(visit, "Once more [[say:good evening]]", 1, "good evening")


@flow(talks=True)
def a_person_talks_with_the_keyboard_alone(visit: Visit) -> None:
    visit.go("/talk")
    keyboard = visit.page.keyboard
    while visit.page.evaluate("document.activeElement.tagName") != "TEXTAREA":
        keyboard.press("Tab")
    keyboard.type("Greet me [[say:hi]]")
    keyboard.press("Enter")
    visit.page.wait_for_selector("#x-0 form.label")
    visit.page.wait_for_function("() => document.activeElement.tagName === 'TEXTAREA'")  # the next message can be typed at once
    while visit.page.evaluate("document.activeElement.value") != "good":
        keyboard.press("Shift+Tab")
    keyboard.press("Enter")
    visit.page.wait_for_selector("button[value=good][aria-pressed=true]")


@flow(talks=True, java_script_enabled=False)
def a_person_talks_without_javascript(visit: Visit) -> None:
    visit.go("/talk")
    visit.page.get_by_label("Your message").fill("Greet me [[say:hello <script>there</script>]]")
    visit.page.get_by_role("button", name="Send").click()
    assert visit.page.locator("#a-0-0").inner_text() == "hello <script>there</script>"
    visit.page.get_by_role("button", name="bad").click()
    assert visit.page.locator("button[value=bad][aria-pressed=true]").count() == 1


# ---- hostile words -----------------------------------------------------------------------------------------------------------


@flow()
def hostile_words_are_only_words(visit: Visit) -> None:
    for name in HOSTILE:
        paths = [f"/conversation?id={name}&user=default", f"/turn?id={name}-1", f"/text?id={name}-1&part=answer"]
        for path in [*paths, "/conversations", "/judge", f"/conversations?{urlencode({'q': HOSTILE[name][:60]})}"]:
            visit.go(path)
            assert visit.page.evaluate("window.broken") is None, f"{path} ran a script"
            body = visit.page.evaluate("document.body.innerText")
            assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b\x9b]", body), f"{path} shows a control character"
            assert len(visit.page.content()) < 6_000_000
    visit.go("/conversation?id=hostile-script&user=default")
    assert "<script>window.broken = true</script>" in visit.text()
    visit.go("/conversation?id=hostile-bidi&user=default")
    assert "202E" in visit.text()
    visit.go("/conversation?id=hostile-megabyte&user=default")
    assert len(visit.text()) < 20_000
    visit.page.get_by_role("link", name="the whole text").first.click()
    assert len(visit.page.evaluate("document.body.innerText")) > 1_000_000


@flow()
def strangers_stay_outside(visit: Visit) -> None:
    url, port = visit.url, visit.url.rpartition(":")[2]
    with httpx.Client(base_url=url) as client:
        assert "Log in" in client.get("/").text
        assert "Log in" in client.get("/conversation?id=s0&user=default").text
        assert client.get("/login?key=wrong").status_code == 403
        assert client.get("/", headers={"Host": f"evil.example:{port}"}).status_code == 421
        assert client.post("/rollback", data={"version": "0"}).status_code == 401
        client.get(visit.link)
        assert "Did it get better" in client.get("/").text
        assert client.post("/rollback", data={"version": "0"}).status_code == 403
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
        token = re.findall(r'name="token" value="([^"]+)"', client.get("/data").text)[0]
        form = {"version": "0", "token": token}
        assert client.post("/rollback", data=form, headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.post("/rollback", data=form, headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
    assert visit.run.live.read_text().strip() == str(VERSIONS - 1)


@flow()
def axe_finds_nothing(visit: Visit) -> None:
    """The rules of axe-core, in light and dark."""
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type, unused-ignore]
        for path in [*_PAGES.values(), "/notes", "/talk", _trained(visit)]:
            visit.go(path)
            violations = Axe().run(visit.page).response["violations"]
            assert not violations, f"{path}, {scheme}: {violations[0]['id']} at {violations[0]['nodes'][0]['html'][:200]}"


# ---- the buttons -------------------------------------------------------------------------------------------------------------


@flow()
def a_label_outranks_the_judge(visit: Visit) -> None:
    visit.go("/judge")
    first = visit.page.locator("#queue article").first
    turn_id = (first.get_attribute("id") or "").removeprefix("t-")
    visit.page.locator("#queue form.label input[name=comment]").first.fill("say it in one sentence")
    visit.page.get_by_role("button", name="bad").first.click()
    visit.page.wait_for_selector(f"#queue [id='t-{turn_id}']", state="detached")
    ratings = Ratings(visit.run)
    ratings.poll()
    label = ratings.of("default", turn_id) or ratings.of("anna", turn_id) or ratings.of("ben", turn_id)
    assert label is not None
    assert (label.key, label.rating, label.comment) == (LABEL, -1.0, "say it in one sentence")
    _until(lambda: "-1 by rating" in _reloaded(visit, f"/turn?id={quote(turn_id)}"), "the reward is the label")


@flow()
def a_person_rolls_back_and_promotes(visit: Visit) -> None:
    visit.go("/versions")
    visit.page.get_by_role("link", name="v6", exact=True).first.click()
    visit.page.get_by_role("button", name="Roll back to version 6").click()
    assert "policy 6 is now live" in visit.text()
    assert visit.run.live.read_text().strip() == "6"
    visit.go(f"/version?n={VERSIONS - 1}")
    visit.page.get_by_role("button", name=f"Promote version {VERSIONS - 1}").click()
    assert visit.run.live.read_text().strip() == str(VERSIONS - 1)


@flow()
def a_person_is_forgotten(visit: Visit) -> None:
    visit.go("/data")
    assert "ben" in visit.text()
    visit.page.get_by_role("button", name="Forget the key ben").click()
    assert "cannot be undone" in visit.text()
    visit.page.get_by_role("link", name="cancel").click()
    assert "ben" in visit.text()
    visit.page.get_by_role("button", name="Forget the key ben").click()
    visit.page.get_by_role("button", name=re.compile(r"Delete \d+ turns")).click()
    assert "were deleted" in visit.text()
    visit.go("/data")
    assert "ben" not in visit.page.locator("main table").first.inner_text()
    visit.go("/turns?user=ben")
    assert visit.number(visit.page.locator(".count").inner_text()) == 0
    visit.go("/conversation?id=ben%2Fs2&user=ben")
    visit.expected = "404"
    assert "no such conversation" in visit.text()


@flow()
def a_person_chooses_the_policy_of_a_person(visit: Visit) -> None:
    move_live(visit.run.of(begin_policy(visit.run, "anna")), 0, by="flow")
    _until(lambda: "policy" in _reloaded(visit, "/"), "the choice appears")
    visit.page.get_by_label("policy").select_option("anna")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.get_by_role("link", name="Versions").first.click()
    visit.page.wait_for_url(re.compile("/versions.policy=anna"))
    assert visit.page.locator("table.versions tbody tr").count() == 1
    for path in ("/?policy=anna", "/versions?policy=anna", "/version?n=0&policy=anna", "/turns?policy=anna"):
        visit.go(path)
        assert not Axe().run(visit.page).response["violations"], path


# ---- tools -------------------------------------------------------------------------------------------------------------------


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {_PATIENCE_S} s: {what}"
        time.sleep(0.3)


def _reloaded(visit: Visit, path: str) -> str:
    visit.go(path)
    return visit.text()


def _tab_to(visit: Visit, text: str) -> None:
    for _ in range(80):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate("document.activeElement.textContent").strip() == text:
            return
    raise AssertionError(f"the Tab key does not reach {text!r}")


def _trained(visit: Visit) -> str:
    visit.go(f"/turns?step={VERSIONS - 1}")
    return (visit.page.locator("td.wide a").first.get_attribute("href") or "") + "&colour=opd"


_CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (one) => { for (let at = one; at; at = at.parentElement) {
    const found = numbers(getComputedStyle(at).backgroundColor); if (found.length < 4 || found[3] > 0) return found; }
    return [255, 255, 255]; };
  const low = [];
  for (const one of document.querySelectorAll("main *, header *")) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || !one.checkVisibility()) continue;
    const [a, b] = [light(numbers(getComputedStyle(one).color)), light(ground(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${one.tagName}.${one.className} ${one.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""


def _check_colours(visit: Visit, dark: bool) -> None:
    """Check that all text has a contrast of at least 4.5 (WCAG 2.1, AA)."""
    trained = _trained(visit)
    for path in [*_PAGES.values(), trained]:
        visit.go(path)
        red = int(re.findall(r"\d+", visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red < 60) == dark
        low = visit.page.evaluate(_CONTRAST)
        assert not low, f"{path}: {low[:5]}"
