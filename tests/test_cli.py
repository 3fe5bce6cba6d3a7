"""A wrong command gives one problem, one cure and an exit code, and changes nothing."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from filelock import FileLock

from clawctl import __version__
from clawctl.cli import app
from clawctl.cli.commands import SECTIONS
from clawctl.run.directory import open_run, sole_worker
from clawctl.run.policies import ensure_base_policy
from scripts.reference import _leaves
from scripts.terminal import terminal
from tests import forked
from tests.extension import needs
from tests.waiting import until

CLAWCTL = [sys.executable, "-m", "clawctl"]


def clawctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_threads_that_wait_spin_briefly_unless_you_say_otherwise(given: dict[str, str], spins: str) -> None:
    """libgomp reads its variables when PyTorch is imported, so they are set before a command begins."""
    code = "import os, clawctl.cli as c; c.main = lambda: print(os.environ.get('GOMP_SPINCOUNT')); import clawctl.__main__ as m"
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; m.main()"], capture_output=True, text=True, check=True, env=others | given
    )
    assert done.stdout == f"{spins}\n"


def assert_problem(done: subprocess.CompletedProcess[str], code: int, problem: str, cure: str) -> None:
    """Two short lines on stderr, nothing on stdout, no traceback."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert (done.stdout, len(lines)) == ("", 2), done.stderr
    assert lines[0].startswith("clawctl: ")
    assert problem in lines[0]
    assert cure in lines[1]


