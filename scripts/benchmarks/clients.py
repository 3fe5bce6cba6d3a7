"""Measures whether collect reads the conversations of real clients correctly: the parent, kind and next state of each request.

- recordings: recorded client requests (`tests/recordings`) with their true conversation trees.
- variants of recordings: what a client could send instead (`clients_variants.py`). `variants_wrong` is the share with a wrong
  parent or next state, at most 1 %; `variants_with_another_kind` has no bar.
- driven clients: installed clients, used like a person would (`scripts/driven_clients.py`). The driver provides the truth
  (`clients_truth`).
- `families`: simulated clients of many families, read without the rules for known clients (`clients_families.py`).
- `look-alikes`: random conversations that look alike and must not be merged (`clients_look_alikes.py`).

Metrics of each client: `requests`, `sessions_wrong`, `parents_wrong`, `next_states_wrong`, `kinds_wrong`, and `trainable_share` of
the turns with a next state. The exit code is 1 if a count of errors is not 0 or `trainable_share` is below 0.9.

Clients are installed once, into `--where`. Clients that cannot be installed are reported and skipped.
"""

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from clawctl.collect.canonical import text_of
from clawctl.collect.sessions import Sessions
from clawctl.errors import ClawError
from clawctl.run.directory import open_run, published
from clawctl.run.rows import Exchange, Turn
from clawctl.run.shards import read_turns
from scripts.benchmarks import clients_families, clients_look_alikes, clients_variants
from scripts.benchmarks.clients_truth import Counts, Fact, Unclear, count, facts_of
from scripts.benchmarks.table import Row, make_parser, report
from scripts.client_place import PATIENCE_S, Place
from scripts.driven_clients import CLIENTS, Driven, Stage, install
from scripts.real_clients import serving

TESTS = Path(__file__).parents[2] / "tests" / "collect"
SEEDS = {True: 50, False: 1000}  # number of seeds for look-alikes, with --quick and without
MIN_TRAINABLE = 0.9
MAX_VARIANTS_WRONG = 0.01
VARIANTS = {True: 400, False: 2000}  # with --quick and without


def rows_of(case: str, counts: Counts) -> list[Row]:
    share = counts.trainable / counts.with_next_state if counts.with_next_state else None
    return [
        Row(case, "requests", counts.requests, "requests"),
        Row(case, "sessions_wrong", counts.sessions_wrong, "turns"),
        Row(case, "parents_wrong", counts.parents_wrong, "turns"),
        Row(case, "next_states_wrong", counts.next_states_wrong, "turns"),
        Row(case, "kinds_wrong", counts.kinds_wrong, "requests"),
        Row(case, "trainable_share", share, "share"),
    ]


# ---- recordings --------------------------------------------------------------------------------------------------------------


def recorded_rows() -> Iterator[Row]:
    sys.path.append(str(TESTS))
    recordings: Any = importlib.import_module("recordings")
    for client in recordings.clients():
        exchanges = recordings.recorded(client, with_hints=True, with_handles=True)
        trees = json.loads((TESTS / "trees" / f"{client}.json").read_text())
        yield from rows_of(f"{client} (recorded)", compare_with_tree(exchanges, trees))


def variant_rows(count: int) -> Iterator[Row]:
    recordings: Any = importlib.import_module("recordings")
    trees = {path.stem: json.loads(path.read_text()) for path in (TESTS / "trees").glob("*.json")}
    links, kinds, mistakes = clients_variants.variants(functools.cache(recordings.recorded), trees, count)
    print("\n".join(mistakes), flush=True)
    yield Row("variants of recordings", "variants", count, "conversations")
    yield Row("variants of recordings", "variants_wrong", links / count, "share")
    yield Row("variants of recordings", "variants_with_another_kind", kinds / count, "share")


def compare_with_tree(exchanges: dict[str, Exchange], trees: dict[str, dict[str, Any]]) -> Counts:
    """Count wrong turns. `trees` maps each request's number to its parent, its kind and the beginnings of its next state."""
    sessions = Sessions(3600.0)
    for exchange in exchanges.values():
        sessions.add(exchange)
    sessions.tick(1e12)
    by_id = {row.turn_id: row for row in sessions.pop_rows()}
    rows = {number: by_id[exchange.exchange_id] for number, exchange in exchanges.items()}
    numbers = {exchange.exchange_id: number for number, exchange in exchanges.items()}
    wrong = {"sessions": 0, "parents": 0, "next states": 0, "kinds": 0}
    with_next_state = trainable = 0
    for number, true in trees.items():
        row = rows[number]
        came = [f"{message['role']}: {text_of(message['content'])}" for message in row.next_state] if row.next_state else None
        begins = true["next_state"]
        wrong["kinds"] += row.kind != true["kind"]
        wrong["parents"] += numbers.get(row.parent_turn_id or "") != true["parent"]
        wrong["sessions"] += true["parent"] is not None and row.session_id != rows[true["parent"]].session_id
        is_complete = came is not None and begins is not None and len(came) == len(begins)
        same = is_complete and all(text.startswith(begin[:40]) for text, begin in zip(came or [], begins or [], strict=True))
        wrong["next states"] += not same and (came is not None or begins is not None)
        with_next_state += begins is not None and true["kind"] == "main"
        trainable += row.trainable and begins is not None
    return Counts(len(trees), wrong["sessions"], wrong["parents"], wrong["next states"], wrong["kinds"], with_next_state, trainable)


# ---- driven clients ----------------------------------------------------------------------------------------------------------


