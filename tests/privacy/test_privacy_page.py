"""Each command in docs/privacy.md has the effect that the page states."""

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from clawctl.config import Recipe, dump_recipe
from clawctl.config.variables import SAME
from clawctl.privacy.finders import KINDS
from clawctl.run.directory import RunDir
from tests.extension import needs
from tests.inspect.example_run import run as example

__all__ = ["example"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "privacy.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line]
PRINTS_NOTHING = ("find ", "grep -rn ")  # "this prints nothing:"


def test_every_question_has_a_command() -> None:
    assert len(SECTIONS) == 7
    assert [question for question, text in SECTIONS.items() if "```bash" not in text] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_answers(example: RunDir, command: str) -> None:
    (example.root / "recipe.yaml").write_text(dump_recipe(Recipe()))
    (example.root / "serve.json").write_bytes(orjson.dumps({"url": "http://127.0.0.1:30000/v1", "pid": 1}))
    for path in example.root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    command = command.replace("--user anna", "--user other")  # who has turns in this run
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "CLAWCTL_RUN": str(example.root), "PATH": path}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if command.startswith(PRINTS_NOTHING):
        assert done.stdout == ""
    elif "redacted:" not in command:
        assert done.stdout.strip()


def test_the_page_names_every_kind_and_every_setting() -> None:
    assert [kind for kind in KINDS if f"`{kind}`" not in PAGE] == []
    assert [name for name in Recipe().privacy.model_dump() if name not in PAGE] == ["capture_models"]


def test_the_variables_on_the_page_are_those_that_the_code_reads() -> None:
    files = (path for path in (ROOT / "clawctl").rglob("*.py") if path.parent.name != "verdicts")  # those run inside the sandbox
    source = "\n".join(path.read_text() for path in files)
    read = {names[0] for names in SAME.values()}  # what `from_environment` reads; the others are names of other systems
    read |= set(re.findall(r'envvar="([A-Z_]+)"', source)) | set(re.findall(r'environ(?:\.get)?[(\[]"([A-Z_]+)"', source))
    assert sorted(name for name in read if name not in PAGE) == []


@needs("secrets")
def test_redaction_makes_no_network_calls() -> None:
    """Every connection and name look-up of Python passes this hook."""
    code = (
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto'): raise SystemExit('asked the network')\n"
        "sys.addaudithook(hook)\n"
        "from clawctl.privacy.redaction import Redactor\n"
        "from clawctl.extensions.secrets import KINDS\n"
        "from scripts.benchmarks.labelled_lines import labelled_lines\n"
        "redactor = Redactor(KINDS)\n"
        "print(sum(redactor.text(line.text) != line.text for line in labelled_lines(200)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 100
