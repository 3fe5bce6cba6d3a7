"""The results of a suite, and their file `eval/<version>.json`."""

import logging
from dataclasses import dataclass
from typing import Any

import orjson

from clawctl.config import EvalConfig
from clawctl.eval.gate import Scores
from clawctl.eval.intervals import Estimate
from clawctl.run.checksums import Damaged, read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, quarantine

METRICS = ("satisfaction", "correctness")

log = logging.getLogger("eval")


class CannotMeasure(Exception):
    """The server did not answer correctly. `gone`: it could not be reached at all, so this is not a result for the policy."""

    def __init__(self, problem: str, gone: bool):
        super().__init__(problem)
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Finding:
    """One suite's numbers on one policy version."""

    metrics: dict[str, Estimate]  # "satisfaction", "correctness"
    by_role: dict[str, dict[str, Estimate]]  # "student": the same metrics
    examples: list[dict[str, Any]]  # {"task_id", "role", "prompt", "reply", "satisfaction", "correct"}, the same tasks each time

    def as_json(self) -> dict[str, Any]:
        by_role = {role: {name: value.as_json() for name, value in found.items()} for role, found in self.by_role.items()}
        return {**{name: value.as_json() for name, value in self.metrics.items()}, "by_role": by_role}


def settings_of(config: EvalConfig) -> dict[str, Any]:
    """The settings that two measurements must share to be comparable."""
    return {"suites": list(config.suites), "problems": config.problems, "seed": config.seed, "temperature": config.temperature}


def read_record(run: RunDir, version: int) -> dict[str, Any] | None:
    """`eval/<version>.json`, or None if the version has no record. An unreadable file is moved to a backup name."""
    path = run.eval_record(version)
    try:
        found = read_sealed(path.read_bytes())
    except FileNotFoundError:
        return None
    except Damaged as error:
        found = error
    if isinstance(found, dict) and {"suites", "decision"} <= found.keys():
        return found
    kept = quarantine(run, path, f"not an eval record: {found if isinstance(found, Exception) else 'a key is missing'}")
    log.warning("%s is not a valid eval record; it is kept as %s, and version %d is measured again", path.name, kept, version)
    return None


def is_measured(record: dict[str, Any] | None, config: EvalConfig) -> bool:
    """Whether `record` contains numbers that are comparable with the measurements of `config`."""
    return bool(record and record.get("suites") and record.get("settings") == settings_of(config))


def scores(record: dict[str, Any]) -> Scores:
    found = record["suites"]["personalisation"]
    return Scores(found["satisfaction"]["mean"], found["correctness"]["mean"])


def write_record(run: RunDir, record: dict[str, Any]) -> None:
    publish_bytes(
        run.eval_record(record["version"]), sealed(orjson.dumps({**record, "policy": run.policy}, option=orjson.OPT_INDENT_2))
    )
