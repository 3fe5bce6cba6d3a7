"""Runs pytest in a verdict's sandbox and checks its results. Only pytest and the standard library are imported.

    run_tests.py [--json] [--shown] [--root FOLDER] [PYTEST ARGUMENTS]

Tests run in a forked child, which imports the graded code and is not trusted: the code may exit with code 0, skip tests, or replace
pytest's functions. This process does not import the code. It reads the list of tests from their source, and requires each test to
pass. If a test compares a value with a literal, the child does not get the literal. It reports the value, and this process
compares. The graded code therefore has to return the right value.

This process then changes the expected value in each assertion, runs the tests again, and requires each test to fail. This detects
code that makes every comparison true or every test pass, and code that reads the expected value from the test. Code that behaves
differently in the two runs can still deceive a test without a literal. A verdict that compares outside of the sandbox
(`run_calls.py`) cannot be deceived at all.
"""

import ast
import builtins
import ctypes
import hashlib
import json
import math
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, KeysView
from fractions import Fraction
from types import MappingProxyType
from typing import Any

OWN = os.path.dirname(os.path.abspath(__file__))
SITE = f"{OWN}/site"
GIVEN = f"{OWN}/tests.json"  # digests of the task's test files
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
SEEN = "__clawctl_seen__"  # the function that a test calls with a value for comparison in the parent
LONGEST = 1 << 16  # the length limit of such a value as text
PLAIN = {"assertTrue": "assertFalse", "assertFalse": "assertTrue", "assertIsNone": "assertIsNotNone", "assertIn": "assertNotIn"}


def main(arguments: list[str]) -> None:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: the graded code cannot open this process's files
    as_json = "--json" in arguments
    root = arguments[arguments.index("--root") + 1] if "--root" in arguments else os.getcwd()
    shown = "--shown" in arguments  # keep the literals in the tests
    targets = targets_of([word for word in arguments if word not in ("--json", "--shown", "--root", root)])
    import_pytest()
    # Both begin before this process reads a test, so the graded code finds no literal in the memory that they share with it.
    first, second = PytestProcess(root, targets), PytestProcess(root, targets)
    sources = read_sources(targets, root)
    wanted = tests_in(targets, root, sources)
    problem = None if wanted else "there is no test"
    repeat_outcomes, repeat_failed = set[str](), set[str]()
    try:
        hidden = write_sources(sources, turn=False, hide=not shown)
        passed, failed, seen, log = first.run()
        wrong, odd = compare(hidden, seen)
        failed |= {name for name in wrong if any(matches(other, name) for other in passed)}
        passed = {name for name in passed if not any(matches(name, other) for other in wrong)}
        missing = [name for name in wanted if not any(matches(other, name) for other in passed)]
        if failed or missing:
            problem = f"not passed: {', '.join(sorted(failed | set(missing))[:5])}"
        elif odd:
            problem = f"a literal is compared with a value that is not plain: {', '.join(sorted(odd)[:5])}"
        if problem is None or as_json:
            write_sources(sources, turn=True, hide=False)
            repeat_outcomes, repeat_failed, _, _ = second.run()
        for path, text in sources.items():
            replace(path, text)
    except OSError as error:
        sys.exit(f"the graded code changed the tests: {error}")
    turned = [name for name in wanted if wanted[name]]
    believed = [name for name in turned if any(matches(other, name) for other in repeat_outcomes)]
    unconfirmed = [name for name in turned if not any(matches(other, name) for other in repeat_failed)]
    if problem is None and (believed or unconfirmed):
        problem = f"these also pass, or report nothing, with another expected value: {', '.join((believed or unconfirmed)[:5])}"
    if as_json:
        result = {
            "passed": sorted(passed),
            "failed": sorted(failed),
            "twins": sorted(repeat_outcomes),
            "twins_failed": sorted(repeat_failed),
            "turned": wanted,
            "odd": sorted(odd),
            "problem": problem,
        }
        print(json.dumps({**result, "log": log[-8000:]}))
        return
    print(log, end="")
    print(f"{len(passed)} passed" if problem is None else problem)
    sys.exit(0 if problem is None else 1)


