"""MiniWoB's pages, from the package `miniwob` or from a folder in the same layout.

A page's own script draws the task and grades it. The agent cannot run script: the content security policy permits only scripts of
the served file, so text that a page inserts into itself stays text. The score is MiniWoB's raw reward. MiniWoB's other reward
decreases with time, which would favour fast servers.
"""

import mimetypes
import re
import secrets
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clawctl.errors import ClawError
from clawctl.extensions.worlds.gui.page import HOST, SiteAnswer

_CURE = "run `pip install 'clawctl[gui]'`, or name a folder with `miniwob/NAME.html` and `core/core.js` in the option path"
_SCRIPT = re.compile(rb"<script\b", re.IGNORECASE)
_LONGEST = 16 << 20
_BEGIN = (Path(__file__).parent / "begin.js").read_text(encoding="utf-8")
_QUERY = "() => (document.getElementById('query') || document.body).innerText"
_VERDICT = "() => (WOB_DONE_GLOBAL ? WOB_RAW_REWARD_GLOBAL : null)"


@dataclass(frozen=True, slots=True)
class MiniWobTask:
    """A page and a seed."""

    page: str  # "click-button"
    seed: str
    folder: Path = field(repr=False)


@dataclass(slots=True)
class MiniWobSite:
    """One episode on a page of MiniWoB."""

    task: MiniWobTask
    hidden: str = "#query, #reward-display, #click-canvas, #sync-task-cover"
    uses_script: bool = True
    _nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    _loaded: bool = False

    @property
    def start(self) -> str:
        return f"/miniwob/{self.task.page}.html"

    def answer(self, method: str, path: str, query: str) -> SiteAnswer | None:
        file = (self.task.folder / path.lstrip("/")).resolve()
        if not file.is_relative_to(self.task.folder) or not file.is_file() or file.stat().st_size > _LONGEST:
            return None
        content, kind = file.read_bytes(), mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        if file.suffix == ".html":
            if path != self.start or self._loaded:
                return None  # a second load would start another task
            self._loaded = True
            content = _SCRIPT.sub(b'<script nonce="%s"' % self._nonce.encode(), content)
        policy = (
            f"default-src 'none'; script-src 'nonce-{self._nonce}'; style-src 'unsafe-inline' {HOST}; img-src data: {HOST}; "
            f"font-src {HOST}; base-uri 'none'; form-action 'none'; frame-src 'none'"
        )
        return SiteAnswer(content, kind, policy)

    async def begin(self, page: Any) -> str:
        await page.evaluate(_BEGIN, self.task.seed)
        return " ".join(str(await page.evaluate(_QUERY)).split())

    async def verdict(self, page: Any) -> float | None:
        raw = await page.evaluate(_VERDICT)
        return None if raw is None else min(1.0, max(0.0, float(raw)))


def find_folder(path: str | None) -> Path:
    """The folder that contains `core` and `miniwob`. Raises ClawError (exit code 2)."""
    if path is None:
        spec = find_spec("miniwob")
        if spec is None or spec.origin is None:
            raise ClawError("MiniWoB's pages are not installed", _CURE, 2)
        return (Path(spec.origin).parent / "html").resolve()
    folder = Path(path).expanduser().resolve()
    if not has_pages(folder):
        raise ClawError(f"{folder} has no pages in MiniWoB's layout", _CURE, 2)
    return folder if _is_layout(folder) else folder / "html"


def has_pages(folder: Path) -> bool:
    """Whether a folder has MiniWoB's layout, or its package's, with `html` above it."""
    return _is_layout(folder) or _is_layout(folder / "html")


def _is_layout(folder: Path) -> bool:
    return (folder / "core" / "core.js").is_file() and (folder / "miniwob").is_dir()


def page_names(folder: Path) -> list[str]:
    return sorted(file.stem for file in (folder / "miniwob").glob("*.html"))