def drive(client: Driven, where: Path, patience_s: float, kept: Path | None) -> Counts:
    """Run a client and count wrong turns. Raises ClawError, Unclear or TimeoutExpired if the client does not follow its script."""
    with tempfile.TemporaryDirectory(prefix="clawctl-clients-") as temporary:
        folder = (kept / client.name) if kept else Path(temporary)
        (folder / "home").mkdir(parents=True)
        run = open_run(folder / "run")
        # Answers sampled at temperature 0 or with top-p cannot be trained.
        with serving(run, client.embedded, sampling={"temperature": {"at_least": 1.0}, "ignore": ["top_p"]}) as (url, key):
            client_place = Place(where, folder / "home", run.root, url, key, patience_s)
            client.drive(Stage(client_place, run))
        client_place.clawctl("collect", "--run", run.root, "--once", "--end-sessions")
        lines = [line for path in run.captures.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        exchanges = [read_exchange(line) for line in lines]
        rows = {turn.turn_id: turn for shard in published(run.trajectories, ".parquet") for turn in read_turns(shard)}
        return measured(client, exchanges, rows)


def measured(client: Driven, exchanges: list[Exchange], rows: dict[str, Turn]) -> Counts:
    facts: dict[str, Fact] = facts_of(exchanges, client.talks, client.asides, client.prints)
    return count(facts, rows, client.asides)


def read_exchange(line: bytes) -> Exchange:
    fields = orjson.loads(line)
    return Exchange(**{name: value for name, value in fields.items() if name in Exchange.__dataclass_fields__})


def driven_rows(options: argparse.Namespace) -> Iterator[Row]:
    for client in CLIENTS:
        if options.client and client.name not in options.client:
            continue
        if not (options.where / client.needs).exists() and (options.quick or (problem := install(client, options.where))):
            print(f"{client.name}: not installed{'' if options.quick else f': {problem}'}", flush=True)
            continue
        print(f"{client.name} {client.version}, settings of the recipe: {client.settings}", flush=True)
        try:
            counts = drive(client, options.where.resolve(), options.patience, options.keep)
        except (ClawError, Unclear, subprocess.TimeoutExpired) as error:
            print(f"{client.name}: FAILED: {getattr(error, 'problem', error)}", flush=True)
            yield Row(f"{client.name} {client.version}", "requests", None, "requests")
            continue
        yield from rows_of(f"{client.name} {client.version}", counts)


# ---- simulated ---------------------------------------------------------------------------------------------------------------


def family_rows() -> Iterator[Row]:
    wrong = [0, 0, 0]
    requests = with_next_state = trainable = 0
    for number, family in enumerate(clients_families.FAMILIES):
        script_requests = clients_families.written(family, number)
        sessions = Sessions(3600.0, rules=())
        for request in script_requests:
            sessions.add(request.exchange)
        sessions.tick(1e12)
        rows = {row.turn_id: row for row in sessions.pop_rows()}
        requests += len(script_requests)
        for request in script_requests:
            row = rows[request.exchange.exchange_id]
            wrong[2] += request.kind != "either" and request.kind != row.kind
            if request.kind == "main":
                wrong[0] += row.parent_turn_id != request.parent
                wrong[1] += row.next_state != request.next_state
                with_next_state += request.next_state is not None
                trainable += row.trainable and request.next_state is not None
    yield from rows_of("families, no rules", Counts(requests, 0, wrong[0], wrong[1], wrong[2], with_next_state, trainable))


def look_alike_rows(seeds: int) -> Iterator[Row]:
    measured = clients_look_alikes.measure_all(range(10_000, 10_000 + seeds))
    yield Row("look-alikes", "requests", measured.requests, "requests")
    yield Row("look-alikes", "look-alikes merged", measured.merged, "turns")
    yield Row("look-alikes", "next_states_wrong", measured.false_next_states, "turns")
    yield Row("look-alikes", "linked_share", measured.linked / (measured.linked + measured.missed), "share")


def missed_bars(rows: list[Row]) -> list[str]:
    """Return descriptions of wrong or missing values."""
    missed = []
    for row in rows:
        if row.metric == "variants_wrong":
            bad = row.value is None or row.value > MAX_VARIANTS_WRONG
        elif row.metric.endswith("_wrong") or row.metric in ("look-alikes merged", "requests"):
            bad = row.value is None or (row.value > 0 and row.metric != "requests")
        else:
            bad = row.metric == "trainable_share" and row.value is not None and row.value < MIN_TRAINABLE
        if bad:
            missed.append(f"{row.case} {row.metric} = {'missing' if row.value is None else f'{row.value:.4g}'}")
    return missed


def main() -> None:
    parser = make_parser(__doc__ or "")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--where", type=Path, default=cache / "clawctl-clients", help="folder that the clients are installed into")
    parser.add_argument(
        "--client", action="append", choices=[client.name for client in CLIENTS], help="drive this one; may be repeated"
    )
    parser.add_argument("--recorded", action="store_true", help="drive none: recordings, variants, families and look-alikes alone")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds that a client may take for one answer")
    parser.add_argument("--keep", type=Path, help="keep each client's home and run in this folder")
    options = parser.parse_args()
    rows = (
        []
        if options.client
        else [*recorded_rows(), *variant_rows(VARIANTS[options.quick]), *family_rows(), *look_alike_rows(SEEDS[options.quick])]
    )
    if not options.recorded:
        rows += driven_rows(options)
    report("clients", rows, options.json)
    if missed := missed_bars(rows):
        raise SystemExit(f"bars missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
