"""How the parts may know one another."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import clawctl

ROOT = Path(clawctl.__file__).parent
STAGES = {"serve", "collect", "judge", "train", "eval", "inspect"}


def imports_of(file: Path) -> set[str]:
    """Parts of clawctl that `file` imports: {"run_dir", "judge", …}."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "clawctl" else [f"clawctl.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("clawctl.")}
    return found


def test_no_stage_imports_another() -> None:
    wrong = []
    for stage in STAGES:
        for file in (ROOT / stage).rglob("*.py"):
            sideways = imports_of(file) & (STAGES - {stage})
            wrong += [f"{file.relative_to(ROOT)} imports {name}" for name in sideways]
    assert wrong == []


BEHIND_A_SEAM = {
    "engines": {"serve", "engines"},
    "trainers": {"train", "trainers"},
    "environments": {"eval", "cli", "environments"},
}
BELOW_THE_STAGES = {"run", "config", "privacy"}


def test_what_stands_behind_a_seam_is_imported_by_its_own_stage_only() -> None:
    wrong = []
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0]
        wrong += [
            f"{file.relative_to(ROOT)} imports {name}"
            for name in imports_of(file) & set(BEHIND_A_SEAM)
            if part not in BEHIND_A_SEAM[name]
        ]
    assert wrong == []


def test_what_lies_below_the_stages_imports_none_of_them() -> None:
    above = STAGES | set(BEHIND_A_SEAM) | {"cli", "launch"}
    wrong = []
    for part in BELOW_THE_STAGES:
        for file in (ROOT / part).rglob("*.py"):
            wrong += [f"{file.relative_to(ROOT)} imports {name}" for name in imports_of(file) & above]
    assert wrong == []


def test_shared_modules_import_no_stage_except_late_in_the_doors() -> None:
    for file in [*ROOT.glob("*.py"), *(ROOT / "cli").glob("*.py"), *(ROOT / "config").glob("*.py")]:
        top = ast.parse(file.read_text()).body
        names = [node.module for node in top if isinstance(node, ast.ImportFrom) and node.module]
        assert not [name for name in names if name.startswith("clawctl.") and name.split(".")[1] in STAGES], file


def test_help_never_imports_torch() -> None:
    code = "import sys; from clawctl.cli import app; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_an_environment_is_a_client_of_the_server_and_imports_no_stage() -> None:
    files = (ROOT / "environments").rglob("*.py")
    assert [file for file in files if imports_of(file) & (STAGES | {"engines", "trainers", "launch", "cli"})] == []


def test_an_environment_is_reached_by_its_name_in_the_registry_alone() -> None:
    """No module of clawctl outside an environment imports it: `homework` is found as any other one is."""
    own = ROOT / "environments" / "homework"
    others = [file for file in ROOT.rglob("*.py") if not file.is_relative_to(own)]
    imports = re.compile(r"^\s*(from|import) clawctl\.environments\.homework", re.MULTILINE)
    assert [file for file in others if imports.search(file.read_text())] == []
