"""Tasks in the format that terminal-bench had before Harbor: `task.yaml`, `Dockerfile`, `run-tests.sh`, `tests/`, `solution.sh`.

They are read as Harbor tasks. The verdict is that of `run-tests.sh`, as in Harbor's own conversion: 1 if it ends with code 0.
"""

from pathlib import Path
from typing import Any

import yaml

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox.tars import folder_files

_TEST_SH = (Path(__file__).parent / "older_test.sh").read_text("utf-8")


def is_older(folder: Path) -> bool:
    return (folder / "task.yaml").exists() and not (folder / "instruction.md").exists()


def read_older(folder: Path) -> tuple[dict[str, Any], str, dict[str, bytes], dict[str, bytes]]:
    """The settings of `task.toml`, the instruction, the files of `tests/` and those of `solution/`.

    Raises ClawError (exit code 2).
    """
    try:
        task = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        compose = folder / "docker-compose.yaml"
        services = dict(yaml.safe_load(compose.read_text(encoding="utf-8"))["services"]) if compose.exists() else {}
        described = task.get("descriptions") or [{}]
        instruction = str(task.get("instruction") or described[0].get("description") or "").strip()
        solution = _solution(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ClawError(f"the task in {folder} cannot be read: {reason}", "correct its files in YAML", 2) from error
    if not instruction:
        raise ClawError(f"the task in {folder} has no instruction", "add `instruction` to task.yaml", 2)
    if len(services) > 1:
        raise ClawError(f"the task in {folder} needs several containers ({', '.join(services)})", "play it with terminal-bench", 2)
    if (parser := task.get("parser_name", "pytest")) != "pytest":
        cure = "convert it with `harbor task migrate`, and let its test.sh write the reward"
        raise ClawError(f"the task in {folder} has the parser {parser}; clawctl reads the exit code of pytest", cure, 2)
    if not (folder / "run-tests.sh").exists():
        raise ClawError(f"the task in {folder} has no verdict", "add run-tests.sh", 2)
    settings = {
        "agent": {"timeout_sec": task.get("max_agent_timeout_sec", 300.0)},
        "verifier": {"timeout_sec": task.get("max_test_timeout_sec", 120.0)},
    }
    tests = {**folder_files(folder / "tests"), "run-tests.sh": (folder / "run-tests.sh").read_bytes(), "test.sh": _TEST_SH.encode()}
    return settings, instruction, tests, solution


def _solution(folder: Path) -> dict[str, bytes]:
    """`solution.sh`, or the commands of `solution.yaml` as a script."""
    if (folder / "solution.sh").exists():
        return {"solve.sh": (folder / "solution.sh").read_bytes()}
    if (folder / "solution.yaml").exists():
        steps = yaml.safe_load((folder / "solution.yaml").read_text(encoding="utf-8")) or []
        return {"solve.sh": "\n".join(str(step["command"]) for step in steps).encode()}
    return {}
