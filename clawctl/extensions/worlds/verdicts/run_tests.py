"""Runs pytest in a verdict's sandbox. Only pytest, the tests and the standard library are imported here.

    run_tests.py [--together] [--json] [PYTEST ARGUMENTS]

The modules under test run in another sandbox (`remote_modules.py`), so the graded code can neither read the tests nor change what
is reported. `--together`: they are imported here, and what is reported may be forged.
"""

import hashlib
import json
import os
import sys
import tempfile
from typing import Any

OWN = os.path.dirname(os.path.abspath(__file__))
SITE = f"{OWN}/site"
_LOG = 8000


def main(arguments: list[str]) -> None:
    is_together = arguments[:1] == ["--together"]
    arguments = arguments[is_together:]
    as_json = arguments[:1] == ["--json"]
    report_fd = os.dup(1)
    sys.path[:] = [SITE, *(path for path in sys.path if path != OWN), OWN]
    sys.dont_write_bytecode = True
    import pytest

    finder = None if is_together else make_finder()
    if finder is not None:
        from boundary import install  # type: ignore[import-not-found]

        install(finder)
    root = os.getcwd()
    sys.path += [root, f"{root}/src"]
    for name in set(os.environ) - {"PATH", "HOME", "LANG", "TERM"} if as_json else ():
        del os.environ[name]
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    reporter = Reporter(finder)
    if not as_json and not is_together:
        refuse_graded_tests(arguments)
    fixed = ["-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", f"--basetemp={tempfile.mkdtemp()}/pytest"]
    options = [*fixed, *(["--rootdir", root, "-q", "--color=no"] if as_json else []), *_without_plugins(arguments[as_json:])]
    if as_json:
        log = tempfile.TemporaryFile()  # noqa: SIM115
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    code = int(pytest.main(options, plugins=[reporter]))
    if as_json:
        sys.stdout.flush()
        text = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        os.write(report_fd, json.dumps({**reporter.results, "code": code, "log": text[-_LOG:]}).encode())
    elif claims := reporter.results["unverified"]:
        print(f"not verified: {', '.join(claims[:5])}")
        code = code or 1
    sys.stdout.flush()
    os._exit(code)


def make_finder() -> Any:
    """Let the modules of the graded code be loaded in the other sandbox from now on."""
    sys.path.append(OWN)
    from boundary import TRUSTED, own
    from finder import GradedFinder  # type: ignore[import-not-found]

    finder = GradedFinder(TRUSTED, own("tests"))
    sys.meta_path.insert(0, finder)
    return finder


def refuse_graded_tests(arguments: list[str]) -> None:
    """Exit if the arguments name a test file that is not one of the task's, because the graded code wrote it."""
    digests = {digest_of(os.path.join(parent, name)) for parent, _, names in os.walk("/tests") for name in names}
    targets = [path for word in arguments if not word.startswith("-") and os.path.exists(path := word.split("::")[0])]
    for target in targets or ["."]:
        inner = [os.path.join(parent, name) for parent, _, names in os.walk(target) for name in names]
        for path in inner or [target]:
            if os.path.basename(path).startswith("test_") and path.endswith(".py") and digest_of(path) not in digests:
                sys.exit(f"{path} is not a test of the task, but was written by the graded code")


def digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _without_plugins(arguments: list[str]) -> list[str]:
    """The arguments without those of plugins that are not installed here, such as `--ctrf FILE`."""
    kept, skip = [], False
    for word in arguments:
        name = word.split("=")[0]
        if not skip and name not in ("--ctrf", "--timeout", "--json-report-file", "--json-report"):
            kept.append(word)
        skip = not skip and word in ("--ctrf", "--timeout", "--json-report-file")
    return kept


class Reporter:
    """Notes how each test ended, and which tests rest on what the graded code claims."""

    def __init__(self, finder: Any) -> None:
        self.results: dict[str, list[str]] = {"passed": [], "failed": [], "unverified": []}
        self._finder = finder
        self._all_unverified = False

    def pytest_collection_finish(self) -> None:
        self._all_unverified = self._has_claims()  # by an import, a decorator or a parameter

    def pytest_runtest_logreport(self, report: Any) -> None:
        passed = report.outcome == "passed" and not hasattr(report, "wasxfail")
        if self._has_claims() or (self._all_unverified and report.when == "call"):
            self.results["unverified"].append(report.nodeid)
        if report.when == "call" or not passed:
            self.results["passed" if passed else "failed"].append(report.nodeid)

    def _has_claims(self) -> bool:
        return self._finder is not None and bool(self._finder.take_claims())

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.results["failed"].append(report.nodeid or "collection")


if __name__ == "__main__":
    main(sys.argv[1:])
