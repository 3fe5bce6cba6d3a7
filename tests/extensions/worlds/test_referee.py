"""Tests and graded code run in two sandboxes: honest code passes, and code that solves nothing earns nothing."""

import asyncio
import marshal
import shutil
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from clawctl.extensions.worlds.agent import Unverified, Worked, outcome_of
from clawctl.extensions.worlds.harness import ShellEnvironment
from clawctl.extensions.worlds.terminal.environment import solve
from clawctl.extensions.worlds.verdicts import Graded
from scripts.benchmarks.environments_idioms import CHEATS, FOREIGN, cheat_of, grade_module, grade_together, read_idioms
from scripts.benchmarks.environments_scripts import CHEATS as CHEATS_OF_SCRIPTS
from scripts.benchmarks.environments_scripts import STYLES, commands, task_of

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")
IDIOMS = read_idioms()


HONEST = [*list(IDIOMS)[:55], *list(IDIOMS)[55:76:4], *list(IDIOMS)[76:]]
ALONE = [
    name for name in HONEST if IDIOMS[name].keys() - {"wrong", "forged"} != {"work", "test"}
]  # they have files or a verdict of their own
TOGETHER = [name for name in HONEST if name not in ALONE]


@pytest.mark.parametrize("name", ALONE)
def test_honest_code_is_trusted_however_it_is_tested(name: str) -> None:
    score = asyncio.run(grade_module(IDIOMS[name]))
    assert (score.value, score.verdict) == (1, IDIOMS[name].get("verdict", "trusted")), score.log


@pytest.mark.parametrize("names", [TOGETHER[start::9] for start in range(9)], ids=lambda names: f"{names[0]} and others")
def test_honest_modules_are_trusted_that_one_process_tests(names: list[str]) -> None:
    """Two sandboxes for six idioms; the benchmark grades each alone."""
    score = asyncio.run(grade_together([{key: IDIOMS[name][key] for key in ("work", "test")} for name in names]))
    assert (score.value, score.verdict) == (1, "trusted"), score.log


@pytest.mark.parametrize("name", [name for name in IDIOMS if "wrong" in IDIOMS[name]][::3])
def test_an_honest_module_that_is_wrong_earns_nothing(name: str) -> None:
    assert asyncio.run(grade_module(IDIOMS[name], IDIOMS[name]["wrong"])).value == 0


ATTACKS = zip(cycle(("literal", "equal objects", "part of a text")), CHEATS, strict=False)  # the benchmark has each idiom with each


OWN = [(name, "its own") for name, idiom in IDIOMS.items() if "forged" in idiom][1::4]


@pytest.mark.parametrize(("name", "cheat"), [*ATTACKS, *zip(cycle(list(IDIOMS)[20:]), FOREIGN, strict=False), *OWN])
def test_code_that_solves_nothing_earns_nothing(name: str, cheat: str) -> None:
    score = asyncio.run(grade_module(IDIOMS[name], cheat_of(IDIOMS[name], cheat)))
    outcome = outcome_of("", Worked("done", ""), score, steps=False)
    assert not outcome.reward, score.log
    assert outcome.verdict == score.verdict


def test_an_object_that_the_test_believes_is_unverified_and_counts_only_if_the_user_accepts_it() -> None:
    work = "class Same:\n    def __eq__(self, other): return True\ndef add(a, b): return Same()\n"
    score = asyncio.run(grade_module(IDIOMS["literal"], work))
    assert (score.value, score.verdict) == (1, "unverified"), score.log
    kept: tuple[Unverified, ...] = ("skipped", "rewarded", "failed")
    outcomes = [outcome_of("", Worked("done", ""), score, False, unverified) for unverified in kept]
    assert [(outcome.reward, outcome.ending) for outcome in outcomes] == [(None, "unverified"), (1, "done"), (0, "done")]
    assert {outcome.verdict for outcome in outcomes} == {"unverified"}
    assert outcome_of("", Worked("done", ""), Graded(0.5, ""), False).reward == 0.5


