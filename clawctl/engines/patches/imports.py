"""Imports of torch and transformers without what serving does not need before it is ready.

- `import torch` also imports `torch._meta_registrations`, which takes a quarter of its time. It describes the shapes of results for
  tracing and for the meta device, which clawctl's own modules do not use. `complete_torch` imports it for code of other libraries.
- `import transformers` reads the metadata of every installed distribution, only to know the versions of optional packages.
"""

import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_SHAPES = ModuleType("torch._meta_registrations")  # stands for the module until it is needed


def begin_torch() -> None:
    """To be called before the first import of torch."""
    if "torch" not in sys.modules:
        sys.modules[_SHAPES.__name__] = _SHAPES


def complete_torch() -> None:
    """Import what `begin_torch` left out. To be called before torch runs the modules of another library."""
    if sys.modules.get(_SHAPES.__name__) is _SHAPES:
        del sys.modules[_SHAPES.__name__]
        import_module(_SHAPES.__name__)


class _Distributions(dict[str, list[str]]):
    """The distributions of each package, which are read when the first one is looked up."""

    def get(self, package: str, default: list[str]) -> list[str]:  # type: ignore[override]
        if not self:
            self.update(importlib.metadata.packages_distributions())
        return super().get(package, default)


@contextmanager
def without_versions() -> Iterator[None]:
    """Meanwhile transformers can be imported without reading the metadata of all distributions."""
    read = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = _Distributions
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = read
