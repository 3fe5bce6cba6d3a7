"""A Slurm cluster of two nodes on this machine in a separate folder: munged, slurmctld and two slurmd, stopped at the end.

It needs root and Debian's `slurm-wlm` and `munge`. It writes nothing outside the folder.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NODES = ("left", "right")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_CONF = """\
ClusterName=clawctl
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=0
KillWait=10
MinJobAge=3600
JobRequeue=1
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=8000
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=8000
PartitionName=all Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Describe what this machine lacks, or return None. As root on Debian, missing packages are installed first."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root: run the benchmark as root, in a container or a virtual machine"
    if not all(map(shutil.which, _PROGRAMS)) and shutil.which("apt-get"):
        print("installing slurm-wlm and munge …", flush=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)  # type: ignore[call-overload]
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "slurm-wlm", "munge"]
        subprocess.run(command, env=env, **quiet)  # type: ignore[call-overload]
    absent = [program for program in _PROGRAMS if not shutil.which(program)]
    return f"{', '.join(absent)} is missing: on Debian, install slurm-wlm and munge" if absent else None


@contextmanager
def two_nodes(folder: Path) -> Iterator[dict[str, str]]:
    """Run the cluster and yield the environment variables with which Slurm's commands use it."""
    conf = folder / "slurm.conf"
    conf.write_text(_CONF.format(host=socket.gethostname(), folder=folder, ports=_free_ports(3), nodes=NODES))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    env = {**os.environ, "SLURM_CONF": str(conf)}
    munge = ["--force", f"--socket={folder}/munge.socket", f"--key-file={key}", f"--pid-file={folder}/munged.pid"]
    munge += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed", "--foreground"]
    daemons = [[str(shutil.which("munged")), *munge], ["slurmctld", "-D", "-i"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    running: list[subprocess.Popen[bytes]] = []
    with (folder / "daemons.log").open("wb") as log:
        try:
            for command in daemons:
                running.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True))
                time.sleep(1.0)
            _wait_idle(env, folder)
            yield env
        finally:
            subprocess.run(["scancel", "--user=root"], env=env, capture_output=True, check=False, timeout=30)
            time.sleep(2.0)
            for daemon in reversed(running):
                daemon.send_signal(signal.SIGTERM)
            for daemon in reversed(running):
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(daemon.pid, signal.SIGKILL)


def _wait_idle(env: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=env, capture_output=True, text=True, check=False)
        if done.stdout.split() == ["idle"] * len(NODES):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"Slurm did not start: {done.stdout}{done.stderr}{(folder / 'daemons.log').read_text()[-2000:]}")
        time.sleep(0.5)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()
