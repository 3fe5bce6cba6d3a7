"""Settings of `up:`, which stages `clawctl up` starts."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section


class UpConfig(Section):
    stages: list[Literal["serve", "collect", "play", "judge", "train", "eval", "practice"]] = ["serve", "collect", "judge", "train"]
    """Stages that `clawctl up` starts. A gate requires `eval` as well. `play` plays the episodes of `play.env`, and `practice`
    turns notes into weights."""
    backoff_s: float = Field(1.0, gt=0)
    """Seconds before a failed stage is restarted. The delay doubles with each failure, up to a minute."""
