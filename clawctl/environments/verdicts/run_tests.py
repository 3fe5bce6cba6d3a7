"""Runs pytest in a verdict's sandbox, and does not believe what it says of itself. Standard library, and pytest in a child process.

    run_tests.py [--json] [--root FOLDER] [PYTEST ARGUMENTS]

The child imports the graded code, so it may lie: it may leave with code 0, skip, or replace pytest's functions. This process does
not import it. It knows from the source which tests there are, and wants each of them to pass. It then runs the same tests with
another expected value in each assertion, and wants each of those to fail. This finds code that makes every comparison true, or
every test pass. Code that reads the source of the test that calls it can still tell the two runs apart. A verdict that compares
outside of the sandbox (`run_calls.py`) cannot be deceived like that.
"""

import ast
import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

SITE = "/opt/clawctl/site"
WITH_VALUE = {
    "--ctrf",
    "--timeout",
    "--junitxml",
    "--junit-xml",
    "--rootdir",
    "-c",
    "--confcutdir",
    "-o",
    "-W",
    "--json-report-file",
}
PLAIN = {"assertTrue": "assertFalse", "assertFalse": "assertTrue", "assertIsNone": "assertIsNotNone", "assertIn": "assertNotIn"}


def main(arguments: list[str]) -> None:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: the graded code cannot open this process's files
    as_json = "--json" in arguments
    root = arguments[arguments.index("--root") + 1] if "--root" in arguments else os.getcwd()
    targets = targets_of([word for word in arguments if word not in ("--json", "--root", root)])
    wanted = tests_in(targets, root)
    seed = random.SystemRandom().randrange(1 << 30)
    passed, failed, log = run(root, targets, twin=False, seed=seed)
    problem = None
    if not wanted:
        problem = "there is no test"
    missing = [name for name in wanted if not any(matches(found, name) for found in passed)]
    if failed or missing:
        problem = f"not passed: {', '.join(sorted(failed | set(missing))[:5])}"
    twins = set[str]()
    if problem is None or as_json:
        twins, twins_failed, _ = run(root, targets, twin=True, seed=seed)
        believed = [name for name, turned in wanted.items() if turned and any(matches(found, name) for found in twins)]
        unheard = [name for name, turned in wanted.items() if turned and not any(matches(found, name) for found in twins_failed)]
        if problem is None and (believed or unheard):
            problem = f"these pass, or say nothing, with another expected value too: {', '.join((believed or unheard)[:5])}"
    if as_json:
        result = {"passed": sorted(passed), "failed": sorted(failed), "twins": sorted(twins), "turned": wanted, "problem": problem}
        print(json.dumps({**result, "log": log[-8000:]}))
        return
    print(log, end="")
    print(f"{len(passed)} passed" if problem is None else problem)
    sys.exit(0 if problem is None else 1)


def targets_of(arguments: list[str]) -> list[str]:
    """The files, folders and tests that are named; options are left out."""
    found, skip = [], False
    for word in arguments:
        if skip or word.startswith("-"):
            skip = not skip and word in WITH_VALUE
            continue
        found.append(word)
    return found or ["."]


def tests_in(targets: list[str], root: str) -> dict[str, bool]:
    """Each test function, as `file::name` or `file::class::name`, and whether its expectations could be turned."""
    found = {}
    for target in targets:
        path, *inner = target.split("::")
        path = os.path.normpath(os.path.join(root, path))
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
            files = [name for name in files if is_test_file(os.path.basename(name))]
        for file in files:
            with open(file, "rb") as opened:
                tree = ast.parse(opened.read())
            for name, node in functions_in(tree):
                if inner and not matches(name, "::".join(inner).split("[")[0]):
                    continue
                if not any(word in ast.dump(mark) for mark in node.decorator_list for word in ("'skip", "'xfail'")):
                    found[f"{file}::{name}"] = Turned().has_turned(node)
    return found


