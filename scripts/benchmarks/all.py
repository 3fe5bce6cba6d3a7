"""Checks that every benchmark can start, without measuring anything: `scripts/bench all --rehearse`.

All modules are imported, each command in the docs is parsed by the benchmark that it names, and the recipes that the benchmarks
write are loaded by the rules of today. What needs a package that is not installed here is named.
"""

import importlib
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import yaml

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from scripts.benchmarks import circle
from scripts.benchmarks.table import make_parser

_FOLDER = Path(__file__).parent
_COMMAND = re.compile(r"scripts/bench ((?:[a-z-]+)(?: [^`#\n|]*)?)")
_OURS = ("clawctl", "scripts", "tests")


def main() -> None:
    sys.argv = [sys.argv[0], *(word for word in sys.argv[1:] if word != "--rehearse")]
    make_parser(__doc__ or "").parse_args()
    problems, left_out = rehearse()
    for line in left_out:
        print(f"left out: {line}")
    if problems:
        raise SystemExit("\n".join(problems))
    print("every benchmark can start")


def rehearse() -> tuple[list[str], list[str]]:
    """Return what is wrong, and what needs a package that is not installed here."""
    modules, problems, left_out = dict[str, ModuleType](), list[str](), list[str]()
    for path in sorted(_FOLDER.glob("*.py")):
        try:
            modules[path.stem] = importlib.import_module(f"scripts.benchmarks.{path.stem}")
        except ModuleNotFoundError as error:
            missing = str(error.name).split(".")[0]
            (problems if missing in _OURS else left_out).append(f"{path.stem} needs the package {missing}")
    problems += [problem for name, module in modules.items() for problem in _wrong_recipes(name, module)]
    problems += [problem for command in _commands() if (problem := _wrong_command(command, modules))]
    return problems, left_out


def _wrong_recipes(name: str, module: ModuleType) -> Iterator[str]:
    """The recipes of a module: its table RECIPE (changes to the demo's recipe), and those of its function `recipes`."""
    with tempfile.TemporaryDirectory(prefix="clawctl-rehearsal-") as folder:
        try:
            if isinstance(changes := getattr(module, "RECIPE", None), dict) and name != "chaos_million":
                circle.write_recipe(Path(folder), changes)
            if isinstance(whole := getattr(module, "_RECIPE", None), dict):
                path = Path(folder) / "whole.yaml"
                path.write_text(yaml.safe_dump(whole))
                load_recipe(path)
            for path in getattr(module, "recipes", lambda _: ())(Path(folder)):
                load_recipe(path)
        except ClawError as error:
            yield f"the recipe of {name}: {error.problem}; {error.fix}"


def _commands() -> list[str]:
    """The commands in the docs, without options in square brackets and without templates such as `--case NAME`."""
    texts = [path.read_text() for path in (circle.ROOT / "README.md", *circle.ROOT.glob("docs/**/*.md"))]
    named = {match[1].split("[")[0].strip() for text in texts for match in _COMMAND.finditer(text)}
    return sorted(command for command in named if not re.search(r"\b[A-Z]{2,}\b", command))


def _wrong_command(command: str, modules: dict[str, ModuleType]) -> str | None:
    name, *rest = shlex.split(command)
    if not (_FOLDER / f"{name}.py").is_file():
        return f"the docs name scripts/bench {name}, which does not exist"
    if name not in modules or name == "all":
        return None
    arguments, sys.argv = sys.argv, [name, *rest, "--check-options"]
    try:
        modules[name].main()
    except SystemExit as ended:
        return None if not ended.code else f"scripts/bench {command} is refused"
    finally:
        sys.argv = arguments
    return f"scripts/bench {name} does not read its options before it begins"


if __name__ == "__main__":
    main()
