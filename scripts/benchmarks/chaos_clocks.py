"""Case `clocks`: several hosts share a run directory. Each has its own clock, which is wrong by hours and jumps.

As on NFS, there are no file events and directory listings are delayed. A host is a network and UTS namespace. Its clock is a
preloaded library (`chaos_clock.c`), because Linux time namespaces shift only the monotonic clock, and workers read the wall clock.
Two servers write captures and collect follows them. Two judges share the shards and judge by rules, without a model. The trainer
runs on one host and then on another.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import yaml

from clawctl.run.checksums import sealed
from clawctl.run.directory import RunDir, open_run, published
from clawctl.run.shards import read_turns, read_verdicts
from scripts.benchmarks.chaos_damage import exchange
from scripts.benchmarks.chaos_disk import trained_turns
from scripts.benchmarks.circle import CLAWCTL, ROOT, wait_until
from scripts.benchmarks.table import Row

HOUR = 3600
_LAG_S = 1.5  # delay of directory listings
_PATIENCE_S = 180.0
_RECIPE = {
    "model": {"path": "crafts"},
    "collect": {"session_timeout_s": 6.0, "shard_turns": 6, "shard_age_s": 0.5},
    "judge": {"custom_rm": "rm.py:Judge"},
    "train": {"method": "binary", "batch_turns": 4, "max_mismatch": 1e9, "max_staleness": 100, "lora": {"rank": 2}},
    "gate": None,
}
_RM = """import time
class Judge:
    reward_range = (-1, 1)

    def score(self, prompt, response, next_state):
        with open({calls!r}, "a") as file:
            file.write(response.splitlines()[-1][-24:] + chr(10))
        time.sleep(0.02)
        return 1.0
"""


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure `options.rounds` rounds (default 10, with --quick 1), each with different clocks."""
    rounds, dice, counts = options.rounds or (1 if options.quick else 10), random.Random(options.seed), Counter[str]()
    first = ("lost_turns", "trained_twice", "half_files_read")
    rest = ("turns", "published_twice", "judged_twice", "next_states_lost", "trained", "tracebacks")
    shim = folder / "chaos_clock.so"
    why_not = compile_shim(shim) or namespaces_missing()
    if why_not is not None:
        print(f"clocks is left out: {why_not}")
        return [Row("clocks", metric, None, "count") for metric in (*first, "rounds")]
    for number in range(rounds):
        host = folder / str(number)
        host.mkdir()
        counts.update(_round(host, shim, dice, sessions=4 if options.quick else 12))
    rows = [Row("clocks", metric, counts[metric], "count") for metric in (*first, *rest)]
    return [*rows[:3], Row("clocks", "rounds", rounds, "count"), *rows[3:]]


def compile_shim(target: Path) -> str | None:
    """Compile the clock library. Returns the reason if that is not possible, otherwise None."""
    source, compiler = Path(__file__).parent / "chaos_clock.c", shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        return "the other clocks need Linux and a C compiler"
    done = subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"], check=False)
    return None if done.returncode == 0 else "the library with the other clock does not compile here"


def namespaces_missing() -> str | None:
    try:
        done = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no `unshare` here"
    return None if done.returncode == 0 else f"no namespaces may be made here: {done.stderr.strip()}"


