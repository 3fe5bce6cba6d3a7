"""Reads how a command of the agent ended, from the client's own fields, and whether it is a test verdict.

Printed text can have any author: a page, a file, or a test's own print. A result is therefore evidence only under three conditions:

1. By its id, the result answers a call of this turn to a tool that executes commands. The tool is a known one, or is declared in
   the recipe.
2. The client's exit code is in the place that its format defines, where printed text cannot be: before or after the output, or in a
   separate field of a JSON object or of the message.
3. The command is a plain run of a test runner, without pipe, `;`, `||` or redirection, which would change the program of the exit
   code. All options are on the list of options with which the runner runs tests. The runner's summary in the output agrees with
   the exit code. So `true`, `echo "3 passed"`, `pytest; true`, `pytest --version` and a run without tests are no evidence.

Results of tools that fetch, search or read, and of MCP tools, are never evidence. An agent that writes its own tests can cheat.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clawctl.run.rows import Message

# The result formats of each tool, by its exact name, taken from recordings of the clients. `exec` of OpenClaw is missing because
# its results contain no exit code.
KNOWN: Mapping[str, tuple[str, ...]] = {
    "exec_command": ("codex",),
    "shell": ("codex_shell",),
    "shell_command": ("codex_shell",),
    "container.exec": ("codex_shell",),
    "Bash": ("claude",),
    "bash": ("copilot", "json", "tags"),  # GitHub Copilot CLI; mini-swe-agent
    "run_shell_command": ("qwen",),
}

_SECONDS = r"\d+(?:\.\d+)? seconds"
_CODEX = re.compile(
    rf"(?:Chunk ID: [0-9a-f]+\n)?Wall time: {_SECONDS}\nProcess exited with code (-?\d{{1,9}})\n"
    r"(?:Original token count: \d+\n)?Output:(?:\n|\Z)"
)
_CODEX_SHELL = re.compile(rf"Exit code: (-?\d{{1,9}})\nWall time: {_SECONDS}\n(?:Total output lines: \d+\n)?Output:(?:\n|\Z)")
_CLAUDE = re.compile(r"(?:Error: )?Exit code (\d{1,9})(?:\n|\Z)")
_COPILOT = re.compile(r"<shellId: \d+ completed with exit code (-?\d{1,9})>\Z")
_TAGS = re.compile(r"<returncode>(-?\d{1,9})</returncode>\s*<output>")
_HEADS = {"codex": _CODEX, "codex_shell": _CODEX_SHELL, "tags": _TAGS}  # the header before the output
_QWEN = re.compile(r"\nExit Code: (-?\d{1,9})\nSignal: [^\n]*\n(?:Background PIDs: [^\n]*\n)?Process Group PGID: [^\n]*\Z")
_EXIT_KEYS = ("exit_code", "exitCode", "returncode", "return_code", "exit_status")
_OUTPUT_KEYS = ("output", "stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command, as its client reports it."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Runner:
    """A test runner: its command lines, its exit codes for failed tests, and the summary lines of passed and failed runs."""

    name: str
    calls: list[tuple[str, ...]]
    failed_codes: frozenset[int]
    passed: re.Pattern[str]
    failed: re.Pattern[str]


_NO_TESTS = re.compile(r"Ran 0 tests in .*|NO TESTS RAN.*")
_SUMMARY_LINES, _LONGEST_LINE = 12, 300  # at the end of an output
_LONGEST_COMMAND = 4000  # in characters
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_NOT_PLAIN = re.compile(r"[;|&<>$`(){}\\!#\n\r\x00]")
_HARMLESS = frozenset(
    ("CI", "NO_COLOR", "FORCE_COLOR", "NODE_ENV", "RUST_BACKTRACE", "PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options with which a runner still runs tests and reports the result. A run with any other option is not evidence."""

    flags: frozenset[str]
    valued: frozenset[str]
    arguments: re.Pattern[str]  # arguments that are not options
    values: re.Pattern[str]


