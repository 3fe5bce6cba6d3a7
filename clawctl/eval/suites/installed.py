"""Tasks of evaluation packages, run by the package's own command line against this run's server.

`lm-eval:TASK` is a task of lm-evaluation-harness (EleutherAI), `inspect:TASK` a task of Inspect (UK AI Security Institute). Both
use the server as an OpenAI-compatible API. Results are read from the files that the packages write.
"""

import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawctl.asking import count_call
from clawctl.config.environment import environment_of_program, names_in
from clawctl.errors import ClawError
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings
from clawctl.intervals import estimate
from clawctl.process import kill_group
from clawctl.run.endpoint import Endpoint

_SAID = 600  # the number of characters shown from the end of a failed program's output
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # Inspect's correct, partial, incorrect, no answer

Values = dict[str, dict[str, float]]  # {metric: {sample: value}}


@dataclass(frozen=True, slots=True)
class Harness:
    """An evaluation program."""

    program: str
    package: str  # the argument for `pip install`
    command: Callable[[str, Endpoint, SuiteSettings, Path], list[str]]
    environment: Callable[[Endpoint], Mapping[str, str]]
    read: Callable[[Path], Values]


def harness_suite(name: str) -> Any:
    """The suite for `lm-eval:TASK` or `inspect:TASK`. Raises ClawError (exit code 2) if the program is not installed."""
    kind, _, task = name.partition(":")
    harness = HARNESSES[kind]
    program = shutil.which(harness.program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        problem = f"eval.suites: {name} needs the program {harness.program}, which is not installed"
        raise ClawError(problem, f"pip install {harness.package}, or add its folder to PATH", 2)
    if not task:
        raise ClawError(f"eval.suites: {name} names no task", f"write {kind}:TASK", 2)

    async def measure(endpoint: Endpoint, settings: SuiteSettings) -> Measured:
        with tempfile.TemporaryDirectory(prefix="clawctl-eval-") as folder:
            command = [program, *harness.command(task, endpoint, settings, Path(folder))]
            directory = Path(task).resolve().parent if ".py" in task else Path.cwd()  # Inspect rejects absolute paths
            variables = environment_of_program(harness.environment(endpoint), names_in(settings.options.get("variables")))
            await run_program(command, variables, directory, name)
            values = await asyncio.to_thread(harness.read, Path(folder))
        if not values:
            raise CannotMeasure(f"{name} wrote no values of samples")
        for _ in next(iter(values.values())):
            count_call(None)
        return Measured({metric: estimate(list(by_task.values())) for metric, by_task in values.items()}, values=values)

    return measure


async def run_program(command: list[str], environment: Mapping[str, str], directory: Path, name: str) -> None:
    """Run a program until it ends or this task is cancelled, then kill the processes that it started.

    Raises CannotMeasure with the end of its output.
    """
    null = asyncio.subprocess.DEVNULL
    with tempfile.TemporaryFile() as output:  # a pipe would stay open for as long as a process that the program started
        process = await asyncio.create_subprocess_exec(
            *command, stdin=null, stdout=output, stderr=output, env=dict(environment), cwd=directory, start_new_session=True
        )
        try:
            await process.wait()
        finally:
            kill_group(process.pid)
            await process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 8 * _SAID))
        text = output.read().decode(errors="replace").strip()[-_SAID:]
    if process.returncode:
        raise CannotMeasure(f"{name} ended with {process.returncode}: {text}")


# ---- lm-evaluation-harness -------------------------------------------------------------------------------------------------


def _lm_eval_command(task: str, endpoint: Endpoint, settings: SuiteSettings, folder: Path) -> list[str]:
    tokenizer = settings.options.get("tokenizer") or (settings.recipe.model_path if settings.recipe is not None else "")
    model = {
        "model": endpoint.model, "base_url": f"{endpoint.url}/completions", "tokenizer": tokenizer, "tokenized_requests": True,
        "num_concurrent": settings.concurrency, "max_retries": 3, "max_gen_toks": settings.max_tokens,
    }  # fmt: skip
    command = ["--model", "local-completions", "--model_args", ",".join(f"{key}={value}" for key, value in model.items())]
    command += ["--tasks", task, "--limit", str(settings.problems), "--seed", str(settings.seed)]
    command += ["--output_path", str(folder), "--log_samples"]
    if path := settings.options.get("include_path"):
        command += ["--include_path", str(path)]
    return command


def _lm_eval_values(folder: Path) -> Values:
    """The values of each sample in `samples_TASK_TIME.jsonl`: {"doc_id": 3, "metrics": ["acc"], "acc": 1.0, …}."""
    values: Values = {}
    for path in sorted(folder.rglob("samples_*.jsonl")):
        task = path.name.removeprefix("samples_").rsplit("_", 1)[0]
        for line in path.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            for metric in sample.get("metrics", ()):
                if _is_score(sample.get(metric)):
                    key = f"{task}/{sample.get('filter', 'none')}/{sample['doc_id']}"
                    values.setdefault(metric, {})[key] = float(sample[metric])
    return values


# ---- Inspect ---------------------------------------------------------------------------------------------------------------


def _inspect_command(task: str, endpoint: Endpoint, settings: SuiteSettings, folder: Path) -> list[str]:
    command = ["eval", Path(task).name if ".py" in task else task]
    command += ["--model", f"openai-api/clawctl/{endpoint.model}", "--limit", str(settings.problems)]
    command += ["--log-dir", str(folder), "--log-format", "json", "--display", "none", "--seed", str(settings.seed)]
    command += ["--temperature", str(settings.temperature), "--max-tokens", str(settings.max_tokens)]
    return [*command, "--max-connections", str(settings.concurrency)]


def _inspect_values(folder: Path) -> Values:
    """The scores of each sample in a log: {"samples": [{"id": 1, "epoch": 1, "scores": {"match": {"value": "C"}}}]}.

    Raises CannotMeasure if the run failed.
    """
    values: Values = {}
    for path in sorted(folder.rglob("*.json")):
        log = json.loads(path.read_text(encoding="utf-8"))
        if log.get("status") == "error":
            raise CannotMeasure(f"inspect failed: {str((log.get('error') or {}).get('message'))[:_SAID]}")
        for sample in log.get("samples") or ():
            for scorer, score in (sample.get("scores") or {}).items():
                value = score.get("value")
                value = _GRADES.get(value, value) if isinstance(value, str) else value
                if _is_score(value):
                    values.setdefault(scorer, {})[f"{sample['id']}/{sample.get('epoch', 1)}"] = float(value)
    return values


def _is_score(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)


HARNESSES = {
    "lm-eval": Harness(
        "lm_eval",
        '"lm_eval[api]"',
        _lm_eval_command,
        lambda endpoint: {"OPENAI_API_KEY": endpoint.api_key, "TOKENIZERS_PARALLELISM": "false"},
        _lm_eval_values,
    ),
    "inspect": Harness(
        "inspect",
        "inspect_ai openai",
        _inspect_command,
        lambda endpoint: {"CLAWCTL_API_KEY": endpoint.api_key, "CLAWCTL_BASE_URL": endpoint.url},
        _inspect_values,
    ),
}
