"""Notes in the prompt: a wish that was said once holds from the next answer (`clawctl.run.notes`).

A prompt step: `applied` adds the notes of a request's key to the messages that are rendered, never to those that are captured. They
stand where hints stand (`run/hint_places.py`), so that an answer to them can teach the model to do without. The row says which
notes the model saw, and in which words.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.errors import ClawError
from clawctl.privacy.redaction import redactor_of
from clawctl.run.directory import RunDir
from clawctl.run.hint_places import used_hint_place, with_hint
from clawctl.run.lineage import read_lineage
from clawctl.run.notes import (
    Added,
    BadNote,
    Note,
    add_note,
    change_note,
    note_files,
    notes_folder,
    notes_for,
    read_note,
    remembered,
)
from clawctl.run.policies import PolicyId, live_version, read_policy
from clawctl.run.rows import DEFAULT_POLICY, Message, NotesShown, is_plain
from clawctl.serve.dialects.fields import strings, text
from clawctl.serve.versions import Versions, is_pinned

_log = logging.getLogger("clawctl.serve")
_LARGEST_SHARE = 8  # notes take at most an eighth of a short context
_Signature = tuple[int, int]  # time of the last change, size


class Notes:
    """The notes of all keys, read again as soon as a file changes."""

    def __init__(self, run: RunDir, recipe: Recipe, versions: Versions) -> None:
        self._run, self._recipe, self._versions = run, recipe, versions
        self._clean = redactor_of(recipe.privacy).text
        self._adding = asyncio.Lock()  # a redactor serves one thread at a time
        self._files: dict[str, dict[Path, tuple[_Signature, Note | None]]] = {}  # by key: its files
        self._folders: dict[str, Path] = {}  # by key
        self._ancestry: dict[str, tuple[int | None, set[PolicyId]]] = {}  # by policy: its live version and the ancestors

    async def applied(self, request: GenerationRequest, headers: Mapping[str, str], hints: Mapping[str, Any]) -> GenerationRequest:
        """The request with the notes that hold for it. `/remember WORDS` in its last message adds one first."""
        is_off = self._recipe.serve.notes == "off" or headers.get("x-notes", "on").strip().lower() in ("off", "false", "no", "0")
        if is_off or is_pinned(request) or hints.get("turn_type") == "side" or request.continues or request.prompts:
            return request
        last = request.messages[-1] if request.messages else {}
        if last.get("role") == "user" and (sentence := remembered(_text_of(last))):
            try:
                await self._add(request.key, sentence)
            except Refusal as error:
                _log.warning("what %s asked to remember is not a note: %s", request.key, error)
        try:
            notes, learned = self._chosen(request)
            if not (notes or learned) or is_plain(request.messages):
                return request
            hint_place = used_hint_place(self._run, self._recipe.train.hints.hint_place)
        except (ClawError, OSError) as error:  # a damaged file of the run is no reason to refuse a request
            _log.warning("notes are left out of a request: %s", error)
            return request
        sentences = "\n".join(note.text for note in notes)
        shown: NotesShown = {"ids": [note.id for note in notes], "text": sentences, "place": hint_place}
        if learned:
            shown["learned"] = [note.text for note in learned]
        messages = with_hint(request.messages, sentences, hint_place) if notes else request.messages
        return replace(request, messages=messages, notes=shown)

    def _chosen(self, request: GenerationRequest) -> tuple[list[Note], list[Note]]:
        """The notes that hold for a request, oldest first. Those that the live version has learned are apart."""
        candidates = [note for note in self.of(request.key) if note.in_force]
        if not candidates:
            return [], []
        said = next((_text_of(message) for message in reversed(request.messages) if message.get("role") == "user"), "")
        chars = min(self._recipe.serve.notes_chars, 4 * (self._versions.live.max_context or 1 << 20) // _LARGEST_SHARE)
        learned = {note.id for note in candidates if self._has_learned(request.key, note)}
        fitting = notes_for(candidates, said, chars, lambda note: note.id in learned)
        return [note for note in fitting if note.id not in learned], [note for note in fitting if note.id in learned]

    def of(self, key: str) -> list[Note]:
        """The notes of a key, as the files are now, oldest first. Only files that have changed are read."""
        current: dict[Path, tuple[_Signature, Note | None]] = {}
        before = self._files.get(key, {})
        if key not in self._folders:
            self._folders[key] = notes_folder(self._run, key)
        for path in note_files(self._folders[key]):
            signature = _signature(path)
            if path in before and before[path][0] == signature:
                current[path] = before[path]
                continue
            current[path] = signature, None
            try:
                note = read_note(path)
                current[path] = signature, note
                if len(note.text) > self._recipe.serve.notes_chars:
                    _log.warning("%s is longer than serve.notes_chars, so no prompt has it", path)
            except (BadNote, OSError) as error:
                _log.warning("%s is not a note: %s", path, error)
        self._files[key] = current
        return sorted((note for _, note in current.values() if note is not None), key=lambda note: (note.created_at, note.id))

    def _has_learned(self, key: str, note: Note) -> bool:
        """Whether the live version of the key's policy descends from the one that needs no reminder."""
        people = self._versions.people
        policy = DEFAULT_POLICY if people is None else people.policy_of(key)
        if note.state != "learned" or note.learned is None:
            return False
        run = self._run.of(policy)
        live = self._versions.live.version if policy == DEFAULT_POLICY else live_version(run)
        if self._ancestry.get(policy, (None,))[0] != live:
            self._ancestry[policy] = live, _ancestors(run, live)
        return PolicyId(note.policy, note.learned) in self._ancestry[policy][1]

    # ---- over the API ----------------------------------------------------------------------------------------------------

    async def _add(self, key: str, sentence: str, **about: Any) -> Added:
        """Add a note of a key. Raises Refusal."""
        try:
            async with self._adding:
                return await asyncio.to_thread(add_note, self._run, key, sentence, self._clean, said=sentence, **about)
        except BadNote as error:
            raise Refusal(400, f"this cannot be a note: {error}", "text") from error
        except ClawError as error:
            raise Refusal(409, f"{error.problem}: {error.fix}", "text", "too_many_notes") from error
        except OSError as error:  # a full disk, or another process holds the lock
            raise Refusal(503, f"the note could not be stored: {error}; send it again", code="not_kept") from error

    async def post(self, body: Any, key: str) -> dict[str, Any]:
        """`POST /v1/notes`: {"text": …, "kind": "wish" | "fact", "when": …, "words": […]}. Raises Refusal."""
        if not isinstance(body, dict) or (unknown := set(body) - {"text", "kind", "when", "words"}):
            named = f"unknown field {min(unknown)!r}; " if isinstance(body, dict) else ""
            raise Refusal(400, f"{named}a note has 'text' and optionally 'kind', 'when' and 'words'")
        if not (sentence := text(body, "text")):
            raise Refusal(400, "'text' must be what you want in one sentence", "text")
        if body.get("kind", "wish") not in ("wish", "fact"):
            raise Refusal(400, "'kind' must be 'wish' or 'fact'", "kind")
        about = {"kind": body.get("kind", "wish"), "when": text(body, "when"), "words": tuple(strings(body.get("words"), "words"))}
        added = await self._add(key, sentence, **about)
        return {**as_object(added.note), "superseded": added.superseded}

    async def listed(self, key: str) -> dict[str, Any]:
        """`GET /v1/notes`: the key's own notes, oldest first."""
        return {"object": "list", "data": [as_object(note) for note in self.of(key)]}

    async def retract(self, key: str, note_id: str) -> dict[str, Any]:
        """`DELETE /v1/notes/ID`: the note holds no longer; its file stays. Raises Refusal."""
        if all(note.id != note_id for note in self.of(key)):
            raise Refusal(404, "this key has no note with that id", "id", "unknown_note")
        change: dict[str, Any] = {"state": "retracted", "reason": "taken back over the API"}
        try:
            return as_object(await asyncio.to_thread(change_note, self._run, key, note_id, **change))
        except (ClawError, OSError) as error:  # deleted meanwhile, a full disk, or another process holds the lock
            raise Refusal(503, f"the note could not be changed: {error}; send it again", code="not_kept") from error


def _ancestors(run: RunDir, live: int | None) -> set[PolicyId]:
    """The versions from which a policy's live version descends, including the shared ones on which a person's policy stands."""
    ancestors = {PolicyId(run.policy, version) for version in read_lineage(run).ancestry(live)}
    for version in (live, 0) if run.policy != DEFAULT_POLICY else ():
        with suppress(ClawError):  # retention has removed it
            if version is not None and (below := read_policy(run, version).shared) is not None:
                return ancestors | _ancestors(run.of(DEFAULT_POLICY), below)
    return ancestors


def _signature(path: Path) -> _Signature:
    """What changes when a file changes. A file that is gone meanwhile has one as well."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def as_object(note: Note) -> dict[str, Any]:
    """A note as the API shows it."""
    return {
        "object": "note", "id": note.id, "text": note.text, "kind": note.kind, "state": note.shown_state, "when": note.when,
        "words": list(note.words), "reason": note.reason, "learned": note.learned, "created_at": note.created_at,
    }  # fmt: skip


def _text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def is_too_long_with_notes(request: GenerationRequest, refusal: Refusal) -> bool:
    """Whether the request may fit without its notes."""
    return request.notes is not None and refusal.code == "context_length_exceeded"