def test_a_run_that_was_copied_without_its_empty_folders_is_the_same_run(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    for folder in (run.verdicts, run.trajectories, run.captures):
        folder.rmdir()
    looked = clawctl("inspect", "data", "--run", str(run.root))
    assert (looked.returncode, looked.stderr) == (0, "")
    assert not run.verdicts.exists(), "whoever looks makes nothing"
    judged = clawctl("judge", "--once", "--run", str(run.root))
    assert judged.returncode == 0, judged.stderr
    assert run.verdicts.stat().st_mode & 0o777 == 0o700


def test_an_unknown_recipe_key_names_the_one_that_was_meant(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("judge: {vote: 3}")
    for command in (["judge", "--recipe", str(recipe)], ["up", str(recipe)]):
        assert_problem(
            clawctl(*command, "--run", str(tmp_path / "run")), 2, "there is no key judge.vote", "did you mean judge.votes?"
        )
    assert not (tmp_path / "run").exists()


def test_a_wrong_option_value_is_named(tmp_path: Path) -> None:
    assert_problem(clawctl("train", "--method", "ppo", "--run", str(tmp_path / "run")), 2, "train.method", "valid value")


@pytest.mark.parametrize("command", [["inspect", "turns"], ["collect"], ["judge"], ["train"], ["eval"]])
def test_a_run_that_is_not_there_is_not_invented(tmp_path: Path, command: list[str]) -> None:
    assert_problem(clawctl(*command, "--run", str(tmp_path / "nowhere")), 2, "is not a run directory", "--run")
    assert not (tmp_path / "nowhere").exists()


def test_a_run_of_another_schema_is_refused_by_every_stage(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    (run.root / "run.json").write_bytes(orjson.dumps({"schema_version": 7}))
    for command in (["serve", "--intercept"], ["collect"], ["judge"], ["train"], ["eval"], ["inspect", "health"]):
        assert_problem(
            clawctl(*command, "--run", str(run.root)), 2, "schema version 7, but this clawctl reads version 1", "start a new run"
        )
    assert sorted(path.name for path in run.root.iterdir() if path.is_file()) == ["run.json"]


def test_a_policy_is_named_with_a_version_of_it(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    anna = ["--policy", "anna", "--run", str(run.root)]
    assert_problem(clawctl("train", *anna), 2, "--policy names the policy that goes back", "add --from")
    assert_problem(clawctl("eval", *anna), 2, "--policy needs a version", "add --version")
    for command in (
        "eval --version 0",
        "train --from 0",
        "inspect policies",
        "inspect better",
        "policies list",
        "policies promote 0",
    ):
        assert_problem(clawctl(*command.split(), *anna), 2, "has no policy 'anna'", "choose one of default")


def test_two_trainers_on_one_run_are_one_too_many(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    with sole_worker(run, "train"):
        assert_problem(clawctl("train", "--once", "--run", str(run.root)), 1, "is already the train worker", "another --run")


def test_every_command_has_help_worth_reading() -> None:
    for command in ("serve", "collect", "judge", "train", "eval", "up", "inspect", "inspect sessions", "inspect health"):
        shown = clawctl(*command.split(), "--help")
        assert shown.returncode == 0
        assert len(shown.stdout.split()) > 20, command


@needs("judge_lab")
def test_the_help_shows_all_commands_in_sections_with_the_first_sentence_of_each() -> None:
    shown = clawctl("-h").stdout
    root: Any = typer.main.get_command(app)
    context = typer.Context(root)
    assert shown.count(":\n") == 2 + len(SECTIONS)  # the options above, and other commands below
    for name in root.list_commands(context):
        summary = root.get_command(context, name).help.strip().split(". ")[0].split("\n\n")[0]
        assert f"  {name} " in shown
        assert " ".join(summary.split()).rstrip(".") in " ".join(shown.split())


def test_each_command_has_an_example_that_parses() -> None:
    root: Any = typer.main.get_command(app)
    for path, command in _leaves("clawctl", typer.Context(root)):
        (example,) = re.findall(r"Example: `(.*?)`", command.help, re.DOTALL)
        words = shlex.split(example)
        assert " ".join(words[: len(path.split())]) == path
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, example
        needed = [parameter for parameter in command.params if parameter.param_type_name == "argument" and parameter.required]
        assert len(words) >= len(path.split()) + len(needed), example


def test_a_shell_completes_commands_and_options() -> None:
    for line, expected in (("clawctl st", ["start"]), ("clawctl keys rot", ["rotate"]), ("clawctl chat --ver", ["--version"])):
        variables = {"_CLAWCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        program = Path(sys.executable).with_name("clawctl")
        done = subprocess.run([program], capture_output=True, text=True, check=True, env={**os.environ, **variables})
        assert done.stdout.split() == expected


def test_no_colour_is_printed_where_none_is_wanted(tmp_path: Path) -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        given = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"} | environment
        with terminal([*CLAWCTL, "keys", "list", "--run", tmp_path / "none"], tmp_path, given) as at:
            until(lambda: "pass one with --run" in at.text(), why=at.text)
            assert at.wait(60) == 2
            assert bool(re.search(rb"\x1b\[[0-9;]*3[0-9]", at.drawn)) == coloured


def test_no_summary_of_a_command_is_cut_on_eighty_columns() -> None:
    for group in (["inspect"], ["policies"], ["keys"]):
        shown = clawctl(*group, "-h").stdout
        commands = shown.partition("Commands:\n")[2]
        assert commands
        assert "..." not in commands, commands


def test_the_version_is_printed() -> None:
    shown = subprocess.run([*CLAWCTL, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"clawctl {__version__}\n"


def test_an_error_about_a_wrong_option_names_the_command_line_and_not_the_recipe(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    (run.root / "recipe.yaml").write_text("train: {method: opd}\n")
    done = clawctl("train", "--method", "ppo", "--run", str(run.root))
    assert_problem(done, 2, "the command line or environment: train.method: ", "valid value")
    assert "not 'ppo'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--port", "99999"], "serve.port: input should be less than or equal to 65535, not 99999"),
        (["--log-level", "loud"], "there is no log level 'loud'"),
        (["--engine-args", "--dtype 'float32"], "--engine-args cannot be read: no closing quotation"),
        (["--upstream", "127.0.0.1:8000"], "serve.upstream.url: expected a URL such as http://127.0.0.1:8000/v1, not"),
    ],
)
def test_a_port_or_log_level_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    assert_problem(clawctl("serve", *arguments, "--run", str(tmp_path / "run")), 2, problem, "")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_a_stage_starts_ends_it_without_a_traceback(tmp_path: Path) -> None:
    command = [*CLAWCTL, "serve", "--model", "crafts", "--port", "0", "--run", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        assert any("API key" in line for line in started.stderr)  # from here on it imports PyTorch, for seconds
        started.send_signal(signal.SIGINT)
        assert started.stderr.read() == ""
    assert started.returncode == -signal.SIGINT


def test_a_process_with_native_libraries_ends_as_python_does_without_unloading_them() -> None:
    code = (
        "import atexit, sys, threading, time; from clawctl.process import leave; sys.modules['torch'] = sys\n"
        "class Native:\n    def __del__(self): print('leaked')\n"
        "kept = Native(); atexit.register(print, 'at exit'); print('said', end=' ')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread', end=' '))).start(); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", f"{code}; m.main()"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said thread at exit\n", "")


def serve_from_the_hub(tmp_path: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    command = [*CLAWCTL, "serve", "--model", "nobody/nothing", "--port", "0", "--run", str(tmp_path / "run")]
    elsewhere = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    return subprocess.run([*command, "--log-level", "error"], capture_output=True, text=True, check=False, env=elsewhere)


def test_a_model_that_cannot_be_fetched_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}"
        assert_problem(
            serve_from_the_hub(tmp_path, endpoint), 1, f"nobody/nothing is not on this machine, and {endpoint}", "--model"
        )


def test_a_model_that_the_hub_does_not_have_is_refused_at_once(tmp_path: Path) -> None:
    class NotFound(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), NotFound) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        done = serve_from_the_hub(tmp_path, f"http://127.0.0.1:{hub.server_port}")
        hub.shutdown()
    assert_problem(done, 2, "has no model of that name (404)", "correct the name")


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert_problem(clawctl("serve", "--run", str(tmp_path / "notes")), 2, "notes is a file", "choose an empty folder")
    start = clawctl("start", "--model", "smollm2", "--agent", "none", "--run", str(tmp_path / "notes"))
    assert_problem(start, 2, "File exists", "name another file or folder")


def test_a_path_that_cannot_exist_and_a_lock_that_another_process_holds_are_reported_in_a_sentence(tmp_path: Path) -> None:
    for name in ("a" * 300, "/".join(["a"] * 3000)):
        assert_problem(clawctl("keys", "add", "anna", "--run", str(tmp_path / name)), 2, "File name too long", "name another")
    run = open_run(tmp_path / "run")
    with FileLock(run.lock("api_keys")):
        assert_problem(clawctl("keys", "add", "anna", "--run", str(run.root)), 1, "another process holds", "wait until")
    run.lock("api_keys").unlink(missing_ok=True)
    run.lock("api_keys").mkdir()
    assert_problem(clawctl("keys", "add", "anna", "--run", str(run.root)), 2, "api_keys.lock", "name another")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="nothing here that even root may not write to")
def test_a_missing_permission_is_reported_in_a_sentence(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    ensure_base_policy(run, "crafts")
    (run.train / "steps.jsonl").write_text('{"step": 1, "reward_mean": 0.5}\n')
    done = clawctl("inspect", "report", "--run", str(run.root), "--out", "/sys/kernel")
    assert_problem(done, 1, "you do not have permission", "run as the owner")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_filesystem_without_locks_is_named_by_each_command_that_needs_one(tmp_path: Path, server: Any) -> None:
    source, library, lines = (tmp_path / name for name in ("flock.c", "flock.so", "talk.jsonl"))
    source.write_text("#include <errno.h>\nint flock(int file, int operation) { errno = ENOLCK; return -1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    talk = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "ty"},
        ]
    }
    lines.write_bytes(orjson.dumps(talk))
    run = str(open_run(tmp_path / "run").root)
    assert clawctl("import", str(lines), "--run", run).returncode == 0
    environment = {**os.environ, "LD_PRELOAD": str(library), "CLAWCTL_API_KEY": "key"}
    recipe = tmp_path / "up.yaml"
    recipe.write_text("model: {path: crafts}\n")
    for arguments in (
        ("keys", "add", "anna"), ("collect", "--once"), ("judge", "--once"), ("forget", "--session", "x", "--yes"),
        ("notes", "add", "be brief"), ("up", str(recipe), "--plain"), ("play", "toolcall", "--episodes", "1"),
    ):  # fmt: skip
        command = [*CLAWCTL, *arguments, "--run", str(server.run.root) if arguments[0] == "play" else run]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert_problem(done, 2, "a file cannot be locked", "filesystem with locks")
    command = [*CLAWCTL, "chat", "--run", str(server.run.root)]  # needs no lock
    assert subprocess.run(command, input="hello\n", capture_output=True, text=True, check=False, env=environment).returncode == 0


@needs("migrate")
def test_a_converted_recipe_for_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"learning_rate": 1e-5}')
    done = clawctl("recipe", "convert", str(tmp_path / "old.json"), "--out", str(tmp_path / "none" / "new.yaml"))
    assert_problem(done, 2, "none is no folder", "create it")
