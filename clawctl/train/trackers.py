"""Logs each step to wandb, tensorboard or trackio, under common names. `train/steps.jsonl` does not depend on them.

accelerate's trackers would save 16 of 163 lines, all of them for tensorboard. Outside an `Accelerator` they need its
`PartialState`, which imports PyTorch (190 MB, for a trainer at a service) and may change the number of threads under torchrun.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.train.measures import QUANTILES

log = logging.getLogger("clawctl.train")
_KEYS: dict[str, Any] = {"method": {"teacher_api_key"}, "backend": {"service": {"api_key"}}}  # not sent to trackers


Metrics = Mapping[str, float | str]


class Tracker(Protocol):
    """A destination for the rows of steps. Runs of wandb and of trackio are trackers as they are."""

    def log(self, metrics: dict[str, Any], /, step: int) -> None: ...

    def finish(self) -> None: ...


def open_trackers(run: RunDir, config: TrainConfig, step: int) -> list[Tracker]:
    """Open the trackers of the recipe, continuing after `step`. Raises ClawError if a package is missing."""
    return [_open(name, run, config, step) for name in config.trackers]


def _open(name: str, run: RunDir, config: TrainConfig, step: int) -> Tracker:
    try:
        return _TRACKERS[name](run, config, step)
    except ImportError as error:
        problem = f"train.trackers names {name}, but {error.name or name} is not installed"
        raise ClawError(problem, f"pip install 'clawctl[{name}]', or remove it from the recipe", 2) from error


def track(trackers: Sequence[Tracker], row: dict[str, Any], run: RunDir) -> None:
    """Log a row of `steps.jsonl`, with a link to the version's page while the pages are served."""
    metrics = {**metrics_of(row), **_page(run, row["version"])} if trackers else {}
    for tracker in trackers:
        try:
            tracker.log(metrics, row["step"])
        except OSError as error:
            log.error("step %d is missing in %s: %s", row["step"], type(tracker).__name__, error)


def _page(run: RunDir, version: int) -> dict[str, str]:
    """The link. A person's policy has none, because it would contain their name."""
    try:
        return {"page": f"{run.page_address.read_text()}version?n={version}"} if run.policy == DEFAULT_POLICY else {}
    except OSError:
        return {}


def metrics_of(row: dict[str, Any]) -> dict[str, float]:
    """Return a row of `steps.jsonl` under common names, without missing values."""
    result: dict[str, float | None] = {
        "loss/total": row["loss"],
        "reward/mean": row["reward_mean"],
        "reward/std": row["reward_std"],
        "gradient/norm": row["grad_norm"],
        "kl/base": row.get("kl_base"),  # missing in rows of earlier versions
        "learning_rate": row["lr"],
        "turns/count": row["turns"],
        "turns/hints": row["hints"],
        "masked_fraction": row["masked_fraction"],
        "staleness/mean": row["staleness_mean"],
        "staleness/max": row["staleness_max"],
        "mismatch/mean": row["mismatch_mean"],
        "mismatch/max": row["mismatch_max"],
        "speed/tokens_per_s": row["tokens_per_s"],
        "speed/trained_tokens_per_s": row["trained_tokens_per_s"],
        "speed/tree_saving": row["tree_saving"],
        "speed/tflops": row["tflops"],
        "speed/mfu": row["mfu"],
        "memory/peak_gib": row["peak_memory_bytes"] / 2**30,
        **_quantiles("ratio", row["ratio_quantiles"]),
    }
    for name, term in row["terms"].items():
        result |= {
            f"loss/{name}": term["loss"],
            f"tokens/{name}": term["tokens"],
            f"masked_fraction/{name}": term["masked_fraction"],
        }
        result |= _quantiles(f"advantage/{name}", term["advantage_quantiles"])
        result |= _quantiles(f"divergence/{name}", term["divergence_quantiles"])
    return {name: float(value) for name, value in result.items() if value is not None}


def _quantiles(name: str, values: list[float] | None) -> dict[str, float | None]:
    return {f"{name}/p{100 * q:g}": value for q, value in zip(QUANTILES, values or (), strict=False)}


def _wandb(run: RunDir, config: TrainConfig, step: int) -> Tracker:
    """One wandb run for each policy, resumed after a restart. Offline runs are written below `train/wandb/`."""
    import wandb

    settings = wandb.Settings(silent=True, disable_git=True, disable_code=True, x_disable_meta=True)
    tracker: Tracker = wandb.init(
        **_run_of(run, config), id=_id(run), mode=config.wandb_mode, dir=str(run.train), reinit="create_new", settings=settings
    )
    return tracker


def _trackio(run: RunDir, config: TrainConfig, step: int) -> Tracker:
    """A run in trackio's own folder on this machine for each policy; `trackio show` displays it."""
    import trackio

    tracker: Tracker = trackio.init(**_run_of(run, config))
    return tracker


def _run_of(run: RunDir, config: TrainConfig) -> dict[str, Any]:
    """How wandb and trackio name and describe a run. A person's policy has no name there."""
    name = run.root.name if run.policy == DEFAULT_POLICY else f"{run.root.name}-{_id(run)}"
    settings = config.model_dump(mode="json", exclude=_KEYS)
    return {"project": config.tracker_project, "name": name, "config": settings, "resume": "allow"}


def _id(run: RunDir) -> str:
    policy = "" if run.policy == DEFAULT_POLICY else run.policy
    return hashlib.sha256(run.marker.read_bytes() + policy.encode()).hexdigest()[:12]


class Tensorboard:
    """Event files in `train/tensorboard/`. Later steps of a killed trainer are purged."""

    def __init__(self, run: RunDir, config: TrainConfig, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._text = Event, Summary, text_pb
        self._writer: Any = EventFileWriter(str(run.tensorboard))
        self._add(step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            scalar = {"tag": name, "simple_value": value}
            self._add(step, summary=self._text(name, value) if isinstance(value, str) else self._summary(value=[scalar]))
        self._writer.flush()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **content))

    def finish(self) -> None:
        self._writer.close()


_TRACKERS: dict[str, Callable[[RunDir, TrainConfig, int], Tracker]] = {
    "wandb": _wandb, "tensorboard": Tensorboard, "trackio": _trackio,
}  # fmt: skip
