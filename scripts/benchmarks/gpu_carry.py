"""What a machine with PyTorch, but without clawctl's environment and without a package index, needs to run clawctl."""

import io
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Machines with PyTorch usually have the rest: numpy, transformers' own dependencies, peft, accelerate, pyarrow, typer, rich.
NAMES = (
    "ahocorasick-rs", "annotated-types", "bitsandbytes", "gguf", "httptools", "llguidance", "msgspec", "orjson", "pydantic",
    "pydantic_core", "regex", "starlette", "transformers", "typing-inspection", "typing_extensions", "uvicorn", "watchfiles",
)  # fmt: skip
PYTHON, CUDA = "3.12", "130"
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]


def pinned() -> list[str]:
    """The packages, with the versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = {_normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}
    return [f"{name}=={versions[_normal(name)]}" if _normal(name) in versions else name for name in NAMES]


def carry(folder: Path | None) -> None:
    """Print the packages, or download their wheels to `folder`."""
    if folder is None:
        print("\n".join(pinned()))
        return
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON]
    subprocess.run([*command, "--implementation", "cp", *platforms, "-d", str(folder), *pinned()], check=True)
    for wheel in folder.glob("bitsandbytes-*.whl"):
        slim(wheel)
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    print(f"{len(list(folder.glob('*.whl')))} wheels in {folder}, {size / 2**20:.1f} MiB", file=sys.stderr)


def slim(wheel: Path) -> None:
    """Remove the libraries of other CUDA versions and other vendors from the wheel of bitsandbytes: 41 MiB become 2."""

    def kept(name: str) -> bool:
        return not name.endswith(".so") or name.endswith((f"_cuda{CUDA}.so", "_cpu.so"))

    made = io.BytesIO()
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as part:
        for name in filter(kept, whole.namelist()):
            content = whole.read(name)
            if name.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                content = "".join(line for line in lines if kept(line.partition(",")[0])).encode()
            part.writestr(name, content)
    wheel.write_bytes(made.getvalue())


def make_importable(root: Path, folder: Path) -> dict[str, str]:
    """The environment of processes that import clawctl from `root`. If it is not installed, its entry points are written to
    `folder`, because its extensions are found by them."""
    paths = [str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if not any(distributions(name="clawctl")):
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        info = folder / "site" / "clawctl-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clawctl\nVersion: 0\n")
        groups = [
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups))
        paths.insert(1, str(info.parent))
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


def _normal(name: str) -> str:
    return name.replace("_", "-").lower()
