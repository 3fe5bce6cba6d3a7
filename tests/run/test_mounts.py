"""`--run` with a URL: the storage that an installed package announces for its scheme."""

from pathlib import Path

import orjson
import pytest

from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.run.mounts import is_in_bucket, mount, run_folder
from clawctl.run.storage import storage_of, unmount

STORAGE = """
from clawctl.run.storage import Disk

class Attic(Disk):
    in_bucket = True

    def __init__(self, root, url, host):
        self.url = url
"""


@pytest.fixture
def attic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with the storage `attic`, which keeps a run in its local folder alone."""
    info = tmp_path / "site" / "attic-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: attic\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[clawctl.storages]\nattic = attic_storage:Attic\n")
    (tmp_path / "site" / "attic_storage.py").write_text(STORAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("CLAWCTL_RUN_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("attic")
def test_a_run_is_opened_by_its_url_and_again_by_its_local_folder() -> None:
    root = run_folder("attic://boxes/old/")
    assert open_run(root).root == root
    assert is_in_bucket(root)
    assert storage_of(root).url == "attic://boxes/old"  # type: ignore[attr-defined]
    unmount(root)
    assert storage_of(run_folder(root)) is mount(root)
    unmount(root)


def test_a_storage_that_is_not_installed_is_named_and_nothing_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWCTL_RUN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ClawError, match=r"no storage for cellar:// is installed.*clawctl\.storages: cellar"):
        run_folder("cellar://boxes/old")
    assert not (tmp_path / "cache").exists()


def test_a_local_folder_whose_storage_is_not_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".bucket").mkdir()
    (tmp_path / ".bucket" / "about.json").write_bytes(orjson.dumps({"url": "cellar://boxes/old", "host": "h"}))
    with pytest.raises(ClawError, match="no storage for cellar:// is installed"):
        run_folder(tmp_path)


@pytest.mark.parametrize("url", ["s3://AKIAKEY:hunter2@bucket/prefix", "hunter2hunter2://bucket", "s3://hunter2?/x"])
def test_a_url_with_a_secret_in_it_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ClawError) as caught:
        run_folder(url)
    assert "hunter2" not in str(caught.value) + caught.value.fix
