"""Notes are files that people and stages write: what is read, what is merged, and what ends what."""

import os
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from clawctl.cli.notes import add_note as add_by_command
from clawctl.cli.notes import edit_note
from clawctl.errors import ClawError
from clawctl.inspect.notes import show_note, show_notes
from clawctl.run.directory import RunDir, open_run
from clawctl.run.notes import (
    BadNote,
    Note,
    add_note,
    change_note,
    find_note,
    is_opposite,
    keys_with_notes,
    notes_for,
    read_notes,
    remembered,
    remove_note,
    write_note,
)
from tests.extension import needs


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def by_hand(run: RunDir, name: str, text: str, key: str = "default") -> Path:
    path = run.notes / key / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- files -----------------------------------------------------------------------------------------------------------------


def test_a_note_is_read_as_it_was_written(run: RunDir) -> None:
    when, words, said = "when: I ask about code", ("code", "py: thon"), "please, be brief: - really"
    text = "Answer in one short sentence.\nAlways: even then."
    about = ("a1", "b2"), 12.0, date(2030, 1, 2), "because: it is", 7, "anna", 3
    note = Note("brief", text, "wish", "learned", when, words, said, *about)
    write_note(run, "anna", note)
    assert read_notes(run, "anna") == [note]
    assert keys_with_notes(run) == ["anna"]


def test_a_file_without_front_matter_is_a_wish(run: RunDir) -> None:
    by_hand(run, "spanish.md", "  Answer in Spanish.\n")
    (note,) = read_notes(run, "default")
    assert (note.id, note.text, note.kind, note.state, note.in_force) == ("spanish", "Answer in Spanish.", "wish", "new", True)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf---\nstate: retracted\n---\nx",
        b"\n\n---\nstate: retracted\n---\n\nx\n",
        b"---\r\nstate: retracted\r\n---\r\nx\r\n",
        b"--- \nstate: retracted\ncreated_at: 2026-11-26\n---\nx",
    ],
)
def test_front_matter_is_read_as_editors_write_it(run: RunDir, content: bytes) -> None:
    by_hand(run, "other.md", "---\n---\nno field").with_name("a.md").write_bytes(content)
    assert {(note.text, note.state) for note in read_notes(run, "default")} == {("x", "retracted"), ("no field", "new")}


def test_a_skill_is_a_note_for_requests_that_name_it(run: RunDir) -> None:
    by_hand(
        run, "pdf-forms/SKILL.md", "---\nname: pdf-forms\ndescription: Fill in forms\nlicense: MIT\n---\n# Forms\nUse the tool.\n"
    )
    (note,) = read_notes(run, "default")
    assert (note.id, note.text, note.when) == ("pdf-forms", "# Forms\nUse the tool.", "Fill in forms")
    assert note.applies_to("Can you fill this PDF?")
    assert not note.applies_to("What is the capital of Spain?")
    change_note(run, "default", "pdf-forms", state="retracted")
    front = (run.notes / "default" / "pdf-forms" / "SKILL.md").read_text()
    assert all(line in front for line in ("name: pdf-forms", "description: Fill in forms", "license: MIT", "state: retracted"))
    assert [(path.parent.name, path.name) for path in run.notes.rglob("*.md")] == [("pdf-forms", "SKILL.md")]
    remove_note(run, "default", "pdf-forms")
    assert read_notes(run, "default") == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"---\nkind: [\n---\nx", "not YAML"),
        (b"---\n- a\n---\nx", "name: value"),
        (b"---\nkind: dream\n---\nx", "its `kind` must be wish or fact"),
        (b"---\nstate: lost\n---\nx", "its `state` must be one of new, prompted"),
        (b"---\nwords: code\n---\nx", "its `words` must be a list, such as [code, script]"),
        (b"---\nlearned: soon\n---\nx", "Expected `int | null`, got `str` - at `$.learned`"),
        (b"---\nuntil: soon\n---\nx", "its `until` must be a day, such as 2026-12-31"),
        (b"---\ncreated_at: soon\n---\nx", "its `created_at` must be a day and time, such as"),
        (b"---\nuntil: 2026-11-31\n---\nx", "day is out of range for month"),
        (b"---\nwords: " + b"[" * 1500 + b"\n---\nx", "not YAML"),
        (b"---\nsteps: " + b"9" * 5000 + b"\n---\nx", "not YAML"),
        (b"---\ncreated_at: 1.0e+20\n---\nx", "out of range"),
        (b"---\ncreated_at: .nan\n---\nx", "NaN"),
        (b"---\nstate: retracted\nx", "no end"),
        (b"---\nkind: wish\n---\n", "no text"),
        (b"", "no text"),
        (b"\xff\xfe", "UTF-8"),
        (b"x" * (65 << 10), "longer than 64 KiB"),
    ],
)
def test_a_file_that_is_no_note_is_named_and_hides_no_other(run: RunDir, content: bytes, problem: str) -> None:
    by_hand(run, "good.md", "Answer in Spanish.")
    (run.notes / "default" / "bad.md").write_bytes(content)
    problems: list[str] = []
    assert [note.id for note in read_notes(run, "default", problems)] == ["good"]
    assert len(problems) == 1
    assert problem in problems[0]
    assert "bad.md" in problems[0]


