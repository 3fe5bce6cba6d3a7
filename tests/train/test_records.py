"""The records of a step: the numbers of each trained turn, and the values for trackers."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from clawctl.config import TrainConfig
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.train.checkpoints import read_rows
from clawctl.train.trackers import Metrics, metrics_of, open_trackers, track
from tests.train.tiny import Sampler, publish_turns
from tests.trainers.local.test_methods_in_a_step import train
from tests.waiting import until


def records(run: RunDir, step: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run.train / "turns" / f"{step}.parquet").to_pylist()
    return rows


def test_the_numbers_of_the_turns_add_up_to_the_loss_of_their_step(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    turns = {turn.turn_id: turn for turn in publish_turns(run, sampler, 8)}
    train(run, model_path, baseline="mean", weight_opd=0.5, ratio_penalty=0.0, lr=1e-2)
    for row in read_rows(run):
        rows, loss = records(run, row["step"]), 0.0
        assert sum(len(turn_row["completion_ids"]) for turn_row in rows) == row["trained_tokens"]
        for record in rows:
            turn = turns[record["turn_id"]]
            assert record["completion_ids"] == turn.completion_ids
            assert record["sampler_logprobs"] == pytest.approx(turn.logprobs, rel=1e-6)
            assert record["staleness"] == row["step"] - 1
            assert (record["teacher_logprobs"] is None) == ("opd" not in [term["name"] for term in record["terms"]])
            for term in record["terms"]:
                for now, then, advantage, acts in zip(
                    record["policy_logprobs"], record["sampler_logprobs"], term["advantages"], term["acting"], strict=True
                ):
                    loss -= term["weight"] * acts * advantage * 2.718281828459045 ** (now - then) / term["tokens"]
                if term["name"] == "binary":
                    assert term["advantages"] == pytest.approx(
                        [record["reward"] - record["baseline"]] * len(turn.completion_ids or [])
                    )
        assert loss == pytest.approx(row["loss"], rel=1e-4)


@pytest.mark.parametrize(("keep", "left"), [(1, ["2.parquet"]), (0, None)])
def test_only_the_newest_records_are_kept(
    run: RunDir, sampler: Sampler, model_path: Path, keep: int, left: list[str] | None
) -> None:
    publish_turns(run, sampler, 8)
    train(run, model_path, keep_turn_records=keep)
    folder = run.train / "turns"
    assert (sorted(path.name for path in folder.iterdir()) if folder.exists() else None) == left


def test_a_row_reports_the_cost_and_speed_of_a_step(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    train(run, model_path, peak_tflops=0.5)
    (row,) = read_rows(run)
    assert row["tree_saving"] == row["sequence_tokens"] / row["computed_tokens"] > 1
    assert row["mfu"] == pytest.approx(row["tflops"] / 0.5)
    assert row["trained_tokens_per_s"] == pytest.approx(row["trained_tokens"] / row["model_s"])
    assert row["peak_memory_bytes"] > 2**20
    assert (row["clip_grad"], row["correction"]["surrogate"], row["correction"]["threshold"]) == (1.0, "dppo", 0.2)


def test_tensorboard_has_each_step_under_the_names_that_people_know(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    publish_turns(run, sampler, 8)
    publish_bytes(run.page_address, b"http://127.0.0.1:30080/")
    train(run, model_path, trackers=["tensorboard"])
    events = EventAccumulator(str(run.train / "tensorboard")).Reload()
    rows = read_rows(run)
    for name in ("loss/total", "loss/binary", "loss/opd", "reward/mean", "reward/std", "gradient/norm", "learning_rate"):
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert points == [(row["step"], pytest.approx(metrics_of(row)[name], rel=1e-6, abs=1e-9)) for row in rows], name
    links = [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors("page")]
    assert links == [(row["step"], f"http://127.0.0.1:30080/version?n={row['version']}") for row in rows]


def test_the_link_to_a_page_has_no_persons_name_and_ends_with_the_pages(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    class Kept:
        rows: list[Metrics] = []  # noqa: RUF012

        def log(self, metrics: Metrics, step: int) -> None:
            self.rows.append(metrics)

        def finish(self) -> None: ...

    publish_turns(run, sampler, 8)
    train(run, model_path)
    row = read_rows(run)[0]
    track([Kept()], row, run)
    publish_bytes(run.page_address, b"http://127.0.0.1:1/")
    track([Kept()], row, run.of("anna"))
    track([Kept()], row, run)
    assert [metrics.get("page") for metrics in Kept.rows] == [None, None, f"http://127.0.0.1:1/version?n={row['version']}"]


def test_wandb_writes_offline_and_sends_nothing(run: RunDir) -> None:
    wandb = pytest.importorskip("wandb")
    (tracker,) = open_trackers(run, TrainConfig(trackers=["wandb"]), 0)
    tracker.log({"loss/total": 0.5, "page": "http://127.0.0.1:1/version?n=1"}, 1)
    tracker.finish()
    (folder,) = (run.train / "wandb").glob("offline-run-*")
    (stored,) = folder.glob("run-*.wandb")
    assert stored.stat().st_size > 0
    assert wandb.run is None


def holds_both_steps(path: Path) -> bool:
    return path.read_bytes().count(b"loss/total") >= 2


def test_each_policy_has_a_wandb_run_of_its_own_without_the_persons_name(run: RunDir) -> None:
    pytest.importorskip("wandb")
    config = TrainConfig.model_validate({"trackers": ["wandb"], "method": {"kind": "opd", "teacher_api_key": "sk-of-the-teacher"}})
    policies = [run, run.of("annabelle")]
    trackers = [open_trackers(policy, config, 0)[0] for policy in policies]
    for step in (1, 2):
        for tracker in trackers:
            tracker.log({"loss/total": 0.5}, step)
    for tracker in trackers:
        tracker.finish()
    stored = [next((policy.train / "wandb").glob("offline-run-*/run-*.wandb")) for policy in policies]
    assert len({path.name for path in stored}) == 2
    for path in stored:
        until(partial(holds_both_steps, path))  # wandb's service may write a run's file after the run has ended
        assert b"annabelle" not in path.read_bytes()
        assert b"sk-of-the-teacher" not in path.read_bytes()


def test_trackio_keeps_each_step_of_each_policy_on_this_machine(run: RunDir, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    script = (
        "import sys; from pathlib import Path; from clawctl.config import TrainConfig; from clawctl.run.directory import open_run\n"
        "from clawctl.train.trackers import open_trackers\n"
        "run = open_run(Path(sys.argv[1])); config = TrainConfig(trackers=['trackio'])\n"
        "(tracker,), (anna,) = open_trackers(run, config, 0), open_trackers(run.of('anna'), config, 0)\n"
        "tracker.log({'loss/total': 0.5, 'page': 'http://127.0.0.1:1/'}, 1); anna.log({'loss/total': 0.75}, 1)\n"
        "tracker.log({'loss/total': 0.25}, 2); tracker.finish(); anna.finish()"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}  # read when it is imported
    subprocess.run([sys.executable, "-c", script, str(run.root)], env=environment, check=True, capture_output=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "clawctl.db")) as stored:
        rows = stored.execute("select run_name, step, metrics from metrics order by run_name, step").fetchall()
    name, annas = run.root.name, rows[2][0]
    losses = [(name, step, json.loads(metrics)["loss/total"]) for name, step, metrics in rows]
    assert losses == [(name, 1, 0.5), (name, 2, 0.25), (annas, 1, 0.75)]
    assert name < annas
    assert "anna" not in annas
    assert json.loads(rows[0][2])["page"] == "http://127.0.0.1:1/"


@pytest.mark.parametrize("name", ["trackio"])
def test_a_tracker_that_is_not_installed_is_refused_at_start(run: RunDir, name: str) -> None:
    try:
        __import__(name)
    except ImportError:
        with pytest.raises(ClawError, match="is not installed") as raised:
            open_trackers(run, TrainConfig.model_validate({"trackers": [name]}), 0)
        assert raised.value.fix.startswith(f"pip install 'clawctl[{name}]'")


def test_values_that_were_not_measured_are_omitted() -> None:
    quantiles = [0.0] * 7
    term = {"loss": 1.0, "tokens": 3, "masked_fraction": 0.0, "advantage_quantiles": None, "divergence_quantiles": quantiles}
    row = dict.fromkeys(
        ("loss", "grad_norm", "lr", "turns", "hints", "masked_fraction", "staleness_mean", "staleness_max", "tokens_per_s"), 1.0
    )
    row |= dict.fromkeys(("trained_tokens_per_s", "tree_saving", "tflops", "peak_memory_bytes"), 1.0)
    unknown = dict.fromkeys(("reward_mean", "reward_std", "mismatch_mean", "mismatch_max", "mfu"))
    metrics = metrics_of({**row, **unknown, "ratio_quantiles": quantiles, "terms": {"opd_topk": term}})
    assert "reward/mean" not in metrics
    assert "advantage/opd_topk/p50" not in metrics
    assert (metrics["loss/opd_topk"], metrics["divergence/opd_topk/p50"]) == (1.0, 0.0)


def test_the_documents_name_every_key_of_a_row(run: RunDir, sampler: Sampler, model_path: Path) -> None:
    publish_turns(run, sampler, 4)
    train(run, model_path)
    (row,) = read_rows(run)
    page = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text()
    table = page.partition("## A row of")[2]
    named = {name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named - {"cost", "rest_s"} == set(row)  # a step on this machine costs nothing, and it shares its device with no server
    assert all(f"`{key}`" in table for key in row["terms"]["binary"])
