"""`privacy:`, whose conversations are captured, what is taken out of them, how long they stay."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section


class PrivacyConfig(Section):
    redact: list[Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]] = [
        "api_key", "token", "password", "private_key", "card",
    ]  # fmt: skip
    """What is replaced by `[redacted:KIND]` before an exchange is written. A turn that held any of it is kept but never trained."""
    not_secrets: list[str] = []
    """Texts that look like a secret and are none, to the letter, such as an example in your client's instructions. They stay."""
    capture_keys: list[str] | None = None
    """Names of API keys whose conversations are captured (`team-*` works); unset: all."""
    skip_keys: list[str] = []
    """Names of API keys whose conversations are never captured, whatever `capture_keys` says."""
    capture_models: list[str] | None = None
    """Model names, as asked for, whose conversations are captured; unset: all."""
    skip_models: list[str] = []
    """Model names whose conversations are never captured."""
    max_age_days: float | None = Field(None, gt=0)
    """Conversations older than this are deleted by `clawctl retention` and by `collect`; unset: kept. Policies stay."""
    max_gb: float | None = Field(None, gt=0)
    """The oldest conversations are deleted while all of them take more than this; unset: kept."""
    keep_untrained: bool = False
    """What no stage is done with (not read to its end, not judged, or judged for a step that was not made) stays all the same. Then
    the two limits keep house and promise nothing."""
