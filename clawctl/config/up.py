"""`up:`, what `clawctl up` starts."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section


class UpConfig(Section):
    stages: list[Literal["serve", "collect", "judge", "train", "eval"]] = ["serve", "collect", "judge", "train"]
    """What `clawctl up` starts. With a gate, `eval` is needed as well."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before a stage that died is started again; doubles each time, up to a minute."""
