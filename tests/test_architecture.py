"""Which parts may import each other."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import clawctl
from scripts.house import BUDGETS, House, above_the_bars, measure
from scripts.without import EXTENSIONS
from tests.extension import ALL, needs

ROOT = Path(clawctl.__file__).parent
STAGES = {"serve", "collect", "judge", "train", "eval", "inspect"}


@cache
def nodes_of(file: Path) -> Sequence[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


@cache
def the_house() -> House:
    return House()


def imports_of(file: Path) -> set[str]:
    """Parts of clawctl that `file` imports: {"run_dir", "judge", …}."""
    modules = set()
    for node in nodes_of(file):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "clawctl" else [f"clawctl.{alias.name}" for alias in node.names]
        modules |= {name.split(".")[1] for name in names if name.startswith("clawctl.")}
    return modules


def test_no_stage_imports_another() -> None:
    wrong = []
    for stage in STAGES:
        for file in (ROOT / stage).rglob("*.py"):
            sideways = imports_of(file) & (STAGES - {stage})
            wrong += [f"{file.relative_to(ROOT)} imports {name}" for name in sideways]
    assert wrong == []


BEHIND_A_SEAM = {
    "engines": {"serve", "engines"},
    "trainers": {"train", "trainers", "extensions"},
    "environments": {"eval", "cli", "environments", "extensions"},
}
BELOW_THE_STAGES = {"run", "config", "privacy"}


def test_implementations_behind_a_seam_are_imported_by_their_own_stage_only() -> None:
    wrong = []
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0]
        wrong += [
            f"{file.relative_to(ROOT)} imports {name}"
            for name in imports_of(file) & set(BEHIND_A_SEAM)
            if part not in BEHIND_A_SEAM[name]
        ]
    assert wrong == []


SEAMS = (  # modules and packages that an extension may import, besides its own
    "asking", "at_once", "config", "environments", "errors", "http_client", "memory", "plugins", "printing", "process", "registry",
    "run", "shipped",
    "launch.status", "cli.judge", "cli.opening", "cli.options",
    "intervals", "eval.suites", "judge.panel", "judge.protocol", "judge.votes", "privacy.finders",
    "train.sample", "train.measures", "train.agreement", "train.advantages",
    "trainers.texts", "trainers.local.influence", "trainers.local.loading", "trainers.local.model", "trainers.local.objective",
    "trainers.local.scores", "trainers.local.training",
)  # fmt: skip


def modules_imported_by(file: Path) -> set[str]:
    """Full names, without the leading "clawctl.": {"run.directory", "extensions.tinker.sdk", …}."""
    nodes = nodes_of(file)
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in below if (ROOT.parent / name.replace(".", "/")).with_suffix(".py").exists()}
            modules |= {name for name in below if (ROOT.parent / name.replace(".", "/")).is_dir()}
            names |= modules or {node.module}
    return {name.removeprefix("clawctl.") for name in names if name.startswith("clawctl.")}


def test_the_product_imports_no_extension() -> None:
    product = [file for file in ROOT.rglob("*.py") if "extensions" not in file.relative_to(ROOT).parts]
    assert [file for file in product if "extensions" in imports_of(file)] == []


def test_the_product_works_without_the_extensions(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "clawctl", ignore=shutil.ignore_patterns("extensions", "__pycache__"))
    files = [file for file in (tmp_path / "clawctl").rglob("*.py") if file.name != "__main__.py" and file.parent.name != "vllm"]
    names = [".".join(file.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__") for file in files]
    code = f"""
