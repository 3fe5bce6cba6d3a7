"""The jobs of the other schedulers, and one process of a stage under a Ray actor."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from clawctl.errors import ClawError
from clawctl.extensions.cluster.ray_cluster import RayCluster, StageActor
from clawctl.extensions.cluster.sky import Sky, read_jobs
from clawctl.extensions.cluster.slurm import Slurm
from clawctl.run.checksums import sealed
from clawctl.run.directory import open_run, publish_bytes
from tests.extensions.cluster.test_slurm import jobs_of
from tests.waiting import until


def test_a_sky_task_has_the_stage_its_machines_and_the_users_own_keys(tmp_path: Path) -> None:
    machines = {
        "train": {"nodes": 2, "gpus": 8, "gpu_type": "H100", "memory_gb": 400, "options": {"resources": {"use_spot": True}}},
        "judge": {"count": 4},
        "options": {"resources": {"infra": "k8s"}, "volumes": {"/runs": "clawctl-runs"}},
    }
    jobs = jobs_of(tmp_path, machines, "sky")
    task = yaml.safe_load(Sky().render(jobs["train"]))
    assert task["resources"] == {"cpus": "2+", "memory": "400+", "accelerators": "H100:8", "infra": "k8s", "use_spot": True}
    assert (task["num_nodes"], task["volumes"]) == (2, {"/runs": "clawctl-runs"})
    assert task["run"].splitlines()[-1] == (
        f"exec clawctl up {tmp_path}/run/recipe.yaml --run {tmp_path}/run --log-level info --only train"
    )
    assert "NODE_RANK=$SKYPILOT_NODE_RANK" in task["run"]
    assert yaml.safe_load(Sky().render(jobs["judge"]))["num_nodes"] == 4


def test_sky_needs_the_type_of_the_gpus(tmp_path: Path) -> None:
    with pytest.raises(ClawError) as caught:
        Sky().render(jobs_of(tmp_path, {"serve": {"gpus": 1}}, "sky")["serve"])
    assert "machines.serve.gpu_type" in caught.value.fix


def test_the_newest_of_skypilots_jobs_of_a_name_counts() -> None:
    queue = '[{"job_id": 2, "job_name": "a", "status": "RECOVERING", "recovery_count": 1},'
    queue += ' {"job_id": 1, "job_name": "a", "status": "FAILED", "recovery_count": 0}]'
    assert (read_jobs(queue)["a"].phase, read_jobs(queue)["a"].starts) == ("waiting", 2)
    with pytest.raises(ClawError, match="no JSON"):
        read_jobs("Traceback")


def test_ray_shows_an_actor_for_each_process(tmp_path: Path) -> None:
    machines = {"train": {"nodes": 2, "gpus": 4, "memory_gb": 8}, "judge": {"options": {"resources": {"cpu-node": 1}}}}
    jobs = jobs_of(tmp_path, machines, "ray")
    lines = RayCluster().render(jobs["train"]).splitlines()
    assert lines[:2] == [
        f"actor clawctl-run-train-{rank}: {{'num_cpus': 2, 'num_gpus': 4, 'memory': 8000000000}}" for rank in (0, 1)
    ]
    assert "'resources': {'cpu-node': 1}" in RayCluster().render(jobs["judge"])


def test_an_actor_starts_its_stage_again_until_it_is_done_and_refused_recipes_end_it(tmp_path: Path) -> None:
    fails_once = f"test -e {tmp_path}/tried && exit 0; touch {tmp_path}/tried; exit 1"
    actor = StageActor("clawctl-run-judge-0", 0, 1, 0, fails_once, {}, str(tmp_path))
    until(lambda: actor.state()["code"] is not None)
    assert (actor.state()["code"], actor.state()["starts"]) == (0, 2)
    refusing = StageActor("clawctl-run-judge-0", 1, 1, 0, "echo it refuses; exit 2", {}, str(tmp_path))
    until(lambda: refusing.state()["code"] == 2)
    assert (tmp_path / "judge-1.out").read_text() == "it refuses\n"


@pytest.mark.parametrize("on", ["slurm", "ray"])
def test_a_trainer_on_one_gpu_starts(tmp_path: Path, slurm: Path, on: str) -> None:
    recipe = {"model": {"path": "crafts"}, "train": {"max_steps": 0}, "up": {"stages": ["train"]}}
    job = jobs_of(tmp_path, {"train": {"gpus": 1}}, on, **recipe)["train"]
    run = open_run(tmp_path / "run")
    run.recipe.write_text((tmp_path / "recipe.yaml").read_text())
    publish_bytes(run.launch, sealed(json.dumps({"id": "0123", "on": on, "jobs": [], "at": 0.0}).encode()))
    if on == "slurm":
        done = subprocess.run(["bash"], input=Slurm().render(job), text=True, capture_output=True, check=False)
        code, output = done.returncode, done.stdout + done.stderr
    else:
        actor = StageActor(f"{job.name}-0", 0, 1, job.gpus, job.command, job.environment, str(tmp_path))
        until(lambda: actor.state()["code"] is not None)
        code, output = actor.state()["code"], (tmp_path / "train-0.out").read_text()
    assert code == 0, output
    assert "train has finished all steps" in output


def test_stopping_an_actor_ends_its_process_as_ctrl_c_would(tmp_path: Path) -> None:
    patient = f"trap 'echo bye; exit 0' TERM; touch {tmp_path}/ready; while true; do sleep 0.1; done"
    actor = StageActor("clawctl-run-serve-0", 0, 1, 0, patient, {"NAME": "value"}, str(tmp_path))
    until((tmp_path / "ready").exists)
    actor.stop()
    assert (tmp_path / "serve-0.out").read_text().endswith("bye\n")
    assert actor.state()["starts"] == 1


def test_a_missing_ray_cluster_is_reported_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClawError) as caught:
        RayCluster().states(["clawctl-run-serve-0"])
    assert "ray start --head" in caught.value.fix
