"""What `clawctl import` and `clawctl export` print when they have finished."""

import json
import sys
from collections import Counter
from pathlib import Path

from clawctl.collect.exports import export_file
from clawctl.collect.imports import import_file
from clawctl.config.privacy import PrivacyConfig
from clawctl.run.directory import RunDir


def import_text(run: RunDir, privacy: PrivacyConfig, file: Path, rating: float | None, as_json: bool) -> None:
    """Import the turns of `file` and print counts. Raises ClawError."""
    found = import_file(run, file, rating, privacy)
    fates = Counter(turn.untrainable_reason for turn in found.turns).most_common()
    count = len(found.turns)
    if as_json:
        told = {"imported": 0 if found.before else count, "imported_before": count if found.before else 0, "fates": dict(fates)}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    done = f"of {file} were already imported, nothing was changed" if found.before else f"imported from {file}"
    sys.stdout.write(f"{count} turns {done}: {', '.join(f'{number} {reason}' for reason, number in fates)}\n")


def export_text(run: RunDir, file: Path, as_json: bool) -> None:
    """Export the published turns to `file` and print counts. Raises ClawError."""
    sessions, turns = export_file(run, file)
    if as_json:
        sys.stdout.write(json.dumps({"exported_sessions": sessions, "exported_turns": turns}, indent=2) + "\n")
    else:
        sys.stdout.write(f"{turns} turns of {sessions} sessions written to {file}\n")