def is_test_file(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def functions_in(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in tree.body:
        if isinstance(node, kinds) and node.name.startswith("test"):
            yield node.name, node
        if isinstance(node, ast.ClassDef) and (
            node.name.startswith("Test") or any("TestCase" in ast.dump(base) for base in node.bases)
        ):
            for method in node.body:
                if isinstance(method, kinds) and method.name.startswith("test"):
                    yield f"{node.name}::{method.name}", method


def matches(found: str, name: str) -> bool:
    """Whether a test that ran is this one, with any parameters."""
    return found == name or found.startswith((f"{name}[", f"{name}::"))


class Turned(ast.NodeTransformer):
    """The same tests with another expected value in each assertion."""

    def __init__(self) -> None:
        self.turned = False

    def has_turned(self, node: Any) -> bool:
        self.visit(ast.parse(ast.unparse(node)))
        return self.turned

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.turned = True
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            left, right = test.left, test.comparators[0]
            if is_constant(left) and not is_constant(right):
                left = other()
            else:
                right = other()
            new: ast.expr = ast.Compare(left, test.ops, [right])
        else:
            new = ast.UnaryOp(ast.Not(), test)
        return ast.copy_location(ast.Assert(new, None), node)

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("raises", "assertRaises") and call.args:
                self.turned = True
                call.args[0] = ast.Name(
                    "ZeroDivisionError" if "ZeroDivision" not in ast.dump(call.args[0]) else "KeyError", ast.Load()
                )
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "attr", "")
        if name == "assertEqual" and len(node.args) >= 2:
            self.turned = True
            node.args[0 if is_constant(node.args[0]) and not is_constant(node.args[1]) else 1] = other()
        elif name in PLAIN:
            self.turned = True
            assert isinstance(node.func, ast.Attribute)
            node.func = ast.Attribute(node.func.value, PLAIN[name], ast.Load())
        return node


def is_constant(node: Any) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def other() -> ast.expr:
    return ast.Call(ast.Name("object", ast.Load()), [], [])


def run(root: str, targets: list[str], twin: bool, seed: int) -> tuple[set[str], set[str], str]:
    """Run the tests in a child. Returns the names that passed, those that did not, and the output."""
    heard, says = os.pipe()
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--child", str(says), root, str(int(twin)), *targets]
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TERM")}
    environment = {
        **kept,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": str(seed % 1000),
    }
    with open("/tmp/tests-said", "w+b") as said:
        child = subprocess.Popen(
            command, cwd=root, env=environment, pass_fds=(says,), stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )  # fmt: skip
        os.close(says)
        with open(heard, "rb") as lines:
            text = lines.read(4 << 20)
        child.wait()
        said.seek(0)
        log = said.read(1 << 20).decode(errors="replace")
    passed, failed, ended = set[str](), set[str](), False
    for line in text.splitlines():
        try:
            name, outcome = json.loads(line)
        except (ValueError, TypeError):
            continue
        ended |= name == "end"
        if name != "end":
            file, *inner = str(name).split("::")
            (passed if outcome == "passed" else failed).add("::".join([os.path.normpath(os.path.join(root, file)), *inner]))
    if not ended:
        failed.add("the end of the run")
    return passed - failed, failed, log


def child(says: int, root: str, twin: bool, targets: list[str]) -> None:
    """Import the tests and the graded code, and report each test."""
    sys.path[:] = [SITE, *[path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))], root]
    if os.path.isdir(os.path.join(root, "src")):
        sys.path.append(os.path.join(root, "src"))
    import pytest
    from _pytest.assertion import rewrite

    if twin:
        plain = rewrite.rewrite_asserts

        def turned(tree: ast.Module, source: bytes, path: str | None = None, config: Any = None) -> None:
            if path is not None and is_test_file(os.path.basename(str(path))):
                Turned().visit(tree)
                ast.fix_missing_locations(tree)
            plain(tree, source, path, config)

        rewrite.rewrite_asserts = turned  # type: ignore[assignment]
    plugin = Reporter(says)
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", root, "-rA", "--color=no", "-q"]
    code = pytest.main([*options, *targets], plugins=[plugin])
    plugin.say("end", int(code))
    sys.stdout.flush()
    os._exit(0)


class Reporter:
    def __init__(self, says: int) -> None:
        self.says = says
        self.names: dict[str, str] = {}

    def say(self, name: str, outcome: object) -> None:
        os.write(self.says, json.dumps([name, outcome]).encode() + b"\n")

    def pytest_itemcollected(self, item: Any) -> None:
        self.names[item.nodeid] = "::".join([str(item.path), *item.nodeid.split("::")[1:]])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome if not hasattr(report, "wasxfail") else "xfail"
            self.say(self.names.get(report.nodeid, report.nodeid), outcome)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.say(report.nodeid or "collection", "failed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1", sys.argv[5:])
    else:
        main(sys.argv[1:])
