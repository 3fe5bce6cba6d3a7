"""Jobs for Slurm: rendered scripts, parsed states and messages to the user."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawctl.cli.up import up
from clawctl.config import load_recipe
from clawctl.errors import ClawError
from clawctl.extensions.cluster.jobs import read_launch
from clawctl.extensions.cluster.plan import Job, plan_jobs
from clawctl.extensions.cluster.slurm import JOBS, Slurm, read_queue
from clawctl.inspect.health import read_health as look_at_health
from clawctl.inspect.health_lines import health_lines
from clawctl.launch import LAUNCHERS
from clawctl.launch.up import check_is_shared
from clawctl.run.directory import RunDir, open_run

STAGES = {"up": {"stages": ["serve", "collect", "judge", "train"]}, "serve": {"host": "0.0.0.0"}}


def jobs_of(folder: Path, machines: dict[str, Any], on: Any = "slurm", **sections: Any) -> dict[str, Job]:
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump({**STAGES, "machines": machines, **sections}))
    planned = plan_jobs(RunDir(folder / "run"), load_recipe(file), on, "0123", "", "info")
    return {job.stage: job for job in planned}


def directives(job: Job) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in Slurm().render(job).splitlines() if line.startswith("#SBATCH")]


def test_each_stage_requests_the_resources_in_machines(tmp_path: Path) -> None:
    machines = {
        "judge": {"count": 3, "memory_gb": 1.5},
        "train": {"nodes": 2, "gpus": 8, "gpu_type": "h100", "hours": 24, "partition": "gpu", "options": {"exclusive": True}},
        "options": {"account": "lab"},
    }
    jobs = jobs_of(tmp_path, machines)
    assert list(jobs) == ["serve", "collect", "judge", "train"]
    assert {"array=0-2", "mem=1500M", "account=lab"} <= set(directives(jobs["judge"]))
    wanted = {"nodes=2", "ntasks-per-node=1", "gpus-per-node=h100:8", "time=1440", "partition=gpu", "exclusive", "account=lab"}
    assert wanted <= set(directives(jobs["train"]))
    assert {"nodes=1", "cpus-per-task=2", "requeue"} <= set(directives(jobs["serve"]))


def test_every_script_is_valid_bash_and_quotes_its_values(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(run)"
    folder.mkdir()
    jobs = jobs_of(folder, {"train": {"nodes": 2, "gpus": 1}, "command": "/opt/claw/bin/clawctl"})
    for job in jobs.values():
        script = Slurm().render(job)
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.stderr == ""
    quoted = script.split("bash -c ")[1].split(" &\n")[0]
    unquoted = subprocess.run(["bash", "-c", f"printf %s {quoted}"], text=True, capture_output=True, check=True).stdout
    shown = subprocess.run(["bash", "-c", unquoted.replace("exec /opt/claw/bin/clawctl", "printf '%s|'")], text=True,
                           capture_output=True, check=True, env={**os.environ, "SLURM_PROCID": "1"}).stdout  # fmt: skip
    assert f"|{folder / 'run'}|" in shown


def test_no_script_holds_the_value_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    assert not any("hf_abc" in Slurm().render(job) for job in jobs_of(tmp_path, {}).values())


@pytest.mark.parametrize(
    ("machines", "sections", "on", "problem", "cure"),
    [
        ({}, {"serve": {"host": "127.0.0.1"}}, "slurm", "other machines cannot reach", "serve.host: 0.0.0.0"),
        ({}, {"train": {"gpus": [0, 1]}}, "slurm", "train.gpus numbers the GPUs of one machine", "machines.train.gpus"),
        ({"train": {"partition": "gpu"}}, {}, "ray", "machines.train.partition is for Slurm", "--on slurm"),
        ({"serve": {"hours": 2}}, {}, "sky", "machines.serve.hours is for Slurm", "--on slurm"),
    ],
)
def test_a_recipe_that_does_not_suit_several_machines_is_refused(
    tmp_path: Path, machines: dict[str, Any], sections: dict[str, Any], on: str, problem: str, cure: str
) -> None:
    with pytest.raises(ClawError) as caught:
        jobs_of(tmp_path, machines, on, **sections)
    assert problem in caught.value.problem
    assert cure in caught.value.fix
    assert caught.value.exit_code == 2


def test_an_unknown_key_of_machines_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ClawError) as caught:
        jobs_of(tmp_path, {"train": {"gpu": 2}})
    assert "did you mean machines.train.gpus?" in caught.value.fix


def test_a_job_that_needs_attention_decides_the_state_of_its_array() -> None:
    # What squeue of Slurm 22.05 printed: an array with one worker that waits, a job on two nodes, and ended ones.
    lines = ["3|RUNNING|1|left", "3|PENDING|2|(BeginTime)", "4|RUNNING|0|left,right", "2|CANCELLED|1|", "5|NODE_FAIL|0|(NodeDown)"]
    states = read_queue("\n".join([*lines, "6|COMPLETED|0|left"]))
    assert (states["3"].phase, states["3"].detail, states["3"].starts) == ("running", "1 of 2 RUNNING on left", 5)
    assert (states["4"].phase, states["4"].detail) == ("running", "RUNNING on left,right")
    assert [states[job].phase for job in ("2", "5", "6")] == ["stopped", "failed", "done"]


def test_stages_are_submitted_once_and_stopped_together(tmp_path: Path, slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(tmp_path / "run")
    jobs_of(tmp_path, {"judge": {"count": 2}})
    recipe = load_recipe(tmp_path / "recipe.yaml")
    JOBS.launch(run, recipe, "", "info")
    JOBS.launch(run, recipe, "", "info")
    assert "all stages have jobs in slurm already" in capsys.readouterr().err
    kept = read_launch(run)
    assert [(job.stage, job.ids) for job in kept.jobs] == [("serve", ["1"]), ("collect", ["2"]), ("judge", ["3"]), ("train", ["4"])]
    JOBS.stop(run)
    kept = read_launch(run)
    assert {job.phase for job in kept.jobs} == {"stopped"}
    JOBS.launch(run, recipe, "", "info")  # and again
    kept = read_launch(run)
    assert [job.ids for job in kept.jobs] == [["5"], ["6"], ["7"], ["8"]]


def test_a_job_that_slurm_refuses_leaves_none_of_the_others(tmp_path: Path, slurm: Path) -> None:
    run = open_run(tmp_path / "run")
    jobs_of(tmp_path, {"train": {"partition": "nix"}})
    with pytest.raises(ClawError) as caught:
        JOBS.launch(run, load_recipe(tmp_path / "recipe.yaml"), "", "info")
    assert "Slurm refuses the job of train: invalid partition specified: nix" in caught.value.problem
    assert caught.value.fix == "set machines.train.partition to one of: cpu, gpu"
    assert (slurm / "cancelled").read_text().split() == ["1", "2", "3"]
    kept = read_launch(run)
    assert kept.jobs == []


def test_without_slurm_the_jobs_are_shown_and_not_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    jobs_of(tmp_path, {})
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert JOBS.render(RunDir(tmp_path / "run"), recipe, "info").count("#!/bin/bash") == 4
    assert not (tmp_path / "run").exists()
    with pytest.raises(ClawError) as caught:
        JOBS.launch(open_run(tmp_path / "run"), recipe, "", "info")
    assert caught.value.problem == "there is no sbatch on this machine"
    assert "login node" in caught.value.fix


def test_a_job_refuses_a_machine_that_does_not_see_its_run(tmp_path: Path, slurm: Path) -> None:
    jobs_of(tmp_path, {})
    run = open_run(tmp_path / "run")
    JOBS.launch(run, load_recipe(tmp_path / "recipe.yaml"), "", "info")
    kept = read_launch(run)
    check_is_shared(run.root, kept.id)
    check_is_shared(run.root, None)  # no job
    for root, launch_id, problem in ((run.root, "another", "has another run directory"), (tmp_path / "no", kept.id, "has no run")):
        with pytest.raises(ClawError) as caught:
            check_is_shared(root, launch_id)
        assert problem in caught.value.problem
        assert "all machines mount" in caught.value.fix


def test_following_jobs_shows_the_output_of_a_failed_job(tmp_path: Path, slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs_of(tmp_path, {})
    run = open_run(tmp_path / "run")
    JOBS.launch(run, load_recipe(tmp_path / "recipe.yaml"), "", "info")
    (run.job_output / "train-4.out").write_text("clawctl: there is no GPU 7\n  choose from 0 to 3\n")
    (slurm / "squeue").write_text("#!/bin/bash\nprintf '1|COMPLETED|0|a\\n2|CANCELLED|0|\\n3|COMPLETED|0|a\\n4|FAILED|0|b\\n'\n")
    with pytest.raises(ClawError) as caught:
        JOBS.follow(run, live=False)
    assert caught.value.problem == "the job of train has ended: FAILED on b: clawctl: there is no GPU 7 choose from 0 to 3"
    assert "train | FAILED on b" in capsys.readouterr().err
    with pytest.raises(ClawError):
        JOBS.follow(run, live=True)
    assert "no version is live" in capsys.readouterr().out
    JOBS.show(run)
    assert "FAILED on b" in capsys.readouterr().out
    lines = dict(health_lines(look_at_health(run)))
    assert lines["jobs"].plain.startswith(
        "slurm, 0 s ago: serve COMPLETED on a, collect CANCELLED, judge COMPLETED on a, train FAILED"
    )


def test_jobs_of_another_scheduler_are_stopped_first(tmp_path: Path, slurm: Path) -> None:
    jobs_of(tmp_path, {})
    run = open_run(tmp_path / "run")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    JOBS.launch(run, recipe, "", "info")
    with pytest.raises(ClawError, match="already has jobs in slurm"):
        LAUNCHERS.load("sky", "--on").launch(run, recipe, "", "info")
    up(run=run.root, stop=True)
    assert {job.phase for job in read_launch(run).jobs} == {"stopped"}
