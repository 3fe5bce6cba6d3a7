"""The process: `python -m clawctl`, and the command that pip installs."""

import signal


def main() -> None:
    """Ctrl-C ends it at once and without a traceback, until a worker listens for it and finishes what it holds."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from clawctl.cli import main as run

    run()


if __name__ == "__main__":
    main()
