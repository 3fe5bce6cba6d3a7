"""`clawctl inspect web` on a run with 100,000 turns, and in a real browser.

Case `100k`: a client asks for 300 pages (lists, filters, searches, conversations, turns, versions) while a new shard is published
every two seconds. `page_ms_p95_100k_turns` is the time until the last byte over loopback, `start_s` from the command to the printed
link, `memory_mb` the resident memory of the server afterwards.

Case `browser`: headless Chromium performs a person's actions (`web_flows.py`). `browser_flows_failed` counts the flows with a wrong
result, an exception, or an error in the console. It needs Chromium and Playwright; without them the value is missing.

Case `million`: a run of a million turns in 2,000 shards. `start_s` is the time until the link is printed, `first_screen_s` that
of the first page after it. `NAME_s` and `NAME_mb` are the time and the peak memory of `clawctl inspect NAME`, and `NAME_cpu_s` its
processor time. The rows that begin with `cold_` are those of a first command, which finds no `columns.npz`.

Case `live`: one page is open in Chromium. `event_to_screen_s_p95` is the time from a published shard to its turn on the screen, and
`idle_cpu_percent` the processor time of the server and all processes of the browser while nothing happens, of one core.

The exit code is 1 if a metric misses its bar.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from clawctl.run.directory import RunDir, open_run
from clawctl.run.rows import Turn
from clawctl.run.shards import write_turns
from scripts.benchmarks.table import Row, make_parser, report
from scripts.benchmarks.web_run import HOSTILE, VERSIONS, make_run, turn
from scripts.real_clients import serving

TURNS, MILLION = 100_000, 1_000_000
FEW_TURNS = 3000  # turns of the run for the browser
PAGES, FEW_PAGES = 300, 120
READERS = ("sessions", "turns", "health", "better")
EVENTS, IDLE_S = 20, 60.0
BARS = {
    ("100k", "page_ms_p95_100k_turns"): 300.0, ("browser", "browser_flows_failed"): 0.0, ("million", "first_screen_s"): 1.0,
    ("million", "start_s"): 3.0, ("million", "slowest_page_s"): 3.0,
    ("million", "memory_mb"): 300.0, ("live", "event_to_screen_s_p95"): 1.5,
    ("live", "idle_cpu_percent"): 1.0, **{("million", f"{name}_mb"): 300.0 for name in READERS},
    **{("million", f"{name}_s"): 3.0 for name in READERS},
}  # fmt: skip
_MILLION_PAGES = (
    "/conversations", "/conversations?page=1000", "/turns?verdict=bad&version=3", "/conversations?user=anna&verdict=bad",
    "/conversations?q=meeting", "/conversation?id=s99999", "/turn?id=web000099999000000000000", "/judge", "/environments", "/data",
    "/versions", "/version?n=3",
)  # fmt: skip
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    options = _options()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="clawctl-web-") as folder:
        if "100k" in options.case:
            rows += measure_pages(Path(folder) / "large", FEW_PAGES if options.quick else PAGES)
        if "browser" in options.case:
            rows += measure_flows(Path(folder) / "small", options.show)
        if "million" in options.case:
            rows += measure_million(options.keep or Path(folder) / "million", MILLION // 50 if options.quick else MILLION)
        if "live" in options.case:
            rows += measure_live(Path(folder) / "live", 3 if options.quick else EVENTS)
    report("web", rows, options.json)
    missed = [
        row for row in rows if (bar := BARS.get((row.case, row.metric))) is not None and (row.value is None or row.value > bar)
    ]
    if missed:
        raise SystemExit(f"bars missed: {', '.join(f'{row.case} {row.metric} = {row.value}' for row in missed)}")


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument(
        "--case", action="append", choices=("100k", "browser", "million", "live"), help="this case only; may be repeated"
    )
    parser.add_argument("--show", type=Path, metavar="FOLDER", help="save a screenshot of each page here")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="the run of the case million: used if it is there, kept if not")
    options = parser.parse_args()
    options.case = options.case or ["100k", "browser"]
    return options


@contextmanager
def pages_of(run: RunDir) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """Run the real command. Yields its --json output and its process."""
    command = [sys.executable, "-m", "clawctl", "inspect", "web", "--run", str(run.root), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        yield json.loads(text), process
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def measure_pages(folder: Path, count: int) -> list[Row]:
    run = make_run(folder, TURNS)
    began = time.monotonic()
    with pages_of(run) as (link, process):
        start_s = time.monotonic() - began
        with httpx.Client(base_url=link["url"], timeout=60) as client:
            client.get(link["login"]).raise_for_status()
            first = _timed(client, "/")
            stop = threading.Event()
            writer = threading.Thread(target=_publish, args=(run, stop))
            writer.start()
            try:
                times = [_timed(client, path) for path in _paths(count)]
            finally:
                stop.set()
                writer.join()
        memory = _memory(process)
    return [
        Row("100k", "start_s", start_s, "s"),
        Row("100k", "first_page_ms", first, "ms"),
        Row("100k", "page_ms_p50_100k_turns", statistics.median(times), "ms"),
        Row("100k", "page_ms_p95_100k_turns", statistics.quantiles(times, n=20)[-1], "ms"),
        Row("100k", "page_ms_max_100k_turns", max(times), "ms"),
        Row("100k", "memory_mb", memory, "MB"),
    ]


def _memory(process: subprocess.Popen[str]) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


def measure_million(folder: Path, turns: int) -> list[Row]:
    run, rows = RunDir(folder) if folder.exists() else make_run(folder, turns, per_shard=500), list[Row]()
    run.columns.unlink(missing_ok=True)
    for name in ("cold_sessions", *READERS):
        began = time.monotonic()
        command = [sys.executable, "-m", "clawctl", "inspect", name.removeprefix("cold_"), "--run", str(run.root)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        assert status == 0, name
        rows += [
            Row("million", f"{name}_s", time.monotonic() - began, "s"),
            Row("million", f"{name}_cpu_s", used.ru_utime + used.ru_stime, "s"),
            Row("million", f"{name}_mb", used.ru_maxrss / 1024, "MB"),
        ]
    rows += _million_pages(run, "")
    run.columns.unlink(missing_ok=True)
    return rows + _million_pages(run, "cold_")


def _million_pages(run: RunDir, prefix: str) -> list[Row]:
    began = time.monotonic()
    with pages_of(run) as (link, server):
        start_s = time.monotonic() - began
        with httpx.Client(base_url=link["url"], timeout=300) as client:
            client.get(link["login"]).raise_for_status()
            first = _timed(client, "/") / 1000
            slowest = max(_timed(client, path) / 1000 for path in _MILLION_PAGES) if not prefix else None
            rows = [Row("million", f"{prefix}start_s", start_s, "s"), Row("million", f"{prefix}first_screen_s", first, "s")]
            rows += [Row("million", "slowest_page_s", slowest, "s")] if slowest is not None else []
            return [*rows, Row("million", f"{prefix}memory_mb", _memory(server), "MB")]


def measure_live(folder: Path, events: int) -> list[Row]:
    import psutil
    from playwright.sync_api import sync_playwright

    run, waits = make_run(folder, 500), list[float]()
    executable = next(path for name in _BROWSERS if (path := shutil.which(name)))
    with pages_of(run) as (link, server), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link["login"])
        page.wait_for_url(link["url"])
        page.goto(f"{link['url']}turns")
        for number in range(events):
            new = _new_turn(number, 0)
            write_turns(run.turn_shard(f"{20_000_000 + number:08d}-live"), [new])
            began = time.monotonic()
            page.wait_for_selector(f"[id='t-{new.turn_id}']")
            waits.append(time.monotonic() - began)
            time.sleep(1.3)
        page.goto(link["url"])
        time.sleep(15)
        family = [psutil.Process(server.pid), *_browsers_of(psutil.Process())]
        used = _seconds(family)
        time.sleep(IDLE_S)
        idle = 100 * (_seconds(family) - used) / IDLE_S
        browser.close()
    p95 = sorted(waits)[max(0, -(-95 * len(waits) // 100) - 1)]
    return [Row("live", "event_to_screen_s_p95", p95, "s"), Row("live", "idle_cpu_percent", idle, "%")]


def _browsers_of(process: Any) -> list[Any]:
    return [child for child in process.children(recursive=True) if "chrom" in child.name()]


def _seconds(processes: list[Any]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _timed(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return 1000 * (time.perf_counter() - began)


def _publish(run: RunDir, stop: threading.Event) -> None:
    """Publish a shard of new turns every two seconds, like collect."""
    number = 0
    while not stop.wait(2.0):
        number += 1
        turns = [_new_turn(number, index) for index in range(100)]
        write_turns(run.turn_shard(f"{10_000_000 + number:08d}-new"), turns)


def _new_turn(number: int, index: int) -> Turn:
    request, answered, thanked = ({"role": role, "content": f"new {index}"} for role in ("user", "assistant", "user"))
    session = f"new-{number}-{index}"
    return turn(f"new{number:06d}{index:015d}", session, 0, time.time(), [request], answered, [thanked], version=VERSIONS - 1)


def _paths(count: int) -> Iterator[str]:
    """Yield a mix of pages with varying filters, so that few results are cached."""
    rng = random.Random(1)
    searches = ("battery", "Freitag", "meeting", "column quantity", "Mutex", "lake", "Version 6 says", "no such words", "thanks")
    for _ in range(count):
        number, version = rng.randrange(13_000), rng.randrange(VERSIONS)
        user = ("default", "anna", "ben")[number % 3]
        session = f"s{number}" if user == "default" else f"{user}%2Fs{number}"
        verdict = rng.choice(("good", "bad", "uncertain", "rated"))
        yield rng.choice([
            "/", "/judge", "/data", "/environments", "/versions", f"/version?n={version}", f"/answers?n={VERSIONS - 1}&against=0",
            f"/conversations?page={rng.randrange(1, 250)}", f"/turns?page={rng.randrange(1, 2000)}",
            f"/turns?verdict={verdict}&version={version}&page={rng.randrange(1, 9)}", f"/turns?step={rng.randrange(1, VERSIONS)}",
            f"/conversations?user={user}&version={version}&verdict=bad", f"/conversations?q={rng.choice(searches)}",
            f"/conversation?id={session}&user={user}", f"/turn?id=web{number:09d}{0:012d}", f"/judge?page={rng.randrange(1, 50)}",
            f"/conversation?id={rng.choice(list(HOSTILE))}&user=default",
        ])  # fmt: skip


def measure_flows(folder: Path, show: Path | None) -> list[Row]:
    """Measure the flows. The values are missing if there is no browser."""
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    try:
        from scripts.benchmarks.web_flows import FLOWS, play_flows
    except ImportError as error:
        browser, why = None, f"{error.name} is not installed"
    else:
        why = f"none of {', '.join(_BROWSERS)} is installed"
    if browser is None:
        Console(stderr=True).print(f"the browser flows were not tried: {why}")
        return [Row("browser", "browser_flows_failed", None, "flows")]
    run = open_run(make_run(folder, FEW_TURNS).root)
    talk = open_run(folder.with_name("talk"))
    with serving(talk), pages_of(run) as (link, _), pages_of(talk) as (talk_link, _):
        failed = play_flows((run, link), (talk, talk_link), browser, show)
    for name, problem in failed.items():
        Console(stderr=True).print(f"{name}: {problem}", markup=False)
    return [Row("browser", "browser_flows", len(FLOWS), "flows"), Row("browser", "browser_flows_failed", len(failed), "flows")]


if __name__ == "__main__":
    main()
