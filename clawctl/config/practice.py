"""Settings of `practice:`, which turns notes into weights."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section, When


class PracticeConfig(Section):
    when: Literal["off"] | When = "idle"
    """When notes are practised: while nobody asks anything, at any time (`always`), at hours of the day (`"01:00-06:00"`, local
    time), or never (`off`)."""
    idle_s: float = Field(60.0, ge=0)
    """With `idle`: seconds without a request of a person before practice begins. It pauses as soon as one comes."""
    requests: int = Field(12, gt=0)
    """How many of a person's newest requests are practised on."""
    history_chars: int = Field(8000, ge=0)
    """Characters of the conversation before a request that are practised with it. Its oldest turns are left out; its system prompt
    is not. A step on long conversations takes minutes on a CPU."""
    least_requests: int = Field(3, gt=0)
    """Practice of a person's notes begins with this many requests of that person."""
    steps: int = Field(24, gt=0)
    """Most optimizer steps for one note. After them it stays in the prompt."""
    max_tokens: int = Field(64, gt=0)
    """Tokens of an answer in practice. A longer one is cut, and its beginning is trained."""
    learned_at: float = Field(0.9, gt=0, le=1)
    """A note is learned when answers without it have come this far from the untrained model's answers without it (0) to its answers
    with it (1), on new requests."""
