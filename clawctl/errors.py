"""The error that is shown to the user, and the error for a damaged file."""


class ClawError(Exception):
    """A problem and its fix. Raised where the cause is known and printed once, in `cli/__init__.py`.

    `exit_code` is 2 if the command or recipe is wrong (nothing was attempted) and 1 if the work itself failed.
    """

    def __init__(self, problem: str, fix: str, exit_code: int = 1) -> None:
        super().__init__(f"{problem} -> {fix}")
        self.problem = problem
        self.fix = fix
        self.exit_code = exit_code


class Damaged(ValueError):
    """A file differs from the data that was written. The message contains the evidence."""
