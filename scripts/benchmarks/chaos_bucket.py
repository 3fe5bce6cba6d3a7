"""`--storage s3`: a run in an unreliable object store, on six hosts that share nothing else.

Workers are killed, or stopped for longer than their lease. Two hosts collect their captures, two judge the same shards, and two
try to train. A proxy in front of the store answers 500 and 503, truncates and delays uploads, and closes connections before or
after the store has processed a request. If there is a C compiler, each host's clock is wrong by minutes. A host is a separate local
folder (`CLAWCTL_RUN_CACHE`). Shards are merged two at a time, so that workers are killed while they merge.
"""

import argparse
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.finished_shards import SUFFIX
from clawctl.run.mounts import run_folder
from clawctl.run.rows import Turn
from clawctl.run.shards import read_turns, read_verdicts
from clawctl.run.storage import storage_of
from scripts.benchmarks.chaos_audit import Watcher
from scripts.benchmarks.chaos_clocks import Server, compile_shim
from scripts.benchmarks.chaos_disk import trained_turns
from scripts.benchmarks.chaos_store import Proxy, store
from scripts.benchmarks.circle import CLAWCTL, ROOT
from scripts.benchmarks.table import Row

_URL = "s3://chaos/run"
_FAULTS = 0.04  # share of the requests
_PATIENCE_S = 240.0
_LEASE_S = 30.0
_AGAIN_S = 10.0
_MINUTE = 60  # a real store refuses requests if the client's clock is wrong by more than 15 minutes
_RECIPE = {
    "model": {"path": "crafts"},
    "collect": {"session_timeout_s": 6.0, "shard_turns": 6, "shard_age_s": 0.5, "merge_shards": 2},
    "judge": {"custom_rm": "rm.py:Judge"},
    "train": {"method": "binary", "batch_turns": 4, "max_mismatch": 1e9, "max_staleness": 10_000, "lora": {"rank": 2}},
    "gate": None,
}
_RM = """import time
class Judge:
    reward_range = (-1, 1)

    def score(self, prompt, response, next_state):
        time.sleep(0.02)
        return 1.0
"""
_STAGES = {"a": "collect", "b": "collect", "i": "judge", "j": "judge", "s": "train", "t": "train"}


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure `options.rounds` kills or pauses (default 40, with --quick 6)."""
    rounds = options.rounds or (6 if options.quick else 40)
    began = time.monotonic()
    with ExitStack() as stack:
        port = stack.enter_context(store(options.store, folder))
        proxy = Proxy(port, options.seed, 0.0)
        stack.callback(proxy.close)
        os.environ.update(bucket_environment(proxy.port), CLAWCTL_RUN_CACHE=str(folder / "audit"))
        make_bucket(port)
        counts = _play(folder, proxy, random.Random(options.seed), rounds, sessions=4 if options.quick else 20)
    total = sum(number for kind, number in proxy.requests.items() if kind != "POLL")
    hours = len(_STAGES) * (time.monotonic() - began) / 3600
    print(f"faults: {dict(proxy.failed)}", flush=True)
    first = ("lost_turns", "trained_twice", "half_files_read")
    rows = [Row("s3", metric, counts[metric], "count") for metric in (*first, *sorted(counts.keys() - set(first)))]
    return [
        *rows,
        Row("s3", "rounds", rounds, "count"),
        Row("s3", "faults", sum(proxy.failed.values()), "requests"),
        Row("s3", "requests_per_1000_turns", round(1000 * total / max(1, counts["turns"])), "requests"),
        *(Row("s3", f"{kind.lower()}_requests", number, "requests") for kind, number in sorted(proxy.requests.items())),
        Row("s3", "polls_per_host_and_hour", round(proxy.requests["POLL"] / hours), "requests"),
    ]


def bucket_environment(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": "chaos",
    }  # fmt: skip


def make_bucket(port: int) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("PUT", "/chaos")
    if connection.getresponse().status != 200:
        raise SystemExit("the bucket could not be made")


class BucketHost:
    """A local folder of the run, a clock, and one worker that is restarted whenever it ends."""

    def __init__(self, name: str, folder: Path, shim: Path | None, offset: int) -> None:
        self.name, self.stage, self._place = name, _STAGES[name], folder
        self.starts, self.log = 0, folder / f"{name}-{self.stage}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = float("-inf")
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CLAWCTL_RUN_CACHE": str(folder / name)}
        if shim is not None:
            clock = folder / f"{name}.clock"
            clock.write_text(str(offset))
            self._environment |= {"LD_PRELOAD": str(shim), "CHAOS_OFFSET": str(clock), "CHAOS_LAG": "0"}

    def start(self, *options: str) -> None:
        command = [*CLAWCTL, self.stage, "--run", _URL, "--recipe", str(self._place / "recipe.yaml"), *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, cwd=self._place, start_new_session=True
            )
        self.starts, self._began = self.starts + 1, time.monotonic()

    def work_once(self) -> None:
        """Do what there is left to do."""
        self.start("--once")
        assert self._process is not None
        self._process.wait(_PATIENCE_S)

    def keep_up(self) -> None:
        """Restart the worker if it has ended, at most every ten seconds, because a second trainer is refused immediately."""
        if (self._process is None or self._process.poll() is not None) and time.monotonic() - self._began > _AGAIN_S:
            self.start()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end(self) -> None:
        if self._process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)


def _play(folder: Path, proxy: Proxy, dice: random.Random, rounds: int, sessions: int) -> Counter[str]:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(_RECIPE))
    (folder / "rm.py").write_text(_RM)
    shim: Path | None = folder / "chaos_clock.so"
    if (why := compile_shim(shim)) is not None:  # type: ignore[arg-type]
        print(f"all clocks agree: {why}", flush=True)
        shim = None
    audited = open_run(run_folder(_URL))
    hosts = {name: BucketHost(name, folder, shim, dice.randrange(-10, 11) * _MINUTE) for name in _STAGES}
    servers = []
    for name in "ab":
        os.environ["CLAWCTL_RUN_CACHE"] = str(folder / name)
        servers.append(Server(open_run(run_folder(_URL)), name, dice.randrange(-10, 11) * _MINUTE))
    os.environ["CLAWCTL_RUN_CACHE"] = str(folder / "audit")
    watcher = Watcher(audited)
    try:
        for host in hosts.values():
            host.start()
        watcher.start()
        proxy.faults = _FAULTS
        session = 0
        for number in range(rounds):
            for _ in range(max(1, sessions // rounds)):
                _talk(servers, session, hosts)
                session += 1
            _harm(hosts, dice, number, rounds)
            shown = f"{len(_row_ids(audited))} rows, {len(_verdict_ids(audited))} verdicts, {len(trained_turns(audited))} trained"
            print(f"round {number + 1}/{rounds}: {shown}", flush=True)
        wanted = {turn_id for server in servers for turn_id in server.written}
        drained = _wait(lambda: wanted <= set(_verdict_ids(audited)), hosts)
        trainable = sum(turn.trainable for turn in _rows(audited))  # not those of held-out sessions
        learned = _wait(lambda: len(trained_turns(audited)) > trainable - _RECIPE["train"]["batch_turns"], hosts)  # type: ignore[index]
    finally:
        proxy.faults = 0.0
        for host in hosts.values():
            host.end()
    for host in hosts.values():
        if host.stage == "collect":
            host.work_once()  # verdicts that a paused judge published after a merge are removed
    storage: Any = storage_of(audited.root)
    storage.refresh()
    watcher.end()
    return _audited(audited, folder, servers, hosts, watcher, drained and learned)


def _talk(servers: list[Server], session: int, hosts: dict[str, BucketHost]) -> None:
    for number in range(3):
        for server in servers:
            server.answer(session, number, last=number == 2)
        for host in hosts.values():
            host.keep_up()
        time.sleep(0.4)


def _harm(hosts: dict[str, BucketHost], dice: random.Random, number: int, rounds: int) -> None:
    """Kill a worker. In round 1 stop a judge, and in the middle round a trainer, for longer than its lease."""
    victim = hosts[dice.choice(list(hosts))]
    if number in (1, rounds // 2 + 1):
        victim = hosts[dice.choice("ij") if number == 1 else dice.choice("st")]
        victim.keep_up()
        victim.signal(signal.SIGSTOP)
        time.sleep(_LEASE_S + 5)
        victim.signal(signal.SIGCONT)
        return
    time.sleep(dice.uniform(0.5, 4.0))
    victim.keep_up()
    victim.signal(signal.SIGKILL)
    victim.start()


def _wait(condition: Any, hosts: dict[str, BucketHost]) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        for host in hosts.values():
            host.keep_up()
        time.sleep(1.0)
    return True


def _audited(
    run: RunDir, base: Path, servers: list[Server], hosts: dict[str, BucketHost], watcher: Watcher, finished: bool
) -> Counter[str]:
    wanted = {turn_id for server in servers for turn_id in server.written}
    rows, verdicts, trained = Counter(_row_ids(run)), Counter(_verdict_ids(run)), Counter(trained_turns(run))
    logs = "".join(path.read_text(errors="replace") for path in base.glob("?-*.log"))
    roots = [folder for host in (*hosts, "audit") for folder in (base / host).glob("chaos-run-*")]
    aside = {path.name for root in roots for path in (root / "quarantine").glob("*") if path.suffix != ".txt"}
    for problem in (*watcher.half[:10], *aside):
        print(f"half: {problem}", flush=True)
    return Counter({
        "turns": len(wanted),
        "merged_shards": sum(path.stem.endswith(SUFFIX) for path in published(run.trajectories, ".parquet")),
        "lost_turns": len(wanted - rows.keys()),
        "published_twice": sum(count - 1 for count in rows.values()),
        "judged_twice_published": sum(count - 1 for count in verdicts.values()),
        "trained": len(trained),
        "trained_twice": sum(count - 1 for count in trained.values()),
        "half_files_read": len(watcher.half) + len(aside),
        "files_read": watcher.read,
        "starts": sum(host.starts for host in hosts.values()),
        "tracebacks": logs.count("Traceback (most recent call last)"),
        "finished": int(finished),
    })  # fmt: skip


def _rows(run: RunDir) -> list[Turn]:
    return [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]


def _row_ids(run: RunDir) -> list[str]:
    return [turn.turn_id for turn in _rows(run)]


def _verdict_ids(run: RunDir) -> list[str]:
    return [verdict.turn_id for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]