def test_of_a_file_and_a_skill_with_one_name_the_file_is_named_as_a_problem(run: RunDir) -> None:
    by_hand(run, "tea.md", "Answer in Spanish.")
    skill = run.notes / "default" / "tea" / "SKILL.md"
    skill.parent.mkdir()
    skill.write_text("Warm the pot first.")
    problems: list[str] = []
    assert [note.text for note in read_notes(run, "default", problems)] == ["Warm the pot first."]
    assert ["tea.md is not a note: the folder tea has a note of the same name" in problem for problem in problems] == [True]


def test_links_and_other_files_are_not_notes(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("a secret")
    by_hand(run, "notes.txt", "no note")
    by_hand(run, ".hidden.md", "no note")
    (run.notes / "default" / os.fsdecode(b"br\xe8ve.md")).write_text("no note")
    os.symlink(tmp_path / "secret.md", run.notes / "default" / "link.md")
    (run.notes / "default" / "skill").mkdir()
    os.symlink(tmp_path / "secret.md", run.notes / "default" / "skill" / "SKILL.md")
    problems: list[str] = []
    assert read_notes(run, "default", problems) == []
    assert [problem.rpartition("/default/")[2].encode(errors="replace").decode() for problem in problems] == [
        f"{name} is ignored: a note is a file ID.md or ID/SKILL.md, and no link"
        for name in ("br?ve.md", "link.md", "notes.txt", "skill")
    ]


def test_a_file_that_is_no_note_is_found_by_its_name_and_can_be_deleted(run: RunDir) -> None:
    path = by_hand(run, "bad.md", "---\nkind: dream\n---\nbe brief")
    for work in (find_note, change_note):
        with pytest.raises(ClawError, match="its `kind` must be wish or fact"):
            work(run, "default", "bad")
    remove_note(run, "default", "bad")
    assert not path.exists()
    with pytest.raises(ClawError, match="default has no note 'bad'"):
        remove_note(run, "default", "bad")


def test_a_note_of_a_key_that_does_not_exist_is_not_added(run: RunDir) -> None:
    with pytest.raises(ClawError, match="there is no key named 'ana'"):
        add_by_command("be brief", run=run.root, key="ana")
    assert read_notes(run, "ana") == []


def test_a_note_reaches_the_terminal_without_control_characters_and_as_it_was_written(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has a key can write one, and somebody else lists them."""
    hostile = "be [red]brief \x1b]0;title\x07\x1b[2J\x9b31m\u202egnp"
    note = add_note(run, "bert", hostile, when=hostile, words=(hostile,)).note
    assert not {"\x1b", "\x07", "\x9b"} & {*note.text, *(note.when or ""), *note.words[0]}
    by_hand(run, "hand.md", hostile, "bert")
    by_hand(run, "[bold]bad.md", "", "bert")
    show_notes(run, "", as_json=False)
    show_note(run, "bert", "hand", as_json=False)
    show_note(run, "bert", note.id, as_json=False)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)
    assert out.count("be [red]brief") > 3
    assert "[bold]bad.md" in out


def test_folders_of_editors_are_not_those_of_keys(run: RunDir) -> None:
    by_hand(run, "note.md", "Answer in Spanish.", ".obsidian")
    by_hand(run, "note.md", "Answer in Spanish.", "anna")
    assert keys_with_notes(run) == ["anna"]


@needs("secrets")
@pytest.mark.parametrize("text", ["  ", "x" * 2001])
def test_what_the_command_edits_is_checked_as_what_is_added(run: RunDir, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    add_note(run, "anna", "Answer in Spanish.")
    with pytest.raises(ClawError, match="cannot be a note"):
        edit_note("answer-in-spanish", run.root, "anna", text=text)
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    edit_note("answer-in-spanish", run.root, "anna", text=f"Sign with\n{secret}", when=secret, words=f"code,{secret}")
    (note,) = read_notes(run, "anna")
    assert (note.words[0], note.text.split()[:2], note.state) == ("code", ["Sign", "with"], "new")
    assert secret not in (run.notes / "anna" / "answer-in-spanish.md").read_text() + capsys.readouterr().out


@pytest.mark.parametrize("key", ["..", ".", "", "a/b", "../anna", ".locks"])
def test_a_name_that_leads_elsewhere_is_refused(run: RunDir, key: str) -> None:
    with pytest.raises(ClawError, match="is not the name of a key"):
        add_note(run, key, "Answer in Spanish.")


# ---- adding --------------------------------------------------------------------------------------------------------------


def test_equal_notes_are_one_and_a_learned_one_returns_to_the_prompt(run: RunDir) -> None:
    first = add_note(run, "anna", "Answer in Spanish.", turns=("a",)).note
    change_note(run, "anna", first.id, state="learned", learned=4)
    again = add_note(run, "anna", "answer in  SPANISH", turns=("b",)).note
    assert (again.id, again.state, again.learned, again.turns) == (first.id, "prompted", None, ("a", "b"))
    assert len(read_notes(run, "anna")) == 1


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Write it in C.", "Write it in C++."),
        ("Use ✅", "Use ❌"),
        ("हिन्दी में उत्तर दो", "हिन्दी में उत्तर दे"),
        ("Call me Jo.", "Call me Jö."),
    ],
)
def test_sentences_that_differ_in_a_sign_or_a_mark_are_not_equal(run: RunDir, text: str, other: str) -> None:
    add_note(run, "anna", text)
    assert add_note(run, "anna", other).note.text == other
    assert add_note(run, "anna", f"**{other}** ").note.text == other
    assert len(read_notes(run, "anna")) == 2


def test_the_same_sentence_for_other_requests_holds_for_both_until_it_is_taken_back(run: RunDir) -> None:
    first = add_note(run, "anna", "Show an example.", words=("code", "script"))
    assert add_note(run, "anna", "Show an example.", words=("recipe", "code")).note.words == ("code", "script", "recipe")
    change_note(run, "anna", first.note.id, state="retracted")
    assert add_note(run, "anna", "Show an example.", words=("recipe",)).note.words == ("recipe",)


def test_a_sentence_that_was_edited_by_hand_is_not_learned(run: RunDir) -> None:
    note = Note("a", "Answer in Spanish.", "wish", "learned", learned=4, steps=6, followed=((4, 0.95),))
    write_note(run, "anna", note)
    path = run.notes / "anna" / "a.md"
    assert (read_notes(run, "anna")[0].state, read_notes(run, "anna")[0].learned) == ("learned", 4)
    path.write_text(path.read_text().replace("Spanish", "rhymes"))
    (edited,) = read_notes(run, "anna")
    assert (edited.text, edited.state, edited.learned, edited.steps) == ("Answer in rhymes.", "new", None, 0)
    write_note(run, "anna", replace(note, state="retracted"))
    path.write_text(path.read_text().replace("Spanish", "rhymes"))
    assert read_notes(run, "anna")[0].state == "retracted"


def test_a_retracted_note_is_tried_anew_when_it_is_said_again(run: RunDir) -> None:
    first = add_note(run, "anna", "Answer in Spanish.").note
    change_note(run, "anna", first.id, state="not understood", reason="no difference")
    again = add_note(run, "anna", "Answer in Spanish.").note
    assert (again.state, again.reason) == ("new", None)
    change_note(run, "anna", first.id, until=date(2020, 1, 1))
    assert add_note(run, "anna", "Answer in Spanish.").note.in_force


@pytest.mark.parametrize(
    ("first", "other", "are_opposite"),
    [
        ("Answer in Spanish.", "Answer in German.", True),
        ("Use emoji.", "Do not use emoji.", True),
        ("Use emoji.", "Never use emoji!", True),
        ("Duze mich.", "Duze mich nie.", True),
        ("Give short answers.", "Give long answers.", True),
        ("Answer in Spanish.", "Use emoji.", False),
        ("Wants no comments in code.", "Wants no docstrings in code.", False),
        ("Wants no comments in code.", "Wants comments in code.", True),
        ("Mention the price of everything.", "Mention the weight of everything.", False),
        ("Zeige immer den Preis.", "Zeige immer das Gewicht.", False),
        ("Answer in one short sentence.", "Address the user as Captain.", False),
        ("Use emoji.", "use emoji", False),
    ],
)
def test_wishes_that_differ_in_a_negation_or_in_one_word_are_opposite(first: str, other: str, are_opposite: bool) -> None:
    assert is_opposite(Note("a", first), Note("b", other)) is are_opposite
    assert is_opposite(Note("b", other), Note("a", first)) is are_opposite


def test_facts_are_never_opposite() -> None:
    assert not is_opposite(Note("a", "My son is Max.", "fact"), Note("b", "My son is Tom.", "fact"))


def test_the_later_of_two_opposite_wishes_holds_and_the_earlier_says_why_it_does_not(run: RunDir) -> None:
    spanish = add_note(run, "anna", "Answer in Spanish.").note
    added = add_note(run, "anna", "Answer in German.")
    assert added.superseded == [spanish.id]
    notes = {note.id: note for note in read_notes(run, "anna")}
    assert (notes[spanish.id].state, notes[spanish.id].in_force) == ("superseded", False)
    reason = notes[spanish.id].reason or ""
    assert re.fullmatch(r"a note of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d says otherwise", reason), "its words may be forgotten"
    assert notes[added.note.id].in_force
    assert add_note(run, "bert", "Answer in Spanish.").superseded == []
    assert add_note(run, "anna", "Answer in Spanish.").superseded == [added.note.id]


def test_a_note_that_is_put_back_ends_the_one_that_contradicts_it(run: RunDir) -> None:
    spanish, german = (add_note(run, "anna", f"Answer in {language}.").note.id for language in ("Spanish", "German"))
    change_note(run, "anna", spanish, state="new", reason=None)
    notes = {note.id: note for note in read_notes(run, "anna")}
    assert (notes[spanish].in_force, notes[german].state) == (True, "superseded")


def test_two_opposite_sentences_are_never_in_one_prompt(run: RunDir) -> None:
    """However the files came about. The one for this request holds, then the newer one."""
    notes = [
        Note("a", "Answer in Spanish.", created_at=1.0), Note("b", "Answer in German.", created_at=2.0),
        Note("c", "Answer in French.", created_at=0.0, words=("code",)), Note("d", "Answer in short.", "fact", created_at=3.0),
    ]  # fmt: skip

    def ids(request: str, **options: Any) -> str:
        return "".join(note.id for note in notes_for(notes, request, **options))

    assert (ids("hello", chars=2000), ids("review my code", chars=2000)) == ("bd", "cd")
    assert ids("hello", chars=20) == "d"
    assert ids("hello", chars=20, is_learned=lambda note: note.id == "d") == "bd"


def test_ids_are_readable_and_never_taken_twice(run: RunDir) -> None:
    texts = ["Answer in Spanish.", "Answer in Spanish, please always!", "短く答えて", "用中文回答我", "a" * 300]
    ids = [add_note(run, "anna", text).note.id for text in texts]
    assert ids == ["answer-in-spanish", "answer-in-spanish-please-always", "note", "note-2", "a" * 40]


@pytest.mark.parametrize("text", ["", "  \n ", "x" * 2001])
def test_what_cannot_be_a_note_is_refused_and_nothing_is_written(run: RunDir, text: str) -> None:
    with pytest.raises(BadNote):
        add_note(run, "anna", text)
    assert read_notes(run, "anna") == []


def test_secrets_are_taken_out_before_a_note_is_written(run: RunDir) -> None:
    about = {"said": "it is hunter22", "when": "with hunter22", "words": ("hunter22",)}
    add_note(run, "anna", "My token is hunter22.", lambda text: text.replace("hunter22", "[redacted]"), **about)
    assert all("hunter22" not in path.read_text() for path in run.notes.rglob("*.md"))


def test_changing_or_removing_an_unknown_note_names_those_that_there_are(run: RunDir) -> None:
    add_note(run, "anna", "Answer in Spanish.")
    for work in (lambda: change_note(run, "anna", "nope", state="new"), lambda: remove_note(run, "anna", "nope")):
        with pytest.raises(ClawError, match="anna has no note 'nope'") as raised:
            work()
        assert "answer-in-spanish" in raised.value.fix


# ---- when a note holds -----------------------------------------------------------------------------------------------------


def test_a_note_holds_until_its_last_day(run: RunDir) -> None:
    today = date.today()
    assert Note("a", "x", until=today).in_force
    past = Note("a", "x", until=today - timedelta(days=1))
    assert (past.in_force, past.shown_state, past.state) == (False, "expired", "new")
    assert Note("a", "x", state="retracted", until=today - timedelta(days=1)).shown_state == "retracted"


def test_what_is_remembered_is_one_short_line_and_a_long_text_costs_no_time() -> None:
    assert [remembered(text) for text in ("/remember be brief", " Remember:  be brief \n", "/remember", "remember me: x")] == [
        "be brief", "be brief", None, None,
    ]  # fmt: skip
    assert remembered("remember: a\nb") is None
    assert remembered("remember: " + " " * 5_000_000 + "\nx") is None


def test_too_many_words_are_refused(run: RunDir) -> None:
    with pytest.raises(BadNote, match="more than 16 words"):
        add_note(run, "anna", "Be brief.", words=tuple(map(str, range(17))))
    with pytest.raises(BadNote, match="longer than 2000"):
        add_note(run, "anna", "Be brief.", words=("x" * 2001,))


def test_words_are_whole_words_in_any_case() -> None:
    note = Note("a", "x", words=("code", "c++"))
    assert note.applies_to("Review my CODE, please")
    assert note.applies_to("is C++ hard?")
    assert not note.applies_to("the codec is broken")


@pytest.mark.parametrize(
    ("word", "request_"),
    [
        ("代码", "请写代码给我"),
        ("コード", "このコードを見て"),
        ("코드", "코드를 보여줘"),
        ("โค้ด", "ช่วยดูโค้ดหน่อย"),
        ("código", "mi co\u0301digo"),
    ],
)
def test_words_are_found_in_scripts_without_spaces_and_however_letters_are_encoded(word: str, request_: str) -> None:
    assert Note("a", "x", words=(word,)).applies_to(request_)
