"""`collect:`, sessions from captures."""

from pydantic import Field

from clawctl.config.section import Section


class CollectConfig(Section):
    session_timeout_s: float = Field(3600.0, gt=0)
    """A session without a request for so long is over: its last turn closes with no next state."""
    shard_turns: int = Field(256, gt=0)
    """Publish a shard when so many turns are complete, …"""
    shard_age_s: float = Field(5.0, ge=0)
    """… or when the oldest complete turn has waited so long."""
