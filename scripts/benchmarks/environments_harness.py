"""Case `harness`: unmodified third-party agents repair a repository in the sandbox. A scripted server answers them.

The stages are real: `serve`, `collect --env swe` with the option `harness`, and `collect`. The repository is a git repository, and
the task has the format of a SWE-bench row. The agents are in .clients/. An agent that is not installed has no value.
"""

import argparse
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from clawctl.run.directory import open_run, published
from clawctl.run.feedback import Ratings
from clawctl.run.outcomes import SessionOutcome
from clawctl.run.rows import Turn
from clawctl.run.shards import read_turns
from scripts.benchmarks.circle import ROOT
from scripts.benchmarks.environments_faults import clawctl
from scripts.benchmarks.table import Row
from scripts.real_clients import serving

ATTEMPTS = 2
_WHERE = ROOT / ".clients"
_FIX = "sed -i s/price+count/price*count/ prices.py"
_SUBMIT = json.dumps({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
_TEST = "from prices import total\n\n\ndef test_total():\n    assert total(3, 4) == 12\n"


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent. `needs` is its path below .clients after `install`. `tool` is its shell tool, or "" if it expects JSON answers."""

    needs: str
    tool: str
    install: str

    def order(self) -> str:
        if not self.tool:
            return _terminus_order()
        name, _, argument = self.tool.partition(".")
        command = _FIX
        if name == "bash":  # mini-swe-agent ends by a command, which the output of the first command orders
            command = f"{_FIX}; echo '[''[tool:bash {_SUBMIT}]'']'"
        more = {"description": "mend it"} if name == "Bash" else {}
        return f"[[tool:{name} {json.dumps({argument: command, **more})}]]"


AGENTS = {
    "mini-swe-agent": Agent("venv/bin/mini", "bash.command", "scripts/clients mini-swe-agent"),
    "codex": Agent("node_modules/@openai/codex", "exec_command.cmd", "scripts/clients codex"),
    "claude-code": Agent("node_modules/@anthropic-ai/claude-code", "Bash.command", "scripts/clients claude-code"),
    "terminus-2": Agent("harbor/bin/harbor", "", "python3.12 -m venv .clients/harbor && .clients/harbor/bin/pip install harbor"),
}


def _terminus_order() -> str:
    """The first answer repairs the file and prints the second answer, which reports twice that the task is complete."""
    end = {"analysis": "", "plan": "", "commands": _typed("cat /tmp/e"), "task_complete": True}
    text = json.dumps(end, separators=(",", ":"))  # it must fit into one line of a terminal
    begin = {"analysis": "", "plan": "", "commands": _typed(f"{_FIX}; echo '[''[say:{text}]'']' > /tmp/e; cat /tmp/e")}
    return f"[[say:{json.dumps({**begin, 'task_complete': False})}]]"


def _typed(command: str) -> list[dict[str, object]]:
    return [{"keystrokes": command, "duration": 1}, {"keystrokes": "C-m", "duration": 4}]


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    return [row for name in AGENTS for row in play(name, folder / name)]


def play(name: str, folder: Path) -> list[Row]:
    """Return the score, and the shares of trainable episodes and turns."""
    agent, case = AGENTS[name], f"harness {name}"
    if not (_WHERE / agent.needs).exists():
        print(f"{name} is not installed: run {agent.install}")
        return [Row(case, "score", None, "share")]
    folder.mkdir()
    task = write_task(folder, f"The function total in prices.py adds instead of multiplying. Mend it. {agent.order()}")
    run, began = open_run(folder / "run"), time.monotonic()
    with serving(run):
        recipe = run.root.with_suffix(".yaml")
        clawctl(
            run, recipe, "collect", "--env", "swe", "--option", f"path={task}", "--option", f"repositories={folder}",
            "--option", f"harness={name}", "--option", f"see={_WHERE.resolve()}", "--tasks", "1", "--attempts", str(ATTEMPTS),
        )  # fmt: skip
        seconds = time.monotonic() - began
        clawctl(run, recipe, "collect", "--once")
    outcomes = [outcome for outcome in Ratings(run).read() if isinstance(outcome, SessionOutcome) and outcome.episode is not None]
    for ended in outcomes:
        if ended.reward != 1:
            print(f"{name}: {ended.ending}, reward {ended.reward}: {ended.log}")
    turns = [turn for path in published(run.trajectories, ".parquet") for turn in read_turns(path)]
    main = [turn for turn in turns if turn.kind == "main"]
    return [
        Row(case, "score", sum(ended.reward or 0.0 for ended in outcomes) / ATTEMPTS, "share"),
        Row(
            case,
            "trainable",
            sum(turn.trainable and turn.outcome_reward == 1 for turn in main) / max(1, len(main)),
            "of main turns",
        ),
        Row(case, "turns", float(len(main)) / ATTEMPTS, "an episode"),
        Row(case, "seconds", seconds / ATTEMPTS, "an episode"),
    ]


def is_trained(turn: Turn) -> bool:
    return turn.trainable and turn.outcome_reward == 1


def write_task(folder: Path, statement: str) -> Path:
    """Write a repository with one commit and the task to repair it. Returns the file of rows."""
    repository = folder / "me__prices"
    repository.mkdir()
    (repository / "prices.py").write_text("def total(price, count):\n    return price+count\n")

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "Prices")
    lines = _TEST.splitlines()
    patch = (
        "--- /dev/null\n+++ b/tests/test_prices.py\n" + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    )
    row = {
        "instance_id": "prices-1", "repo": "me/prices", "base_commit": git("rev-parse", "HEAD"), "problem_statement": statement,
        "test_patch": patch, "FAIL_TO_PASS": ["tests/test_prices.py::test_total"],
    }  # fmt: skip
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path
