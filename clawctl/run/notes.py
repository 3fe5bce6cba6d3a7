"""Notes: what one person wants or told, each in a file of its own below `notes/<key>/`.

    ---
    kind: wish
    state: prompted
    said: please be brief
    ---
    Answer in one short sentence.

People and stages write these files, and `serve` reads them before each request. A file without front matter is a note too, and so
is a folder with a `SKILL.md`. Equal notes are one. Of two that contradict each other by their form, the later one holds, so that
two opposite sentences never stand in one prompt.
"""

import os
import re
import shutil
import time
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import orjson
import yaml
from filelock import FileLock

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.names import is_name
from clawctl.run.rows import DEFAULT_POLICY, from_json

Kind = Literal["wish", "fact"]
State = Literal["new", "prompted", "practised", "learned", "superseded", "retracted", "not understood", "expired"]
IN_FORCE: Sequence[State] = ("new", "prompted", "practised", "learned")
LONGEST = 2000  # characters of a sentence
_LONGEST_FILE, _MOST = 64 << 10, 500  # bytes; notes of one key
_SKILL = "SKILL.md"
_SENTENCE = "of_sentence"  # field of a file: what its state was found for
_FRONT = re.compile(r"---[ \t\r]*\n(.*?)(?:^---[ \t\r]*$\s*(.*))?\Z", re.DOTALL | re.MULTILINE)
_FORMS = {  # of fields that people write
    "kind": "wish or fact", "state": f"one of {', '.join(get_args(State))}", "words": "a list, such as [code, script]",
    "created_at": "a day and time, such as 2026-11-26 22:10:00", "until": "a day, such as 2026-12-31", "practise": "true or false",
}  # fmt: skip
# Punctuation around a word. Other signs are part of it ("C++").
_MARKS = ".,;:!?…\"'“”„‘’«»‹›()[]*_`–—-¡¿。，、；：！？「」『』"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a terminal obeys them
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # Chinese, Thai, …
_REMEMBER = re.compile(r"(?:/remember\s|remember:)\s*(\S.*)", re.IGNORECASE)
_MOST_WORDS, _SEARCHED = 16, 20_000  # words of a note; characters of a request in which they are looked for


class BadNote(Exception):
    """This text cannot be a note. The message says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """One note. `when` says in words when it applies. `words` decide it: it is shown with requests that contain one of them."""

    id: str  # "answer-in-one-short-sentence": the file's name
    text: str  # the sentence that the model reads
    kind: Kind = "wish"
    state: State = "new"
    when: str | None = None
    words: tuple[str, ...] = ()  # none: it applies to every request
    said: str | None = None  # the person's own words
    turns: tuple[str, ...] = ()  # where it was said
    created_at: float = 0.0  # unix seconds
    until: date | None = None  # the last day on which it holds
    reason: str | None = None  # of its state
    learned: int | None = None  # the version that needs no reminder
    policy: str = DEFAULT_POLICY  # whose version that is
    steps: int = 0  # optimizer steps of practice that the weights have
    practise: bool = True  # False: it costs right answers, so it stays in the prompt
    followed: tuple[tuple[int, float], ...] = ()  # measured without it, by version: 0 as the untrained model, 1 as when it is told

    @property
    def in_force(self) -> bool:
        return self.shown_state in IN_FORCE

    @property
    def shown_state(self) -> State:
        """The state today: a note whose last day has passed is `expired`, whatever its file says."""
        return "expired" if self.state in IN_FORCE and self.until is not None and date.today() > self.until else self.state

    def applies_to(self, request: str) -> bool:
        """Whether the note is shown with a request of this text."""
        said = _folded(request[-_SEARCHED:]) if self.words else ""
        words = [word for word in map(_folded, self.words[:_MOST_WORDS]) if word in said]
        return not self.words or any(UNSPACED.search(word) or re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said) for word in words)


def remembered(text: str) -> str | None:
    """What a message asks to remember: one of a single line, `/remember WORDS`. Pasted text and the output of a tool, which some
    clients send as the user's, are longer."""
    line = text.strip() if len(text) <= 2 * LONGEST else ""
    match = None if "\n" in line else _REMEMBER.fullmatch(line)
    return None if match is None else match[1]


def notes_folder(run: RunDir, key: str) -> Path:
    """The folder with the notes of one API key. Raises ClawError (exit code 2) for what is not the name of a key."""
    if not is_name(key) or key.startswith("."):
        raise ClawError(f"{key!r} is not the name of a key", "clawctl keys list shows the names", 2)
    return run.notes / key


