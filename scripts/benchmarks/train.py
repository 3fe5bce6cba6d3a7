"""Measures the training throughput, compared with one sequence per turn and with TRL's GRPO, the memory, and the utilisation.

All contestants get the same turns, model (`crafts`), type and threads. Each runs in a separate process. The measured time is
that of whole optimizer steps on all turns: layout, forward, loss, backward, clipping, AdamW. Nothing is generated or written. The
first step is not counted. TRL runs its own `trainer.train()` with given completions. The faster of its two settings (with
checkpointed layers, the default, or without) is compared. Memory is the growth of the process during its steps, above the loaded
model.

    scripts/bench train                          sessions of 4, 8, 16, 32 turns, single turns, a vocabulary of 151k
    scripts/bench train --case session-16        one of them

`gradients` compares the gradient of the tree with that of one sequence a turn, in float32. Two cases run only when they are
named, because they take long: `agent-10k`, 30 turns over a system prompt of 10,000 tokens with tool results of 1,000, and
`practice`, eight steps on twelve past prompts of 10,000 tokens with a note that only the teacher reads. `--ours` leaves TRL out.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from clawctl.errors import ClawError
from clawctl.run.gguf import model_folder
from scripts.benchmarks.table import Row, make_parser, report
from scripts.benchmarks.train_process import worker
from scripts.benchmarks.train_turns import Turn, make_session, make_single_turns

HERE = Path(__file__).parent
TRL = "trl==1.16.0"
CASES = ("session-4", "session-8", "session-16", "session-32", "single-turn", "vocab-151k", "gradients")
LONG_CASES = ("agent-10k", "practice")
VOCABULARY = 1000  # size of the id range of generated turns; the model has 1,024


def main() -> None:
    options = options_from(sys.argv[1:])
    rows = [row for case in options.case or CASES for row in measure(case, options)]
    report("train", rows, options.json)


def options_from(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=CASES + LONG_CASES, help="only this one; may be given again")
    parser.add_argument("--ours", action="store_true", help="without TRL")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every contestant")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default=natural_dtype(), help="of every contestant")
    parser.add_argument("--trl", type=Path, default=Path(".venv-trl/bin/python"), help="a Python that has TRL; made if missing")
    options = parser.parse_args(arguments)
    options.repeats = 1 if options.quick else 5
    return options


def measure(case: str, options: argparse.Namespace) -> list[Row]:
    print(f"{case}: medians of {options.repeats}", file=sys.stderr, flush=True)
    if case.startswith("session-"):
        turns = int(case.removeprefix("session-"))
        return session_rows(case, make_session(turns, system=128 if options.quick else 1024, vocabulary=VOCABULARY), options)
    if case == "agent-10k":
        turns, system, fresh = (6, 512, 64) if options.quick else (30, 10_000, 1_000)
        return session_rows(case, make_session(turns, system, VOCABULARY, fresh=fresh), options)
    rows = {"single-turn": single_rows, "practice": practice_rows, "gradients": gradient_rows}
    return rows.get(case, vocabulary_rows)(case, options)


def session_rows(case: str, made: list[Turn], options: argparse.Namespace) -> list[Row]:
    turns = len(made)
    tree, alone = (ours(options, made, merge=merge) for merge in ("tree", "none"))
    rows = [
        *speed_rows(case, turns, tree, options),
        Row(case, "turns_per_s_per_turn_mode", turns / median(alone), "turns/s"),
        Row(case, "turns_per_s_ratio_per_turn", median(alone) / median(tree), "×"),
        Row(case, "operations_ratio_per_turn", tree["operations_ratio"], "×"),
        Row(case, "share_of_operations_ratio", median(alone) / median(tree) / tree["operations_ratio"], "share"),
        Row(case, "tree_saving", tree["saving"], "×"),
        Row(case, "peak_memory", tree["grown_bytes"] / 2**20, "MiB"),
    ]
    if options.ours:
        return rows
    peer, _ = best_of_trl(options, made)
    return [
        *rows,
        Row(case, "turns_per_s_trl", turns / median(peer), "turns/s"),
        Row(case, "turns_per_s_ratio_trl", median(peer) / median(tree), "×"),
        Row(case, "peak_memory_ratio_trl", tree["grown_bytes"] / peer["grown_bytes"], "×"),
    ]


def practice_rows(case: str, options: argparse.Namespace) -> list[Row]:
    """Eight steps on past prompts that begin alike. The teacher reads a note behind the system prompt."""
    prompts, system, steps = (4, 256, 2) if options.quick else (12, 9_900, 8)
    made = [make_session(1, system, VOCABULARY, fresh=100)[0] for _ in range(prompts)]
    made = [(prompt[: system + index] + prompt[system + index + 1 :], said) for index, (prompt, said) in enumerate(made)]
    mine = worker("train_ours", {**job_of(options, made), "merge": "tree", "note": 30, "repeats": steps})
    return [
        Row(case, "seconds_per_step", median(mine), "s"),
        Row(case, "seconds", sum(mine["seconds"]), "s"),
        Row(case, "peak_memory", mine["grown_bytes"] / 2**20, "MiB"),
    ]


def gradient_rows(case: str, options: argparse.Namespace) -> list[Row]:
    made = make_session(16, system=128 if options.quick else 1024, vocabulary=VOCABULARY)
    job = {"model": model_folder("crafts"), "dtype": "float32", "threads": options.threads, "turns": made, "gradients": True}
    return [Row(case, "relative_error_per_turn", worker("train_ours", job)["relative_error"], "share")]


def single_rows(case: str, options: argparse.Namespace) -> list[Row]:
    turns = 8 if options.quick else 16
    made = make_single_turns(turns, prompt=128 if options.quick else 512, vocabulary=VOCABULARY)
    mine = ours(options, made, merge="tree", tokens_per_microbatch=2048)
    if options.ours:
        return [*speed_rows(case, turns, mine, options), Row(case, "peak_memory", mine["grown_bytes"] / 2**20, "MiB")]
    peer, other = best_of_trl(options, made)
    return [
        *speed_rows(case, turns, mine, options),
        Row(case, "turns_per_s_trl", turns / median(peer), "turns/s"),
        Row(case, "turns_per_s_ratio_trl", median(peer) / median(mine), "×"),
        Row(case, "peak_memory", mine["grown_bytes"] / 2**20, "MiB"),
        Row(case, "peak_memory_trl", peer["grown_bytes"] / 2**20, "MiB"),
        Row(case, "peak_memory_ratio_trl", mine["grown_bytes"] / peer["grown_bytes"], "×"),
        Row(case, "peak_memory_ratio_trl_other_setting", mine["grown_bytes"] / other["grown_bytes"], "×"),
        Row(case, "turns_per_s_ratio_trl_other_setting", median(other) / median(mine), "×"),
    ]


def vocabulary_rows(case: str, options: argparse.Namespace) -> list[Row]:
    job = {
        "tokens": 2048 if options.quick else 8192, "vocabulary": 151_936, "width": 128 if options.quick else 1024,
        "dtype": options.dtype, "threads": options.threads, "repeats": options.repeats,
    }  # fmt: skip
    chunked, whole = (worker("train_vocab", {**job, "chunked": chunked}) for chunked in (True, False))
    if abs(chunked["sum"] - whole["sum"]) > 1e-3 * abs(whole["sum"]):
        raise ClawError(f"chunked logprobs sum to {chunked['sum']}, whole ones to {whole['sum']}", "this is a bug")
    return [
        Row(case, "tokens", job["tokens"], "tokens"),
        Row(case, "peak_memory", chunked["grown_bytes"] / 2**20, "MiB"),
        Row(case, "peak_memory_whole", whole["grown_bytes"] / 2**20, "MiB"),
        Row(case, "peak_memory_ratio", chunked["grown_bytes"] / whole["grown_bytes"], "×"),
        Row(case, "seconds_ratio", median(chunked) / median(whole), "×"),
        Row(case, "matmul_peak_share", chunked["flops"] / median(chunked) / chunked["matmul_flops"], "share"),
    ]


def speed_rows(case: str, turns: int, mine: dict[str, Any], options: argparse.Namespace) -> list[Row]:
    return [
        Row(case, f"turns_per_s ({options.dtype}, {options.threads} threads)", turns / median(mine), "turns/s"),
        Row(case, "matmul_peak_share", mine["flops"] / median(mine) / mine["matmul_flops"], "share"),
    ]


def ours(options: argparse.Namespace, turns: list[Turn], merge: str, tokens_per_microbatch: int = 8192) -> dict[str, Any]:
    return worker("train_ours", {**job_of(options, turns), "merge": merge, "tokens_per_microbatch": tokens_per_microbatch})


def best_of_trl(options: argparse.Namespace, turns: list[Turn]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of TRL's faster and slower settings. The batch is TRL's default of 8 rows."""
    python = ensure_trl(options.trl)
    job = {**job_of(options, turns), "rows": min(8, len(turns))}
    settings = [worker("train_trl", {**job, "checkpointing": checkpointing}, python) for checkpointing in (False, True)]
    faster, slower = sorted(settings, key=median)
    return faster, slower


def job_of(options: argparse.Namespace, turns: list[Turn]) -> dict[str, Any]:
    return {
        "model": model_folder("crafts"), "dtype": options.dtype, "threads": options.threads, "repeats": options.repeats,
        "turns": turns,
    }  # fmt: skip


def ensure_trl(python: Path) -> Path:
    """Make a separate environment for TRL once, because TRL pins other packages. Returns its Python."""
    if not python.exists():
        print(f"making {python.parent.parent} with {TRL} (some minutes) …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        same = f"torch=={torch.__version__.split('+')[0]}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-c", "constraints.txt", TRL, same], check=True)
    return python.absolute()


def natural_dtype() -> str:
    """Return bfloat16 if the CPU multiplies it in hardware, otherwise float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def median(result: dict[str, Any]) -> float:
    return float(statistics.median(result["seconds"]))


if __name__ == "__main__":
    main()