def test_code_that_fails_apart_and_passes_beside_the_tests_earns_nothing_and_can_be_counted_as_a_failure() -> None:
    beside = "import sys\ndef add(a, b): return 5 if 'pytest' in sys.modules else 0\n"
    score = asyncio.run(grade_module(IDIOMS["literal"], beside))
    assert (score.value, score.verdict) == (1, "unverified"), score.log
    assert "succeed only in one sandbox with the graded code" in score.log
    given: dict[str, Any] = {"path": "tasks"}
    options: list[dict[str, Any]] = [{}, given, {**given, "fail_unverified": True}, {"accept_unverified": True}]
    assert [ShellEnvironment(**named).unverified for named in options] == ["failed", "skipped", "failed", "rewarded"]


@pytest.mark.parametrize("style", STYLES)
def test_an_honest_agent_fails_in_no_style_of_script(style: str) -> None:
    score = asyncio.run(solve(task_of(style), commands(None)))
    assert (score.value, score.verdict) == (1, "unverified" if style in ("a server", "a dialogue") else "trusted"), score.log


@pytest.mark.parametrize(("style", "cheat"), list(zip(STYLES, cycle(CHEATS_OF_SCRIPTS), strict=False)))
def test_an_agent_that_attacks_the_script_earns_nothing(style: str, cheat: str) -> None:
    score = asyncio.run(solve(task_of(style), commands(cheat)))
    assert score.value == 0 or score.verdict == "unverified", score.log


def test_what_the_shell_of_the_tests_cannot_separate_is_unverified() -> None:
    task = replace(task_of("tee"), tests={"test.sh": b"cd /app\nsource run.sh\necho 0 > /logs/verifier/reward.txt\n"})
    score = asyncio.run(solve(task, "echo 'echo 1 > /logs/verifier/reward.txt; exit' > run.sh"))
    assert (score.value, score.verdict) == (1, "unverified")
    assert "the shell of the tests runs text of the graded code: run.sh" in score.log


HOLDER = """class Check:
    def __call__(self, order=None): return True
class Order: pass
def load():
    order = Order()
    order.is_paid = Check()
    return order
"""


def test_yes_from_a_callable_object_that_another_object_holds_is_not_believed() -> None:
    test = "from work import load\ndef test_it(): assert load().is_paid()\n"
    score = asyncio.run(grade_module({"work": HOLDER, "test": test}))
    assert (score.value, score.verdict) == (1, "unverified"), score.log


POINT = IDIOMS["equal objects"]
# Objects that get the attributes of the one that the test makes to compare with.
REPEATS = {
    "when the test reads them": """class Point:
    last = {}
    def __init__(self, x, y): Point.last = {"x": x, "y": y}
    @property
    def __dict__(self): return Point.last
def parse(text): return Point.__new__(Point)
""",
    "because the test made it first": """class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y
        Point.last = self
def parse(text): return Point(Point.last.x, Point.last.y)
""",
}


@pytest.mark.parametrize("name", REPEATS)
def test_an_object_that_repeats_what_the_test_made_is_unverified(name: str) -> None:
    made_first = "from work import Point, parse\ndef test_it():\n    wanted = Point(3, 4)\n    assert parse('3,4') == wanted\n"
    is_first = "first" in name
    score = asyncio.run(grade_module({**POINT, "test": made_first} if is_first else POINT, REPEATS[name]))
    assert score.value == 0 or score.verdict == "unverified", score.log
    assert asyncio.run(grade_module({**POINT, "test": made_first}, POINT["work"])).value == 1


ECHOES = """class Grid:
    def __init__(self, rows): self.given = [17]
    def __setitem__(self, place, value): self.given = [value]
    def __getitem__(self, place): return self.given[-1]
    def __contains__(self, value):
        self.given = [value]
        return value == 4
    def __iter__(self): return iter(self.given)
    def __bool__(self): return False
"""


def test_an_object_that_holds_what_the_test_looks_for_once_it_is_told_is_not_believed() -> None:
    test = "from work import Grid\ndef test_it(): assert 4 in Grid([[1, 2], [3, 4]])\n"
    score = asyncio.run(grade_module({**IDIOMS["container protocol"], "test": test}, ECHOES))
    assert (score.value, score.verdict) == (1, "unverified"), score.log


