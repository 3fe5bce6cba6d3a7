"""The record of a measured version: `eval/<version>.json`."""

import logging
from typing import Any

import orjson
from rich.table import Table

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


def is_open(record: dict[str, Any] | None) -> bool:
    """Whether nothing was decided on a version."""
    return record is None or record["decision"]["promote"] is None


def in_short(record: dict[str, Any]) -> str:
    """The numbers of one version as one line."""
    if not record["suites"]:
        return str(record["decision"]["reason"])
    suites = (
        f"{suite}: " + ", ".join(f"{name} {_estimate(value)}" for name, value in metrics_of(result).items())
        for suite, result in record["suites"].items()
    )
    return "; ".join(suites) + f" ({record['seconds']:.1f} s)"


def _estimate(value: dict[str, Any]) -> str:
    low, high = value["ci95"]
    return f"{value['mean']:.2f} [{low:.2f}, {high:.2f}]"


def as_tables(record: dict[str, Any]) -> list[Table]:
    """The numbers of one version, as one table per suite: a row for all tasks, and a row for each kind of task."""
    tables = []
    for suite, result in record["suites"].items():
        metrics = list(metrics_of(result))
        table = Table("tasks", *metrics, "n", title=f"policy {record['version']}, {suite}", caption="mean and 95 % interval")
        for who, part in (("all", result), *result.get("by_role", {}).items()):
            cells = (_estimate(part[metric]) if metric in part else "" for metric in metrics)
            table.add_row(who, *cells, str(max((value["n"] for value in metrics_of(part).values()), default=0)))
        tables.append(table)
    return tables
