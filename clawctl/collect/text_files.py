"""The final messages of `collect --import` and `--export`."""

import json
import sys
from collections import Counter
from pathlib import Path

from clawctl.collect.exports import export_file
from clawctl.collect.imports import import_file
from clawctl.config.privacy import PrivacyConfig
from clawctl.run_dir import RunDir


def exchange_text(
    run: RunDir, privacy: PrivacyConfig, import_from: Path | None, export_to: Path | None, rating: float | None, as_json: bool
) -> None:
    """Import, then export, whichever is asked for, and print counts. Raises ClawError."""
    told: dict[str, object] = {}
    if import_from is not None:
        found = import_file(run, import_from, rating, privacy)
        turns = found.turns
        told["imported"] = 0 if found.before else len(turns)
        told["imported_before"] = len(turns) if found.before else 0
        told["fates"] = dict(Counter(turn.untrainable_reason for turn in turns).most_common())
    if export_to is not None:
        told["exported_sessions"], told["exported_turns"] = export_file(run, export_to)
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    if import_from is not None:
        fates = ", ".join(f"{count} {reason}" for reason, count in Counter(t.untrainable_reason for t in turns).most_common())
        done = "of {} were already imported, nothing was changed" if found.before else "imported from {}"
        sys.stdout.write(f"{len(turns)} turns {done.format(import_from)}: {fates}\n")
    if export_to is not None:
        sys.stdout.write(f"{told['exported_turns']} turns of {told['exported_sessions']} sessions written to {export_to}\n")
