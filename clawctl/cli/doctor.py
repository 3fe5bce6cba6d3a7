"""`clawctl doctor`."""

import typer


def doctor() -> None:
    """Try to break out of each sandbox, and of the browser."""
    import asyncio

    from clawctl.environments import EpisodeFailed
    from clawctl.environments.gui.browser import escapes
    from clawctl.environments.sandbox.kinds import testable_kinds
    from clawctl.environments.sandbox.plan import SandboxFailed
    from clawctl.environments.sandbox.probe import attempt_escapes
    from clawctl.errors import ClawError
    from clawctl.printing import answers

    bad = False
    for kind in testable_kinds():
        try:
            kind.prepare()
            results = asyncio.run(attempt_escapes(kind))
        except (ClawError, SandboxFailed) as error:
            is_default = kind.name == "bubblewrap"
            report = f"cannot be used: {error.problem}; {error.fix}" if isinstance(error, ClawError) else f"failed: {error}"
            bad |= is_default
        else:
            escaped = [name for name, got_out in results.items() if got_out]
            report = f"DOES NOT HOLD against {', '.join(escaped)}" if escaped else f"holds against {', '.join(results)}"
            bad |= bool(escaped)
        answers().print(f"sandbox {kind.name}: {report}", soft_wrap=True)
    try:
        version, reached = asyncio.run(escapes())
        browser = f"holds in Chromium {version}" if not reached else f"DOES NOT HOLD: a page reaches {', '.join(reached)}"
    except ClawError as error:
        reached, browser = [], f"not available: {error.problem}; {error.fix}"
    except EpisodeFailed as failed:
        reached, browser = ["nothing"], str(failed)
    answers().print(f"browser: {browser}", soft_wrap=True)
    if bad or reached:
        raise typer.Exit(1)