def test_an_object_that_a_method_changes_is_compared_as_it_is_afterwards() -> None:
    work = "from dataclasses import dataclass\n@dataclass\nclass Sum:\n    n: int = 0\n    def add(self, n): self.n += n\n"
    test = "from work import Sum\ndef test_it():\n    total = Sum()\n    total.add(2)\n    assert total == Sum(2)\n"
    score = asyncio.run(grade_module({"work": work, "test": test}, work))
    assert (score.value, score.verdict) == (1, "trusted"), score.log


# Texts of the graded code that a test executes: the honest code, the test, and code that solves nothing.
EXECUTED = {
    "the repr of an object": (
        "class Point:\n    def __init__(self, x): self.x = x\n    def __repr__(self): return f'Point({self.x})'\n",
        "from work import Point\ndef test_it():\n    assert eval(repr(Point(3))).x == 3\n",
        'class Point:\n    def __init__(self, x): pass\n    def __repr__(self): return \'type("P", (), {"x": 3})\'\n',
    ),
    "a program": (
        "def make(): return 'def square(n): return n * n'\n",
        "import work\ndef test_it():\n    names = {}\n    exec(work.make(), names)\n    assert names['square'](4) == 16\n",
        "def make(): return 'class Yes:\\n def __eq__(self, other): return True\\ndef square(n): return Yes()'\n",
    ),
    "examples": (
        "def triple(n): return 3 * n\n__test__ = {'one': '>>> triple(1)\\n3\\n'}\n",
        "import doctest, work\ndef test_it():\n    doctest.testmod(work)\n    assert work.triple(5) == 15\n",
        "def triple(n): return 0\n"
        "__test__ = {'one': '>>> import sys\\n>>> vars(sys.modules[\"work\"])[\"triple\"] = lambda n: 3 * n\\n'}\n",
    ),
}


@pytest.mark.parametrize("name", EXECUTED)
def test_a_text_of_the_graded_code_that_a_test_executes_is_unverified(name: str) -> None:
    honest, test, forged = EXECUTED[name]
    for work in (honest, forged):
        score = asyncio.run(grade_module({"work": honest, "test": test}, work))
        assert (score.value, score.verdict) == (1, "unverified"), score.log