class Host:
    """A host with a name, no network, and an adjustable clock."""

    def __init__(self, name: str, folder: Path, shim: Path, offset: int) -> None:
        self._name, self._place, self._clock = name, folder, folder / f"{name}.clock"
        self._environment = {"LD_PRELOAD": str(shim), "CHAOS_OFFSET": str(self._clock), "CHAOS_LAG": str(_LAG_S)}
        self.set(offset)

    def set(self, offset: int) -> None:
        """Make the clock jump: from now on it is wrong by `offset` seconds."""
        self._clock.with_suffix(".new").write_text(str(offset))
        os.replace(self._clock.with_suffix(".new"), self._clock)

    def start(self, stage: str, *options: str) -> subprocess.Popen[bytes]:
        command = [*CLAWCTL, stage, "--run", str(self._place / "run"), "--recipe", str(self._place / "recipe.yaml"), *options]
        apart = ["unshare", "--net", "--uts", "sh", "-c", f'hostname {self._name} && exec "$@"', "sh"]
        with (self._place / f"{self._name}-{stage}.log").open("ab") as log:
            changed = {**os.environ, "PYTHONPATH": str(ROOT), **self._environment}
            return subprocess.Popen([*apart, *command], stdout=log, stderr=log, env=changed, cwd=self._place)

    @contextmanager
    def working(self, stage: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start(stage)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(300)


class Server:
    """Writes captures with its own clock. `written` maps each turn id to whether another turn follows."""

    def __init__(self, run: RunDir, name: str, offset: int) -> None:
        self._path, self._name, self.offset = run.captures / f"{name}-1-ab-0.jsonl", name, offset
        self.written: dict[str, bool] = {}

    def answer(self, session: int, number: int, last: bool) -> None:
        turn_id, now = f"{self._name}{session:011d}{number:012d}", time.time() + self.offset
        said = [{"role": "user", "content": f"{self._name} asks, session {session}"}]
        for earlier in range(number):
            said += [
                {"role": "assistant", "content": self._reply(session, earlier)},
                {"role": "user", "content": f"and {earlier}?"},
            ]
        response = {"role": "assistant", "content": self._reply(session, number)}
        ids = [1, ord(self._name), 2 + session % 200, 2 + number]  # unique: the trainer skips turns with equal ids
        made = replace(
            exchange(0),
            exchange_id=turn_id,
            created_at=now,
            finished_at=now + 0.01,
            messages=said,
            response=response,
            prompt_ids=ids,
        )
        with self._path.open("ab") as file:
            file.write(sealed(orjson.dumps(made)) + b"\n")
        self.written[turn_id] = not last

    def _reply(self, session: int, number: int) -> str:
        return f"answer\n{self._name}{session:011d}{number:012d}"


def _round(folder: Path, shim: Path, dice: random.Random, sessions: int) -> Counter[str]:
    run = open_run(folder / "run")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(_RECIPE))
    (folder / "rm.py").write_text(_RM.format(calls=str(folder / "calls")))

    def off() -> int:
        return dice.choice((-1, 1)) * dice.randrange(HOUR, 6 * HOUR)

    servers = [Server(run, name, off()) for name in "ab"]
    hosts = [Host(name, folder, shim, off()) for name in ("hostc", "hosti", "hostj")]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(host.working(stage)) for host, stage in zip(hosts, ("collect", "judge", "judge"), strict=True)
        ]
        wait_until(lambda: (run.locks / "collect.owner").exists(), _PATIENCE_S, "collect did not start", workers[0])
        for session in range(sessions):
            for number in range(3):
                for server in servers:
                    server.answer(session, number, last=number == 2)
                time.sleep(0.6)
            dice.choice(servers).offset += off()
            dice.choice(hosts).set(off())
        wanted = {turn_id for server in servers for turn_id in server.written}
        wait_until(lambda: len(_rows_of(run)) >= len(wanted), _PATIENCE_S, "not every turn became a row", workers[0])
        wait_until(lambda: len(_verdicts_of(run)) >= len(wanted), _PATIENCE_S, "not every turn was judged", workers[1])
    for host in hosts[:2]:
        host.start("train", "--once").wait(600)
    return _counted(run, folder, servers)


def _counted(run: RunDir, folder: Path, servers: list[Server]) -> Counter[str]:
    follows = {turn_id: more for server in servers for turn_id, more in server.written.items()}
    rows, verdicts, trained = Counter(_rows_of(run)), Counter(_verdicts_of(run)), Counter(trained_turns(run))
    turns = [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]
    calls = Counter((folder / "calls").read_text().split())
    logs = "".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
    return Counter({
        "turns": len(follows),
        "lost_turns": len(follows.keys() - rows.keys()),
        "published_twice": sum(count - 1 for count in (*rows.values(), *verdicts.values())),
        "judged_twice": sum(count - 1 for count in calls.values()),
        "trained": len(trained),
        "trained_twice": sum(count - 1 for count in trained.values()),
        "half_files_read": len(list(run.quarantine.iterdir())),
        "next_states_lost": sum(follows[turn.turn_id] and turn.next_state is None for turn in turns),
        "tracebacks": logs.count("Traceback (most recent call last)"),
    })  # fmt: skip


def _rows_of(run: RunDir) -> list[str]:
    return [turn.turn_id for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]


def _verdicts_of(run: RunDir) -> list[str]:
    return [verdict.turn_id for path in published(run.verdicts, ".parquet") for verdict in read_verdicts(path)]
