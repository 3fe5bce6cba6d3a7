"""Decides whose conversations may be captured, by API key name and model name."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from clawctl.config import PrivacyConfig


def may_capture(privacy: PrivacyConfig, key: str, model: str) -> bool:
    """Whether conversations of this key with this model are captured. A skip pattern overrides every capture pattern."""
    allowed = _allowed(key, privacy.capture_keys) and _allowed(model, privacy.capture_models)
    return allowed and not _matches_any(key, privacy.skip_keys) and not _matches_any(model, privacy.skip_models)


def _allowed(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or _matches_any(name, patterns)


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