def targets_of(arguments: list[str]) -> list[str]:
    """The files, folders and tests in the arguments, without options."""
    words, skip = [], False
    for word in arguments:
        if skip or word.startswith("-"):
            skip = not skip and word in WITH_VALUE
            continue
        words.append(word)
    return words or ["."]


def read_sources(targets: list[str], root: str) -> dict[str, bytes]:
    """The test files, by path. Exits if a file of the task differs from its given digest."""
    sources = {}
    for target in targets:
        path = os.path.normpath(os.path.join(root, target.split("::")[0]))
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names if is_test_file(name)]
        for file in files:
            with open(file, "rb") as opened:
                sources[file] = opened.read()
    if os.path.exists(GIVEN):
        with open(GIVEN) as opened:
            given = json.load(opened)
        for file, text in sources.items():
            if given.get(file, hashlib.sha256(text).hexdigest()) != hashlib.sha256(text).hexdigest():
                sys.exit(f"the graded code changed {file}")
    return sources


def write_sources(sources: dict[str, bytes], turn: bool, hide: bool) -> dict[str, "HiddenLiteral"]:
    """Write the tests with changed expectations (`turn`) or without literals (`hide`). Returns the literals by the reported key."""
    hidden: dict[str, HiddenLiteral] = {}
    for path, text in sources.items():
        tree = ast.parse(text)
        if turn:
            ExpectedValueChanger().visit(tree)
        for name, node in dict(functions_in(tree)).items() if hide else ():  # for equal names, Python keeps the last definition
            hidden |= LiteralRemover(f"{path}::{name}").hide(node)
        replace(path, ast.unparse(ast.fix_missing_locations(tree)).encode())
    return hidden


