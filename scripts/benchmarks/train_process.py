"""Runs one contestant of `scripts/bench train` in a process of its own, so that memory is measured without the others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from clawctl.errors import ClawError

_HERE = Path(__file__).parent


def worker(module: str, job: dict[str, Any], python: Path | None = None) -> dict[str, Any]:
    """Run one contestant and return the JSON on the last line of its stdout. Raises ClawError if it fails."""
    how = ", ".join(f"{name} {job[name]}" for name in ("merge", "checkpointing", "chunked") if name in job)
    print(f"  {module}: {how} …", file=sys.stderr, flush=True)
    command = [str(python), str(_HERE / f"{module}.py")] if python else [sys.executable, "-m", f"scripts.benchmarks.{module}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ClawError(f"{module} ended with {done.returncode}: {last}", "run it alone to see more")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
