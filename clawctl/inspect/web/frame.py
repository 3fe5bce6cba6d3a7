"""What all pages share: the templates, the login, the static files, errors, and the rows that a request names."""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from clawctl.errors import ClawError
from clawctl.inspect.joined import Row
from clawctl.inspect.policies import estimate, gate_of, tally
from clawctl.inspect.tables import since, sized
from clawctl.inspect.web.filters import fate, opinion, rating_of
from clawctl.inspect.web.followed_run import FollowedRun, RunSnapshot
from clawctl.inspect.web.guard import Key
from clawctl.inspect.web.text import clock, cut, short, visible
from clawctl.run.directory import RunDir
from clawctl.run.reward import signed
from clawctl.run.rows import DEFAULT_POLICY

_HERE = Path(__file__).parent
_HOLD_S = 15.0  # a request for changes waits at most this long for one
_LOOK_S = 0.15
_stamp: ContextVar[str] = ContextVar("stamp", default="")  # of the page that is being made
_KINDS = {".css": "text/css", ".js": "text/javascript"}
SECTIONS = (
    ("/", "Overview"), ("/talk", "Talk"), ("/conversations", "Conversations"), ("/versions", "Versions"), ("/judge", "Judge"),
    ("/notes", "Notes"), ("/environments", "Environments"), ("/data", "Data"),
)  # fmt: skip


class PageFrame:
    """Renders templates for the run held by `following`."""

    cookie_name: str  # set once the port is known

    def __init__(self, run: RunDir, following: FollowedRun, key: Key) -> None:
        self._run, self._following, self._key = run, following, key
        self._process = secrets.token_urlsafe(6)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "visible": visible, "cut": cut, "ago": lambda at: since(at, time.time()), "clock": clock, "signed": signed,
            "sized": sized, "short": short, "link": lambda values: urlencode({k: v for k, v in values.items() if v is not None}),
        }  # fmt: skip
        self._templates.globals |= {
            "sections": SECTIONS, "run": str(run.root), "name": run.root.name, "token": key.form_token, "fate": fate,
            "opinion": opinion, "gate_of": gate_of, "rating_of": rating_of, "version_of_files": _version_of_files(),
            "estimate": estimate, "tally": tally,
        }  # fmt: skip

    def followed(self, page: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """`page` with an ETag that is new whenever the run has changed. A browser that shows the page asks with it, and waits until
        it is new (200) or a moment has passed (304)."""

        async def answer(request: Request) -> Response:
            shown, until = request.headers.get("if-none-match"), time.monotonic() + _HOLD_S
            while shown == (stamp := f'"{self._process}-{self._following.changed}"'):
                if time.monotonic() > until or self._following.is_ending():
                    return Response(status_code=304, headers={"ETag": stamp})
                await asyncio.sleep(_LOOK_S)
            _stamp.set(stamp)
            response = await run_in_threadpool(page, request)
            response.headers["ETag"] = stamp
            return response

        return answer

    def login(self, request: Request) -> Response:
        given = request.query_params.get("key")
        return self._opened(given) if given else self._page("login.html", "/login", wrong=False)

    def log_in(self, request: Request) -> Response:
        return self._opened(request.state.form.get("key", ""))

    def _opened(self, given: str) -> Response:
        """Set the cookie. An intermediate page loads the first page, because browsers send no strict cookie after a redirect."""
        if not self._key.opens(given.strip()):
            return self._page("login.html", "/login", 403, wrong=True)
        answer = self._page("opened.html", "/login")
        answer.set_cookie(self.cookie_name, self._key.cookie, httponly=True, samesite="strict", path="/")
        return answer

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _static_files():
            raise HTTPException(404, "there is no such file")
        content, kind = _static_files()[name]
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=31536000, immutable"})

    def _missing(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = error.detail if isinstance(error, HTTPException) else "unknown error"
        return self._page("problem.html", request.url.path, status, problem=detail, fix="", back="/")

    def _problem(self, error: ClawError, back: str) -> Response:
        return self._page("problem.html", back, 409, problem=error.problem, fix=error.fix, back=back)

    def _page(self, template: str, section: str, status: int = 200, **values: Any) -> HTMLResponse:
        seen = values.get("seen", self._following.snapshot)
        values = {
            "chosen": seen.chosen if "seen" in values else None,
            "run_problems": [] if template in ("login.html", "opened.html") else seen.problems,
            **values,
        }
        page = self._templates.get_template(template).render(section=section, stamp=_stamp.get(), **values)
        return HTMLResponse(page.encode(errors="replace"), status)

    def _row(self, request: Request) -> tuple[RunSnapshot, Row]:
        snapshot = self._following.snapshot
        row = snapshot.joined.row(request.query_params.get("id", ""))
        if row is None:
            raise HTTPException(404, "there is no such turn; it may be in an open session, or it was deleted")
        return snapshot, row

    def _seen(self, request: Request) -> RunSnapshot:
        """The run with the policy that the request names; the shared one if it names none."""
        try:
            return self._following.of(request.query_params.get("policy") or DEFAULT_POLICY)
        except KeyError:
            raise HTTPException(404, "there is no such policy") from None

    def _version(self, request: Request) -> tuple[RunSnapshot, RunDir, dict[str, Any]]:
        """The version that the request names, with the run and the folders of its policy."""
        seen, version = self._seen(request), number_in(request.query_params.get("n"), None)
        policy = next((row for row in seen.policies if row["version"] == version), None)
        if policy is None:
            raise HTTPException(404, "there is no such version")
        return seen, self._run.of(seen.policy), policy


def number_in(text: Any, default: Any) -> Any:
    try:
        return int(text)
    except (TypeError, ValueError):
        return default


def page_number(query: Any) -> int:
    return min(max(1, int(number_in(query.get("page"), 1))), 1_000_000)


def inner(path: str) -> str:
    """`path` if it is a path of this server, otherwise the first page."""
    return path if re.fullmatch(r"/[a-z]*(\?[^\s\\]*)?(#[\w-]*)?", path) else "/"


_files: dict[str, tuple[bytes, str]] = {}


def _static_files() -> dict[str, tuple[bytes, str]]:
    if not _files:
        _files.update(
            {path.name: (path.read_bytes(), kind) for path in (_HERE / "static").iterdir() if (kind := _KINDS.get(path.suffix))}
        )
    return _files


def _version_of_files() -> str:
    """A hash of the static files. It changes with them, so that browsers may cache them."""
    return hashlib.blake2b(b"".join(content for content, _ in _static_files().values()), digest_size=6).hexdigest()
