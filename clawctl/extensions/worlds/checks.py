"""What `clawctl doctor` checks here: whether each sandbox and the browser hold against attempts to break out."""

import asyncio
from collections.abc import Iterator

from clawctl.environments import EpisodeFailed
from clawctl.errors import ClawError
from clawctl.extensions.worlds.gui.browser import escapes
from clawctl.extensions.worlds.sandbox.kinds import testable_kinds
from clawctl.extensions.worlds.sandbox.plan import SandboxFailed, SandboxKind
from clawctl.extensions.worlds.sandbox.probe import attempt_escapes


def check() -> Iterator[tuple[str, bool]]:
    """A line for each kind of sandbox and for the browser, and whether it is bad."""
    for kind in testable_kinds():
        report, is_bad = _check_sandbox(kind)
        yield f"sandbox {kind.name}: {report}", is_bad
    report, is_bad = _check_browser()
    yield f"browser: {report}", is_bad


def _check_sandbox(kind: SandboxKind) -> tuple[str, bool]:
    is_default = kind.name == "bubblewrap"
    try:
        kind.prepare()
        results = asyncio.run(attempt_escapes(kind))
    except ClawError as error:
        return f"cannot be used: {error.problem}; {error.fix}", is_default
    except SandboxFailed as error:
        return f"failed: {error}", is_default
    escaped = [name for name, got_out in results.items() if got_out]
    return f"DOES NOT HOLD against {', '.join(escaped)}" if escaped else f"holds against {', '.join(results)}", bool(escaped)


def _check_browser() -> tuple[str, bool]:
    try:
        version, reached = asyncio.run(escapes())
    except ClawError as error:
        return f"not available: {error.problem}; {error.fix}", False
    except EpisodeFailed as failed:
        return str(failed), True
    return f"DOES NOT HOLD: a page reaches {', '.join(reached)}" if reached else f"holds in Chromium {version}", bool(reached)
