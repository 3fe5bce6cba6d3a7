"""Suites by name. Each is one file with one function that measures an endpoint. To add a suite, add a file, a line here, and its
name in `EvalConfig.suites`."""

from collections.abc import Callable, Coroutine
from typing import Any

from clawctl.config import EvalConfig
from clawctl.eval.results import Finding
from clawctl.eval.suites import personalisation
from clawctl.run.endpoint import Endpoint

SUITES: dict[str, Callable[[Endpoint, EvalConfig], Coroutine[Any, Any, Finding]]] = {
    "personalisation": personalisation.measure,
}
