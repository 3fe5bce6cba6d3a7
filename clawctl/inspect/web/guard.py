"""Restricts the pages to a browser that has the cookie from the printed link and uses a name of this machine.

- The server listens on the loopback address only.
- `Host` must be a loopback name. This refuses pages of other sites that point their own name at 127.0.0.1.
- Each button is a POST. It needs the cookie, the form's hidden token, and this server as its origin.
- Pages load only scripts, styles and images of the package. No other page may frame them.
"""

import hmac
import secrets
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAMES = ("127.0.0.1", "localhost", "::1")
_LARGEST_FORM = 64 << 10  # bytes
_OPEN = ("/login", "/static/", "/favicon.ico")  # paths that need no cookie
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would send the pages' own forms with the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Key:
    """The key of one process, the cookie of a logged-in browser, and the form token. All three are random and never stored."""

    def __init__(self) -> None:
        self.key, self.cookie, self.form_token = (secrets.token_urlsafe(32) for _ in range(3))

    def opens(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.key.encode())


class PageGuard:
    """Applies all these checks before the application, and sets the same headers on every answer."""

    def __init__(self, app: ASGIApp, key: Key, port: int) -> None:
        self._app, self._key, self.cookie_name = app, key, f"clawctl-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        answer = await self._refusal(request) or self._app
        await answer(scope, receive, send_with_headers)

    async def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("only GET and POST\n", 405, {"Allow": "GET, HEAD, POST"})
        if not _is_ours(request.headers.getlist("host")):
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost only\n", 421)
        form = await _form(request) if request.method == "POST" else {}
        if form is None:
            return PlainTextResponse("the form is too large, or not a form\n", 413)
        request.state.form = form
        if request.method == "POST" and not _from_our_page(request.headers):
            return PlainTextResponse("a page of another site sent this form\n", 403)
        if request.url.path.startswith(_OPEN):
            return None
        given = request.cookies.get(self.cookie_name, "")
        if not hmac.compare_digest(given.encode(), self._key.cookie.encode()):
            return None if _send_to_login(request) else PlainTextResponse("log in first\n", 401)
        if request.method == "POST" and not hmac.compare_digest(form.get("token", "").encode(), self._key.form_token.encode()):
            return PlainTextResponse("this form is too old: go back, reload the page, and try again\n", 403)
        return None


def _send_to_login(request: Request) -> bool:
    """Show the login form to a person who opens a page without the cookie. Returns whether the request was redirected to it."""
    if request.method == "POST":
        return False
    request.scope["path"], request.scope["raw_path"] = "/login", b"/login"
    request.scope["query_string"] = b""
    return True


def _is_ours(hosts: list[str]) -> bool:
    """Whether there is exactly one `Host` and it is a loopback name. The port may differ, because of tunnels."""
    try:
        return len(hosts) == 1 and urlsplit(f"//{hosts[0]}").hostname in _NAMES
    except ValueError:
        return False


def _from_our_page(headers: Headers) -> bool:
    """Whether the form comes from one of these pages. Browsers name the sending page. Programs do not, but need the token."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin == f"http://{headers.get('host')}"


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a form. None if the body is not a form or is too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM:
            return None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        return None
