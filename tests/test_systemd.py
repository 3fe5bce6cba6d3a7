"""The units in `integrations/systemd`."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clawctl.config import ServeConfig
from clawctl.launch import up
from clawctl.serve import server

UNITS = sorted((Path(__file__).parent.parent / "integrations" / "systemd").glob("*/*.service"))
CLAWCTL = Path(sys.executable).with_name("clawctl")


def settings(unit: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    return {name: value for section in parser.sections() for name, value in parser[section].items()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """The unit as shipped, except that the system's unit starts the clawctl of this environment."""
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    (tmp_path / ".local" / "bin" / "clawctl").symlink_to(CLAWCTL)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/usr/local/bin/clawctl", str(CLAWCTL)))
    variables = os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    verify = ["systemd-analyze", f"--{unit.parent.name}", "--man=no", "--recursive-errors=no", "verify", str(copy)]
    done = subprocess.run(verify, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_a_unit_can_be_enabled_and_waits_longer_than_its_command_needs_to_stop(unit: Path) -> None:
    options = settings(unit)
    stage = options["ExecStart"].split()[1]
    needs = up._GRACE_S if stage == "up" else ServeConfig().drain_s + server._CUT_S
    assert needs < float(options["TimeoutStopSec"])
    assert options["KillMode"] == "mixed", "a stage that gets SIGTERM before `up` does would be restarted"
    assert options["WantedBy"] == ("default.target" if unit.parent.name == "user" else "multi-user.target")


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.parent.name == "user"], ids=lambda unit: unit.name)
def test_a_refused_recipe_is_not_started_again(unit: Path, tmp_path: Path) -> None:
    (tmp_path / "clawctl").mkdir()
    (tmp_path / "clawctl" / "mine.yaml").write_text("serve: {prot: 30000}\n")
    options = settings(unit)
    places = {"%h": str(tmp_path), "%E": str(tmp_path), "%i": "mine"}
    command = options["ExecStart"]
    for specifier, path in places.items():
        command = command.replace(specifier, path)
    done = subprocess.run([str(CLAWCTL), *command.split()[1:]], capture_output=True, text=True, check=False)
    assert "prot" in done.stderr
    assert str(done.returncode) == options["RestartPreventExitStatus"]