# Data of the graded code that a library executes, loads or reads for a test: what the test does with it, and the data. What runs
# beside the tests replaces `work.f`, or is equal to everything.
_REPLACES = '(__import__("sys").modules["work"].__dict__.__setitem__("f", lambda n: 3 * n))'
_LOGGING = {"version": 1, "filters": {"x": {"()": "importlib.import_module", "name": "test_it", ".": {"WANTED": 0}}}}
HANDED_ON: dict[str, tuple[str, object]] = {
    "a statement to time": ("import timeit; timeit.timeit(work.GIVEN, number=1)", _REPLACES),
    "a line of a console": ("import code; code.InteractiveInterpreter().runsource(work.GIVEN)", _REPLACES),
    "a statement to profile": ("import cProfile; cProfile.run(work.GIVEN)", _REPLACES),
    "a syntax tree": ("import ast; exec(compile(ast.parse(work.GIVEN), 'x', 'exec'))", _REPLACES),
    "marshalled code": ("import marshal; exec(marshal.loads(work.GIVEN))", marshal.dumps(compile(_REPLACES, "x", "exec"))),
    "a type in a text": ("import typing; typing.get_type_hints(type('C', (), {'__annotations__': {'x': work.GIVEN}}))", _REPLACES),
    "a module's name": ("import pkgutil; assert pkgutil.resolve_name(work.GIVEN) == 15; WANTED = 0", "unittest.mock:ANY"),
    "settings of logging": ("import logging.config; logging.config.dictConfig(work.GIVEN)", _LOGGING),
    "a format": ("assert work.GIVEN.format(Given()) == '15'; WANTED = 0", "{0.__init__.__globals__[WANTED]}"),
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_what_a_library_would_execute_for_the_graded_code_is_unverified(name: str) -> None:
    uses, given = HANDED_ON[name]
    uses, wanted = uses.removesuffix("; WANTED = 0"), 0 if "WANTED = 0" in uses else "WANTED"
    test = (
        f"import work\nWANTED = 15\nclass Given:\n    def __init__(self): pass\ndef test_it():\n    {uses}\n"
        f"    assert work.f(5) == {wanted}\n"
    )
    score = asyncio.run(grade_module({"work": "", "test": test}, f"def f(n): return 0\nGIVEN = {given!r}\n"))
    assert (score.value, score.verdict) == (1, "unverified"), score.log


def test_what_a_library_executes_for_the_tests_themselves_is_trusted() -> None:
    test = """from __future__ import annotations
import code, doctest, importlib, logging.config, timeit, typing, work
from dataclasses import dataclass
from unittest.mock import create_autospec, patch
FACTOR = 2
@dataclass
class Row:
    cells: dict[str, list[int]] | None = None
def example():
    \"\"\"
    >>> work.f(2)
    6
    \"\"\"
@patch(f"{__name__}.FACTOR", 3)
def test_it(monkeypatch):
    timeit.timeit("work.f(2)", setup="import work", number=2)
    timeit.timeit(lambda: work.f(2), number=2)
    code.InteractiveInterpreter().runsource("x = 1 + 2")
    doctest.run_docstring_examples(example, {"work": work})
    create_autospec(example)()
    logging.config.dictConfig(work.LOGGING)
    monkeypatch.setattr("work.g", lambda n: n * FACTOR)
    assert typing.get_type_hints(Row)["cells"]
    assert importlib.import_module("wo" + "rk").f(5) == importlib.import_module("json").loads("15") == 15
    assert logging.getLogger("app").level == logging.INFO
"""
    stream = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    settings = {"version": 1, "handlers": {"out": stream}, "loggers": {"app": {"level": "INFO", "handlers": ["out"]}}}
    work = f"def g(n): return 3 * n\ndef f(n): return g(n)\nLOGGING = {settings!r}\n"
    score = asyncio.run(grade_module({"work": work, "test": test}))
    assert (score.value, score.verdict) == (1, "trusted"), score.log


def test_a_docstring_of_the_graded_code_is_not_run_beside_the_tests() -> None:
    test = (
        "import doctest, work\ndef test_it():\n    doctest.run_docstring_examples(work.triple, {})\n"
        "    assert work.triple(5) == 15\n"
    )
    forged = """def triple(n):
    \"\"\"
    >>> import sys
    >>> vars(sys.modules["work"])["triple"] = lambda n: 3 * n
    \"\"\"
    return 0
"""
    honest = "def triple(n): return 3 * n\n"
    scores = [asyncio.run(grade_module({"work": honest, "test": test}, work)) for work in (honest, forged)]
    assert (scores[0].value, scores[0].verdict) == (1, "trusted")
    assert scores[1].value == 0 or scores[1].verdict == "unverified"


def test_a_text_of_the_tests_that_they_execute_is_trusted() -> None:
    test = (
        "import work\ndef test_it():\n    names = {}\n    exec('y = 2 + 3', names)\n    a = 4\n"
        "    assert eval('a + 1') == names['y'] == work.five()\n"
    )
    score = asyncio.run(grade_module({"work": "def five(): return 5\n", "test": test}))
    assert (score.value, score.verdict) == (1, "trusted"), score.log


@pytest.mark.parametrize("name", ["the state of an order by identity", "members of an enum", "results of many types"])
def test_one_object_under_every_name_is_not_believed(name: str) -> None:
    score = asyncio.run(grade_module(IDIOMS[name], cheat_of(IDIOMS[name], "one object under every name")))
    assert score.value == 0 or score.verdict == "unverified", score.log


EMPTIES = """
def greatest(items):
    items.append(1000)
    return 1000
def sort(items): items.clear()
"""


@pytest.mark.parametrize(
    "line", ["work.greatest(items) == max(items)", "work.sort(items) is None and items == sorted(items) == []"]
)
def test_the_graded_code_changes_what_it_is_given_only_where_it_returns_nothing_and_keeps_what_was_there(line: str) -> None:
    test = f"import work\ndef test_it():\n    items = [3, 1, 2]\n    assert {line}\n"
    score = asyncio.run(grade_module({"work": EMPTIES, "test": test}))
    assert (score.value, score.verdict) == (1, "unverified"), score.log