def read_notes(run: RunDir, key: str, problems: list[str] | None = None) -> list[Note]:
    """All notes of a key, oldest first. What cannot be read is left out; `problems` receives a sentence for each such file."""
    notes = dict[str, Note]()
    for path in note_files(notes_folder(run, key), problems):
        try:
            note = read_note(path)
            if note.id in notes:  # `ID/SKILL.md`, which stands first
                raise BadNote(f"the folder {note.id} has a note of the same name; rename one of them")
            notes[note.id] = note
        except FileNotFoundError:
            continue  # removed meanwhile
        except (BadNote, OSError) as error:
            if problems is not None:
                problems.append(f"{path} is not a note: {error}")
    return sorted(notes.values(), key=lambda note: (note.created_at, note.id))


def note_files(folder: Path, problems: list[str] | None = None) -> list[Path]:
    """The files of a key's notes: `ID.md`, or `ID/SKILL.md`. Links are not followed, because they may lead outside the run. A name
    that is no text could be neither captured nor sent. `problems` receives a sentence for what is ignored."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = []
    for entry in entries:
        path = Path(entry.path, _SKILL) if entry.is_dir() else Path(entry.path)
        if entry.name.startswith("."):
            continue
        if path.suffix == ".md" and is_name(entry.name) and path.is_file() and not (entry.is_symlink() or path.is_symlink()):
            paths.append(path)
        elif problems is not None:
            problems.append(f"{entry.path} is ignored: a note is a file ID.md or ID/{_SKILL}, and no link")
    return paths[:_MOST]


def read_note(path: Path) -> Note:
    """The note in a file. Raises BadNote or OSError."""
    front, body = _parts(path)
    is_skill = path.name == _SKILL
    if not body:
        raise BadNote("it has no text")
    given = {"created_at": path.stat().st_mtime, **front}
    given = _skill(given, path.parent.name) if is_skill else given
    if given.get("state") in IN_FORCE and given.get(_SENTENCE, _digest(body)) != _digest(body):
        given |= {"state": "new", "learned": None, "steps": 0, "followed": ()}  # edited by hand: nothing is known of this sentence
    return _checked(path.parent.name if is_skill else path.stem, body, given)


def _parts(path: Path) -> tuple[dict[str, Any], str]:
    """The front matter and the text of a file. Raises BadNote or OSError."""
    if path.stat().st_size > _LONGEST_FILE:
        raise BadNote(f"it is longer than {_LONGEST_FILE >> 10} KiB")
    try:
        content = path.read_bytes().decode("utf-8-sig").strip()  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise BadNote("it is not UTF-8") from error
    match = _FRONT.match(content)
    if match and match[2] is None:
        raise BadNote("its front matter has no end, which is a second line `---`")
    return (_front(match[1]), match[2]) if match else ({}, content)


def _front(text: str) -> dict[str, Any]:
    try:
        front = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 31 November
        raise BadNote(f"its front matter is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(front, dict):
        raise BadNote("its front matter is not a list of `name: value`")
    return front


def _skill(given: dict[str, Any], name: str) -> dict[str, Any]:
    """A skill is shown with requests that contain a word of its name, unless it names other `words`."""
    words = [word for word in re.split(r"[^\w]+|_", str(given.get("name", name))) if len(word) > 2]
    return {"words": words, "when": given.get("description"), **given}


def _checked(name: str, text: str, given: dict[str, Any]) -> Note:
    """Raises BadNote. What is no field of a note is ignored, because a skill has fields of its own."""
    created = given["created_at"]
    if isinstance(created, date):  # or a datetime
        moment = datetime.fromisoformat(str(created))
        given["created_at"] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    try:
        note = from_json(Note, {**given, "id": name, "text": text})
        datetime.fromtimestamp(note.created_at, UTC)  # as it is written
    except (ValueError, OverflowError) as error:
        field_name = str(error).rpartition("$.")[2].rstrip("`")
        raise BadNote(f"its `{field_name}` must be {_FORMS[field_name]}" if field_name in _FORMS else str(error)) from error
    return note


def write_note(run: RunDir, key: str, note: Note) -> None:
    """Publish a note under its id, in place of an earlier one, whose fields of another kind (of a skill) stay. Raises OSError."""
    path = _path(run, key, note.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    front: dict[str, Any] = {"kind": note.kind, "state": note.state, "created_at": datetime.fromtimestamp(note.created_at, UTC)}
    if note.state in IN_FORCE and note.state != "new":
        front[_SENTENCE] = _digest(note.text)
    with suppress(BadNote, OSError):
        names = {_SENTENCE, *(field_.name for field_ in fields(Note))}
        front |= {name: value for name, value in _parts(path)[0].items() if name not in names}
    default = Note(note.id, note.text)
    for field_ in fields(Note):
        value = getattr(note, field_.name)
        if field_.name not in (*front, "id", "text") and value != getattr(default, field_.name):
            front[field_.name] = orjson.loads(orjson.dumps(value)) if isinstance(value, tuple) else value
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=120)
    publish_bytes(path, f"---\n{head}---\n{note.text}\n".encode(), anew=True)


def _path(run: RunDir, key: str, note_id: str) -> Path:
    folder = notes_folder(run, key)
    return folder / note_id / _SKILL if (folder / note_id / _SKILL).exists() else folder / f"{note_id}.md"


@dataclass(frozen=True, slots=True)
class Added:
    """A note that was added, and the earlier notes that it ends."""

    note: Note
    superseded: list[str] = field(default_factory=list)  # ids


def add_note(
    run: RunDir, key: str, text: str, clean: Callable[[str], str] = str, replaces: str | None = None, **about: Any
) -> Added:
    """Add a note. An equal one is in force again instead; an opposite one is superseded, and so is the one with the id `replaces`.
    `clean` removes secrets; `about` are other fields of `Note`. Raises BadNote, or ClawError if the run has too many notes or
    another process holds the lock."""
    about = tidied({"text": text, **about}, clean)
    text = about.pop("text")
    with locked(run):
        notes = read_notes(run, key)
        if len(notes) >= _MOST:
            raise ClawError(f"{key} has {_MOST} notes", "clawctl notes forget removes those that are no longer needed", 2)
        same = next((note for note in notes if _words(note.text) == _words(text) and note.kind == about.get("kind", "wish")), None)
        turns = tuple(dict.fromkeys([*(same.turns if same else ()), *about.pop("turns", ())]))
        if same is None:
            note = Note(_new_id(text, {note.id for note in notes}), text, created_at=time.time(), turns=turns, **about)
        else:
            if same.in_force and same.words and about.get("words"):
                about["words"] = tuple(dict.fromkeys([*same.words, *about["words"]]))[:_MOST_WORDS]
            again: State = "prompted" if same.state in ("prompted", "practised", "learned") else "new"
            about.setdefault("until", same.until if same.in_force else None)
            note = replace(same, state=again, learned=None, reason=None, created_at=time.time(), turns=turns, **about)
        superseded = _supersede(run, key, note, notes, replaces)
        write_note(run, key, note)
    return Added(note, superseded)


def tidied(given: dict[str, Any], clean: Callable[[str], str]) -> dict[str, Any]:
    """Fields of a note as a person gave them, each in one line, without control characters and secrets, which `clean` removes.
    Raises BadNote."""
    lines = {name: _one_line(given[name], clean) for name in ("text", "said", "when") if given.get(name) is not None}
    words = tuple(_one_line(word, clean) for word in given.get("words", ()))
    if not lines.get("text", "-"):
        raise BadNote("it has no text")
    if len(lines.get("text", "")) > LONGEST:
        raise BadNote(f"it is longer than {LONGEST} characters: keep one wish a note, or write a folder with a SKILL.md")
    if len(words) > _MOST_WORDS or sum(map(len, (lines.get("when", ""), *words))) > LONGEST:
        raise BadNote(f"it has more than {_MOST_WORDS} words, or its condition is longer than {LONGEST} characters")
    return {**given, **{name: line[:LONGEST] for name, line in lines.items()}, **({"words": words} if "words" in given else {})}


def _one_line(text: str, clean: Callable[[str], str]) -> str:
    return clean(_CONTROLS.sub("", " ".join(text.split())))


def _supersede(run: RunDir, key: str, note: Note, notes: Sequence[Note], replaces: str | None = None) -> list[str]:
    """End the notes that contradict a new one under the same condition. Returns their ids."""
    condition = note.words, note.when
    ended = [old for old in notes if (old.words, old.when) == condition and is_opposite(old, note)]
    ended = [old for old in notes if old.id != note.id and old.in_force and (old in ended or old.id == replaces)]
    said_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(note.created_at))  # not its id, whose words may be forgotten
    for old in ended:
        write_note(run, key, replace(old, state="superseded", reason=f"a note of {said_at} says otherwise"))
    return [old.id for old in ended]


def change_note(run: RunDir, key: str, note_id: str, seen: Note | None = None, **changes: Any) -> Note:
    """Change fields of a note. If its state is no longer that of `seen`, it keeps the new one; if its sentence is another, nothing
    changes. Raises ClawError (exit code 2) if there is none with this id."""
    with locked(run):
        note = find_note(run, key, note_id)
        if seen is not None and (note.state, note.text) != (seen.state, seen.text):
            changes = {name: changes[name] for name in ("steps", "followed") if name in changes and note.text == seen.text}
        note = replace(note, **changes)
        if changes.get("state") == "new":  # it holds from now on
            note = replace(note, created_at=time.time())
            _supersede(run, key, note, read_notes(run, key))
        write_note(run, key, note)
    return note


def remove_note(run: RunDir, key: str, note_id: str) -> None:
    """Delete a note, also one that cannot be read. Raises ClawError (exit code 2) if there is none with this id."""
    with locked(run):
        path = _path(run, key, note_id)
        if path not in note_files(notes_folder(run, key)):
            find_note(run, key, note_id)
        shutil.rmtree(path.parent) if path.name == _SKILL else path.unlink()


def find_note(run: RunDir, key: str, note_id: str) -> Note:
    """Raises ClawError (exit code 2) if there is no such note, with the ids that there are."""
    problems = list[str]()
    notes = {note.id: note for note in read_notes(run, key, problems)}
    if note_id not in notes:
        if problem := next((problem for problem in problems if problem.startswith(f"{_path(run, key, note_id)} ")), None):
            raise ClawError(problem, "correct the file, or delete it with `clawctl notes forget`", 2)
        raise ClawError(f"{key} has no note {note_id!r}", f"the notes of {key}: {', '.join(notes) or 'none'}", 2)
    return notes[note_id]


def keys_with_notes(run: RunDir) -> list[str]:
    """The names of the keys that have notes. Editors and version control put folders of their own here (`.obsidian`)."""
    folders = [path.name for path in run.notes.iterdir() if path.is_dir()] if run.notes.exists() else []
    return sorted(name for name in folders if is_name(name) and not name.startswith("."))


def locked(run: RunDir) -> FileLock:
    return FileLock(run.lock("notes"), timeout=10.0)


def notes_for(
    notes: Sequence[Note], request: str, chars: int, is_learned: Callable[[Note], bool] = lambda note: False
) -> list[Note]:
    """Those of the notes that a prompt has with a request, oldest first, as many as fit in `chars`: first those that name a word of
    the request, then the newest. Of two that contradict each other, the first holds. Notes that the version has learned take no
    space from the others."""
    fitting, left = list[Note](), {False: chars, True: chars}
    for note in sorted(notes, key=lambda note: (not note.words, -note.created_at)):
        learned = is_learned(note)
        if note.applies_to(request) and len(note.text) <= left[learned] and not any(is_opposite(note, held) for held in fitting):
            fitting.append(note)
            left[learned] -= len(note.text)
    return sorted(fitting, key=lambda note: (note.created_at, note.id))


def is_opposite(note: Note, other: Note) -> bool:
    """Whether two wishes contradict each other by their form: their sentences differ in a negation, or in one word. Wishes for
    more ("Mention the price.") or against something ("No comments.") can all hold at once."""
    if note.kind != "wish" or other.kind != "wish":
        return False
    first, second = _words(note.text), _words(other.text)
    if _without_negations(first) == _without_negations(second):
        return first != second
    if not _signs()["adds"].isdisjoint(first) or _without_negations(first) != first:
        return False
    differing = [index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    return len(first) == len(second) > 2 and len(differing) == 1


def _words(text: str) -> list[str]:
    """The words of a sentence as sentences are compared: without case and punctuation."""
    return [word for part in _folded(text).replace("’", "'").split() if (word := part.strip(_MARKS))]


def _folded(text: str) -> str:
    """A text without differences of case, or of how letters with marks are encoded."""
    return unicodedata.normalize("NFC", text).casefold()


def _digest(sentence: str) -> str:
    return f"{zlib.crc32(sentence.encode()):08x}"


def _without_negations(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in _signs()["turns"]]


@cache
def _signs() -> dict[str, frozenset[str]]:
    """Words by which the form of a wish is read."""
    lines = files("clawctl.run").joinpath("signs_of_wishes.txt").read_text("utf-8").splitlines()
    rows = [line.partition(":") for line in lines if not line.startswith("#")]
    return {name: frozenset(word for kind, _, some in rows if kind == name for word in some.split()) for name in ("turns", "adds")}


def _new_id(text: str, taken: set[str]) -> str:
    """The first words of a sentence as a file name, with a number if it is taken."""
    slug = "-".join(re.findall(r"[a-z0-9]+", text.casefold()))[:40].strip("-") or "note"
    return slug if slug not in taken else next(name for n in range(2, _MOST + 2) if (name := f"{slug}-{n}") not in taken)
