"""Runs many benchmarks, or checks that each can start.

    scripts/bench all --quick --out FOLDER   those that need nothing else, shortened, within 20 minutes
    scripts/bench all --full --out FOLDER    all of them, which takes days
    scripts/bench all --rehearse             seconds of each that takes seconds; the others are imported

FOLDER gets a JSON file for each, which `scripts/bench compare FOLDER/*.json` compares with the stored results. `--rehearse` also
parses each command in the docs with the benchmark that it names, and loads the recipes that the benchmarks write by the rules of
today. What needs a package that is not installed here is named.
"""

import argparse
import importlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import yaml

from clawctl.config import load_recipe
from clawctl.errors import ClawError
from scripts.benchmarks import circle, clients, collect, environments, gate, scale
from scripts.benchmarks.table import Row, make_parser

_FOLDER = Path(__file__).parent
_COMMAND = re.compile(r"(?:scripts/bench |python -m scripts\.benchmarks\.)((?:[a-z_-]+)(?: [^`#\n|]*)?)")
_MODULE = re.compile(r"python -m scripts\.([a-z_.]+)")
_OURS = ("clawctl", "scripts", "tests")
_NO_BENCHMARKS = ("all", "compare", "results")
_QUICK = (  # the cheapest first
    "counts", "gate --case few --case plus20", "bucket", "environments --case answers --case noop", "scale --case model", "judge",
    "collect", "card", "box", "loop", "environments --case steps --case faults --case load", "people --case serve",
    "serve --case fuzz",
)  # fmt: skip
_QUICK_S = 20 * 60.0
_FEW = argparse.Namespace(quick=True, seed=0)
_REHEARSED: dict[str, Callable[[Path], Iterable[Row]]] = {  # what takes seconds is run, with as little as it takes
    "clients, recorded": lambda _: clients.recorded_rows(),
    "clients, variants": lambda _: clients.variant_rows(20),
    "clients, families": lambda _: clients.family_rows(),
    "clients, look-alikes": lambda _: clients.look_alike_rows(1),
    "collect, open": lambda folder: collect.open_rows(folder, 20),
    "collect, stream": lambda folder: collect.stream_rows(folder, 20),
    "collect, long": lambda folder: collect.long_rows(folder, 1),
    "environments, answers": lambda _: environments.measure("answers", _FEW),
    "gate": lambda _: gate.few(load_recipe(gate.DEFAULT), 0),
    "scale, model": lambda _: scale.model(0, 200),
}


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--full", action="store_true", help="all benchmarks")
    parser.add_argument("--rehearse", action="store_true", help="check that each can start")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the JSON files")
    options = parser.parse_args()
    if options.rehearse:
        problems, left_out = rehearse()
        for line in left_out:
            print(f"left out: {line}")
    elif options.out is None or options.full == options.quick:
        parser.error("name one of --quick and --full with --out FOLDER, or --rehearse")
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        problems = list(run_all(options.out, full=options.full))
    if problems:
        raise SystemExit("\n".join(problems))
    print("every benchmark can start" if options.rehearse else f"the figures are in {options.out}")


def run_all(out: Path, full: bool) -> Iterator[str]:
    """Run benchmarks one after the other. Yields what failed, missed a bar or did not fit into the time."""
    whole = [path.stem for path in sorted(_FOLDER.glob("*.py")) if "__main__" in path.read_text() and "_" not in path.stem]
    commands = [name for name in whole if name not in _NO_BENCHMARKS] if full else [f"{command} --quick" for command in _QUICK]
    ends = None if full else time.monotonic() + _QUICK_S
    for number, command in enumerate(commands):
        print(f"scripts/bench {command}", flush=True)
        name, *rest = command.split()
        begin = [str(_FOLDER.parent / "bench"), name] if full else [sys.executable, "-m", f"scripts.benchmarks.{name}"]
        left = None if ends is None else max(1.0, ends - time.monotonic())
        try:
            done = subprocess.run([*begin, *rest, "--json", str(out / f"{number}-{name}.json")], check=False, timeout=left)
        except subprocess.TimeoutExpired:
            yield f"scripts/bench {command} did not end within the time"
            continue
        if done.returncode:
            yield f"scripts/bench {command} ended with {done.returncode}"


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
    problems += [f"the docs name scripts.{name}, which does not exist" for name in _modules_named() if not _is_module(name)]
    for name, measure in _REHEARSED.items():
        with tempfile.TemporaryDirectory(prefix="clawctl-rehearsal-") as folder:
            rows = list(measure(Path(folder)))
        if all(row.value is None for row in rows):
            problems.append(f"the rehearsal of {name} measured nothing: {rows}")
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


def _texts() -> list[str]:
    pages = (circle.ROOT / "README.md", circle.ROOT / "CONTRIBUTING.md", _FOLDER / "NOTES.md", *circle.ROOT.glob("docs/**/*.md"))
    return [path.read_text() for path in pages]


def _commands() -> list[str]:
    """The commands in the docs, without options in square brackets and without templates such as `--case NAME`."""
    named = {match[1].split("[")[0].strip() for text in _texts() for match in _COMMAND.finditer(text)}
    return sorted(command for command in named if not re.search(r"\b[A-Z]{2,}\b", command))


def _modules_named() -> set[str]:
    return {match[1] for text in _texts() for match in _MODULE.finditer(text)}


def _is_module(name: str) -> bool:
    path = circle.ROOT / "scripts" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def _wrong_command(command: str, modules: dict[str, ModuleType]) -> str | None:
    name, *rest = shlex.split(command)
    if not (_FOLDER / f"{name}.py").is_file():
        return f"the docs name scripts/bench {name}, which does not exist"
    if name not in modules or name in _NO_BENCHMARKS:
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
