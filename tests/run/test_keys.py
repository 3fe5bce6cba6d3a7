import stat
import subprocess
import time
from pathlib import Path

import orjson
import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from clawctl.run.endpoint import own_api_key, server_api_key, where_the_key_is
from clawctl.run.keys import KeyRing, add_key, list_keys, remove_key, rotate_key
from tests import forked
from tests.waiting import until


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return open_run(tmp_path / "run")


def clawctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "ä", "-x", "x" * 65, "a\n", "default", "import", "custom", "Import"])
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(run: RunDir, name: str) -> None:
    with pytest.raises(ClawError) as refused:
        add_key(run, name)
    assert refused.value.exit_code == 2
    assert not (run.root / "api_keys.json").exists()


def test_each_key_opens_as_its_own_name_and_no_other_opens(run: RunDir) -> None:
    anna, ben = add_key(run, "anna"), add_key(run, "ben")
    ring = KeyRing(run, "own")
    assert [ring.owner(key) for key in (anna, ben, "own", "wrong", "", anna[:-1])] == ["anna", "ben", "default", None, None, None]


def test_no_file_of_the_run_contains_a_key(run: RunDir) -> None:
    key = add_key(run, "anna")
    path = run.root / "api_keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stored = orjson.loads(path.read_bytes())["keys"][0]
    assert set(stored) == {"name", "salt", "digest", "created_at", "policy", "teaches_shared", "names_users"}
    assert all(key.encode() not in file.read_bytes() for file in run.root.rglob("*") if file.is_file())
    again = add_key(open_run(run.root), "ben")
    assert len(key) > 32
    assert key != again
    assert len({key.salt for key in list_keys(run)}) == 2


def test_a_key_whose_name_means_something_else_opens_nothing_and_can_be_removed(
    run: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    key, other = add_key(run, "anna"), add_key(run, "ben")
    path = run.root / "api_keys.json"
    keys = read_sealed(path.read_bytes())
    keys["keys"][0]["name"] = "import"
    path.write_bytes(orjson.dumps(keys))
    ring = KeyRing(run, "own")
    assert [ring.owner(key) for key in (key, other)] == [None, "ben"]
    assert "the key named 'import' is not accepted" in caplog.text
    remove_key(run, "import")
    assert [key.name for key in list_keys(run)] == ["ben"]


def test_a_name_has_one_key_and_a_removed_one_is_gone(run: RunDir) -> None:
    key = add_key(run, "anna")
    with pytest.raises(ClawError, match="a key named 'anna' already exists"):
        add_key(run, "anna")
    remove_key(run, "anna")
    assert KeyRing(run, "own").owner(key) is None
    with pytest.raises(ClawError, match="there is no key named 'anna'"):
        remove_key(run, "anna")


def test_a_running_key_ring_sees_added_and_removed_keys(run: RunDir) -> None:
    ring = KeyRing(run, "own")
    key = add_key(run, "anna")
    time.sleep(1.1)
    assert ring.owner(key) == "anna"
    remove_key(run, "anna")
    time.sleep(1.1)
    assert ring.owner(key) is None
    (run.root / "api_keys.json").write_text("{")
    time.sleep(1.1)
    assert (ring.owner(key), ring.owner("own")) == (None, "default")


def test_a_broken_file_is_reported_with_its_cure(run: RunDir) -> None:
    (run.root / "api_keys.json").write_text('{"keys": [{"name": 1}]}')
    with pytest.raises(ClawError, match="cannot be read"):
        list_keys(run)


def test_the_command_shows_a_key_once(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    added = clawctl("keys", "create", "anna", "--run", run)
    key = added.stdout.strip()
    assert KeyRing(open_run(Path(run)), "own").owner(key) == "anna"
    listed = clawctl("keys", "list", "--run", run)
    assert "anna" in listed.stdout
    assert key not in listed.stdout + listed.stderr
    assert [row["name"] for row in orjson.loads(clawctl("keys", "list", "--run", run, "--json").stdout)["keys"]] == ["anna"]
    twice = clawctl("keys", "add", "anna", "--run", run)
    assert (twice.returncode, twice.stdout) == (2, "")
    assert clawctl("keys", "add", "anna", "--policy", "new", "--run", run).returncode == 2
    assert not (Path(run) / "policies" / "new").exists(), "a refused command changed something"
    assert clawctl("keys", "remove", "anna", "--run", run).returncode == 0
    assert clawctl("keys", "remove", "anna", "--run", run).returncode == 2


def test_a_rotated_key_replaces_the_old_one_and_both_its_end_and_a_removal_are_reported_once(run: RunDir) -> None:
    old = add_key(run, "anna")
    ring = KeyRing(run, "own")
    new = rotate_key(run, "anna")
    until(lambda: ring.owner(new) == "anna")
    assert ring.owner(old) is None
    assert (ring.pop_revoked(), ring.pop_revoked()) == ({"anna"}, set())
    remove_key(run, "anna")
    until(lambda: ring.pop_revoked() == {"anna"})
    with pytest.raises(ClawError, match="no key named"):
        rotate_key(run, "anna")


def test_a_file_damaged_by_an_edit_accepts_no_named_key_and_ends_no_running_request(run: RunDir) -> None:
    keys = {name: add_key(run, name) for name in ("anna", "bert")}
    ring, whole = KeyRing(run, "own"), run.api_keys.read_bytes()
    run.api_keys.write_bytes(whole[:-20])
    until(lambda: ring.owner(keys["anna"]) is None)
    assert ring.pop_revoked() == set()
    run.api_keys.write_bytes(whole)
    until(lambda: ring.owner(keys["anna"]) == "anna")
    assert ring.pop_revoked() == set()
    run.api_keys.write_bytes(whole[:-21])
    until(lambda: ring.owner(keys["anna"]) is None)
    run.api_keys.write_bytes(whole)
    remove_key(run, "bert")
    until(lambda: ring.pop_revoked() == {"bert"})


def test_only_serve_creates_the_key_of_a_run(run: RunDir) -> None:
    with pytest.raises(ClawError, match="is not known here"):
        own_api_key(run, Recipe())
    assert not run.api_key.exists()
    key, is_new = server_api_key(run, Recipe())
    assert (is_new, own_api_key(run, Recipe()), server_api_key(run, Recipe())) == (True, key, (key, False))
    assert where_the_key_is(run, key) == "it is in RUN/api_key"
    assert "CLAWCTL_API_KEY" in where_the_key_is(run, "another")
