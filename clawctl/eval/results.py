"""The record of a measured version: `eval/<version>.json`."""

import logging
from typing import Any

import orjson

from clawctl.config import EvalConfig
from clawctl.errors import Damaged
from clawctl.eval.gate import Scores
from clawctl.eval.suites import digest_of
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes, quarantine

log = logging.getLogger("eval")

KEPT = ("decision", "again", "compared", "evidence", "share", "watch")  # fields kept when a version is measured again


def settings_of(config: EvalConfig) -> dict[str, Any]:
    """The settings that two measurements must share to be comparable."""
    code = {suite.name: digest for suite in config.suites if (digest := digest_of(suite.name)) is not None}
    return {
        "suites": [suite.short() for suite in config.suites],
        "problems": config.problems,
        "seed": config.seed,
        "temperature": config.temperature,
        **({"code": code} if code else {}),
    }


def read_record(run: RunDir, version: int) -> dict[str, Any] | None:
    """`eval/<version>.json`, or None if the version has no record. An invalid file is moved to quarantine."""
    path = run.eval_record(version)
    try:
        record = read_sealed(path.read_bytes())
    except FileNotFoundError:
        return None
    except Damaged as error:
        record = error
    if isinstance(record, dict) and {"suites", "decision"} <= record.keys():
        return record
    kept = quarantine(run, path, f"not an eval record: {record if isinstance(record, Exception) else 'a key is missing'}")
    log.warning("%s is not a valid eval record; it is kept as %s, and version %d is measured again", path.name, kept, version)
    return None


def is_measured(record: dict[str, Any] | None, config: EvalConfig) -> bool:
    """Whether `record` contains numbers that are comparable with measurements by `config`."""
    return bool(record and record.get("suites") and record.get("settings") == settings_of(config))


def metrics_of(suite: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The metrics of a suite in a record: {"correctness": {"mean": 0.9, "ci95": [0.7, 1.0], "n": 36}}."""
    return {name: metric for name, metric in suite.items() if name != "by_role"}


def scores(record: dict[str, Any]) -> Scores:
    """The numbers that the gate compares."""
    return {
        (suite, name): value["mean"] for suite, result in record["suites"].items() for name, value in metrics_of(result).items()
    }


def write_record(run: RunDir, record: dict[str, Any]) -> None:
    publish_bytes(run.eval_record(record["version"]), sealed(orjson.dumps(record, option=orjson.OPT_INDENT_2)))
