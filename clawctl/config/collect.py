"""Settings of `collect:`: how captures become sessions."""

from pydantic import Field

from clawctl.config.section import Section


class CollectConfig(Section):
    session_timeout_s: float = Field(3600.0, gt=0)
    """Seconds without a request after which a session ends. Its last turn then closes without a next state."""
    shard_turns: int = Field(256, gt=0)
    """A shard is published when this many turns are complete, or after `shard_age_s`."""
    shard_age_s: float = Field(5.0, ge=0)
    """Seconds between two shards that are not full. A turn that is complete after a longer pause is published at once."""
    merge_shards: int = Field(256, gt=1)
    """Small shards that no stage needs any more are merged once there are this many of them."""
    edits: str | None = None
    """A folder in which agents work, best a git repository. The share of the lines that an answer wrote there and a person kept
    rates the answer, unless a person rated it. Unset: no file is read."""
    edits_after_s: float = Field(3600.0, gt=0)
    """Seconds after a round of tool calls until `edits` looks at what was kept."""
