"""What clawctl says about the keys and options of other systems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clawctl.config.explaining import Explainer, Option
from clawctl.extensions.migrate.keys import OurKey, find_elsewhere, find_similar, is_from_elsewhere
from clawctl.extensions.migrate.options import OPTIONS


class OtherSystems(Explainer):
    """OpenClaw-RL, slime, verl, TRL, prime-rl and ART."""

    def key(self, parts: Sequence[str], similar: bool = False) -> OurKey | None:
        return find_similar(parts[-1]) if similar else find_elsewhere(parts)

    def cure(self, path: Path | None, data: Mapping[Any, Any], strange: Sequence[str]) -> str | None:
        return f"convert it: clawctl recipe convert {path} --out NEW.yaml" if is_from_elsewhere(data, strange) else None

    def options(self, command: str) -> Mapping[str, Option]:
        return OPTIONS.get(command, {})


OTHER_SYSTEMS = OtherSystems()
