"""Settings of `play:`, which episodes are played."""

from typing import Any

from pydantic import Field

from clawctl.config.section import Section


class PlayConfig(Section):
    env: str | None = None
    """The environment: a built-in one, `file.py:name`, or the name of an installed package's entry point."""
    tasks: int = Field(64, gt=0)
    """Number of tasks."""
    attempts: int = Field(8, gt=0)
    """Episodes of each task. They are a group and share a baseline (`train.method: grpo`)."""
    parallel: int = Field(32, gt=0)
    """Episodes at a time, in each worker."""
    seed: int = 0
    """Seed that selects the tasks."""
    rounds: int = Field(1, ge=0)
    """How often all tasks are played. With 0 there is no end, which suits `up.stages: [..., play]`."""
    options: dict[str, Any] = {}
    """The environment's own options: `{max_turns: 30}`."""