import importlib, sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in str(finder)]  # it finds the folder that is left out
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.startswith(("vllm", "clawctl_")), error  # vLLM and its patches are optional
from clawctl.__main__ import main
from clawctl.environments import ENVIRONMENTS
assert ENVIRONMENTS.names() == ["practice"], ENVIRONMENTS.names()
sys.argv = ["clawctl", "recipe", "check", {str(ROOT.parent / "recipes" / "smollm2.yaml")!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "is a valid recipe" in done.stdout


def test_each_room_keeps_to_its_budget_and_the_house_to_its_walls() -> None:
    """`scripts/house` prints the same numbers. A budget is raised in a commit of its own that says why."""
    house, budget = the_house(), BUDGETS
    rooms = house.rooms()
    assert rooms.keys() - {"extensions"} == {room for room in budget["rooms"] if room == "clawctl" or (ROOT / room).is_dir()}
    assert {room: lines for room, lines in rooms.items() if lines > budget["rooms"].get(room, 0)} == {}
    assert (house.into_extensions(), house.circles()) == ([], [])
    measures = measure(house)
    assert {name: measures[name] for name, most in budget["house"].items() if measures[name] > most} == {}


@needs(*ALL)
def test_features_account_for_the_lines_above_the_bars() -> None:
    """`scripts/house` prints both. A feature that takes more lists its files in house.toml."""
    house, lists = the_house(), [paths for features in BUDGETS["features"].values() for paths in features.values()]
    paths = [path for listed in lists for path in listed]
    assert len(paths) == len(set(paths))
    lines = {group: sum(features.values()) for group, features in house.features().items()}
    above = above_the_bars(measure(house))
    assert above["lines of the product"] <= lines["later"] + lines["earlier"]
    assert above["lines of clawctl"] <= sum(lines.values())


def test_no_test_replaces_an_attribute_of_the_product() -> None:
    """A setting is an argument, and a fake stands behind a seam. `monkeypatch` may set the environment and the current folder."""
    wrong = [
        f"{file.name}:{node.lineno}"
        for file in Path(__file__).parent.rglob("*.py")
        for node in nodes_of(file)
        if (isinstance(node, ast.Attribute) and node.attr in ("setattr", "delattr") and ast.unparse(node.value) == "monkeypatch")
        or (isinstance(node, ast.ImportFrom) and node.module in ("mock", "unittest.mock", "pytest_mock"))
    ]
    assert wrong == []


def test_no_module_gives_a_name_two_meanings() -> None:
    """Of two expressions `_CELL` in one module the first is the second, without a word from any checker."""
    twice = set[tuple[str, str]]()
    for file in ROOT.rglob("*.py"):
        defined = set[str]()
        for node in ast.parse(file.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names = {node.name}
            twice |= {(file.name, name) for name in names & defined}
            defined |= names
    assert twice == set()


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """pytest would collect only one of them, and ends with an error."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_an_extension_imports_seams_and_itself_alone() -> None:
    wrong = []
    for folder in (ROOT / "extensions").iterdir():
        package = f"extensions.{folder.name}"
        for file in folder.rglob("*.py"):
            for name in modules_imported_by(file):
                allowed = name == "trainers" or f"{name}.".startswith(tuple(f"{seam}." for seam in (*SEAMS, package)))
                wrong += [] if allowed else [f"{file.relative_to(ROOT)} imports {name}"]
    assert sorted(wrong) == []


def test_the_rules_for_secrets_import_nothing_of_clawctl() -> None:
    """They could be a distribution of their own; `finder.py` alone makes them a finder of clawctl."""
    folder = ROOT / "extensions" / "secrets"
    imported = {name for file in folder.glob("*.py") if file.name != "finder.py" for name in modules_imported_by(file)}
    assert [name for name in imported if not name.startswith("extensions.secrets")] == []


def test_the_training_loop_imports_no_torch_and_no_trainer() -> None:
    modules = ["clawctl.trainers.texts", "clawctl.trainers.local.backend"]
    modules += [f"clawctl.extensions.{name}.backend" for name in EXTENSIONS if name == "tinker"]
    modules += [".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in (ROOT / "train").rglob("*.py")]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; "
    code += "print({'torch', 'transformers', 'peft', 'tinker', 'fireworks'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"
    source = "".join(file.read_text() for file in (ROOT / "train").rglob("*.py"))
    named = [name for name in ("import torch", "from torch", "transformers", "trainers.local") if name in source]
    assert named == []


def test_the_parent_of_the_stages_imports_no_torch() -> None:
    """It runs as long as they do."""
    code = "import sys, clawctl.launch.up, clawctl.serve.gateway; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_modules_below_the_stages_import_none_of_them() -> None:
    above = STAGES | set(BEHIND_A_SEAM) | {"cli", "launch"}
    wrong = []
    for part in BELOW_THE_STAGES:
        for file in (ROOT / part).rglob("*.py"):
            wrong += [f"{file.relative_to(ROOT)} imports {name}" for name in imports_of(file) & above]
    assert wrong == []


WITHOUT_FILES = {"extensions/cluster", "extensions/tinker", "extensions/worlds"}  # that write no file of a run
ABOVE_THE_DISK = sorted({*STAGES, *BEHIND_A_SEAM, *WITHOUT_FILES, "privacy", "cli", "launch"})
FOLDERS_OF_A_RUN = {
    "root", "captures", "feedback", "trajectories", "verdicts", "policies", "train", "eval", "quarantine", "locks", "logs",
    "checkpoints", "ledger", "records",
}  # fmt: skip
MAKES_FILES_LAST = {"replace", "rename", "renames", "fsync", "fdatasync", "link", "symlink"}


INSIDE_A_SANDBOX = {
    "inside.py",
    "attempts.py",
    "run_tests.py",
    "remote_modules.py",
    "finder.py",
    "given.py",
    "stand_ins.py",
    "crossing.py",
    "numbers_in_shell.py",
    "graded_code.py",
    "graded_program.py",
    "confined_shell.py",
    "sitecustomize.py",
    "run_calls.py",
    "forward.py",
}  # programs that see no file of the host


def nodes_above_the_disk(kind: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Every node of a kind in the parts that use `run/`, with its place."""
    for part in ABOVE_THE_DISK:
        for file in (ROOT / part).rglob("*.py"):
            if part == "extensions/worlds" and file.name in INSIDE_A_SANDBOX:
                continue
            for node in nodes_of(file):
                if isinstance(node, kind):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def test_only_the_disk_renames_links_and_flushes_files() -> None:
    wrong = [
        f"{path} calls os.{node.attr}"
        for path, node in nodes_above_the_disk(ast.Attribute)
        if node.attr in MAKES_FILES_LAST and isinstance(node.value, ast.Name) and node.value.id == "os"
    ]
    assert wrong == []


REMOVES_WHAT_IS_NOT_SHARED = {  # locks, drafts and journals of this host, and files that a bucket refuses or omits
    "judge/worker.py", "judge/journal.py", "collect/worker.py", "train/checkpoints.py",
    "trainers/local/model.py", "trainers/local/training.py", "launch/client_files.py",
    "privacy/forget.py",
}  # fmt: skip


def test_a_stage_removes_a_published_file_through_the_storage_alone() -> None:
    """In a bucket it would come back: `clawctl.run.directory.remove` removes it for every host."""
    files = {
        path.rpartition(":")[0]
        for path, node in nodes_above_the_disk(ast.Attribute)
        if node.attr in ("unlink", "rmtree") and not path.startswith(("environments/", "extensions/worlds/"))
    }
    assert files == REMOVES_WHAT_IS_NOT_SHARED


def test_only_the_disk_opens_a_file_of_a_run_to_write_or_append() -> None:
    wrong = []
    for path, node in nodes_above_the_disk(ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        modes = [word.value for word in (*node.args, *(word.value for word in node.keywords)) if isinstance(word, ast.Constant)]
        if called == "open" and any(isinstance(mode, str) and re.fullmatch("[rbt]*[wax+][bt+]*", mode) for mode in modes):
            wrong.append(f"{path} opens a file to write")
    assert wrong == []


def test_no_path_of_a_run_is_made_by_joining_outside_the_disk() -> None:
    wrong = []
    for path, node in nodes_above_the_disk(ast.BinOp):
        left = node.left
        if isinstance(node.op, ast.Div) and isinstance(left, ast.Attribute) and left.attr in FOLDERS_OF_A_RUN:
            owner = left.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name.lstrip("_") == "run":
                wrong.append(f"{path} joins {name}.{left.attr}")
    assert wrong == []


def test_shared_modules_import_no_stage_except_late_in_the_doors() -> None:
    for file in [*ROOT.glob("*.py"), *(ROOT / "cli").glob("*.py"), *(ROOT / "config").glob("*.py")]:
        top = ast.parse(file.read_text()).body
        names = [node.module for node in top if isinstance(node, ast.ImportFrom) and node.module]
        assert not [name for name in names if name.startswith("clawctl.") and name.split(".")[1] in STAGES], file


def test_help_imports_neither_torch_nor_what_settings_need() -> None:
    code = """
import sys
from clawctl.cli import app
try:
    app(["--help"])
except SystemExit:
    print({"torch", "transformers", "pydantic", "msgspec", "rich.console"} & {*sys.modules} or "none of these", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "none of these"


def test_serve_and_its_side_of_every_engine_work_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import clawctl.serve.server, clawctl.serve.prompt, clawctl.serve.intake
import clawctl.engines.embedded.engine, clawctl.engines.embedded.process
import clawctl.engines.vllm.child, clawctl.engines.upstream.engine, clawctl.engines.upstream.splicer
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_an_environment_is_a_client_of_the_server_and_imports_no_stage() -> None:
    folders = ("environments", "extensions/worlds")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    files = [file for file in files if not file.is_relative_to(ROOT / "extensions/worlds/ability")]
    assert [file for file in files if imports_of(file) & (STAGES | {"engines", "trainers", "launch", "cli"})] == []


def test_an_environment_is_reached_by_its_name_in_the_registry_alone() -> None:
    """No module of clawctl outside an environment imports it: `toolcall` is found as any other one is."""
    worlds = ROOT / "extensions" / "worlds"
    others = [file for file in ROOT.rglob("*.py") if not file.is_relative_to(worlds)]
    imports = re.compile(r"^\s*(from|import) clawctl\.extensions\.worlds", re.MULTILINE)
    assert [file for file in others if imports.search(file.read_text())] == []


def test_no_dialect_imports_another() -> None:
    dialects = {"chat", "responses", "messages", "completions"}
    for name in dialects:
        text = (ROOT / "serve" / "dialects" / f"{name}.py").read_text()
        others = "|".join(dialects - {name})
        assert re.search(rf"dialects\.({others})\b|dialects import .*\b({others})\b", text) is None, name


def test_there_is_one_http_client() -> None:
    imports = re.compile(r"^\s*(import|from) (httpx|requests|aiohttp|urllib3)\b", re.MULTILINE)
    assert [file.name for file in ROOT.rglob("*.py") if imports.search(file.read_text())] == ["http_client.py"]


def test_another_stage_gets_a_judge_by_its_name_at_the_seam_alone() -> None:
    others = [file for file in ROOT.rglob("*.py") if not {"judge", "extensions"} & set(file.relative_to(ROOT).parts)]
    named = [file for file in others if "clawctl.judge." in file.read_text()]
    assert {str(file.relative_to(ROOT)) for file in named} == {"judging.py", "cli/judge.py", "cli/judge_checks.py"}


def test_every_class_has_a_name_of_its_own() -> None:
    """Private ones (`_Request`) are known to their module alone."""
    places: dict[str, list[str]] = {}
    for file in ROOT.rglob("*.py"):
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


SAYS_NOTHING = {"one", "each", "own", "known", "told", "found", "asked"}
NAMES_OF_A_FORMAT = {  # of a row, of the result of a check, of an option, of a change that a header names, of what a stub received
    ("clawctl/run/rows.py", "asked"), ("clawctl/environments/checking.py", "found"), ("clawctl/environments/practice.py", "told"),
    ("clawctl/serve/sampling.py", "asked"), ("tests/eval/answering_server.py", "asked"),
    # of a metric: wishes that the model was told
    ("scripts/benchmarks/real.py", "told"), ("scripts/benchmarks/once_toy.py", "told"), ("scripts/benchmarks/wishes.py", "told"),
    ("scripts/benchmarks/wishes_circle.py", "told"),
}  # fmt: skip


def test_no_name_says_nothing() -> None:
    """A variable, parameter or field is named after what it holds: `for session in sessions`."""
    wrong = set()
    for file in (file for folder in (ROOT, ROOT.parent / "scripts", ROOT.parent / "tests") for file in folder.rglob("*.py")):
        path = str(file.relative_to(ROOT.parent))
        for node in nodes_of(file):
            name = node.arg if isinstance(node, ast.arg) else ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            if name in SAYS_NOTHING:
                wrong.add((path, name))
    assert wrong - NAMES_OF_A_FORMAT == set()
