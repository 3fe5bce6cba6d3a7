"""Resolves `--run`: a folder, or a bucket with a local folder on this host."""

import hashlib
import re
from pathlib import Path
from typing import Final
from uuid import uuid4

import orjson

from clawctl.config.environment import from_environment, state_folder
from clawctl.errors import ClawError
from clawctl.run.storage import ABOUT, STORAGES, OpenStorage, Storage, mount_at, storage_of, write_synced

_URL: Final = re.compile(r"([a-z][a-z0-9]{0,9})://([A-Za-z0-9][A-Za-z0-9._-]{1,62})(?:/([A-Za-z0-9._/=-]*))?")


def run_folder(text: str | Path) -> Path:
    """Return the folder that `--run` names: a path, or the local folder of a run in a bucket, updated from the bucket. Raises
    ClawError.
    """
    text = str(text)
    if "://" not in text:
        root = Path(text)
        if (root / ABOUT / "about.json").is_file():
            root = root.resolve()
            mount(root)
        return root
    match = _URL.fullmatch(text)
    if match is None:
        fix = "use s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; credentials come from the environment"
        raise ClawError("--run is not the URL of a bucket", fix, 2)  # the text may contain a secret
    url = text.rstrip("/")
    _opener(match[1])  # before anything is created
    root = (
        _state_folder()
        / f"{re.sub('[^A-Za-z0-9.-]+', '-', url.partition('://')[2])}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    )
    about = root / ABOUT / "about.json"
    if not about.exists():
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        about.parent.mkdir(exist_ok=True, mode=0o700)
        write_synced(about, orjson.dumps({"url": url, "host": uuid4().hex}))
    mount(root)
    return root


def _state_folder() -> Path:
    configured, state = from_environment("RUN_CACHE"), state_folder()
    if configured is None and state is None:
        raise ClawError("this user has no home folder for the local part of the run", "set CLAWCTL_RUN_CACHE to a folder", 2)
    return Path(configured or state / "runs").absolute().resolve()  # type: ignore[operator]


def mount(root: Path) -> Storage:
    """Connect a local folder to its bucket. Raises ClawError (exit code 2)."""
    if is_in_bucket(root):
        return storage_of(root)
    about = about_of(root)
    storage = _opener(about["url"].partition("://")[0])(root, about["url"], about["host"])
    mount_at(root, storage)
    return storage


def _opener(scheme: str) -> OpenStorage:
    names = STORAGES.names()
    if scheme in names:
        return STORAGES.load(scheme, "--run")
    others = f"use {' or '.join(f'{name}://' for name in names)}, or " if names else ""
    fix = f"{others}install a package with the entry point clawctl.storages: {scheme}; clawctl's extension bucket has s3, gs and az"
    raise ClawError(f"--run: no storage for {scheme}:// is installed", fix, 2)


def about_of(root: Path) -> dict[str, str]:
    """Return the URL of the bucket that a local folder belongs to, and the id of this host's folder. Raises ClawError."""
    path = root / ABOUT / "about.json"
    try:
        mount: dict[str, str] = orjson.loads(path.read_bytes())
        if not {"url", "host"} <= mount.keys():
            raise ValueError("it has no URL")
        return mount
    except (OSError, ValueError) as error:
        raise ClawError(f"{path} cannot be read: {error}", "delete it, and name the bucket with --run again", 2) from error


def is_in_bucket(root: Path) -> bool:
    """Whether a run is in a bucket."""
    return storage_of(root.resolve()).in_bucket


def refuse_in_bucket(root: Path, what: str, fix: str) -> None:
    """Raises ClawError (exit code 2) if the run is in a bucket, where `what` does not work."""
    if is_in_bucket(root):
        raise ClawError(f"{what} does not work with a run in a bucket", fix, 2)
