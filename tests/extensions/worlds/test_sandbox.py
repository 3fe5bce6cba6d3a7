"""The sandbox of an agent's commands, with real processes."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import Limits, Sandbox, SandboxKind, SandboxOver, open_sandbox
from clawctl.extensions.worlds.sandbox.cgroups import make_group, remove_left
from clawctl.extensions.worlds.sandbox.inside import stays_inside
from clawctl.extensions.worlds.sandbox.kinds import read_kind
from clawctl.extensions.worlds.sandbox.probe import ATTEMPTS, attempt_escapes
from clawctl.extensions.worlds.sandbox.tars import files_of, tar_of, without

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: apt-get install bubblewrap")


UNCONFINED = {"kind": "subprocess", "without_isolation": True}
CONFINED = ("bubblewrap", "podman", "docker")
EACH = (*CONFINED, "subprocess")


@lru_cache
def kind_of_name(name: str) -> SandboxKind | str:
    """The kind, or why it cannot be used on this machine."""

    async def try_it(kind: SandboxKind) -> None:
        async with open_sandbox(limits=Limits(kind=kind)) as sandbox:
            await sandbox.run("true")

    try:
        kind = read_kind(UNCONFINED if name == "subprocess" else name)
        asyncio.run(try_it(kind))
    except ClawError as error:
        return error.problem
    return kind


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    chosen = kind_of_name(request.param)
    if isinstance(chosen, str):
        pytest.skip(chosen)
    return chosen


each_kind = pytest.mark.parametrize("kind", EACH, indirect=True)
confined = pytest.mark.parametrize("kind", CONFINED, indirect=True)  # where ending everything ends nothing of the machine


def in_sandbox(use: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None, kind: SandboxKind | None = None) -> None:
    async def play() -> None:
        async with open_sandbox(limits=replace(limits or Limits(), kind=kind)) as sandbox:
            await use(sandbox)

    asyncio.run(play())


@confined
def test_nothing_gets_out(kind: SandboxKind) -> None:
    assert asyncio.run(attempt_escapes(kind)) == dict.fromkeys(ATTEMPTS, False)


@each_kind
def test_a_command_reports_its_end_and_its_output_is_cut_in_the_middle(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("echo one; echo two >&2; exit 3")
        assert (ran.output, ran.code, ran.timed_out) == ("one\ntwo\n", 3, False)
        ran = await sandbox.run("printf begin; head -c 300000 /dev/zero | tr '\\0' x; printf end")
        assert ran.output.startswith("beginx")
        assert ran.output.endswith("xend")
        assert "bytes left out" in ran.output
        assert len(ran.output) < 70_000
        assert (await sandbox.run(["cat"], given=b"a" * 200_000, output=400_000)).output == "a" * 200_000

    in_sandbox(use, kind=kind)


@confined
def test_a_command_that_times_out_is_killed_with_its_children(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("setsid sleep 61 & sleep 62", timeout=0.3)
        assert ran.timed_out
        wait = "until [ $(ls /proc | grep -c '^[0-9]') -le 5 ]; do sleep 0.05; done"  # process 1, bash twice, ls and grep
        assert not (await sandbox.run(wait, timeout=30)).timed_out

    in_sandbox(use, kind=kind)


@each_kind
def test_a_process_in_the_background_does_not_hold_its_command_back(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("echo started; sleep 60 &", timeout=20)
        assert (ran.output, ran.timed_out) == ("started\n", False)

    in_sandbox(use, kind=kind)


@confined
def test_an_agent_that_ends_everything_still_has_its_sandbox(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run("echo kept > file; kill -9 1; kill -9 -1")
        assert (await sandbox.run("cat file")).output == "kept\n"

    in_sandbox(use, kind=kind)


@confined
def test_too_many_files_end_the_processes_that_make_them(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        ran = await sandbox.run("for n in $(seq 100000); do : > $n; done", timeout=30)
        assert ran.stopped == "files"

    in_sandbox(use, Limits(files=500), kind)


@each_kind
def test_the_life_of_a_sandbox_ends_in_time(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxOver):
            await sandbox.run("sleep 60", timeout=60)

    in_sandbox(use, Limits(seconds=2), kind)


@each_kind
def test_a_snapshot_is_taken_after_all_processes_have_ended_and_has_no_way_out(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run(
            "mkdir d; echo text > d/file; ln -s d/file good; ln -s /etc/passwd bad; ln -s ../tests worse; mkfifo pipe; "
            "(setsid bash -c 'while :; do date +%N > late; done' &); until [ -s late ]; do sleep 0.01; done"
        )
        first = await sandbox.snapshot()
        assert sorted(files_of(first)) == ["d/file", "late"]
        assert (await sandbox.run("cat late")).output == files_of(first)["late"].decode()
        await sandbox.run("rm -rf *")
        await sandbox.put(first)
        assert (await sandbox.run("cat good; ls")).output == "text\nd\ngood\nlate\n"

    in_sandbox(use, kind=kind)


@each_kind
def test_files_that_are_fixed_are_where_their_programs_look_for_them(kind: SandboxKind) -> None:
    async def use() -> None:
        fixed = {
            "/opt/clawctl/read.py": b"print(open('/opt/clawctl/word').read()) if 0 else print('ran')",
            "/opt/clawctl/word": b"hi",
        }
        async with open_sandbox(limits=Limits(kind=kind), fixed=fixed) as sandbox:
            assert (await sandbox.run([kind.python(), "-I", "-S", "/opt/clawctl/read.py"])).output == "ran\n"
            assert (await sandbox.run(["/bin/cat", "/opt/clawctl/word"])).output == "hi"
            if kind.is_confined:
                await sandbox.run("rm -f /opt/clawctl/word; echo other > /opt/clawctl/word; mv /opt/clawctl /opt/other")
                assert (await sandbox.run(["/bin/cat", "/opt/clawctl/word"])).output == "hi"

    asyncio.run(use())


@each_kind
def test_nothing_runs_after_a_sandbox_is_closed(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run(
            "for n in 1 2 3; do (setsid bash -c 'exec -a left-by-the-agent sleep 99' >/dev/null 2>&1 &); done; sleep 0.1"
        )

    in_sandbox(use, kind=kind)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"left-by-the-agent" in readable(path)]


def readable(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_processes_without_a_sandbox_must_be_requested_by_name() -> None:
    for given in ("subprocess", {"kind": "subprocess"}, {"kind": "subprocess", "without_isolation": False}):
        with pytest.raises(ClawError, match="can read and change all files of this user") as error:
            read_kind(given)
        assert "without_isolation: true" in error.value.fix
    with pytest.raises(ClawError, match="image"):
        read_kind({**UNCONFINED, "image": "python"})


def test_processes_without_a_sandbox_promise_nothing_and_are_not_attacked() -> None:
    kind = read_kind(UNCONFINED)

    async def see() -> None:
        async with open_sandbox(limits=Limits(kind=kind), see=("/usr",)):
            raise AssertionError

    with pytest.raises(ClawError, match="limit what the agent can read"):
        asyncio.run(see())
    with pytest.raises(ValueError, match="confines nothing"):
        asyncio.run(attempt_escapes(kind))


@pytest.mark.parametrize("given", ["podmann", {"kind": "podman", "images": "x"}, {"kind": "docker", "image": 3}, {"image": "x"}])
def test_a_kind_of_sandbox_that_there_is_not_is_a_sentence(given: str | dict[str, str]) -> None:
    with pytest.raises(ClawError, match="the option sandbox"):
        read_kind(given)


@each_kind
def test_a_tar_that_leads_out_of_the_folder_is_refused(kind: SandboxKind) -> None:
    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(ValueError, match="points outside of the folder"):
            await sandbox.put(tar_of({"../tmp/file": b""}))

    in_sandbox(use, kind=kind)


def test_a_link_stays_inside_only_if_no_other_link_can_lead_it_out() -> None:
    assert stays_inside("/app", "/app/a/b", "../../c")
    assert stays_inside("/app", "/app", "a/b")
    assert stays_inside("/app", "/app/a", "/app/b")
    for folder, target in (("/app", ".."), ("/app/a", "../../b"), ("/app", "a/../../b"), ("/app", "/app/../b"), ("/app", "/appx")):
        assert not stays_inside("/app", folder, target), target


def test_a_tar_without_a_folder_has_nothing_of_it() -> None:
    assert files_of(without(tar_of({"a/b": b"1", "a/c/d": b"2", "e": b"3"}), {"a"})) == {"e": b"3"}


def groups() -> set[str]:
    return {path.name for path in Path("/sys/fs/cgroup").glob("*/clawctl-*")}


def test_no_control_group_is_left_behind() -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.run("true")

    in_sandbox(use)
    assert not {name for name in groups() if name.startswith(f"clawctl-{os.getpid()}-")}


def test_the_group_of_a_killed_worker_is_removed_by_the_next_one() -> None:
    made = make_group(1 << 26, 8)
    if made is None:
        pytest.skip("no control group can be made here")
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = [folder.with_name(f"clawctl-{ended.pid}-0123456789ab") for folder in made.folders]
    for folder in left:
        folder.mkdir()
    remove_left({folder.parent for folder in left}, older_s=-1)
    assert all(folder.exists() for folder in made.folders)
    made.remove()
    assert not any(folder.exists() for folder in left)
