"""Third-party agents in the sandbox: what they can read, and the outcome of an episode that they never began."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from clawctl.environments import EpisodeFailed
from clawctl.environments.episode import play_task
from clawctl.errors import ClawError
from clawctl.extensions.worlds import sandbox
from clawctl.extensions.worlds.harness import KNOWN, make_harness
from clawctl.extensions.worlds.splits import rows_of
from clawctl.extensions.worlds.terminal.environment import Terminal
from clawctl.run.endpoint import Endpoint

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")
NOWHERE = Endpoint("http://127.0.0.1:9/e/secret/v1", "key", "model")


def played(harness: str, see: str = "") -> None:
    environment = Terminal(harness=harness, see=see)
    asyncio.run(play_task(environment, environment.tasks("train", 1, 0)[0], NOWHERE))


@needs_sandbox
def test_a_harness_that_never_called_the_model_is_no_verdict_on_the_policy() -> None:
    with pytest.raises(EpisodeFailed, match="code 3 and never called the model: no such setting") as raised:
        played("echo no such setting; exit 3")
    assert raised.value.ending == "environment"


@needs_sandbox
def test_a_server_that_is_gone_is_no_verdict_on_the_policy() -> None:
    asks = "exec 3<>/dev/tcp/127.0.0.1/8377; echo GET >&3; cat <&3"
    with pytest.raises(EpisodeFailed, match="could not be reached") as raised:
        played(asks)
    assert raised.value.ending == "server"


@needs_sandbox
def test_a_harness_that_is_missing_is_named_with_the_cure() -> None:
    with pytest.raises(ClawError, match=r"not in the sandbox: .*my-agent.* -> install it .*option see"):
        played("my-agent --task")


@needs_sandbox
def test_programs_of_a_folder_below_tmp_are_on_the_path(tmp_path: Path) -> None:
    """Folders below /tmp were hidden behind the sandbox's own /tmp."""
    program = tmp_path / "node_modules" / ".bin" / "my-agent"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho it runs in $PWD with $MODEL; exit 4\n")
    program.chmod(0o755)
    for folder in (tmp_path, program.parent.parent, program.parent):
        folder.chmod(0o755)
    with pytest.raises(EpisodeFailed, match=r"code 4 .* it runs in /app with model"):
        played("my-agent", str(tmp_path))


def test_the_interpreter_of_a_virtual_environment_is_seen_with_it(tmp_path: Path) -> None:
    home = tmp_path / "python" / "bin"
    home.mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.rglob("*")):
        folder.chmod(0o755)  # whatever the umask is
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"home = {home}\n")
    assert make_harness("mini-swe-agent", str(tmp_path / "venv")).see == (str(tmp_path / "venv"), str(home.parent))


@pytest.mark.parametrize("see", ["/", "relative", "/no/such/folder"])
def test_a_folder_that_cannot_be_seen_is_refused_before_the_first_episode(see: str) -> None:
    with pytest.raises(ClawError, match="not a folder below /"):
        make_harness("codex", see)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandbox has a user of its own")
def test_a_folder_that_the_agent_could_not_read_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ClawError, match=r"only its owner can read .* -> run `chmod -R o\+rX"):
        make_harness("codex", str(tmp_path))


def test_known_agents_get_their_task_and_model() -> None:
    program = (Path(sandbox.__file__).parent / "terminus.py").read_text()
    for name in ("claude-code", "codex", "mini-swe-agent", "terminus-2"):
        command = program if name == "terminus-2" else KNOWN[name]
        assert "INSTRUCTION" in command
        assert "MODEL" in command


def test_few_rows_are_all_for_training_and_a_longer_file_moves_none_of_the_rows() -> None:
    rows = list(range(40))
    assert rows_of(rows[:4], int, "train", 99, 0) == rows[:4]
    held_out = rows_of(rows[:20], int, "eval", 99, 0)
    assert set(held_out) <= set(rows_of(rows, int, "eval", 99, 0))
    assert not set(held_out) & set(rows_of(rows, int, "train", 99, 0))


def test_an_option_may_be_any_text() -> None:
    from clawctl.cli.play import _options

    given = ["harness=codex: exec [x]", "max-turns=3", "instruction=[[tool:act {}]]", "see=/a,/b", "day=2026-03-23", "list=[1, 2]"]
    assert _options(given) == {
        "harness": "codex: exec [x]", "max_turns": 3, "instruction": "[[tool:act {}]]", "see": "/a,/b", "day": "2026-03-23",
        "list": [1, 2],
    }  # fmt: skip
