"""Counts the house: lines by room, imports across its walls, circles, large files and functions, words of docs, and the wheel.

`scripts/house` prints the table; `--json` for scripts; `--wheel` builds the wheel too, and `--walks` follows a batch and a request.
tests/test_architecture.py holds each room to its budget in house.toml. A line of code is one that is not blank, a comment or part
of a docstring.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx

from scripts import walks

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "clawctl"
BUDGETS = tomllib.loads((ROOT / "house.toml").read_text())
LONG_FILE, MANY_PARAMETERS = 400, 7


@dataclass(frozen=True)
class Module:
    """A Python file of clawctl."""

    path: Path

    @cached_property
    def name(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    @cached_property
    def room(self) -> str:
        """`serve`, `extensions/worlds`, …; `clawctl` for modules outside a folder."""
        parts = self.path.relative_to(PACKAGE).parts[:-1]
        return "/".join(parts[: 2 if parts[:1] == ("extensions",) else 1]) or "clawctl"

    @property
    def is_product(self) -> bool:
        return not self.room.startswith("extensions")

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def code_lines(self) -> int:
        """Lines that are not blank, a comment, or part of a docstring."""
        docstrings: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        lines = enumerate(self.text.splitlines(), 1)
        return sum(1 for number, line in lines if number not in docstrings and line.strip() and not line.lstrip().startswith("#"))

    def imports(self, modules: set[str]) -> Iterator[str]:
        """Modules of clawctl that this one imports when it runs, also inside functions."""
        typing_only = {
            child
            for node in self.nodes
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            for child in ast.walk(node)
        }
        for node in self.nodes:
            if node in typing_only:
                continue
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in below]
            yield from (name for name in names if name in modules and name != self.name)

    @cached_property
    def is_command(self) -> bool:
        """Whether it declares options of the command line: in `cli`, or an extension's module that imports typer."""
        return self.room == "cli" or any(isinstance(node, ast.Import) and node.names[0].name == "typer" for node in self.nodes)

    def wide_functions(self) -> Iterator[str]:
        """Functions with more than seven parameters. `self`, `cls` and autograd's `ctx` are not counted."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if len([argument for argument in arguments if argument.arg not in ("self", "cls", "ctx")]) > MANY_PARAMETERS:
                    yield f"{self.path.relative_to(ROOT)}:{node.lineno} {node.name}"

    def settings_classes(self) -> Iterator[tuple[str, int]]:
        """Classes of recipe settings, with their numbers of fields."""
        for node in self.nodes:
            if isinstance(node, ast.ClassDef) and self.room == "config":
                yield node.name, sum(isinstance(child, ast.AnnAssign) for child in node.body)


class House:
    """All modules of clawctl, and what connects them."""

    def __init__(self) -> None:
        self.modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
        self.by_name = {module.name: module for module in self.modules}
        names = set(self.by_name)
        self.imports = {module.name: set(module.imports(names)) for module in self.modules}

    def rooms(self) -> dict[str, int]:
        """Lines of code by room."""
        rooms: dict[str, int] = {}
        for module in self.modules:
            rooms[module.room] = rooms.get(module.room, 0) + module.code_lines
        return rooms

    def features(self) -> dict[str, dict[str, int]]:
        """Lines of the features that house.toml lists, by group, most first. Raises KeyError for a path that does not exist."""
        return {
            group: dict(
                sorted(((name, sum(map(self.lines_at, paths))) for name, paths in features.items()), key=lambda item: -item[1])
            )
            for group, features in BUDGETS["features"].items()
        }

    def lines_at(self, path: str) -> int:
        """Lines of a file, or of all files in a folder. Raises KeyError."""
        name = f"clawctl.{path.replace('/', '.')}"
        return self.by_name[name].lines + sum(module.lines for module in self.modules if module.name.startswith(f"{name}."))

    def into_extensions(self) -> list[str]:
        """Imports of the product from an extension."""
        return [
            f"{name} imports {target}"
            for name, targets in self.imports.items()
            if self.by_name[name].is_product
            for target in targets
            if target != "clawctl.extensions" and not self.by_name[target].is_product
        ]

    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, also late."""
        graph = networkx.DiGraph((name, target) for name, targets in self.imports.items() for target in targets)
        return [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]

    def long_files(self) -> list[str]:
        return [str(module.path.relative_to(ROOT)) for module in self.modules if module.lines > LONG_FILE]

    def wide_functions(self) -> list[str]:
        return [line for module in self.modules if not module.is_command for line in module.wide_functions()]


def words_of_guide() -> int:
    """Words of README.md and docs/guide."""
    return sum(len(path.read_text().split()) for path in (ROOT / "README.md", *(ROOT / "docs" / "guide").rglob("*.md")))


def wheel_bytes() -> int:
    """Size of the wheel, which is built."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, str(ROOT)]
        subprocess.run(command, check=True)
        return next(Path(folder).glob("*.whl")).stat().st_size


def measure(house: House) -> dict[str, int]:
    """The measures of the table, by name."""
    product = [module for module in house.modules if module.is_product]
    return {
        "lines of the product": sum(module.lines for module in product),
        "lines of clawctl": sum(module.lines for module in house.modules),
        "imports from product into extensions": len(house.into_extensions()),
        "import circles": len(house.circles()),
        "settings in one class": max(number for module in house.modules for _, number in module.settings_classes()),
        f"files over {LONG_FILE} lines": len(house.long_files()),
        f"functions with more than {MANY_PARAMETERS} parameters": len(house.wide_functions()),
        "words of README and guide": words_of_guide(),
    }


def above_the_bars(measures: dict[str, int]) -> dict[str, int]:
    """How far the measures exceed the bars of house.toml."""
    return {name: max(0, measures[name] - bar) for name, bar in BUDGETS["bars"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--wheel", action="store_true", help="build the wheel and print its size")
    parser.add_argument("--list", action="store_true", help="list what is counted, with places")
    parser.add_argument("--walks", action="store_true", help="run a step and a request, and list the files that they cross")
    options = parser.parse_args()
    if options.walks:
        print(walks.report({name: budget["bar"] for name, budget in BUDGETS["walks"].items()}))
        return
    house = House()
    measures, rooms, features = measure(house), dict(sorted(house.rooms().items())), house.features()
    if options.wheel:
        measures["bytes of the wheel"] = wheel_bytes()
    if options.json:
        print(json.dumps({"measures": measures, "rooms": rooms, "features": features}))
        return
    tables = {"measure": measures, "room, lines of code": rooms, "lines above a bar": above_the_bars(measures)}
    tables |= {f"lines of features: {group}": {**lines, "together": sum(lines.values())} for group, lines in features.items()}
    for title, rows in tables.items():
        width = max(map(len, (title, *rows)))
        print(f"{title:{width}}")
        print(*(f"{name:{width}} {value:>9,}" for name, value in rows.items()), "", sep="\n")
    if options.list:
        circles = [" ".join(circle) for circle in house.circles()]
        print(*house.into_extensions(), *circles, *house.long_files(), *house.wide_functions(), sep="\n")


if __name__ == "__main__":
    main()
