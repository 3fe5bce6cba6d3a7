"""The calls to an object store: with the library's memory store, and over HTTP with moto in its own process."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from obstore.store import MemoryStore

import clawctl
from clawctl.errors import ClawError
from clawctl.extensions.bucket.objects import Objects, open_store
from clawctl.run.directory import FOLDERS, RunDir, open_run
from clawctl.run.lines import append_lines
from clawctl.run.mounts import mount, run_folder
from clawctl.run.storage import StorageUnreachable, mount_at, storage_of, unmount
from scripts.benchmarks.chaos_bucket import bucket_environment, make_bucket
from scripts.benchmarks.chaos_store import Proxy, store
from tests.extensions.bucket.test_bucket import bucket_at


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with store("moto", tmp_path_factory.mktemp("store")) as port:
        make_bucket(port)
        yield port


@pytest.fixture(params=["memory", "moto"])
def objects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Objects:
    if request.param == "memory":
        return Objects(MemoryStore())
    for name, value in bucket_environment(request.getfixturevalue("moto")).items():
        monkeypatch.setenv(name, value)
    return Objects(open_store(f"s3://chaos/{request.node.name.replace('[', '-').rstrip(']')}"))


def test_of_two_objects_of_one_name_the_first_is_kept(objects: Objects) -> None:
    assert objects.create("a/b", b"first") is not None
    assert objects.create("a/b", b"second") is None
    assert objects.create("a/b", b"first") is not None, "the answer of an earlier try was lost"
    assert objects.read("a/b")[0] == b"first"  # type: ignore[index]


def test_a_swap_needs_the_tag_of_the_current_object(objects: Objects) -> None:
    tag = objects.create("live", b"1")
    assert objects.swap("live", b"2", '"another"') is None
    newer = objects.swap("live", b"2", tag)
    assert newer is not None
    assert objects.swap("live", b"3", tag) is None
    assert objects.swap("live", b"2", tag) == newer, "the answer of an earlier try was lost"
    assert objects.swap("absent", b"1", '"another"') is None
    assert objects.read("live", unless_tag=newer) is None


def test_eight_writers_count_to_forty_by_compare_and_swap(objects: Objects) -> None:
    objects.put("count", b"0")

    def add() -> None:
        for _ in range(5):
            while True:
                number, tag = objects.read("count") or (b"", "")
                if objects.swap("count", b"%d %d" % (int(number.split()[0]) + 1, threading.get_ident()), tag):
                    break

    writers = [threading.Thread(target=add) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (objects.read("count") or (b"",))[0].split()[0] == b"40"


def test_listing_downloading_and_deleting(objects: Objects, tmp_path: Path) -> None:
    for name in ("f/2", "f/1", "g/1"):
        objects.put(name, name.encode())
    assert [(stored.name, stored.size) for stored in objects.list("f/")] == [("f/1", 3), ("f/2", 3)]
    objects.download("f/1", tmp_path / "one", 3)
    assert (tmp_path / "one").read_bytes() == b"f/1"
    objects.delete("f/1")
    objects.delete("f/1")
    assert objects.read("f/1") is None
    assert objects.describe("f/1") is None
    assert [objects.describe("f/2")] == list(objects.list("f/"))
    with pytest.raises(FileNotFoundError):
        objects.read_range("f/1", 0, 1)


def test_lost_answers_torn_uploads_and_throttling_do_not_change_the_winner(moto: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(moto, seed=3, faults=0.3)
    for name, value in bucket_environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    first, second = (Objects(open_store("s3://chaos/faulty")) for _ in range(2))
    for number in range(6):
        name, won = f"s{number}", []
        writers = [
            threading.Thread(target=lambda objects=objects, text=text: won.append(objects.create(name, text) and text))  # noqa: B023
            for objects, text in ((first, b"one" * 1000), (second, b"two" * 1000))
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        winners = [text for text in won if text is not None]
        assert len(winners) == 1
        assert first.read(name)[0] == winners[0]  # type: ignore[index]
    proxy.close()
    assert proxy.failed


def test_rows_that_three_hosts_append_stand_once_although_answers_are_lost(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(moto, seed=5, faults=0.15)
    for name, value in bucket_environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    roots = [tmp_path.resolve() / name for name in ("a", "b", "c")]
    buckets = [bucket_at(root, open_store("s3://chaos/rows")) for root in roots]
    for root, bucket in zip(roots, buckets, strict=True):
        mount_at(root, bucket)

    def append(root: Path) -> None:
        for number in range(12):
            while True:
                with suppress(StorageUnreachable):
                    append_lines(RunDir(root).steps, [b"%s %d" % (root.name.encode(), number)])
                    break

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(append, roots))
    proxy.faults = 0.0
    rows, _ = Objects(open_store("s3://chaos/rows")).read("run/train/steps.jsonl") or (b"", "")
    for root, bucket in zip(roots, buckets, strict=True):
        bucket.close()
        unmount(root)
    proxy.close()
    assert sorted(rows.splitlines()) == sorted(f"{name} {number}".encode() for name in "abc" for number in range(12))
    assert proxy.failed["cut after"]


def test_a_run_in_a_bucket_is_opened_by_its_url_and_again_by_its_local_folder(
    moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**bucket_environment(moto), "CLAWCTL_RUN_CACHE": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    root = run_folder("s3://chaos/opened")
    run = open_run(root)
    storage_of(run.root).close()  # type: ignore[attr-defined]
    unmount(root)
    assert storage_of(run_folder(root)) is mount(root)
    unmount(root)
    monkeypatch.setenv("CLAWCTL_RUN_CACHE", str(tmp_path / "reader"))
    reader = open_run(run_folder("s3://chaos/opened"), create=False)
    assert {path.name for path in reader.root.iterdir()} >= {*FOLDERS, "run.json"}, "a host that only reads"
    storage_of(reader.root).close()  # type: ignore[attr-defined]
    unmount(reader.root)
    other = run_folder("s3://chaos/other")
    assert other != root
    unmount(other)


def test_a_store_that_does_not_answer_is_named_without_any_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**bucket_environment(9), "AWS_SECRET_ACCESS_KEY": "hunter2", "CLAWCTL_RUN_CACHE": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    objects = Objects(open_store("s3://chaos/x", retries=0))
    with pytest.raises(StorageUnreachable) as caught:
        objects.read("run.json")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_refused_with_a_fix(moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**bucket_environment(moto), "CLAWCTL_RUN_CACHE": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClawError, match="the bucket of this run cannot be used"):
        run_folder("s3://nowhere/x")


def test_the_library_of_object_stores_is_imported_in_one_module_and_late() -> None:
    root = Path(clawctl.__file__).parent
    files = [file for file in root.rglob("*.py") if re.search(r"^\s*(import|from) obstore\b", file.read_text(), re.MULTILINE)]
    assert [str(file.relative_to(root)) for file in files] == ["extensions/bucket/objects.py"]
    code = "import sys; import clawctl.extensions.bucket.storage, clawctl.run.directory; print('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
