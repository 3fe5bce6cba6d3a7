"""10,000 malformed requests: clawctl must answer none with a 5xx or a traceback, and its memory must stay flat.

Case `fuzz`. A quarter is made by schemathesis from the published OpenAPI document, fitting and unfitting ones; the rest are raw
bytes over sockets: broken JSON, UTF-8, headers, chunking, and valid requests that break off. The engine is the embedded one on the
model `crafts`, so that what gets through is really answered; `max_tokens` is kept small.

Before them come prompts of up to 2,000 words, so that the engine's cache has been touched and its kernels are compiled.
Then they come in ten parts of the same mixture, and the server's resident memory is read after each. `rss_growth_mb` is what all
parts but the first two add, `rss_growth_last_half_mb` what the last five add.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from scripts.benchmarks.fuzz.raw import raw_requests, send
from scripts.benchmarks.table import Row, arguments, report

CASE = "fuzz"
_REQUESTS, _QUICK = 10_000, 600
_PARTS, _WARM = 10, 2  # memory is read after each part; in the first ones pools and caches fill
_LONGEST, _LONGER = 2000, 1.25  # words of a prompt of the warm-up; each is so many times longer than the one before it
_LEAKS = (b"Traceback (most recent call last)", b'.py", line ', b"site-packages", b"/clawctl/")
_STARTS_S = 180


@dataclass(slots=True)
class Tally:
    requests: int = 0
    own_5xx: int = 0
    tracebacks: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)  # of what should not have been

    def add(self, status: int | None, answer: bytes, request: str) -> None:
        """One answer; None: the connection was closed without one, which is right for what is no HTTP."""
        self.requests += 1
        self.statuses[status or 0] = self.statuses.get(status or 0, 0) + 1
        leaked = any(mark in answer for mark in _LEAKS)
        self.tracebacks += leaked
        broken = status is not None and status >= 500
        self.own_5xx += broken
        if (leaked or broken) and len(self.examples) < 10:
            self.examples.append(f"{status}: {request[:300]} -> {answer[-300:]!r}")


# ---- by the document -----------------------------------------------------------------------------------------------------


def by_document(url: str, count: int, seed: int, tally: Tally) -> None:
    """Requests that schemathesis makes of the published document, fitting ones and others, for every route in turn."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st
    from schemathesis import GenerationMode

    document: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [operation.ok() for operation in document.get_all_operations()]
    operations = [operation for operation in operations if operation.method.upper() in ("POST", "GET", "DELETE")]
    for number, operation in enumerate(operations):
        share = (count * (number + 1)) // len(operations) - (count * number) // len(operations)
        if not share:
            continue
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

        @seeded(seed + number)
        @settings(
            max_examples=share,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def ask(case: Any) -> None:
            _bound(case)
            try:
                answer = case.call(base_url=url, headers={"x-api-key": "key"}, timeout=60)
            except Exception as error:  # the client itself refuses some of what it made: that is no request
                if "timed out" in str(error).lower():
                    raise
                return
            tally.add(answer.status_code, answer.content, f"{case.method} {case.path} {str(case.body)[:200]}")

        ask()


def _bound(case: Any) -> None:
    """Answers that get through are short: this is about requests."""
    if isinstance(case.body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(case.body.get(name), int) and case.body[name] > 2:
                case.body[name] = 2
            elif case.body.get(name) is None:
                case.body.pop(name, None)  # without a limit an answer takes what the context has left
        case.body.setdefault("max_output_tokens" if case.path.endswith("responses") else "max_tokens", 2)
        if isinstance(case.body.get("n"), int) and case.body["n"] > 2:
            case.body["n"] = 2


# ---- all together --------------------------------------------------------------------------------------------------------


def warm_up(url: str) -> None:
    """What the engine does once for each length of a prompt, it has done for most of them after this."""
    length, letters = 1.0, itertools.cycle("abcdefghijklmnopqrstuvwxyz")  # each prompt begins in its own way
    while length < _LONGEST:
        body = {"messages": [{"role": "user", "content": f"{next(letters)} " * int(length)}], "max_tokens": 2}
        for choices in (1, 2):  # the second time the cache has most of it
            answer = httpx.post(f"{url}/v1/chat/completions", json=body | {"n": choices}, headers={"x-api-key": "key"}, timeout=60)
            answer.raise_for_status()
        length = max(length + 1, length * _LONGER)


def attack(url: str, process: psutil.Process, count: int, seed: int) -> tuple[Tally, list[float]]:
    """Send `count` requests; what came back, and the server's resident memory in MB after each of the parts."""
    tally, resident = Tally(), []
    documented = count // 4 // _PARTS
    raw = raw_requests(count, seed)  # more than are sent, unless schemathesis' client refuses to send what it made
    address = url.split("//")[1].split(":")
    warm_up(url)
    for part in range(_PARTS):
        by_document(url, documented, seed + 1000 * part, tally)
        while tally.requests < count * (part + 1) // _PARTS:
            data = raw.pop()
            status, answer = send((address[0], int(address[1])), data)
            tally.add(status, answer, repr(data[:300]))
        resident.append(process.memory_info().rss / 1e6)
    return tally, resident


def growth(resident: list[float]) -> list[Row]:
    """Of memory that was read after each part."""
    return [
        Row(CASE, "rss_growth_mb", resident[-1] - resident[_WARM - 1], "MB"),
        Row(CASE, "rss_growth_last_half_mb", resident[-1] - resident[len(resident) // 2 - 1], "MB"),
    ]


def run(quick: bool) -> list[Row]:
    """The rows of this case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serve: dict[str, Any] = {"port": 0, "api_key": "key", "threads": 1, "kv_cache_tokens": 8192, "max_tokens": 4}
        serve["limits"] = {"body_s": 5, "header_s": 5}
        (folder / "recipe.yaml").write_text(yaml.safe_dump({"model": {"name": "tiny"}, "serve": serve}))
        command = [sys.executable, "-m", "clawctl", "serve", "--run", str(folder / "run"), "--intercept"]
        log = folder / "serve.log"
        with log.open("wb") as out:
            process = subprocess.Popen([*command, "--recipe", str(folder / "recipe.yaml")], stdout=out, stderr=out, env=os.environ)
        try:
            announced = folder / "run" / "serve.json"
            deadline = time.monotonic() + _STARTS_S
            while not announced.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"clawctl serve did not start: {log.read_text()[-2000:]}")
                time.sleep(0.2)
            url = json.loads(announced.read_text())["url"].removesuffix("/v1")
            try:
                tally, resident = attack(url, psutil.Process(process.pid), _QUICK if quick else _REQUESTS, 1)
            except Exception as error:
                if process.poll() is None:
                    raise
                raise SystemExit(f"the server ended with {process.returncode}: {log.read_text()[-2000:]}") from error
            httpx.get(f"{url}/health").raise_for_status()
            logged = log.read_text(errors="replace").count("Traceback (most recent call last)")
        finally:
            process.terminate()
            process.wait(60)
    for example in tally.examples:
        print(example, file=sys.stderr)
    summary = {"statuses": dict(sorted(tally.statuses.items())), "tracebacks in the log": logged}
    print({**summary, "resident MB after each part": [round(size) for size in resident]}, file=sys.stderr)
    return [
        Row(CASE, "own_5xx", tally.own_5xx, "responses"),
        Row(CASE, "tracebacks_leaked", tally.tracebacks, "responses"),
        *growth(resident),
        Row(CASE, "requests", tally.requests, "requests"),
    ]


if __name__ == "__main__":
    given = arguments(__doc__ or "")
    report("serve_fuzz", run(given.quick), given.json)
