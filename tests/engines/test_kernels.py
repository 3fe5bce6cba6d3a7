"""Products with matrices of bfloat16 numbers that a C compiler of this machine has compiled."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
import torch

from clawctl.engines.embedded.kernels import PairedMatrix, can_pair, compiled

COMPILES = which("cc") is not None and torch.backends.cpu.get_cpu_capability() == "AVX512"
needs_compiler = pytest.mark.skipif(not COMPILES, reason="needs a C compiler and AVX-512")
ASKED = "from clawctl.engines.embedded.kernels import compiled; print(compiled() is not None)"


def compiles(cache: Path, **changes: str) -> bool:
    """Whether a new process compiles, or finds what was compiled."""
    environment = {**os.environ, "CLAWCTL_MODEL_CACHE": str(cache), **changes}
    done = subprocess.run([sys.executable, "-c", ASKED], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip() == "True"


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_products_of_any_number_of_rows_are_those_in_float64(threads: int) -> None:
    multiply = compiled()
    if multiply is None:
        pytest.skip("FBGEMM is faster on this machine")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight_OI, bias_O = torch.randn(100, 96).bfloat16(), torch.randn(100)
        matrix = PairedMatrix(multiply, weight_OI, bias_O)
        for count in [*range(15), 95, 96, 97, 200]:
            rows_TI = torch.randn(count, 192)[:, ::2]  # not contiguous
            expected_TO = rows_TI.double() @ weight_OI.double().T + bias_O
            torch.testing.assert_close(matrix(rows_TI).double(), expected_TO, atol=2e-5, rtol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_matrices_of_other_types_and_shapes_are_left_to_others() -> None:
    assert can_pair(torch.zeros(8, 64, dtype=torch.bfloat16))
    assert not can_pair(torch.zeros(8, 64))
    assert not can_pair(torch.zeros(6, 64, dtype=torch.bfloat16))
    assert not can_pair(torch.zeros(8, 48, dtype=torch.bfloat16))


@needs_compiler
def test_it_is_compiled_once_for_a_user(tmp_path: Path) -> None:
    compiles(tmp_path)
    (library,) = tmp_path.glob("kernels/*")
    made = library.stat()
    compiles(tmp_path)
    assert list(tmp_path.glob("kernels/*")) == [library]
    assert library.stat().st_mtime_ns == made.st_mtime_ns


def test_without_a_compiler_or_a_cache_nothing_is_compiled_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not compiles(tmp_path / "file")
    assert not compiles(tmp_path / "cache", PATH=str(tmp_path))
    assert not compiles(tmp_path / "cache", ATEN_CPU_CAPABILITY="avx2")


@needs_compiler
def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o700)
    assert not compiles(tmp_path / "cache", PATH=str(tmp_path))
    assert not list((tmp_path / "cache").rglob("*.so"))


@needs_compiler
def test_a_damaged_library_is_compiled_again_and_a_wrong_one_is_not_kept(tmp_path: Path) -> None:
    compiles(tmp_path)
    (library,) = tmp_path.glob("kernels/*")
    whole = library.read_bytes()
    flipped = bytes([*whole[:5000], whole[5000] ^ 255, *whole[5001:]])
    for damaged in (b"", whole[: len(whole) // 2], whole[:4096], whole[:-1], flipped):
        library.unlink()  # the earlier file may be in use
        library.write_bytes(damaged)
        compiles(tmp_path)
        assert library.read_bytes() == whole
    (tmp_path / "cc").write_text('#!/bin/sh\nfor last; do :; done\necho rubbish > "$last"\n')
    (tmp_path / "cc").chmod(0o700)
    assert not compiles(tmp_path / "cache", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert not list((tmp_path / "cache").rglob("*.so"))
