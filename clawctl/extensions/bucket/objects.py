"""The objects of a bucket: the few operations that a run needs, with conditions that the store itself evaluates.

The library is obstore, which supports S3, Google Cloud Storage and Azure Blob Storage and retries temporary failures. A request
whose response was lost may have succeeded. Every conditional write therefore compares the stored content with the content it wanted
to write.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from clawctl.errors import ClawError
from clawctl.run.storage import StorageUnreachable

_CHUNK: Final = 16 << 20  # bytes of a download in one request
_RETRIES: Final = 8
_ATTEMPTS: Final = 100
_RETRY_S: Final = 40.0
_LONGEST_PROBLEM = 300  # characters


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as a listing describes it."""

    name: str
    tag: str  # changes whenever the content does
    size: int  # bytes
    modified: float  # unix seconds, by the clock of the store


class Objects:
    """All objects below one prefix. Every call raises StorageUnreachable if the store does not answer or refuses."""

    def __init__(self, store: Any) -> None:
        import obstore
        from obstore import exceptions

        self._store, self._library, self._exceptions = store, obstore, exceptions

    def create(self, name: str, data: bytes | Path) -> str | None:
        """Create an object and return its tag. None if the name exists with other content."""
        with self._errors(name):
            try:
                return str(self._library.put(self._store, name, data, mode="create", use_multipart=False)["e_tag"])
            except self._exceptions.AlreadyExistsError:
                pass
            except self._exceptions.PreconditionError:
                pass
        return self._tag_if_equal(name, data.read_bytes() if isinstance(data, Path) else data)

    def put(self, name: str, data: bytes | Path) -> str:
        """Write an object, replacing an older one, and return its tag."""
        with self._errors(name):
            return str(self._library.put(self._store, name, data)["e_tag"])

    def swap(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Replace the object if its tag is `tag` (None: if there is no object). Returns the new tag, or None if the condition
        failed.
        """
        if tag is None:
            return self.create(name, data)
        with self._errors(name):
            try:
                return str(self._library.put(self._store, name, data, mode={"e_tag": tag}, use_multipart=False)["e_tag"])
            except (self._exceptions.PreconditionError, self._exceptions.AlreadyExistsError, FileNotFoundError):
                pass
        return self._tag_if_equal(name, data)

    def change(self, name: str, changed: Callable[[bytes], bytes]) -> tuple[bytes, str] | None:
        """Replace an object by `changed(content)`, and return its content and tag; b"" stands for no object. If it changes
        meanwhile, `changed` is called again. Raises StorageUnreachable."""
        for _ in range(_ATTEMPTS):
            stored = self.read(name)
            before, tag = stored or (b"", None)
            after = changed(before)
            if after == before:
                return stored
            if not after:
                self.delete(name)
                return None
            if (new_tag := self.swap(name, after, tag)) is not None:
                return after, new_tag
        raise StorageUnreachable(f"{name} changed at each of {_ATTEMPTS} attempts to change it")

    def _tag_if_equal(self, name: str, data: bytes) -> str | None:
        """Return the tag of an object with exactly this content: an earlier try of the same request succeeded. Otherwise None."""
        stored = self.read(name)
        return stored[1] if stored is not None and stored[0] == data else None

    def read(self, name: str, unless_tag: str | None = None) -> tuple[bytes, str] | None:
        """Return content and tag of a small object. None if it does not exist or its tag is `unless_tag`."""
        with self._errors(name):
            try:
                response = self._library.get(self._store, name, options={} if unless_tag is None else {"if_none_match": unless_tag})
                return bytes(response.bytes()), str(response.meta["e_tag"])
            except (FileNotFoundError, self._exceptions.NotModifiedError):
                return None

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`. Raises FileNotFoundError."""
        with self._errors(name):
            return bytes(self._library.get_range(self._store, name, start=start, end=end))

    def download(self, name: str, target: Path, size: int) -> None:
        """Write an object of `size` bytes to a new file. Raises FileNotFoundError, and StorageUnreachable if bytes are missing."""
        with target.open("wb") as file:
            os.chmod(target, 0o600)
            for start in range(0, size, _CHUNK):
                file.write(self.read_range(name, start, min(size, start + _CHUNK)))
            if file.tell() != size:
                raise StorageUnreachable(f"{name}: {file.tell()} of {size} bytes arrived")
            file.flush()
            os.fsync(file.fileno())

    def describe(self, name: str) -> StoredObject | None:
        """Return what a listing would say about the object, or None if it does not exist."""
        with self._errors(name):
            try:
                return _stored(self._library.head(self._store, name))
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below `prefix`, in name order. One request per thousand objects."""
        with self._errors(prefix):
            for chunk in self._library.list(self._store, prefix):
                for entry in chunk:
                    yield _stored(entry)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        with self._errors(name), suppress(FileNotFoundError):
            self._library.delete(self._store, name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Convert the library's errors to StorageUnreachable. Only the first line is kept: the rest describes the request."""
        try:
            yield
        except (self._exceptions.BaseError, TimeoutError) as error:
            raise StorageUnreachable(f"{name}: {_first_line(error)}") from None


def _stored(entry: Any) -> StoredObject:
    return StoredObject(entry["path"], str(entry["e_tag"]), entry["size"], entry["last_modified"].timestamp())


def open_store(url: str, retries: int = _RETRIES) -> Any:
    """Return the library's store for `s3://bucket/prefix`. Raises ClawError (exit code 2).

    Credentials come from the environment or from the machine's role.
    """
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise ClawError("a run in a bucket needs obstore", "install it with `pip install 'clawctl[bucket]'`", 2) from error
    try:
        return store.from_url(url, retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=_RETRY_S)})
    except (BaseError, ValueError) as error:
        problem = f"the bucket cannot be opened: {_first_line(error)}"
        raise ClawError(problem, "check the URL and the provider's variables in the environment, such as AWS_REGION", 2) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:_LONGEST_PROBLEM]


def check_conditions(objects: Objects) -> None:
    """Try create-if-absent and compare-and-swap once: with a store that lacks them, turns could be trained twice."""
    name = f"leases/.probe-{uuid4().hex}"
    try:
        first = objects.create(name, b"1")
        second, mismatched = objects.create(name, b"2"), objects.swap(name, b"3", '"another"')
        if first is None or second is not None or mismatched is not None or objects.swap(name, b"4", first) is None:
            raise ClawError("this object store ignores conditions on writes", "use one with If-None-Match and If-Match", 2)
    finally:
        objects.delete(name)
