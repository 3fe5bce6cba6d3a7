"""What serving leaves out of torch and transformers, until something needs it."""

import subprocess
import sys

_TORCH = """
import sys
from clawctl.engines.patches.imports import begin_torch, complete_torch
begin_torch()
import torch
from torch.nn.functional import scaled_dot_product_attention
def shape(): return torch.dot(torch.empty(3, device="meta"), torch.empty(3, device="meta")).shape
scaled_dot_product_attention(*(torch.ones(1, 2, 3, 4) for _ in range(3)))
print("torch._refs" in sys.modules)
try: shape()
except NotImplementedError: print("no shapes")
complete_torch()
print(shape(), torch._meta_registrations is sys.modules["torch._meta_registrations"])
"""

_TRANSFORMERS = """
import importlib.metadata, sys
sys.modules["torch"] = None
read = importlib.metadata.packages_distributions
from clawctl.engines.patches.imports import without_versions
with without_versions():
    from transformers import AutoTokenizer
    from transformers.utils.import_utils import PACKAGE_DISTRIBUTION_MAPPING as distributions
print(len(distributions), distributions.get("yaml", []) == read()["yaml"], distributions.get("none", []))
print(importlib.metadata.packages_distributions is read)
"""


def _printed(code: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_shapes_for_tracing_are_imported_when_another_library_runs_its_modules() -> None:
    assert _printed(_TORCH) == ["False", "no shapes", "torch.Size([]) True"]


def test_transformers_knows_the_distributions_of_a_package_although_its_import_reads_none() -> None:
    assert _printed(_TRANSFORMERS) == ["0 True []", "True"]