_TABLES = yaml.safe_load((Path(__file__).parent / "test_runners.yaml").read_text(encoding="utf-8"))
RUNNERS = [
    Runner(
        name,
        [tuple(call.split()) for call in row["calls"]],
        frozenset(row["failed_codes"]),
        re.compile(row["passed"]),
        re.compile(row["failed"]),
    )
    for name, row in _TABLES["runners"].items()
]
_ALLOWED = {
    name: Options(
        frozenset(row["flags"].split()),
        frozenset(row["valued"].split()),
        re.compile(row.get("arguments", r"[^@].*|")),  # pytest reads options from `@file`
        re.compile(row.get("values", r"[^-].*")),
    )
    for name, row in _TABLES["options"].items()
}
_WRAPPERS = (("uv", "run"), ("poetry", "run"), ("pdm", "run"))
_SHELLS = frozenset(("bash", "sh", "zsh"))


def verdict(call: Message, result: Message, declared: Mapping[str, str]) -> tuple[str, int] | None:
    """The runner's name and +1 or -1 if a tool's result is evidence, otherwise None. `call` is the call that it answers.

    `declared` maps further tools to their result formats (`judge.execution_tools`). If a declared tool's calls contain no command,
    the tool itself is the check.
    """
    function = call.get("function")
    if not isinstance(function, dict):
        return None
    name = str(function.get("name"))
    formats = (declared[name],) if name in declared else KNOWN.get(name, ())
    arguments = parse_arguments(function.get("arguments")) if formats else None
    if arguments is None or arguments.get("run_in_background") or arguments.get("is_background"):
        return None
    command = command_of(arguments)
    if command is None:
        is_check = name in declared and not {"command", "cmd"} & arguments.keys()
        ended = read_ending(result, formats, "") if is_check else None
        return None if ended is None else (name, 1 if ended.code == 0 else -1)
    runner = plain_run(command)
    ended = read_ending(result, formats, command) if runner is not None else None
    if runner is None or ended is None:
        return None
    score = _agreed(runner, ended)
    return None if score is None else (runner.name, score)


def _agreed(runner: Runner, ended: Ended) -> int | None:
    """The score of a run if its exit code and its summary agree, otherwise None."""
    lines = [line.strip() for line in _COLOUR.sub("", ended.output[-_SUMMARY_LINES * _LONGEST_LINE :]).splitlines() if line.strip()]
    lines = [line for line in lines[-_SUMMARY_LINES:] if len(line) <= _LONGEST_LINE]
    passed, failed = (any(map(pattern.fullmatch, lines)) for pattern in (runner.passed, runner.failed))
    if ended.code == 0:
        return 1 if passed and not failed and not any(map(_NO_TESTS.fullmatch, lines)) else None
    return -1 if failed and ended.code in runner.failed_codes else None


# ---- exit codes in results -------------------------------------------------------------------------------------------------


def read_ending(result: Message, formats: tuple[str, ...], command: str) -> Ended | None:
    text = _text(result.get("content"))
    if text is None:
        return None
    return next((ended for form in formats if (ended := _read(form, result, text, command)) is not None), None)


def _read(form: str, result: Message, text: str, command: str) -> Ended | None:
    if form == "claude":
        return _claude(result, text)
    if form == "qwen":
        return _qwen(text, command)
    if form == "copilot":
        match = _COPILOT.search(text)
        return Ended(int(match[1]), text[: match.start()]) if match and text.count("<shellId:") == 1 else None
    if form in _HEADS and (match := _HEADS[form].match(text)):
        return Ended(int(match[1]), text[match.end() :])
    return _json(text, nested=form == "codex_shell") if form in ("json", "codex_shell") else None


def _claude(result: Message, text: str) -> Ended | None:
    """`is_error` is set by the client. The first line comes from the client only if `is_error` is true."""
    failed = result.get("is_error")
    if failed is False:
        return Ended(0, text)
    match = _CLAUDE.match(text) if failed is True else None
    return Ended(int(match[1]), text[match.end() :]) if match else None


def _qwen(text: str, command: str) -> Ended | None:
    """The exit code follows the output. The output may imitate it, so the result must contain only one."""
    head, match = f"Command: {command}\nDirectory: ", _QWEN.search(text)
    if (
        not command
        or not text.startswith(head)
        or match is None
        or len(re.findall(r"^[^\S\n]*+Exit Code:", text, re.MULTILINE)) != 1
    ):
        return None
    return Ended(int(match[1]), text[len(head) : match.start()].rpartition("\nError: ")[0])


