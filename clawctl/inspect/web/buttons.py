"""The few buttons that change something: promote, roll back, label, forget, and those of notes."""

import secrets
import threading
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.inspect.web.followed_run import FollowedRun
from clawctl.inspect.web.frame import PageFrame, inner, number_in
from clawctl.inspect.web.guard import Key
from clawctl.privacy.forget import forget
from clawctl.privacy.redaction import redactor_of
from clawctl.privacy.selection import Selection
from clawctl.run.directory import RunDir, recipe_file
from clawctl.run.feedback import LABEL, LONGEST_COMMENT, FeedbackFile
from clawctl.run.notes import BadNote, add_note, change_note
from clawctl.run.promotion import promote, rollback
from clawctl.run.rows import DEFAULT_POLICY, Feedback


class Buttons(PageFrame):
    """Answers the forms of the pages."""

    def __init__(self, run: RunDir, following: FollowedRun, key: Key) -> None:
        super().__init__(run, following, key)
        self._labels, self._writing = FeedbackFile(run.feedback), threading.Lock()

    def move(self, request: Request) -> Response:
        """Promote a version, or roll back to one."""
        version = number_in(request.state.form.get("version"), None)
        if version is None:
            raise HTTPException(400, "the form names no version")
        policy = request.state.form.get("policy") or DEFAULT_POLICY
        if policy not in self._following.snapshot.names:
            raise HTTPException(400, "the form names no policy of this run")
        work = promote if request.url.path == "/promote" else rollback
        back = "/versions" if policy == DEFAULT_POLICY else f"/versions?policy={policy}"
        try:
            message = work(self._run.of(policy), version)
        except ClawError as error:
            return self._problem(error, back)
        self._following.refresh()
        return self._page("done.html", "/versions", heading="LIVE moved", lines=message.splitlines(), back=back)

    def label(self, request: Request) -> Response:
        """Append a label: a rating by the operator."""
        form = request.state.form
        row = self._following.snapshot.joined.row(form.get("turn", ""))
        rating = {"good": 1.0, "neutral": 0.0, "bad": -1.0}.get(form.get("rating", ""))
        if row is None or rating is None:
            raise HTTPException(400, "the form names no turn, or no rating")
        comment = form.get("comment", "").strip()[:LONGEST_COMMENT] or None
        label = Feedback(secrets.token_hex(12), time.time(), LABEL, row.turn["turn_id"], rating, comment)
        with self._writing:
            self._labels.append(label)
        self._following.labels[label.turn_id] = label
        return RedirectResponse(inner(form.get("back", "/judge")), 303)

    def note(self, request: Request) -> Response:
        """Add a note, retire one, or put one back."""
        form = request.state.form
        key, note_id, to = form.get("key", ""), form.get("id", ""), form.get("to", "")
        changes: dict[str, dict[str, Any]] = {
            "retire": {"state": "retracted", "reason": "retired on the page"},
            "back": {"state": "new", "reason": None},
        }
        try:
            if to == "add":
                clean = redactor_of(load_recipe(recipe_file(self._run.root)).privacy).text
                add_note(self._run, key, form.get("text", ""), clean, said=form.get("text", ""))
            elif to in changes:
                change_note(self._run, key, note_id, learned=None, **changes[to])
            else:
                raise HTTPException(400, "the form says neither add, retire nor back")
        except BadNote as error:
            raise HTTPException(400, f"this cannot be a note: {error}") from error
        except ClawError as error:
            return self._problem(error, "/notes")
        return RedirectResponse("/notes", 303)

    def forget(self, request: Request) -> Response:
        """Show what would be deleted; on the second request, delete it."""
        form = request.state.form
        user, session = form.get("user") or None, form.get("session") or None
        if (user is None) == (session is None):
            raise HTTPException(400, "name either a key or a conversation")
        options = {name: form.get(name) == "yes" for name in ("retrain", "stop_workers")}
        sure = form.get("sure") == "yes"
        wish = Selection(session=session, user=user)
        try:
            done = forget(self._run, wish, not sure, options["retrain"], options["stop_workers"])
        except ClawError as error:
            return self._problem(error, "/data")
        if sure:
            self._following.refresh()
        return self._page("forget.html", "/data", done=done, user=user, session=session, options=options)
