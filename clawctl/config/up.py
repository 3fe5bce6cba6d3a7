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
    page_port: int | None = Field(None, ge=0, le=65535)
    """Port of the run's pages on 127.0.0.1, which `clawctl up` then serves beside the stages. 0, or a port that is taken: any free
    one. Unset: no pages. `clawctl start` serves them at `--page-port`."""