def _json(text: str, nested: bool) -> Ended | None:
    """The exit in a result that is a JSON object: {"returncode": 0, "output": …} or {"output": …, "metadata": {"exit_code": 0}}."""
    parsed = parse_arguments(text) if text.lstrip().startswith("{") else None
    fields = parsed.get("metadata") if parsed is not None and nested else parsed
    if parsed is None or not isinstance(fields, dict):
        return None
    codes = [fields[key] for key in _EXIT_KEYS if key in fields]
    if len(codes) != 1 or type(codes[0]) is not int:
        return None
    return Ended(codes[0], "\n".join(parsed[key] for key in _OUTPUT_KEYS if isinstance(parsed.get(key), str)))


def _text(content: Any) -> str | None:
    """The text of a result with a single text part. Several parts might be joined differently from the sender's intention."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return content.rstrip() if isinstance(content, str) else None


# ---- commands --------------------------------------------------------------------------------------------------------------


def parse_arguments(text: Any) -> dict[str, Any] | None:
    """A JSON object without duplicate keys, because parsers differ in which duplicate they use."""
    try:
        arguments = json.loads(text, object_pairs_hook=_once) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def command_of(arguments: dict[str, Any]) -> str | None:
    """The single command of a call: a text, or a list of words such as ["bash", "-lc", "pytest"]."""
    given = [arguments[key] for key in ("command", "cmd") if key in arguments]
    if len(given) != 1:
        return None
    (command,) = given
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        if len(command) == 3 and command[0].rpartition("/")[2] in _SHELLS and command[1] in ("-c", "-lc"):
            return str(command[2])
        return shlex.join(command)
    return command if isinstance(command, str) else None


def plain_run(command: str) -> Runner | None:
    """The test runner that sets the exit code of the command, or None: `pytest -q`, `cd app && CI=1 uv run pytest tests 2>&1`."""
    if len(command) > _LONGEST_COMMAND:
        return None
    *before, last = command.strip().removesuffix("2>&1").split("&&")
    if any(_NOT_PLAIN.search(part) for part in (*before, last)):
        return None
    try:
        moves, tokens = [shlex.split(part) for part in before], shlex.split(last)
    except ValueError:
        return None
    if any(len(move) != 2 or move[0] != "cd" for move in moves):
        return None
    while tokens and re.fullmatch(r"[A-Z_]+=.*", tokens[0]) and tokens[0].partition("=")[0] in _HARMLESS:
        tokens = tokens[1:]
    if len(tokens) > 2 and tokens[0] == "timeout" and re.fullmatch(r"\d+[sm]?", tokens[1]):
        tokens = tokens[2:]
    if tuple(tokens[:2]) in _WRAPPERS:
        tokens = tokens[2:]
    if tokens:
        tokens = [re.sub(r"^(?:\./)?\.?venv/bin/", "", tokens[0]), *tokens[1:]]
        tokens[0] = re.sub(r"^python3(?:\.\d+)?$", "python", tokens[0])
    for runner in RUNNERS:
        for call in runner.calls:
            if tuple(tokens[: len(call)]) == call:
                name = " ".join(call).removeprefix("npx ").removeprefix("python -m ")
                return runner if _runs_tests(name, tokens[len(call) :]) else None
    return None


def _runs_tests(name: str, words: list[str]) -> bool:
    """Whether a runner with these arguments runs tests. Options that list, plan, compile or print are not on the lists."""
    allowed, given = _ALLOWED[name], iter(words)
    for word in given:
        if word == "--" and f"{name} --" in _ALLOWED:
            return _runs_tests(f"{name} --", list(given))
        if not word.startswith("-"):
            if not allowed.arguments.fullmatch(word):
                return False
            continue
        option = word[1:] if name == "go test" and word.startswith("--") else word
        if option in allowed.flags:
            continue
        head, joined, value = option.partition("=")
        if head not in allowed.valued and name != "go test" and not word.startswith("--"):
            letter = next((at for at, letter in enumerate(word[1:], 1) if f"-{letter}" not in allowed.flags), len(word))
            if letter == len(word) > 1:
                continue  # `-xvs`
            head, value = f"-{word[letter]}" if letter < len(word) else "", word[letter + 1 :]
            joined = value
        if head not in allowed.valued or not allowed.values.fullmatch(value if joined else next(given, "-")):
            return False
    return True
