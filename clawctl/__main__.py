"""The process: `python -m clawctl`, and the command that pip installs."""

import signal


def main() -> None:
    """Run clawctl. Ctrl-C ends it at once and without a traceback, until a worker handles the signal and finishes its work."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from clawctl.cli import main as run

    run()


if __name__ == "__main__":
    main()
