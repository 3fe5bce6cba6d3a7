"""`clawctl doctor`."""

import typer


def doctor() -> None:
    """Try to break out of the sandbox and of the browser."""
    import asyncio

    from clawctl.environments import EpisodeFailed
    from clawctl.environments.gui.browser import escapes
    from clawctl.environments.sandbox.probe import break_out
    from clawctl.errors import ClawError
    from clawctl.printing import answers

    results = asyncio.run(break_out())
    escaped = [name for name, got_out in results.items() if got_out]
    held = f"sandbox: holds against {', '.join(results)}"
    answers().print(held if not escaped else f"sandbox: DOES NOT HOLD against {', '.join(escaped)}", soft_wrap=True)
    try:
        version, reached = asyncio.run(escapes())
        browser = f"holds in Chromium {version}" if not reached else f"DOES NOT HOLD: a page reaches {', '.join(reached)}"
    except ClawError as error:
        reached, browser = [], f"not there: {error.problem}; {error.fix}"
    except EpisodeFailed as failed:
        reached, browser = ["nothing"], str(failed)
    answers().print(f"browser: {browser}", soft_wrap=True)
    if escaped or reached:
        raise typer.Exit(1)