def compare(hidden: dict[str, "HiddenLiteral"], seen: list[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """The tests that reported a wrong value or omitted a required one, and the tests that reported a value without a plain form."""
    wrong = {hidden[key].test for key, text in seen if key in hidden and not hidden[key].is_same(text)}
    odd = {hidden[key].test for key, text in seen if key in hidden and text == ODD}
    reported = {key for key, _ in seen}
    wrong |= {one.test for key, one in hidden.items() if one.always and key not in reported}
    unreported = {one.test for one in hidden.values()} - {one.test for key, one in hidden.items() if key in reported}
    return wrong | unreported, odd


def replace(path: str, text: bytes) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
        file.write(text)


def tests_in(targets: list[str], root: str, sources: dict[str, bytes]) -> dict[str, bool]:
    """Each test function, as `file::name` or `file::class::name`, and whether it has an expectation that can be changed."""
    turned = {}
    for target in targets:
        path, *inner = target.split("::")
        path = os.path.normpath(os.path.join(root, path))
        for file, text in sources.items():
            if file != path and not file.startswith(f"{path}/"):
                continue
            for name, node in functions_in(ast.parse(text)):
                if inner and not matches(name, "::".join(inner).split("[")[0]):
                    continue
                if not any(word in ast.dump(mark) for mark in node.decorator_list for word in ("'skip", "'xfail'")):
                    turned[f"{file}::{name}"] = ExpectedValueChanger().has_turned(node)
    return turned


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


def matches(test: str, name: str) -> bool:
    """Whether `test`, the name of a test that ran, is `name` with or without parameters, or is a method of the class `name`."""
    return test == name or test.startswith((f"{name}[", f"{name}::"))


class ExpectedValueChanger(ast.NodeTransformer):
    """Changes the expected value in each assertion."""

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
                left = other(left)
            else:
                right = other(right)
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
            place = 0 if is_constant(node.args[0]) and not is_constant(node.args[1]) else 1
            node.args[place] = other(node.args[place])
        elif name in PLAIN:
            self.turned = True
            assert isinstance(node.func, ast.Attribute)
            node.func = ast.Attribute(node.func.value, PLAIN[name], ast.Load())
        return node


class HiddenLiteral:
    """A literal that a test compares a value with."""

    def __init__(self, test: str, literal: Any, always: bool, near: bool) -> None:
        self.test, self.literal = test, literal
        self.always = always  # whether every run of the test reaches the comparison
        self.near = near  # whether the comparison uses pytest.approx

    def is_same(self, text: str) -> bool:
        """Whether the value in the child's text equals the literal by Python's `==`. ODD counts as equal; `compare` lists it."""
        if text == ODD:
            return True
        try:
            value = Fraction(text[1:]) if text.startswith("/") else ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, ZeroDivisionError):
            return False
        if self.near:
            is_number = isinstance(value, int | float | Fraction)
            return is_number and math.isclose(value, self.literal, rel_tol=1e-6, abs_tol=1e-12)
        return bool(value == self.literal)


class LiteralRemover(ast.NodeTransformer):
    """Removes the literals that a test compares values with."""

    def __init__(self, test: str) -> None:
        self.test, self.found = test, dict[str, HiddenLiteral]()
        self.always: set[int] = set()

    def hide(self, test: Any) -> dict[str, HiddenLiteral]:
        if not any(isinstance(node, ast.Return) for node in ast.walk(test)):
            self.always = set(map(id, reached(test.body)))
        self.generic_visit(test)
        return self.found

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            call = self.reported(test.left, test.comparators[0], id(node) in self.always)
            node.test = call or test
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "assertEqual" and len(call.args) >= 2:
            assert isinstance(call.func, ast.Attribute)
            if (report := self.reported(call.args[0], call.args[1], id(node) in self.always)) is not None:
                call.func.attr, call.args, call.keywords = "assertTrue", [report], []
        return node

    def reported(self, left: ast.expr, right: ast.expr, always: bool) -> ast.expr | None:
        """The call that reports one side's value. None if the other side is not a literal."""
        value, literal = (right, left) if is_literal(left) else (left, right)
        if not is_literal(literal) or is_literal(value):
            return None
        near = isinstance(literal, ast.Call)
        key = f"{self.test} {len(self.found)}"
        self.found[key] = HiddenLiteral(
            self.test, ast.literal_eval(literal.args[0] if isinstance(literal, ast.Call) else literal), always, near
        )
        return ast.Call(ast.Name(SEEN, ast.Load()), [ast.Constant(key), value], [])


def is_literal(node: ast.expr) -> bool:
    """Whether the node is a constant, or `pytest.approx` of a number."""
    if isinstance(node, ast.Call) and "approx" in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
        return len(node.args) == 1 and not node.keywords and is_number(node.args[0])
    return is_constant(node)


def is_number(node: ast.expr) -> bool:
    return is_constant(node) and isinstance(ast.literal_eval(node), int | float)


def reached(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a test that every run reaches."""
    for node in body:
        yield node
        if isinstance(node, ast.With | ast.AsyncWith) and not any(word in dumped(node.items) for word in ("raises", "suppress")):
            yield from reached(node.body)


def dumped(items: list[ast.withitem]) -> str:
    return "".join(map(ast.dump, items)).lower()


def is_constant(node: Any) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def other(node: ast.expr) -> ast.expr:
    """A node with another value of the same kind. It exposes code that reads the expected value from the source."""
    if is_constant(node):
        return ast.parse(repr(changed(ast.literal_eval(node))), mode="eval").body
    return ast.Call(ast.Name("object", ast.Load()), [], [])


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | complex):
        return value + 1 + 16 * abs(value)  # outside the tolerance of pytest.approx and rounding
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, list | tuple) and value:
        return type(value)([*value[:-1], changed(value[-1])])
    if isinstance(value, list):
        return [0]
    if isinstance(value, dict):
        return {**value, "x": 0}
    return "x"


def import_pytest() -> None:
    """Import pytest for all children, before any folder of the graded code is on the path."""
    sys.path[:] = [SITE, *[path for path in sys.path if path != OWN]]
    from _pytest.assertion import rewrite

    sys.dont_write_bytecode = True
    rewrite._read_pyc = lambda *_, **__: None  # compiled tests may come from the other run or from the agent


class PytestProcess:
    """A process that waits, and then runs the tests in the state in which their files are at that time."""

    def __init__(self, root: str, targets: list[str]) -> None:
        self.root = root
        wait_fd, self.go_fd = os.pipe()
        self.report_fd, write_fd = os.pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - without a name, which the graded code could link to another file
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.go_fd)
            os.close(self.report_fd)
            try:
                if os.read(wait_fd, 1):  # otherwise the parent has ended
                    run_tests(write_fd, self.output.fileno(), root, targets)
            except BaseException:  # noqa: BLE001 - also SystemExit, which the graded code may raise
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(wait_fd)
        os.close(write_fd)

    def run(self) -> tuple[set[str], set[str], list[tuple[str, str]], str]:
        """Run the tests. Returns the names of passed and of failed tests, the reported values, and the output."""
        os.write(self.go_fd, b"1")
        with open(self.report_fd, "rb") as lines:
            text = lines.read(4 << 20)
        os.waitpid(self.pid, 0)
        log = os.pread(self.output.fileno(), 1 << 20, 0).decode(errors="replace")
        passed, failed, ended = set[str](), set[str](), False
        seen: list[tuple[str, str]] = []
        for line in text.splitlines():
            try:
                name, outcome, *value = json.loads(line)
            except (ValueError, TypeError):
                continue
            if value:
                seen.append((str(outcome), str(value[0])))
                continue
            ended |= name == "end"
            if name != "end":
                file, *inner = str(name).split("::")
                (passed if outcome == "passed" else failed).add(
                    "::".join([os.path.normpath(os.path.join(self.root, file)), *inner])
                )
        if not ended:
            failed.add("the end of the run")
        return passed - failed, failed, seen, log


ODD = "?"


def text_of(value: Any) -> str:
    """The value as a literal, "/1/2" for a fraction, and ODD for values that have no form in Python's own types."""
    try:
        fraction = value if isinstance(value, Fraction) else None
        if type(value).__module__ == "decimal":
            fraction = Fraction(value)
        return repr(plain(value))[:LONGEST] if fraction is None else f"/{fraction}"
    except Exception:  # noqa: BLE001 - the graded code's
        return ODD


def plain(value: Any) -> Any:
    """The same value in Python's own types. Raises TypeError if it has none."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if hasattr(value, "item") and not isinstance(value, type):  # scalars of numpy and similar libraries
        return plain(value.item())
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, complex):
        return complex(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, tuple | list):
        return (tuple if isinstance(value, tuple) else list)(map(plain, value))
    if isinstance(value, set | frozenset | KeysView):
        return set(map(plain, value))
    if isinstance(value, dict | MappingProxyType):
        return {plain(key): plain(inner) for key, inner in value.items()}
    raise TypeError(type(value).__name__)


def run_tests(report_fd: int, output_fd: int, root: str, targets: list[str]) -> None:
    """Import the tests and the graded code, and report each test. Ends this process."""
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # code may read its own /proc/self
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.chdir(root)
    for name in set(os.environ) - {"PATH", "HOME", "LANG", "TERM"}:
        del os.environ[name]
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.argv[1:] = targets
    packages = [path for path in sys.path if path.endswith(("/site-packages", "/dist-packages"))]  # installed in an image
    sys.path[:] = [*[path for path in sys.path if path not in packages], root, *packages]
    if os.path.isdir(os.path.join(root, "src")):
        sys.path.insert(sys.path.index(root) + 1, os.path.join(root, "src"))
    import pytest

    plugin = Reporter(report_fd)
    setattr(builtins, SEEN, plugin.report_value)
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", root, "-rA", "--color=no", "-q"]
    code = pytest.main([*options, *targets], plugins=[plugin])
    plugin.report("end", int(code))
    sys.stdout.flush()
    os._exit(0)


class Reporter:
    def __init__(self, report_fd: int) -> None:
        self.report_fd = report_fd
        self.names: dict[str, str] = {}

    def report(self, name: str, outcome: object) -> None:
        os.write(self.report_fd, json.dumps([name, outcome]).encode() + b"\n")

    def report_value(self, key: str, value: Any) -> bool:
        os.write(self.report_fd, json.dumps(["seen", key, text_of(value)]).encode() + b"\n")
        return True

    def pytest_itemcollected(self, item: Any) -> None:
        self.names[item.nodeid] = "::".join([str(item.path), *item.nodeid.split("::")[1:]])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome if not hasattr(report, "wasxfail") else "xfail"
            self.report(self.names.get(report.nodeid, report.nodeid), outcome)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.report(report.nodeid or "collection", "failed")


if __name__ == "__main__":
    main(sys.argv[1:])
