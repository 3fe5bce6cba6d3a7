"""Settings of `privacy:`, which conversations are captured, what is redacted, and how long conversations are kept."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]


class PrivacyConfig(Section):
    redact: list[Kind] = ["api_key", "token", "password", "private_key", "card"]
    """Kinds of data that are replaced by `[redacted:KIND]` before an exchange is written. A turn whose
    answer contained any of it is kept but never trained."""
    finders: list[str] = Field(["rules"], min_length=1)
    """What finds that data: `rules`, which comes with clawctl, your own as `file.py:name`, or the finder of an installed package.
    Several are used together."""
    not_secrets: list[str] = []
    """Exact texts that look like a secret but are not, such as an example in your client's instructions. They are not redacted."""
    store_images: bool = True
    """Whether images in captured messages are stored, in `RUN/images`. Redaction reads no images. `false` keeps only their
    hashes."""
    capture_keys: list[str] | None = None
    """Names of API keys whose conversations are captured (patterns such as `team-*` work). Unset: all."""
    skip_keys: list[str] = []
    """Names of API keys whose conversations are never captured. This takes precedence over `capture_keys`."""
    capture_models: list[str] | None = None
    """Model names, as clients request them, whose conversations are captured. Unset: all."""
    skip_models: list[str] = []
    """Model names whose conversations are never captured."""
    max_age_days: float | None = Field(None, gt=0)
    """`clawctl retention` and `collect` delete conversations older than this many days. Unset: none are deleted. Policies stay."""
    max_gb: float | None = Field(None, gt=0)
    """`clawctl retention` and `collect` delete the oldest conversations while all of them together exceed this size in GB. Unset:
    none are deleted."""
    keep_untrained: bool = False
    """Keep data that a stage still needs: not fully read, not judged, or judged for a step that was not made. The two limits above
    are then not guaranteed."""
