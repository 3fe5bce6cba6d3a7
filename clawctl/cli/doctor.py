"""`clawctl doctor`."""

import typer


def doctor() -> None:
    """Try to break out of the sandbox of environments."""
    import asyncio

    from clawctl.environments.sandbox.probe import break_out
    from clawctl.printing import answers

    found = asyncio.run(break_out())
    escaped = [name for name, got_out in found.items() if got_out]
    held = f"sandbox: holds against {', '.join(found)}"
    answers().print(held if not escaped else f"sandbox: DOES NOT HOLD against {', '.join(escaped)}", soft_wrap=True)
    if escaped:
        raise typer.Exit(1)
